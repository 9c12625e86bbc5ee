"""
What declared aggregate views must agree on, among each other and with the rest.

A READ event goes where the aggregate's streamed events go: what decides that has to be
something that a view can tell.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from towpath.schemas import topics
from towpath.settings.model import Settings
from towpath.settings.outbox import AggregateView
from towpath.settings.syntax import PlacedIn, parse_placement


def views_agree(settings: Settings) -> Iterator[str]:
    """List what is wrong with views and names."""
    views = settings.relay.outbox.view
    yield from _types_agree(views)
    tables = settings.capture.names
    for view in views:
        if view.view in tables:
            yield (
                f"relay.outbox.view: {view.view} is one of source.tables, "
                "which are tables: leave one of them out"
            )
        if view.view == settings.relay.outbox.table:
            yield (
                f"relay.outbox.view: {view.view} is the outbox (relay.outbox.table): "
                "name a view that gives the aggregates' state"
            )
        if view.collection in tables:
            yield (
                f"source.tables: {view.collection} is what signals call the view of "
                f"{view.aggregate_type} (relay.outbox.view): rename one of them"
            )


def _types_agree(views: Sequence[AggregateView]) -> Iterator[str]:
    """List what the views of one type contradict each other in."""
    for collection, count in Counter(view.collection for view in views).items():
        if count > 1:
            yield (
                f"relay.outbox.view: {collection} is declared more than once: "
                "give further views of a type a name"
            )
    forms = {(view.aggregate_type, view.id_form) for view in views}
    for kind, count in Counter(kind for kind, _ in forms).items():
        if count > 1:
            yield f"relay.outbox.view: the views of {kind} differ in id_form"


def views_have_topics(settings: Settings) -> Iterator[str]:
    """List what a view cannot tell, and the topic or partition asks for."""
    outbox = settings.relay.outbox
    if not outbox.view:
        return
    if outbox.route_by not in {"", outbox.columns.aggregate_type}:
        yield (
            f"relay.outbox.route_by: {outbox.route_by} is no column of a view "
            "(relay.outbox.view): route by the aggregate type, or declare no view"
        )
    for text in outbox.placements:
        if parse_placement(text).place is PlacedIn.PARTITION:
            yield (
                f"relay.outbox.placements: {text} asks for what no view has "
                "(relay.outbox.view): leave one of them out"
            )
    if outbox.route_regex:
        return
    for view in outbox.view:
        name = topics.outbox_topic(outbox.topic, view.aggregate_type)
        if not topics.is_legal_topic(name):
            yield (
                f"relay.outbox.view: {view.aggregate_type} makes no topic name that "
                "Kafka takes: letters, digits, dots, dashes and underscores"
            )

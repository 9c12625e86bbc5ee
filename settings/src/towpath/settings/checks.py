"""
Checks of the whole configuration, without asking any server.

Each check says which keys it reads; it is left out while one of them is a mistake
itself, so that no mistake is reported twice.

``[kafka.client]``: no setting of TLS and login may be without effect.

Row changes: sinks read plain JSON, and values as ``[relay.rows]`` writes them. They
know a value by its column's type alone, so a numeric that comes as bytes, or a time
that comes as a number, would be set aside record by record, or kept as something else
than the source has. Other readers may have any form, from a relay whose file declares
no sinks of tables.

Aggregate views must agree among each other and with the rest: a READ event goes where
the aggregate's streamed events go, so the columns that decide it must be columns of the
view.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from towpath.schemas import headers, topics
from towpath.settings.addresses import addresses
from towpath.settings.brokers import PROTOCOLS, unused, without_counterpart
from towpath.settings.mistakes import did_you_mean
from towpath.settings.model import Settings
from towpath.settings.outbox import AggregateView
from towpath.settings.relay import FirstStart, OnGap
from towpath.settings.route_checks import routes_agree, routes_have_tables
from towpath.settings.routes import RouteKind
from towpath.settings.rows import (
    DEBEZIUM_ROWS,
    Binaries,
    Decimals,
    HstoreForm,
    Intervals,
    RecordFormat,
    Times,
    UnknownTypes,
)
from towpath.settings.shape import Place
from towpath.settings.syntax import (
    ROUTED_VALUE,
    PlacedIn,
    parse_placement,
    unknown_groups,
)
from towpath.settings.tables import matches


def clients_are_secure(settings: Settings) -> Iterator[str]:
    """List what would leave a client without the TLS or the login that is asked for."""
    kafka = settings.kafka
    if kafka.protocol not in PROTOCOLS:
        nearest = did_you_mean(kafka.protocol, PROTOCOLS)
        yield (
            f"kafka.client.security.protocol: {kafka.protocol!r} is none of "
            f"{', '.join(PROTOCOLS)}{nearest}"
        )
        return
    for name in unused(kafka):
        logs_in = kafka.protocol.startswith("SASL") or "sasl" in name
        wanted = "SASL_SSL" if logs_in else "SSL"
        yield (
            f"kafka.client.{name}: has no effect with security.protocol = "
            f"{kafka.protocol}: set security.protocol to {wanted}, or leave it out"
        )


def engine_has_counterparts(settings: Settings) -> Iterator[str]:
    """List what the client of Spark, which reads for the sinks, cannot be told."""
    if settings.sink and settings.kafka.protocol in PROTOCOLS:
        for name in without_counterpart(settings.kafka):
            yield (
                f"kafka.client: {name} has no counterpart in Spark's client, which "
                "reads for the sinks: leave it out (docs/configuration.md)"
            )


# A placeholder stands where ``unchanged`` says so, hence is no value; what is left out
# or renamed is announced so. Plain JSON has base64 for bytes too.
_READABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "format": (RecordFormat.JSON,),
    "decimals": (Decimals.STRING,),
    "times": (Times.ISO,),
    "intervals": (Intervals.STRING,),
    "binaries": (Binaries.BYTES, Binaries.BASE64),
    "hstore": (HstoreForm.JSON,),
    "unknown_types": (UnknownTypes.TEXT, UnknownTypes.OMIT),
}


def rows_are_readable(settings: Settings) -> Iterator[str]:
    """List the forms of row values that the file's sinks of tables cannot read."""
    readers = [
        sink.name
        for sink in settings.sink
        if any(route.kind is RouteKind.TABLE for route in sink.route)
    ]
    if not readers:
        return
    for key, readable in _READABLE.items():
        form = getattr(settings.relay.rows, key)
        if form not in readable:
            cure = " or ".join(f'"{each}"' for each in readable)
            yield (
                f"relay.rows.{key}: sinks of tables ({', '.join(readers)}) cannot read "
                f'"{form}"{_origin(settings, key, form)}: set it to {cure}'
            )


def _origin(settings: Settings, key: str, form: str) -> str:
    """Say where a form comes from that the file may not name."""
    preset = settings.relay.preset
    is_preset = preset == "debezium" and DEBEZIUM_ROWS.get(key) == form
    return f', which relay.preset = "{preset}" gives' if is_preset else ""


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


Check = Callable[[Settings], Iterator[str]]

# Beside those that every event has: what tells records apart after a restart.
_OUR_HEADERS: Final = frozenset(
    {headers.POSITION, headers.SNAPSHOT, headers.PARKED, headers.RELEASED}
)


def contradictions(settings: Settings, wrong: Iterable[Place] = ()) -> list[str]:
    """
    List what contradicts.

    Args:
        settings: What was read; where a key was wrong, its default.
        wrong: Where keys were wrong.
    """
    spoiled = [".".join(s for s in place if isinstance(s, str)) for place in wrong]
    return [
        mistake
        for reads, check in _CHECKS
        if not any(_touches(key, place) for key in reads for place in spoiled)
        for mistake in check(settings)
    ]


def _touches(key: str, place: str) -> bool:
    return f"{place}.".startswith(f"{key}.") or f"{key}.".startswith(f"{place}.")


def _keys_of_captured_tables(settings: Settings) -> Iterator[str]:
    for table in settings.relay.rows.key_columns:
        yield from _not_captured(f"relay.rows.key_columns.{table}", table, settings)


def _not_captured(key: str, table: str, settings: Settings) -> Iterator[str]:
    if not settings.capture.takes(table):
        nearest = did_you_mean(table, settings.capture.entries)
        yield f"{key}: not one of source.tables{nearest}"


def _selects_of_captured_tables(settings: Settings) -> Iterator[str]:
    selects = [each.table for each in settings.relay.snapshot.select]
    for table, count in Counter(selects).items():
        key = f"relay.snapshot.select: {table}"
        yield from _not_captured(key, table, settings)
        if count > 1:
            yield f"{key} is given more than once"


def _gaps_are_filled(settings: Settings) -> Iterator[str]:
    is_needed = settings.relay.snapshot.mode is FirstStart.WHEN_NEEDED
    if is_needed and settings.relay.on_gap is OnGap.HALT:
        yield (
            'relay.on_gap: "halt" stops where relay.snapshot.mode = "when_needed" '
            "would take snapshots: leave one of them out"
        )


def _outbox_is_no_captured_table(settings: Settings) -> Iterator[str]:
    table = settings.relay.outbox.table
    if table in settings.capture.names:
        yield (
            f"source.tables: {table} is the outbox (relay.outbox.table), "
            "whose rows become events: leave it out"
        )


def _tables_once(settings: Settings) -> Iterator[str]:
    tables = settings.database.tables
    for table in sorted({t for t in tables if tables.count(t) > 1}):
        yield f"source.tables: {table} is named more than once"


def _names_are_captured(settings: Settings) -> Iterator[str]:
    source = settings.database
    for name in settings.capture.names:
        for entry in source.exclude_tables:
            if matches(entry, name):
                yield (
                    f"source.exclude_tables: {entry} is {name}, which source.tables "
                    "names: leave one of them out"
                )


def _two_publications(settings: Settings) -> Iterator[str]:
    source = settings.database
    if source.publication == source.outbox_publication:
        yield (
            "source.outbox_publication: must differ from source.publication: "
            "the outbox's sends inserts only"
        )


def _thresholds_rise(settings: Settings) -> Iterator[str]:
    relay = settings.relay
    if relay.retained_warning_bytes > relay.retained_critical_bytes:
        yield (
            "relay.retained_critical_bytes: must be at least "
            f"relay.retained_warning_bytes, which is {relay.retained_warning_bytes}"
        )


def _route_is_whole(settings: Settings) -> Iterator[str]:
    outbox = settings.relay.outbox
    if outbox.route_replacement and not outbox.route_regex:
        yield "relay.outbox.route_replacement: needs relay.outbox.route_regex"
        return
    for group in unknown_groups(outbox.route_regex, outbox.route_replacement):
        yield (
            f"relay.outbox.route_replacement: {group} is no group of "
            "relay.outbox.route_regex"
        )
    if outbox.route_regex and ROUTED_VALUE not in outbox.topic:
        yield f"relay.outbox.topic: lacks {ROUTED_VALUE}, so route_regex has no use"


def _placements_agree(settings: Settings) -> Iterator[str]:
    outbox = settings.relay.outbox
    placements = [parse_placement(text) for text in outbox.placements]
    taken = Counter(
        (each.place, "" if each.place is PlacedIn.PARTITION else each.name)
        for each in placements
    )
    for (place, name), count in taken.items():
        if count > 1:
            which = f"{place} {name}".strip()
            yield f"relay.outbox.placements: {which} is given more than once"
    standing = outbox.columns.standing_headers
    for each in placements:
        if each.place is PlacedIn.ENVELOPE and each.name == "payload":
            yield "relay.outbox.placements: the payload itself is payload in envelopes"
        is_ours = each.name in standing or each.name in _OUR_HEADERS
        is_header = each.place is PlacedIn.HEADER
        if is_header and is_ours and standing.get(each.name) != each.column:
            yield f"relay.outbox.placements: header {each.name} is the relay's own"


def _cloudevents_have_types(settings: Settings) -> Iterator[str]:
    outbox = settings.relay.outbox
    if outbox.cloudevents and not outbox.columns.type:
        yield "relay.outbox.cloudevents: needs relay.outbox.columns.type"


def _one_of_a_kind(settings: Settings) -> Iterator[str]:
    messages = settings.relay.messages
    if messages.include and messages.exclude:
        yield "relay.messages: include and exclude exclude each other"


_CHECKS: Final[tuple[tuple[tuple[str, ...], Check], ...]] = (
    (
        ("source.tables", "source.exclude_tables", "relay.rows.key_columns"),
        _keys_of_captured_tables,
    ),
    (("source.tables", "relay.outbox.table"), _outbox_is_no_captured_table),
    (("source.tables",), _tables_once),
    (("source.tables", "source.exclude_tables"), _names_are_captured),
    (
        ("source.tables", "source.exclude_tables", "relay.snapshot"),
        _selects_of_captured_tables,
    ),
    (("relay.on_gap", "relay.snapshot.mode"), _gaps_are_filled),
    (("source.publication", "source.outbox_publication"), _two_publications),
    (
        ("relay.retained_warning_bytes", "relay.retained_critical_bytes"),
        _thresholds_rise,
    ),
    (("relay.outbox",), _route_is_whole),
    (("relay.outbox",), _placements_agree),
    (("relay.outbox",), _cloudevents_have_types),
    (("relay.outbox", "source.tables"), views_agree),
    (("relay.outbox",), views_have_topics),
    (("sink",), routes_agree),
    (
        ("sink", "source.tables", "source.exclude_tables", "source.prefix"),
        routes_have_tables,
    ),
    (("sink", "relay.preset", "relay.rows"), rows_are_readable),
    (("relay.messages",), _one_of_a_kind),
    (("kafka.client",), clients_are_secure),
    (("kafka.client", "sink"), engine_has_counterparts),
    (
        ("source.dsn", "kafka", "registry", "relay.rows.format", "sink"),
        addresses,
    ),
)

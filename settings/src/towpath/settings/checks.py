"""
What sections must agree on, checked without asking any server.

Each check says which keys it reads; it is left out while one of them is a mistake
itself, so that no mistake is told twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from towpath.schemas import headers
from towpath.settings.addresses import addresses
from towpath.settings.client_checks import (
    clients_are_secure,
    engine_has_counterparts,
)
from towpath.settings.mistakes import did_you_mean
from towpath.settings.model import Settings
from towpath.settings.relay import OnGap
from towpath.settings.route_checks import routes_agree, routes_have_tables
from towpath.settings.row_checks import rows_are_readable
from towpath.settings.shape import Place
from towpath.settings.snapshot import FirstStart
from towpath.settings.syntax import (
    ROUTED_VALUE,
    PlacedIn,
    parse_placement,
    unknown_groups,
)
from towpath.settings.tables import matches
from towpath.settings.view_checks import views_agree, views_have_topics

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

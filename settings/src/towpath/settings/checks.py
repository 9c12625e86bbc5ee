"""
Checks of the whole configuration that need no server.

Each check declares the keys that it reads. A check is skipped if one of its keys is
itself wrong, so that no mistake is reported twice.

``[kafka.client]``: every TLS and login setting must have an effect.

Row changes: ``[relay.rows]`` must choose JSON, and forms that sinks can read. Sinks
parse a value by its column's type, so a numeric sent as bytes, or a time sent as a
number, would turn each record into a dead letter or store a value other than the
source's. A relay whose file declares no sink with a table route may use any form.

Aggregate views must be consistent with each other and with the rest. A READ event goes
to the topic of the aggregate's streamed events, so the view must have the columns that
choose the topic.

Topics: a name that the file determines must not be too long for Kafka.

Addresses: only the form is checked; no server is contacted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from towpath.schemas import headers, topics
from towpath.schemas.failure import ConfigurationError
from towpath.schemas.table_name import TableName
from towpath.settings.brokers import PROTOCOLS, unused, without_counterpart
from towpath.settings.mistakes import did_you_mean
from towpath.settings.model import Settings
from towpath.settings.outbox import AggregateView, rewriting
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
from towpath.settings.section import KeyPath
from towpath.settings.sink import CatalogKind, Sink, SinkKind
from towpath.settings.syntax import (
    ROUTED_VALUE,
    PlacedIn,
    parse_placement,
)
from towpath.settings.tables import matches


def clients_are_secure(settings: Settings) -> Iterator[str]:
    """List settings that leave a client without the requested TLS or login."""
    kafka = settings.kafka
    if kafka.protocol not in PROTOCOLS:
        nearest = did_you_mean(kafka.protocol, PROTOCOLS)
        yield (
            f"kafka.client.security.protocol: {kafka.protocol!r} is not one of "
            f"{', '.join(PROTOCOLS)}{nearest}"
        )
        return
    for name in unused(kafka):
        logs_in = kafka.protocol.startswith("SASL") or "sasl" in name
        wanted = "SASL_SSL" if logs_in else "SSL"
        yield (
            f"kafka.client.{name}: has no effect with security.protocol = "
            f"{kafka.protocol}: set security.protocol to {wanted}, or remove this key"
        )


def engine_has_counterparts(settings: Settings) -> Iterator[str]:
    """List settings that Spark's client, which lists offsets, does not have."""
    if settings.sink and settings.kafka.protocol in PROTOCOLS:
        for name, remedy in without_counterpart(settings.kafka):
            yield (
                f"kafka.client: {name} has no counterpart in Spark's client, which "
                f"lists the sinks' offsets: {remedy} (docs/configuration.md)"
            )


# Placeholders are readable: the header ``unchanged`` lists their columns. Omitted and
# renamed columns are, too: the relay announces them. ``bytes`` is base64 in JSON.
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
    """List the value forms that sinks with table routes cannot read."""
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
            remedy = " or ".join(f'"{each}"' for each in readable)
            yield (
                f"relay.rows.{key}: sinks of tables ({', '.join(readers)}) cannot read "
                f'"{form}"{_origin(settings, key, form)}: set it to {remedy}'
            )


def _origin(settings: Settings, key: str, form: str) -> str:
    """Name the preset if a form comes from it rather than from the file."""
    preset = settings.relay.preset
    is_preset = preset == "debezium" and DEBEZIUM_ROWS.get(key) == form
    return f', which relay.preset = "{preset}" sets' if is_preset else ""


def views_agree(settings: Settings) -> Iterator[str]:
    """List conflicts between views, tables and the outbox."""
    views = settings.relay.outbox.view
    yield from _types_agree(views)
    tables = settings.capture.names
    for view in views:
        if view.view in tables:
            yield (
                f"relay.outbox.view: {view.view} is one of source.tables, "
                "which cannot be views: leave one of them out"
            )
        if view.view == settings.relay.outbox.table:
            yield (
                f"relay.outbox.view: {view.view} is the outbox (relay.outbox.table): "
                "name a view that returns the aggregates' state"
            )
        if view.collection in tables:
            yield (
                f"source.tables: {view.collection} is also the name by which signals "
                f"request {view.aggregate_type}'s view (relay.outbox.view): rename one "
                "of them"
            )


def _types_agree(views: Sequence[AggregateView]) -> Iterator[str]:
    """List contradictions between the views of one type."""
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
    """List missing columns that topics or partitions need, and illegal topic names."""
    outbox = settings.relay.outbox
    if not outbox.view:
        return
    if outbox.route_by not in {"", outbox.columns.aggregate_type}:
        yield (
            f"relay.outbox.route_by: {outbox.route_by} is not a column of views "
            "(relay.outbox.view): route by the aggregate type, or declare no view"
        )
    for text in outbox.placements:
        if parse_placement(text).place is PlacedIn.PARTITION:
            yield (
                f"relay.outbox.placements: {text} needs a column that no view has "
                "(relay.outbox.view): leave one of them out"
            )
    if outbox.route_regex:
        return
    for view in outbox.view:
        name = topics.outbox_topic(outbox.topic, view.aggregate_type)
        if not topics.is_legal_topic(name):
            yield (
                f"relay.outbox.view: {view.aggregate_type} produces a topic name that "
                "Kafka refuses: use letters, digits, dots, dashes and underscores"
            )


def topics_are_short(settings: Settings) -> Iterator[str]:
    """List topics whose names are too long; report an overlong prefix only once."""
    prefix, signals = settings.database.prefix, settings.signal_topic
    # The longest of the relay's own names.
    if too_long := _too_long(topics.heartbeat_topic(prefix)):
        yield f"source.prefix: the topic of heartbeats {too_long}: shorten the prefix"
        return
    if too_long := _too_long(signals):
        yield (
            f"relay.snapshot.signal_topic: the topic of signals {too_long}: "
            "shorten it, or source.prefix"
        )
    for name in settings.capture.names:
        if too_long := _too_long(topics.table_topic(prefix, TableName.parse(name))):
            yield (
                f"source.tables: the topic of the table {name} {too_long}: "
                "shorten source.prefix, or leave the table out"
            )
    for sink in settings.sink:
        # The topic with the copies of its state has a name of the same length.
        if too_long := _too_long(topics.dead_letter_topic(prefix, sink.name)):
            yield (
                f"sink.{sink.name}.name: the topic of its dead letters {too_long}: "
                "give the sink a shorter name"
            )


def _too_long(topic: str) -> str:
    """Return why a topic's name is too long for Kafka; empty if it is not."""
    if len(topic) <= topics.MAX_TOPIC_LENGTH:
        return ""
    return f"has {len(topic)} characters; Kafka allows {topics.MAX_TOPIC_LENGTH}"


_BROKER: Final = re.compile(r"[^\s,:/]+:\d{1,5}|\[[0-9A-Fa-f:]+\]:\d{1,5}")
# https://www.postgresql.org/docs/current/libpq-connect.html, "Connection Strings".
_POSTGRES: Final = ("postgresql", "postgres")
_PAIR: Final = re.compile(r"\s*\w+\s*=")
_WEB: Final = ("http", "https")
_SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    SinkKind.CACHE: ("redis", "rediss", "unix"),
    SinkKind.SEARCH: _WEB,
    CatalogKind.JDBC: _POSTGRES,
    CatalogKind.REST: _WEB,
}


_NOT_LIBPQ: Final = (
    "must be postgresql://user@host:port/database, or pairs such as host=... dbname=..."
)


def addresses(settings: Settings) -> Iterator[str]:
    """List addresses that are malformed for their kind of server."""
    dsn = settings.database.dsn.strip()
    if not dsn:
        yield "source.dsn: must not be empty"
    elif not _is_libpq(dsn):
        yield f"source.dsn: {_NOT_LIBPQ}"
    for broker in settings.kafka.bootstrap_servers.split(","):
        if not _BROKER.fullmatch(broker.strip()):
            yield f"kafka.bootstrap_servers: must be host:port, not {broker.strip()!r}"
    yield from _registry(settings)
    for sink in settings.sink:
        yield from _target(sink)


def _is_libpq(dsn: str) -> bool:
    if "://" in dsn.split("=", 1)[0]:
        return dsn.partition("://")[0] in _POSTGRES
    return _PAIR.match(dsn) is not None


def _registry(settings: Settings) -> Iterator[str]:
    url = settings.registry.url
    try:
        if url and urlsplit(url).scheme not in _WEB:
            yield "registry.url: must begin with http:// or https://"
    except ValueError as error:
        yield f"registry.url: malformed: {error}"
    if not url and settings.relay.rows.format is RecordFormat.AVRO:
        yield 'registry.url: missing: relay.rows.format = "avro" needs a registry'


def _target(sink: Sink) -> Iterator[str]:
    is_warehouse = sink.kind == SinkKind.WAREHOUSE
    taken = _SCHEMES.get(sink.warehouse.catalog if is_warehouse else sink.kind, ())
    # Not urlsplit, which raises for malformed addresses, such as an unclosed bracket.
    scheme = sink.url.partition("://")[0] if "://" in sink.url else ""
    if taken and scheme not in taken:
        expected = " or ".join(f"{each}://" for each in taken)
        yield f"sink.{sink.name}.url: must begin with {expected}"
    if sink.kind == SinkKind.POSTGRES and not _is_libpq(sink.url.strip()):
        yield f"sink.{sink.name}.url: {_NOT_LIBPQ}"


Check = Callable[[Settings], Iterator[str]]

# Besides the headers of every event: those that identify records after a restart.
_OUR_HEADERS: Final = frozenset(
    {headers.POSITION, headers.SNAPSHOT, headers.PARKED, headers.RELEASED}
)


def contradictions(settings: Settings, wrong: Iterable[KeyPath] = ()) -> list[str]:
    """
    List the contradictions between keys of the file.

    Args:
        settings: The parsed file; a wrong key has its default.
        wrong: The paths of the wrong keys.
    """
    wrong_keys = [".".join(s for s in place if isinstance(s, str)) for place in wrong]
    return [
        mistake
        for reads, check in _CHECKS
        if not any(_overlaps(key, place) for key in reads for place in wrong_keys)
        for mistake in check(settings)
    ]


def _overlaps(key: str, place: str) -> bool:
    return f"{place}.".startswith(f"{key}.") or f"{key}.".startswith(f"{place}.")


def _keys_of_captured_tables(settings: Settings) -> Iterator[str]:
    for table in settings.relay.rows.key_columns:
        yield from _not_captured(f"relay.rows.key_columns.{table}", table, settings)


def _not_captured(key: str, table: str, settings: Settings) -> Iterator[str]:
    if not settings.capture.includes(table):
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


def _outbox_is_not_captured(settings: Settings) -> Iterator[str]:
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
                    f"source.exclude_tables: {entry} matches {name}, which "
                    "source.tables names: leave one of them out"
                )


def _two_publications(settings: Settings) -> Iterator[str]:
    source = settings.database
    if source.publication == source.outbox_publication:
        yield (
            "source.outbox_publication: must differ from source.publication: "
            "the outbox publication sends no deletes"
        )


def _thresholds_rise(settings: Settings) -> Iterator[str]:
    relay = settings.relay
    if relay.retained_warning_bytes > relay.retained_critical_bytes:
        yield (
            "relay.retained_critical_bytes: must be at least "
            f"relay.retained_warning_bytes, which is {relay.retained_warning_bytes}"
        )


def _route_is_complete(settings: Settings) -> Iterator[str]:
    outbox = settings.relay.outbox
    if outbox.route_replacement and not outbox.route_regex:
        yield "relay.outbox.route_replacement: needs relay.outbox.route_regex"
        return
    try:
        rewriting(outbox.route_regex, outbox.route_replacement)
    except ConfigurationError as error:
        yield from error.mistakes
    if outbox.route_regex and ROUTED_VALUE not in outbox.topic:
        yield f"relay.outbox.topic: lacks {ROUTED_VALUE}, so route_regex has no effect"


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
    standard = outbox.columns.standard_headers
    for each in placements:
        if each.place is PlacedIn.ENVELOPE and each.name == "payload":
            yield (
                "relay.outbox.placements: an envelope already has the event's payload: "
                "place the column under another name"
            )
        is_ours = each.name in standard or each.name in _OUR_HEADERS
        is_header = each.place is PlacedIn.HEADER
        if is_header and is_ours and standard.get(each.name) != each.column:
            yield f"relay.outbox.placements: header {each.name} is the relay's own"


def _cloudevents_have_types(settings: Settings) -> Iterator[str]:
    outbox = settings.relay.outbox
    if outbox.cloudevents and not outbox.columns.type:
        yield "relay.outbox.cloudevents: needs relay.outbox.columns.type"


def _messages_have_one_filter(settings: Settings) -> Iterator[str]:
    messages = settings.relay.messages
    if messages.include and messages.exclude:
        yield "relay.messages: include and exclude cannot be combined"


_CHECKS: Final[tuple[tuple[tuple[str, ...], Check], ...]] = (
    (
        ("source.tables", "source.exclude_tables", "relay.rows.key_columns"),
        _keys_of_captured_tables,
    ),
    (("source.tables", "relay.outbox.table"), _outbox_is_not_captured),
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
    (("relay.outbox",), _route_is_complete),
    (("relay.outbox",), _placements_agree),
    (("relay.outbox",), _cloudevents_have_types),
    (("relay.outbox", "source.tables"), views_agree),
    (("relay.outbox",), views_have_topics),
    (
        ("source.prefix", "source.tables", "relay.snapshot", "sink"),
        topics_are_short,
    ),
    (("sink",), routes_agree),
    (
        ("sink", "source.tables", "source.exclude_tables", "source.prefix"),
        routes_have_tables,
    ),
    (("sink", "relay.preset", "relay.rows"), rows_are_readable),
    (("relay.messages",), _messages_have_one_filter),
    (("kafka.client",), clients_are_secure),
    (("kafka.client", "sink"), engine_has_counterparts),
    (
        ("source.dsn", "kafka", "registry", "relay.rows.format", "sink"),
        addresses,
    ),
)

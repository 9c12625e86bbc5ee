"""
The columns of an outbox table, the topic of an event, and its trace context.

A picker returns the eight parts of an event from a row, in a fixed order, with a
``bytea`` key or payload as bytes. For text columns, the picker is one ``itemgetter``,
because it runs for every row. Hot path.

The topic is a value of the row, rewritten and inserted into a template.

The writer's W3C trace context is passed on, or continued by a span of the relay::

    version-trace id-parent id-flags        00-<32 hex>-<16 hex>-<2 hex>

The span's id is derived from the record's position, so a row that is streamed again
gets the same id. An invalid trace context is passed on unchanged; so is ``tracestate``,
one of the row's own headers.
"""

import binascii
import hashlib
import re
from collections.abc import Callable, Container, Iterable
from operator import itemgetter
from typing import Final

from towpath.relay.errors import NotPreparedError, UnroutableError
from towpath.relay.wal.messages import Relation, Row, Value
from towpath.schemas import topics
from towpath.settings.outbox import Outbox, OutboxColumns, rewriting

ILLEGAL_TOPIC: Final = "the value that names the topic gives a name that Kafka refuses"
RESERVED_TOPIC: Final = (
    "the value that names the topic gives a topic that Kafka, the relay, a table or a "
    "sink uses"
)

_KAFKA_TOPICS: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    }
)


class TopicRule:
    """
    Returns the topics of events.

    Args:
        outbox: Template, pattern and replacement, which are already validated.
        reserved: Topics that no event may use.
    """

    def __init__(self, outbox: Outbox, reserved: Container[str]) -> None:
        self._template = outbox.topic
        self._reserved = reserved
        self._rewritten = rewriting(outbox.route_regex, outbox.route_replacement)

    def topic(self, value: str) -> str:
        """
        Return the topic for a value.

        Raises:
            UnroutableError: The topic is illegal or reserved.
        """
        name = topics.outbox_topic(self._template, self._rewritten(value))
        if not value or not topics.is_legal_topic(name):
            raise UnroutableError(ILLEGAL_TOPIC)
        if name in self._reserved:
            raise UnroutableError(RESERVED_TOPIC)
        return name


def topics_of_relay(prefix: str) -> frozenset[str]:
    """Return the relay's own topics and the drivers' topic: no event may use them."""
    return frozenset(
        {
            topics.state_topic(prefix),
            topics.relations_topic(prefix),
            topics.notifications_topic(prefix),
            topics.heartbeat_topic(prefix),
            topics.transaction_topic(prefix),
            topics.message_topic(prefix),
            topics.signal_topic(prefix),
            topics.progress_topic(prefix),
            topics.dead_letter_topic(prefix, "relay"),
        }
    )


class ReservedTopics(Container[str]):
    """
    The topics that no event may use: their readers would misread the event.

    Args:
        prefix: The topics' prefix.
        further: Topics of tables, and the topic of signals.
    """

    def __init__(self, prefix: str, further: Iterable[str] = ()) -> None:
        self._names = topics_of_relay(prefix).union(_KAFKA_TOPICS, further)
        self._beginnings = (
            topics.dead_letter_topic(prefix, ""),
            topics.sink_state_topic(prefix, ""),
        )

    def __contains__(self, topic: object) -> bool:
        name = str(topic)
        return (
            name in self._names
            or name.startswith(self._beginnings)
            or topics.is_backfill(name)
        )


_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
    rb"(-.*)?\Z"
)
_OWN_VERSION: Final = b"00"
# Debezium's column of Java properties, one of which is the trace context.
TRACING_COLUMN: Final = "tracingspancontext"
_PROPERTY: Final = re.compile(rb"(?m)^[ \t]*traceparent[ \t]*[=:][ \t]*(\S+)[ \t]*\r?$")


def continue_trace(traceparent: bytes, position: bytes) -> bytes:
    """
    Return the trace context of the relay's span for a record.

    The span has the trace id and the flags of the writer's context; ``position`` is
    the record's position. An invalid context is returned unchanged.
    """
    found = _TRACEPARENT.match(traceparent)
    if found is None:
        return traceparent
    version, trace_id, flags, more = found.groups()
    if version == _OWN_VERSION and more is not None:
        return traceparent
    span = hashlib.sha256(trace_id + position).hexdigest()[:16]
    return b"00-%s-%s-%s" % (trace_id, span.encode(), flags)


def trace_from_properties(text: bytes) -> bytes | None:
    """Return the trace context in a column of Debezium's tracing, if it has one."""
    found = _PROPERTY.search(text)
    return None if found is None else found[1]


BYTEA: Final = 17
JSON_TYPES: Final = frozenset({114, 3802})

# The parts in the order of a picker, by their names in Towpath's own outbox.
EVENT_PARTS: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
    "occurred_at",
)
_KEY_AT: Final = EVENT_PARTS.index("aggregate_id")
_PAYLOAD_AT: Final = EVENT_PARTS.index("payload")
_TRACE_AT: Final = EVENT_PARTS.index("traceparent")
_ABSENT: Final = -1

# An inserted row has no unchanged values.
EventParts = tuple[bytes | None, ...]
Picker = Callable[[Row], EventParts]
Conversion = Callable[[bytes], bytes | None]


def column_names(columns: OutboxColumns) -> tuple[str, ...]:
    """Return the column of each part; empty for a missing part."""
    return tuple(getattr(columns, part) for part in EVENT_PARTS)


def column_places(relation: Relation) -> dict[str, int]:
    """Return the index of each column in the table's rows."""
    return {column.name: at for at, column in enumerate(relation.columns)}


def column_place(relation: Relation, column: str) -> int:
    """
    Return the index of a required column.

    Raises:
        NotPreparedError: The table has no such column.
    """
    at = column_places(relation).get(column)
    if at is None:
        reason = f"{relation.name} lacks the column {column}"
        raise NotPreparedError(reason)
    return at


def type_oid(relation: Relation, column: str) -> int:
    """Return a column's type; 0 if there is no such column."""
    types = {each.name: each.type_oid for each in relation.columns}
    return types.get(column, 0)


def plain_places(relation: Relation, columns: OutboxColumns) -> tuple[int, ...] | None:
    """Return the index of each part's column; None if a part needs a conversion."""
    return None if _conversions(relation, columns) else _places(relation, columns)


def part_picker(relation: Relation, columns: OutboxColumns) -> Picker:
    """
    Return the function that takes the parts of an event from a row.

    Raises:
        NotPreparedError: The table lacks a column that the mapping names.
    """
    known = column_places(relation)
    names = column_names(columns)
    missing = [name for name in names if name and name not in known]
    if missing:
        reason = f"{relation.name} lacks the columns {', '.join(missing)}"
        raise NotPreparedError(reason)
    pick: Picker = itemgetter(*_places(relation, columns))
    if "" in names:
        # The index of a missing part is -1: it picks the appended None.
        inner = pick
        pick = lambda row: inner((*row, None))  # noqa: E731 - a closure, not a name
    conversions = _conversions(relation, columns)
    return _converted(pick, conversions) if conversions else pick


def as_bytes(value: Value, oid: int) -> bytes | None:
    """Return a column's value as bytes: its text, or the bytes of a ``bytea``."""
    if not isinstance(value, bytes):
        return None
    return _unhex(value) if oid == BYTEA else value


def _places(relation: Relation, columns: OutboxColumns) -> tuple[int, ...]:
    """Return the index of each part's column in a row; -1 for a missing part."""
    known = column_places(relation)
    return tuple(known.get(name, _ABSENT) for name in column_names(columns))


def _conversions(relation: Relation, columns: OutboxColumns) -> dict[int, Conversion]:
    """Return the conversion of each part that needs one, by the part's index."""
    names = column_names(columns)
    conversions: dict[int, Conversion] = {
        at: _unhex
        for at in (_KEY_AT, _PAYLOAD_AT)
        if type_oid(relation, names[at]) == BYTEA
    }
    if columns.traceparent == TRACING_COLUMN:
        conversions[_TRACE_AT] = trace_from_properties
    return conversions


def _converted(pick: Picker, conversions: dict[int, Conversion]) -> Picker:
    listed = tuple(conversions.items())

    def picked(row: Row) -> EventParts:
        parts = list(pick(row))
        for at, convert in listed:
            value = parts[at]
            if value is not None:
                parts[at] = convert(value)
        return tuple(parts)

    return picked


def _unhex(text: bytes) -> bytes:
    return binascii.unhexlify(text[2:])

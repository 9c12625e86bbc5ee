"""
Which column of an outbox table is what: the mapping of ``[relay.outbox.columns]``.

A picker takes the eight parts of an event from a row, in one order whatever the table
looks like, ``bytea`` as the bytes that it stands for. With text columns it is one
``itemgetter``: it runs for every row. Hot path.

The topic of an event: a value of the row, rewritten and put into a template.

W3C trace context: the writer's ``traceparent`` is carried, or continued by a span.

::

    version-trace id-parent id-flags        00-<32 hex>-<16 hex>-<2 hex>

The span's id is made from the record's position, so that a replay makes the same. What
is no trace context by the W3C's syntax is carried as it is. ``tracestate`` is one of
the row's own headers, and always is.
"""

import binascii
import hashlib
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from towpath.relay.errors import NotPreparedError, UnroutableError
from towpath.relay.wal.messages import Relation, Row, Value
from towpath.schemas import topics
from towpath.settings.outbox import Outbox, OutboxColumns
from towpath.settings.rewriting import rewriting

ILLEGAL_TOPIC: Final = "the aggregate type makes no topic name that Kafka takes"
RESERVED_TOPIC: Final = (
    "the aggregate type makes a topic of Kafka's, of the relay's or of a table's"
)

_OF_KAFKA: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    }
)


class TopicRule:
    """
    Names topics.

    Args:
        outbox: Template, pattern and replacement; checked before.
        reserved: Topics that no event may go to.
    """

    def __init__(self, outbox: Outbox, reserved: frozenset[str]) -> None:
        self._template = outbox.topic
        self._reserved = reserved
        self._rewritten = rewriting(outbox.route_regex, outbox.route_replacement)

    def topic(self, value: str) -> str:
        """
        Return the topic of a value.

        Raises:
            UnroutableError: There is none that events may be written to.
        """
        name = topics.outbox_topic(self._template, self._rewritten(value))
        if not value or not topics.is_legal_topic(name):
            raise UnroutableError(ILLEGAL_TOPIC)
        if name in self._reserved or name in _OF_KAFKA:
            raise UnroutableError(RESERVED_TOPIC)
        return name


def topics_of_relay(prefix: str) -> frozenset[str]:
    """Name the topics in which the relay keeps house: no event may go there."""
    return frozenset(
        {
            topics.state_topic(prefix),
            topics.relations_topic(prefix),
            topics.notifications_topic(prefix),
            topics.heartbeat_topic(prefix),
            topics.transaction_topic(prefix),
            topics.message_topic(prefix),
            topics.signal_topic(prefix),
            topics.dead_letter_topic(prefix, "relay"),
        }
    )


_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
    rb"(-.*)?\Z"
)
_OWN_VERSION: Final = b"00"
# Debezium's column: Java properties, one of which is ours.
TRACING_COLUMN: Final = "tracingspancontext"
_PROPERTY: Final = re.compile(rb"(?m)^[ \t]*traceparent[ \t]*[=:][ \t]*(\S+)[ \t]*$")


def continue_trace(traceparent: bytes, position: bytes) -> bytes:
    """
    Return the context of the relay's own span: same trace, same flags.

    Args:
        traceparent: The writer's.
        position: Of the record that the span stands for.
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
    """Return the trace context in a column of Debezium's tracing; None without."""
    found = _PROPERTY.search(text)
    return None if found is None else found[1]


BYTEA: Final = 17
JSON_TYPES: Final = frozenset({114, 3802})

# The parts, by their names in the table of our own, in the order of a picker.
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

# An inserted row is whole: its parts are bytes, or None.
EventParts = tuple[bytes | None, ...]
Picker = Callable[[Row], EventParts]


def column_names(columns: OutboxColumns) -> tuple[str, ...]:
    """Return the table's name of each part; empty for one that it does not have."""
    return tuple(getattr(columns, part) for part in EVENT_PARTS)


def column_places(relation: Relation) -> dict[str, int]:
    """Return where each column of a table stands in its rows."""
    return {column.name: at for at, column in enumerate(relation.columns)}


def column_place(relation: Relation, column: str) -> int:
    """
    Return where a column that is needed stands.

    Raises:
        NotPreparedError: The table lacks it.
    """
    at = column_places(relation).get(column)
    if at is None:
        reason = f"{relation.name} lacks the column {column}"
        raise NotPreparedError(reason)
    return at


def type_oid(relation: Relation, column: str) -> int:
    """Return a column's type; 0 without such a column."""
    types = {each.name: each.type_oid for each in relation.columns}
    return types.get(column, 0)


def part_picker(relation: Relation, columns: OutboxColumns) -> Picker:
    """
    Return what takes the parts of an event from a row of the table.

    Raises:
        NotPreparedError: The table lacks columns that the mapping names.
    """
    known = column_places(relation)
    wanted = column_names(columns)
    missing = [name for name in wanted if name and name not in known]
    if missing:
        reason = f"{relation.name} lacks the columns {', '.join(missing)}"
        raise NotPreparedError(reason)
    pick: Picker = itemgetter(*(known.get(name, _ABSENT) for name in wanted))
    if "" in wanted:
        # The last place of the longer row is empty.
        inner = pick
        pick = lambda row: inner((*row, None))  # noqa: E731 - a closure, not a name
    steps: dict[int, Callable[[bytes], bytes | None]] = {
        at: _unhex
        for at in (_KEY_AT, _PAYLOAD_AT)
        if type_oid(relation, wanted[at]) == BYTEA
    }
    if columns.traceparent == TRACING_COLUMN:
        steps[_TRACE_AT] = trace_from_properties
    return _with_steps(pick, steps) if steps else pick


def as_bytes(value: Value, oid: int) -> bytes | None:
    """Return a column's value as bytes: its text, or what a ``bytea`` stands for."""
    if not isinstance(value, bytes):
        return None
    return _unhex(value) if oid == BYTEA else value


def _with_steps(
    pick: Picker, steps: dict[int, Callable[[bytes], bytes | None]]
) -> Picker:
    listed = tuple(steps.items())

    def picked(row: Row) -> EventParts:
        parts = list(pick(row))
        for at, step in listed:
            value = parts[at]
            if value is not None:
                parts[at] = step(value)
        return tuple(parts)

    return picked


def _unhex(text: bytes) -> bytes:
    return binascii.unhexlify(text[2:])

"""
The outbox route: an inserted row to an event. Hot path.

The payload is the value, untouched; the aggregate id is the key; the rest of the row
becomes headers. Only inserts are events: an update of an outbox row is counted and
warned of, a delete (also insert-then-delete in one transaction) is silence.

What repeats from row to row (topic, type, the row's own headers) is remembered by its
bytes, within a bound.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

import orjson

from towpath.relay.errors import NotPreparedError, UnroutableError
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.record import ANY_PARTITION, FIXED_BYTES, Header, Record
from towpath.relay.routing.values import instant
from towpath.relay.wal.messages import Row, Value
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change
from towpath.schemas import headers, topics
from towpath.schemas.envelope import Operation

# A service has tens of types and header objects. More than this are no repetition,
# such as a header that is unique per row, and remembering them would only cost memory.
_REMEMBERED: Final = 1024

# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__

_COLUMNS: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
    "occurred_at",
)
_OURS: Final = frozenset(
    {
        headers.EVENT_ID,
        headers.EVENT_TYPE,
        headers.AGGREGATE_TYPE,
        headers.POSITION,
        headers.OCCURRED_AT,
    }
)

NO_AGGREGATE_TYPE: Final = "the row has no aggregate type"
ILLEGAL_TOPIC: Final = "the aggregate type makes no topic name that Kafka takes"
HEADERS_NOT_AN_OBJECT: Final = "the row's headers are not a JSON object"
UPDATED: Final = "an outbox row was updated"


class OutboxRoute:
    """Turns the rows of one shape of the outbox table into events."""

    def __init__(
        self,
        relation: Relation,
        template: str,
        dead: DeadLetters,
        on_skipped: Callable[[str], None],
    ) -> None:
        places = {column.name: at for at, column in enumerate(relation.columns)}
        missing = [name for name in _COLUMNS if name not in places]
        if missing:
            reason = f"{relation.name} lacks the columns {', '.join(missing)}"
            raise NotPreparedError(reason)
        self._pick = itemgetter(*(places[name] for name in _COLUMNS))
        self._relation = relation
        self._template = template
        self._dead = dead
        self._on_skipped = on_skipped
        self._known_types: dict[Value, tuple[str, Header]] = {}
        self._known_headers: dict[bytes, tuple[Header, ...]] = {}

    def records(self, change: Change, _now_us: int) -> Sequence[Record]:
        """Return the event of an inserted row, or its dead letter."""
        if change.operation is not Operation.CREATE:
            if change.operation is Operation.UPDATE:
                self._on_skipped(UPDATED)
            return ()
        try:
            return (self._event(change, change.new or ()),)
        except UnroutableError as failure:
            return (self._dead.of_row(self._relation, change, str(failure)),)

    def _event(self, change: Change, row: Row) -> Record:
        # An inserted row is whole: bytes or None throughout.
        event_id, aggregate_type, key, event_type, payload, extra, trace, at = (
            self._pick(row)
        )
        topic, type_header = self._known_types.get(aggregate_type) or self._learn(
            aggregate_type
        )
        transaction = change.transaction
        position = transaction.place + b"%010d" % change.ordinal
        marks: list[Header] = [
            (headers.EVENT_ID, event_id),
            (headers.EVENT_TYPE, event_type),
            type_header,
            (headers.POSITION, position),
        ]
        size = FIXED_BYTES + len(payload or b"") + len(key or b"")
        if at is not None:
            marks.append((headers.OCCURRED_AT, instant(at)))
        if trace is not None:
            marks.append((headers.TRACEPARENT, trace))
            size += len(trace)
        if extra is not None:
            marks += self._known_headers.get(extra) or self._entries(extra)
            size += 2 * len(extra)
        timestamp_ms = transaction.committed_us // 1000
        size += len(event_type or b"")
        return _make(
            Record,
            (topic, key, payload, marks, position, timestamp_ms, size, ANY_PARTITION),
        )

    def _learn(self, aggregate_type: Value) -> tuple[str, Header]:
        if not isinstance(aggregate_type, bytes):
            raise UnroutableError(NO_AGGREGATE_TYPE)
        name = aggregate_type.decode()
        topic = topics.outbox_topic(self._template, name)
        if not name or not topics.is_legal_topic(topic):
            raise UnroutableError(ILLEGAL_TOPIC)
        if len(self._known_types) >= _REMEMBERED:
            self._known_types.clear()
        known = topic, (headers.AGGREGATE_TYPE, aggregate_type)
        self._known_types[aggregate_type] = known
        return known

    def _entries(self, text: bytes) -> tuple[Header, ...]:
        if len(self._known_headers) >= _REMEMBERED:
            self._known_headers.clear()
        entries = self._known_headers[text] = _read_entries(text)
        return entries


def _read_entries(text: bytes) -> tuple[Header, ...]:
    """Read the row's headers object."""
    try:
        entries = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnroutableError(HEADERS_NOT_AN_OBJECT) from error
    if entries is None:
        return ()
    if not isinstance(entries, dict):
        raise UnroutableError(HEADERS_NOT_AN_OBJECT)
    return tuple(
        (name, value.encode() if isinstance(value, str) else orjson.dumps(value))
        for name, value in entries.items()
        if name not in _OURS and value is not None
    )

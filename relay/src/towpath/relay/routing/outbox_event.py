"""
An event from the parts of an outbox row: the one way, for rows and for messages.

The payload is the value, untouched; the aggregate id is the key; the rest becomes
headers. What repeats from row to row (topic, type, the row's own headers) is remembered
by its bytes, within a bound. Options beyond the defaults are steps that change a draft;
without them there is none. Hot path.

``on_empty_payload``: an event without a payload has no value either way, and an empty
text stays one. As ``tombstone``, a null, empty or blank payload leaves no value at all,
no envelope either; key and headers are kept.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import orjson

from towpath.relay.errors import MalformedMessageError, UnroutableError
from towpath.relay.routing.cloudevents import ATTRIBUTES, cloudevent_step
from towpath.relay.routing.draft import Draft, Step
from towpath.relay.routing.forms.iso import instant
from towpath.relay.routing.outbox_columns import (
    PARTS,
    names,
    picker,
    place,
    type_oid,
)
from towpath.relay.routing.placement import placement_steps
from towpath.relay.routing.record import ANY_PARTITION, FIXED_BYTES, Header, Record
from towpath.relay.routing.topic_rule import TopicRule
from towpath.relay.routing.trace import continued
from towpath.relay.wal.messages import Row, Value
from towpath.relay.wal.relation import Relation
from towpath.schemas import headers
from towpath.settings.outbox import EmptyPayload, Outbox, Traceparent
from towpath.settings.syntax import PlacedIn, parse_placement

NO_AGGREGATE_TYPE: Final = "the row has no aggregate type"
NO_ROUTE: Final = "the column that names the topic is null"
HEADERS_NOT_AN_OBJECT: Final = "the row's headers are not a JSON object"
NO_INSTANT: Final = "the row's occurred_at is not a time as Postgres writes it"
BAD_TIMESTAMP: Final = "the row's timestamp is none that Kafka takes"
OWN_NAME: Final = "a header of a row has a name that is the relay's own"

# A service has tens of types and header objects. More than this are no repetition,
# such as a header that is unique per row, and remembering them would only cost memory.
_REMEMBERED: Final = 1024

# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__

_AGGREGATE_TYPE_AT: Final = PARTS.index("aggregate_type")
_AGGREGATE_ID_AT: Final = PARTS.index("aggregate_id")
_PAYLOAD_AT: Final = PARTS.index("payload")

# A broker refuses, by default, what lies more than an hour after its own clock.
_MAX_AHEAD_MS: Final = 30 * 60 * 1000

_OF_THE_RELAY: Final = frozenset(
    {
        headers.EVENT_ID,
        headers.EVENT_TYPE,
        headers.AGGREGATE_TYPE,
        headers.POSITION,
        headers.OCCURRED_AT,
        headers.SNAPSHOT,
        headers.PARKED,
        headers.RELEASED,
    }
)

# A row's own headers, and apart from them the trace context that may be among them.
_Known = tuple[tuple[Header, ...], bytes | None]


class EventWriter:
    """
    Writes the events of one shape of the outbox.

    ``event(row, position, timestamp_ms)`` returns the event of a row, or raises
    ``UnroutableError`` with the reason why it has no place to go.
    """

    def __init__(
        self,
        relation: Relation,
        outbox: Outbox,
        reserved: frozenset[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options once.

        Args:
            relation: The table's shape.
            outbox: The options.
            reserved: Topics that no event may go to.
            on_skipped: Told of a row's header that is left out.

        Raises:
            NotPreparedError: The table lacks a column that the options name.
        """
        self._pick = picker(relation, outbox.columns)
        self._rule = TopicRule(outbox, reserved)
        self._is_routed_by_type = not outbox.route_by
        self._steps = tuple(self._resolve(relation, outbox))
        self._left_out = _OF_THE_RELAY | (ATTRIBUTES if outbox.cloudevents else set())
        self._on_skipped = on_skipped
        self.event = self._stepped if self._steps else self._usual
        self._known_types: dict[Value, tuple[str, Header]] = {}
        self._known_headers: dict[bytes, _Known] = {}

    def _usual(self, row: Row, position: bytes, timestamp_ms: int) -> Record:
        event_id, aggregate_type, key, event_type, payload, extra, trace, at = (
            self._pick(row)
        )
        topic, type_header = self._known_types.get(aggregate_type) or self._learn(
            aggregate_type
        )
        marks: list[Header] = [
            (headers.EVENT_ID, event_id),
            (headers.EVENT_TYPE, event_type),
            type_header,
            (headers.POSITION, position),
        ]
        if event_type is None:
            del marks[1]
        size = FIXED_BYTES + len(payload or b"") + len(key or b"")
        if at is not None:
            try:
                marks.append((headers.OCCURRED_AT, instant(at)))
            except MalformedMessageError as error:
                raise UnroutableError(NO_INSTANT) from error
        more: tuple[Header, ...] = ()
        if extra is not None:
            more, own_trace = self._known_headers.get(extra) or self._entries(extra)
            trace = trace or own_trace
            size += 2 * len(extra)
        if trace is not None:
            marks.append((headers.TRACEPARENT, trace))
            size += len(trace)
        marks += more
        size += len(event_type or b"")
        return _make(
            Record,
            (topic, key, payload, marks, position, timestamp_ms, size, ANY_PARTITION),
        )

    def aggregate(self, row: Row) -> tuple[bytes | None, bytes | None]:
        """Return a row's aggregate type and id."""
        parts = self._pick(row)
        return parts[_AGGREGATE_TYPE_AT], parts[_AGGREGATE_ID_AT]

    def _stepped(self, row: Row, position: bytes, timestamp_ms: int) -> Record:
        record = self._usual(row, position, timestamp_ms)
        draft = Draft(*record[:7], parts=self._pick(row), row=row)
        for step in self._steps:
            step(draft)
        return draft.record()

    def _learn(self, aggregate_type: Value) -> tuple[str, Header]:
        if not isinstance(aggregate_type, bytes):
            raise UnroutableError(NO_AGGREGATE_TYPE)
        topic = ""
        if self._is_routed_by_type:
            topic = self._rule.topic(aggregate_type.decode())
        if len(self._known_types) >= _REMEMBERED:
            self._known_types.clear()
        known = topic, (headers.AGGREGATE_TYPE, aggregate_type)
        self._known_types[aggregate_type] = known
        return known

    def _entries(self, text: bytes) -> _Known:
        if len(self._known_headers) >= _REMEMBERED:
            self._known_headers.clear()
        entries = _read_entries(text)
        if any(name in self._left_out for name in entries):
            self._on_skipped(OWN_NAME)
        trace = entries.pop(headers.TRACEPARENT, None)
        kept = tuple(
            (name, value)
            for name, value in entries.items()
            if name not in self._left_out
        )
        known = self._known_headers[text] = kept, trace
        return known

    def _resolve(self, relation: Relation, outbox: Outbox) -> Iterable[Step]:
        """Choose the steps that the options ask for; none for the defaults."""
        columns = outbox.columns
        if outbox.route_by:
            yield self._route_by(place(relation, outbox.route_by))
        if columns.timestamp:
            yield _timestamp_step(place(relation, columns.timestamp))
        if outbox.traceparent is Traceparent.CONTINUE:
            yield _continue_trace
        if columns.schema_version:
            yield _version_step(place(relation, columns.schema_version))
        yield from placement_steps(relation, outbox)
        if outbox.on_empty_payload is EmptyPayload.TOMBSTONE:
            yield _entomb
        if outbox.cloudevents:
            placements = map(parse_placement, outbox.placements)
            yield cloudevent_step(
                outbox.cloudevents,
                type_oid(relation, names(columns)[_PAYLOAD_AT]),
                is_enveloped=any(p.place is PlacedIn.ENVELOPE for p in placements),
            )

    def _route_by(self, at: int) -> Step:
        known: dict[bytes, str] = {}
        rule = self._rule

        def step(draft: Draft) -> None:
            value = draft.row[at]
            if not isinstance(value, bytes):
                raise UnroutableError(NO_ROUTE)
            topic = known.get(value)
            if topic is None:
                topic = rule.topic(value.decode())
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[value] = topic
            draft.topic = topic

        return step


def _read_entries(text: bytes) -> dict[str, bytes]:
    """Read the row's headers object: texts as they are, other values as JSON."""
    try:
        entries = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnroutableError(HEADERS_NOT_AN_OBJECT) from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UnroutableError(HEADERS_NOT_AN_OBJECT)
    return {
        name: value.encode() if isinstance(value, str) else orjson.dumps(value)
        for name, value in entries.items()
        if value is not None
    }


def _continue_trace(draft: Draft) -> None:
    position = draft.position
    draft.rewrite(headers.TRACEPARENT, lambda trace: continued(trace, position))


def _entomb(draft: Draft) -> None:
    payload = draft.parts[_PAYLOAD_AT]
    if payload is None or not payload.strip():
        draft.value = None


def _version_step(at: int) -> Step:
    def step(draft: Draft) -> None:
        version = draft.row[at]
        if isinstance(version, bytes):
            draft.extend((headers.SCHEMA_VERSION, version))

    return step


def _timestamp_step(at: int) -> Step:
    def step(draft: Draft) -> None:
        text = draft.row[at]
        if isinstance(text, bytes):
            draft.timestamp_ms = _milliseconds(text, draft.timestamp_ms)

    return step


def _milliseconds(text: bytes, committed_ms: int) -> int:
    """Read a timestamp, or milliseconds; a time without a zone is UTC's."""
    try:
        if text.isdigit():
            found_ms = int(text[:20])
        else:
            found = datetime.fromisoformat(text.decode())
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
            found_ms = int(found.timestamp() * 1000)
    except ValueError as error:
        raise UnroutableError(BAD_TIMESTAMP) from error
    if not 0 < found_ms <= committed_ms + _MAX_AHEAD_MS:
        raise UnroutableError(BAD_TIMESTAMP)
    return found_ms

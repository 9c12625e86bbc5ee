"""
The outbox route: turns an inserted row into an event or a dead letter. Hot path.

Only inserts are events. An update of an outbox row is counted, or halts the relay; a
delete produces no record, even in the transaction of the row's insert. A row that
cannot become an event parks its aggregate: later events of that aggregate become dead
letters, too.

``EventWriter`` makes the event of a row, or of a logical message. The payload is the
value, unchanged; the aggregate id is the key; the rest becomes headers. Values that
repeat from row to row (topic, type, the row's own headers) are cached by their bytes.
Options beyond the defaults are steps that change a draft of the event.

``on_empty_payload``: by default, an event without a payload has no value, and an empty
string is a value. With ``tombstone``, an event whose payload is null, empty or blank
has neither value nor envelope; key and headers are kept.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.event_options import (
    ATTRIBUTES,
    DraftStep,
    EventDraft,
    cloudevent_step,
    has_envelope,
    placement_steps,
)
from towpath.relay.encode.outbox_columns import (
    EVENT_PARTS,
    TopicRule,
    column_names,
    column_place,
    continue_trace,
    part_picker,
    plain_places,
    type_oid,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates, Spans
from towpath.relay.encode.record import (
    ANY_PARTITION,
    FIXED_BYTES,
    HEADER_BYTES,
    Header,
    Record,
)
from towpath.relay.encode.types.temporal import instant
from towpath.relay.errors import (
    MalformedMessageError,
    OutboxUpdatedError,
    UnroutableError,
)
from towpath.relay.wal.messages import Relation, Row, Value
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas import headers
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import EmptyPayload, OnUpdate, Outbox, Traceparent

NO_AGGREGATE_TYPE: Final = "the row has no aggregate type"
NO_ROUTE: Final = "the column that names the topic is null"
HEADERS_NOT_AN_OBJECT: Final = "the row's headers are not a JSON object"
NUL_IN_HEADER: Final = "the name of one of the row's headers has a NUL"
NO_INSTANT: Final = "the row's occurred_at is not a Postgres timestamp"
BAD_TIMESTAMP: Final = "Kafka does not accept the row's timestamp"
OWN_NAME: Final = "a header of a row has a name that the relay reserves"

# The limit of cached types and header objects. A service has dozens that repeat; the
# others, such as a header that is unique per row, only cost memory.
_MAX_CACHED: Final = 1024

# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__

_AGGREGATE_TYPE_AT: Final = EVENT_PARTS.index("aggregate_type")
_AGGREGATE_ID_AT: Final = EVENT_PARTS.index("aggregate_id")
_PAYLOAD_AT: Final = EVENT_PARTS.index("payload")
_HEADERS_AT: Final = EVENT_PARTS.index("headers")
_TRACE_AT: Final = EVENT_PARTS.index("traceparent")

# Dividing by this constant is exact, unlike dividing seconds as a float.
MILLISECOND: Final = timedelta(milliseconds=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# By default, a broker refuses timestamps more than an hour ahead of its own clock.
_MAX_AHEAD_MS: Final = 30 * 60 * 1000

_RELAY_HEADERS: Final = frozenset(
    {
        headers.EVENT_ID,
        headers.EVENT_TYPE,
        headers.AGGREGATE_TYPE,
        headers.POSITION,
        headers.OCCURRED_AT,
        headers.SNAPSHOT,
        headers.PARKED,
        headers.RELEASED,
        headers.BARRIER,
        headers.DEAD_LETTERS,
    }
)

# Called with a record of a transaction, and the trace context of its row.
OnTraced = Callable[[Transaction, Record, bytes], None]

# A row's own headers, their size, the trace context among them, and whether a header
# was dropped.
_OwnHeaders = tuple[tuple[Header, ...], int, bytes | None, bool]


class EventLayout(NamedTuple):
    """
    How the usual events of one schema of the outbox are made.

    Attributes:
        places: The index of each part's column in a row; -1 for a missing part.
        types: The cached topics, headers and sizes of aggregate types.
        own_headers: The cached headers of rows, by their text.
        spans: The parked aggregates; while there are any, the layout is not used.
    """

    places: tuple[int, ...]
    types: dict[Value, tuple[str, Header, int]]
    own_headers: dict[bytes, _OwnHeaders]
    spans: Spans


class EventWriter:
    """
    Writes the events of one schema of the outbox.

    ``event(row, position, timestamp_ms)`` returns the event of a row, or raises
    ``UnroutableError`` with the reason.
    """

    def __init__(
        self,
        relation: Relation,
        outbox: Outbox,
        reserved: Container[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options.

        Args:
            relation: The outbox table.
            outbox: The options.
            reserved: Topics that no event may use.
            on_skipped: Called with the reason for each row with a header that is
                dropped.

        Raises:
            NotPreparedError: The table lacks a column that the options name.
        """
        self._pick = part_picker(relation, outbox.columns)
        self._places = plain_places(relation, outbox.columns)
        self._rule = TopicRule(outbox, reserved)
        self._is_routed_by_type = not outbox.route_by
        self._steps = tuple(self._resolve(relation, outbox))
        self._reserved = _RELAY_HEADERS | (ATTRIBUTES if outbox.cloudevents else set())
        self._on_skipped = on_skipped
        self.event = self._event_by_steps if self._steps else self._plain_event
        self._cached_types: dict[Value, tuple[str, Header, int]] = {}
        self._cached_headers: dict[bytes, _OwnHeaders] = {}

    def _plain_event(self, row: Row, position: bytes, timestamp_ms: int) -> Record:
        event_id, aggregate_type, key, event_type, payload, extra, trace, at = (
            self._pick(row)
        )
        topic, type_header, size = self._cached_types.get(
            aggregate_type
        ) or self._read_type(aggregate_type)
        own: list[Header] = [
            (headers.EVENT_ID, event_id),
            (headers.EVENT_TYPE, event_type),
            type_header,
            (headers.POSITION, position),
        ]
        if event_type is None:
            del own[1]
        size += len(payload or b"") + len(key or b"") + len(event_id or b"")
        if at is not None:
            try:
                own.append((headers.OCCURRED_AT, instant(at)))
            except MalformedMessageError as error:
                raise UnroutableError(NO_INSTANT) from error
        more: tuple[Header, ...] = ()
        if extra is not None:
            more, more_bytes, own_trace, has_dropped = self._cached_headers.get(
                extra
            ) or self._read_headers(extra)
            if has_dropped:
                self._on_skipped(OWN_NAME)
            trace = trace or own_trace
            size += more_bytes
        if trace is not None:
            own.append((headers.TRACEPARENT, trace))
            size += len(trace)
        own += more
        size += len(event_type or b"")
        return _make(
            Record,
            (topic, key, payload, own, position, timestamp_ms, size, ANY_PARTITION),
        )

    def layout(self, spans: Spans) -> EventLayout | None:
        """Return the layout of usual events; None if the options need other steps."""
        if self._steps or self._places is None:
            return None
        types, own_headers = self._cached_types, self._cached_headers
        return EventLayout(self._places, types, own_headers, spans)

    def aggregate(self, row: Row) -> tuple[bytes | None, bytes | None]:
        """Return a row's aggregate type and id."""
        parts = self._pick(row)
        return parts[_AGGREGATE_TYPE_AT], parts[_AGGREGATE_ID_AT]

    def trace(self, row: Row) -> bytes | None:
        """Return the trace context of a row, from its column or its headers."""
        parts = self._pick(row)
        extra = parts[_HEADERS_AT]
        own = None
        if extra is not None:
            found = self._cached_headers.get(extra) or self._read_headers(extra)
            own = found[2]
        return parts[_TRACE_AT] or own

    def _event_by_steps(self, row: Row, position: bytes, timestamp_ms: int) -> Record:
        record = self._plain_event(row, position, timestamp_ms)
        draft = EventDraft(*record[:7], parts=self._pick(row), row=row)
        for step in self._steps:
            step(draft)
        return draft.record()

    def _read_type(self, aggregate_type: Value) -> tuple[str, Header, int]:
        if not isinstance(aggregate_type, bytes):
            raise UnroutableError(NO_AGGREGATE_TYPE)
        topic = ""
        if self._is_routed_by_type:
            topic = self._rule.topic(aggregate_type.decode())
        if len(self._cached_types) >= _MAX_CACHED:
            self._cached_types.clear()
        size = FIXED_BYTES + len(aggregate_type)
        found = topic, (headers.AGGREGATE_TYPE, aggregate_type), size
        self._cached_types[aggregate_type] = found
        return found

    def _read_headers(self, text: bytes) -> _OwnHeaders:
        if len(self._cached_headers) >= _MAX_CACHED:
            self._cached_headers.clear()
        entries = _read_entries(text)
        has_dropped = any(name in self._reserved for name in entries)
        trace = entries.pop(headers.TRACEPARENT, None)
        kept = tuple(
            (name, value)
            for name, value in entries.items()
            if name not in self._reserved
        )
        size = sum(
            len(name.encode()) + len(value) + HEADER_BYTES for name, value in kept
        )
        found = self._cached_headers[text] = kept, size, trace, has_dropped
        return found

    def _resolve(self, relation: Relation, outbox: Outbox) -> Iterable[DraftStep]:
        """Yield the steps of the configured options; none for the defaults."""
        columns = outbox.columns
        if outbox.route_by:
            yield self._route_by(column_place(relation, outbox.route_by))
        if columns.timestamp:
            yield _timestamp_step(column_place(relation, columns.timestamp))
        if outbox.traceparent is Traceparent.CONTINUE:
            yield _continue_trace
        if columns.schema_version:
            yield _version_step(column_place(relation, columns.schema_version))
        yield from placement_steps(relation, outbox)
        if outbox.on_empty_payload is EmptyPayload.TOMBSTONE:
            yield _as_tombstone
        if outbox.cloudevents:
            yield cloudevent_step(
                outbox.cloudevents,
                type_oid(relation, column_names(columns)[_PAYLOAD_AT]),
                is_enveloped=has_envelope(relation, outbox),
            )

    def _route_by(self, at: int) -> DraftStep:
        cached: dict[bytes, str] = {}
        rule = self._rule

        def step(draft: EventDraft) -> None:
            value = draft.row[at]
            if not isinstance(value, bytes):
                raise UnroutableError(NO_ROUTE)
            topic = cached.get(value)
            if topic is None:
                topic = rule.topic(value.decode())
                if len(cached) >= _MAX_CACHED:
                    cached.clear()
                cached[value] = topic
            draft.topic = topic

        return step


# The types of values that are read without loss. Other numbers would be rounded to
# doubles, so they remain as written.
_EXACT: Final = frozenset({str, int, bool, type(None)})
_AS_WRITTEN: Final = json.JSONDecoder(
    parse_int=orjson.Fragment, parse_float=orjson.Fragment
)


def are_exact(entries: Mapping[str, object]) -> bool:
    """Return whether the values of a headers object were parsed without loss."""
    return _EXACT.issuperset(map(type, entries.values()))


def _read_entries(text: bytes) -> dict[str, bytes]:
    """Parse a row's headers object: strings unchanged, other values as JSON."""
    try:
        entries = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UnroutableError(HEADERS_NOT_AN_OBJECT) from error
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UnroutableError(HEADERS_NOT_AN_OBJECT)
    if any("\0" in name for name in entries):
        # The client would truncate the name at the NUL.
        raise UnroutableError(NUL_IN_HEADER)
    try:
        if not are_exact(entries):
            entries = _AS_WRITTEN.decode(text.decode())
        return {
            name: value.encode() if isinstance(value, str) else orjson.dumps(value)
            for name, value in entries.items()
            if value is not None
        }
    except (TypeError, RecursionError) as error:
        # A value is nested more deeply than the JSON reader or writer allows.
        raise UnroutableError(HEADERS_NOT_AN_OBJECT) from error


def _continue_trace(draft: EventDraft) -> None:
    position = draft.position
    draft.rewrite(headers.TRACEPARENT, lambda trace: continue_trace(trace, position))


def _as_tombstone(draft: EventDraft) -> None:
    payload = draft.parts[_PAYLOAD_AT]
    if payload is None or not payload.strip():
        draft.value = None


def _version_step(at: int) -> DraftStep:
    def step(draft: EventDraft) -> None:
        version = draft.row[at]
        if isinstance(version, bytes):
            draft.extend((headers.SCHEMA_VERSION, version))

    return step


def _timestamp_step(at: int) -> DraftStep:
    def step(draft: EventDraft) -> None:
        text = draft.row[at]
        if isinstance(text, bytes):
            draft.timestamp_ms = _milliseconds(text, draft.timestamp_ms)

    return step


def _milliseconds(text: bytes, committed_ms: int) -> int:
    """Parse a timestamp or milliseconds; a time without a zone is in UTC."""
    try:
        if text.isdigit():
            found_ms = int(text[:20])
        else:
            found = datetime.fromisoformat(text.decode())
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
            found_ms = (found - EPOCH) // MILLISECOND
    except ValueError as error:
        raise UnroutableError(BAD_TIMESTAMP) from error
    if not 0 < found_ms <= committed_ms + _MAX_AHEAD_MS:
        raise UnroutableError(BAD_TIMESTAMP)
    return found_ms


_CREATE: Final = Operation.CREATE

UPDATED: Final = "an outbox row was updated"
# The reason if updates are an error; each such update is logged.
WRONGLY_UPDATED: Final = "an outbox row was updated, which is an error"

_UPDATE_REASONS: Final[Mapping[OnUpdate, str]] = MappingProxyType(
    {OnUpdate.WARN: UPDATED, OnUpdate.ERROR: WRONGLY_UPDATED}
)


class OutboxRoute:
    """Turns the rows of one schema of the outbox table into events."""

    def __init__(
        self,
        relation: Relation,
        outbox: Outbox,
        dead: DeadLetters,
        parked: ParkedAggregates,
        reserved: Container[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for the table's schema.

        Args:
            relation: The outbox table.
            outbox: ``[relay.outbox]``.
            dead: Makes dead letters.
            parked: The parked aggregates, which ``dead`` uses, too.
            reserved: Topics that no event may use.
            on_skipped: Called with the reason for a skipped update or dropped header.

        Raises:
            NotPreparedError: The table lacks a column that the options name.
        """
        self._writer = EventWriter(relation, outbox, reserved, on_skipped)
        self._event = self._writer.event
        self.event = self._make_event
        self.layout = self._writer.layout(parked.spans)
        self._relation = relation
        self._dead = dead
        self._spans = parked.spans
        self._on_update = outbox.on_update
        self._on_skipped = on_skipped

    def records(self, change: Change, _now_us: int) -> Sequence[Record]:
        """
        Return the event of an inserted row, or its dead letter.

        Raises:
            OutboxUpdatedError: A row was updated, and ``on_update`` is ``halt``.
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        operation, _, row, _, _, transaction, ordinal, _ = change
        if operation is not _CREATE or row is None:
            if operation is Operation.UPDATE:
                self._updated(change)
            return ()
        try:
            return (self.event(transaction, ordinal, row),)
        except UnroutableError as failure:
            return (self._unroutable(change, str(failure)),)

    def watch(self, on_traced: OnTraced) -> None:
        """Call ``on_traced`` with each later record whose row has a trace context."""
        make, trace_of = self.event, self._writer.trace

        def watched(transaction: Transaction, ordinal: int, row: Row) -> Record:
            record = make(transaction, ordinal, row)
            trace = trace_of(row)
            if trace is not None:
                on_traced(transaction, record, trace)
            return record

        self.event = watched
        self.layout = None

    def _make_event(self, transaction: Transaction, ordinal: int, row: Row) -> Record:
        """
        Return the event of an inserted row, or its dead letter if it is parked.

        Raises:
            UnroutableError: The row cannot become an event.
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        position = transaction.place + b"%010d" % ordinal
        record = self._event(row, position, transaction.committed_us // 1000)
        return self._dead.unless_parked(record) if self._spans else record

    def _unroutable(self, change: Change, reason: str) -> Record:
        aggregate = self._writer.aggregate(change.new or ())
        return self._dead.of_row(self._relation, change, reason, aggregate)

    def _updated(self, change: Change) -> None:
        reason = _UPDATE_REASONS.get(self._on_update)
        if reason is None:
            place = (change.transaction.place + b"%010d" % change.ordinal).decode()
            message = f"a row of {self._relation.name} was updated at {place}"
            raise OutboxUpdatedError(message)
        self._on_skipped(reason)

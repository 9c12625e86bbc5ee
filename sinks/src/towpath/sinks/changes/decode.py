"""
Decode records into changes, events and floors. No I/O: bytes in, values out.

A record that cannot be read becomes an ``UnreadableRecord`` with the reason: it neither
raises an exception nor is dropped. Integers remain exact; numerics are already text. A
tombstone is a delete at its own position: after compaction it may be all that remains
of the delete. Columns that the header ``unchanged`` names are unknown, even if the
value has them.

Outbox events are rows of a log, or the state of their aggregates. The event of an
aggregate is a whole row: the payload is the document, the aggregate's id its key. A
deleting event, or one without a value, deletes the document; events of types without
state are skipped.

Hot path, once per record: one look-up of the route, one parse of key and value.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.schemas import headers as names
from towpath.schemas.envelope import Operation
from towpath.settings import Route, RouteKind
from towpath.sinks.change import (
    ALL_PRESENT,
    RESERVED_COLUMNS,
    Change,
    EventRow,
    Floor,
    Headers,
    Origin,
    Record,
    UnreadableError,
    Value,
    object_in,
    position_in,
    refuse,
    text_in,
)
from towpath.sinks.changes.routing import Routes, Routing

# The columns of a table of records.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    ]
)

# Bounds the records that are Python objects at the same time.
RECORDS_AT_ONCE: Final = 125_000

_EVENT_COLUMNS: Final = frozenset(
    {
        names.EVENT_ID,
        names.EVENT_TYPE,
        names.AGGREGATE_TYPE,
        names.OCCURRED_AT,
        names.POSITION,
    }
)


# Reads records slice by slice: tables of ``RECORDS``.
ReadRecords: TypeAlias = Callable[[], Iterator[pa.Table]]


@dataclass(eq=False)
class RepeatableSlices:
    """Records that are read once, and yielded as often as needed."""

    read: ReadRecords
    _rest: Iterator[pa.Table] | None = field(default=None, init=False)
    _slices: list[pa.Table] = field(default_factory=list, init=False)

    def slices(self) -> Iterator[pa.Table]:
        """
        Yield the records slice by slice; a further call yields all of them again.

        Raises:
            UnavailableError: The records cannot be read now; the next call reads again
                from the first slice.
            RecordsGoneError: Some of the records no longer exist.
        """
        position = 0
        while position < len(self._slices) or self._has_more():
            yield self._slices[position]
            position += 1

    def _has_more(self) -> bool:
        """Read one more slice; return whether there was one."""
        # After a failure, reading begins again at the first slice.
        rest, self._rest = self._rest, None
        if rest is None:
            rest = self.read()
        try:
            slice_ = next(rest, None)
        except BaseException:
            self._slices.clear()
            raise
        self._rest = rest
        if slice_ is None:
            return False
        self._slices.append(slice_)
        return True


def logged_event(record: Record, route: Route) -> EventRow:
    """Decode an event of an event log."""
    headers = record.headers
    others = {
        name: value.decode("utf-8", "replace")
        for name, value in headers.items()
        if name not in _EVENT_COLUMNS
    }
    return EventRow(
        route.name,
        text_in(headers.get(names.EVENT_ID), "header id"),
        text_in(headers.get(names.AGGREGATE_TYPE), "header aggregate_type"),
        text_in(record.key, "key"),
        text_in(headers.get(names.EVENT_TYPE), "header type"),
        None if record.value is None else text_in(record.value, "value"),
        orjson.dumps(others).decode(),
        position_in(headers),
        text_in(headers.get(names.OCCURRED_AT), "header occurred_at"),
        record.origin,
    )


def aggregate_change(record: Record, route: Route) -> Change | None:
    """Decode an event as a change of its aggregate; ``None`` if it carries no state."""
    headers, text = record.headers, record.value
    # A tombstone may be all that remains of a delete: it need not have a type.
    is_typed = text is not None or names.EVENT_TYPE in headers
    if is_typed and (route.state_types or route.delete_types):
        kind = text_in(headers.get(names.EVENT_TYPE), "header type")
        if kind in route.delete_types:
            text = None
        elif route.state_types and kind not in route.state_types:
            return None
    row = None if text is None else object_in(text, "value")
    if row is not None and not RESERVED_COLUMNS.isdisjoint(row):
        refuse("the document has a field with a name that sinks reserve")
    return Change(
        route.name,
        (text_in(record.key, "key"),),
        (),
        position_in(headers),
        row,
        ALL_PRESENT,
        names.SNAPSHOT in headers,
        record.origin,
        text,
    )


def records_of(table: pa.Table) -> list[Record]:
    """
    Convert Kafka's columns into records.

    The last value of a repeated header is used.
    """
    table = table.combine_chunks()
    if not len(table):
        return []
    headers = _headers(table.column("headers"))
    columns = (
        table.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value")
    )
    return [
        Record(Origin(topic, partition, offset), key, value, given)
        for topic, partition, offset, key, value, given in zip(
            *columns, headers, strict=True
        )
    ]


def _headers(column: pa.ChunkedArray) -> list[dict[str, bytes]]:
    """Read all headers in three passes over flat columns, not row by row."""
    array = pa.concat_arrays(column.chunks)
    flat = array.flatten()
    names = flat.field("key").to_pylist()
    values = flat.field("value").to_pylist()
    rows = []
    end = 0
    for length in pc.list_value_length(array).to_pylist():
        begin, end = end, end + (length or 0)
        rows.append(
            {
                name: value
                for name, value in zip(names[begin:end], values[begin:end], strict=True)
                if value is not None
            }
        )
    return rows


class UnreadableRecord(NamedTuple):
    """A record that cannot be read, and why."""

    origin: Origin
    reason: str


class Decoded(NamedTuple):
    """
    The decoded records of a batch.

    ``skipped`` counts READ events of event logs, events without their aggregate's
    state, and truncations that a route ignores. Barriers are not counted.
    """

    changes: list[Change]
    events: list[EventRow]
    unreadable: list[UnreadableRecord]
    skipped: int
    floors: list[Floor]


def decode(records: Iterable[Record], routes: Routes) -> Decoded:
    """Decode records, each for every route that reads its topic."""
    decoded = Decoded([], [], [], 0, [])
    skipped = 0
    reading = routes.reading
    for record in records:
        if names.BARRIER in record.headers and names.is_command(record.headers):
            continue
        for route, routing in reading(record.origin.topic) or _NO_ROUTE:
            try:
                item = _decoded(record, route, routing)
            except UnreadableError as error:
                why = _shown(record.headers, names.UNDELIVERED) or str(error)
                _note_unreadable(decoded.unreadable, record, why)
                continue
            if item is None:
                skipped += 1
            elif isinstance(item, Change):
                decoded.changes.append(item)
            else:
                _note(decoded, item)
    return decoded._replace(skipped=skipped)


_NO_ROUTE: Final = ((None, None),)
_OPERATIONS: Final = {operation.value: operation for operation in Operation}


def _note_unreadable(
    unreadable: list[UnreadableRecord], record: Record, reason: str
) -> None:
    """Add a record once, however many routes cannot read it."""
    if not unreadable or unreadable[-1].origin is not record.origin:
        unreadable.append(UnreadableRecord(record.origin, reason))


def _note(decoded: Decoded, item: EventRow | Floor) -> None:
    if isinstance(item, EventRow):
        decoded.events.append(item)
    else:
        decoded.floors.append(item)


def _decoded(
    record: Record, route: Route | None, routing: Routing | None
) -> Change | EventRow | Floor | None:
    """Decode one record; ``None`` if its route skips it."""
    if route is None:
        refuse("no route reads this topic")
    if route.kind is RouteKind.EVENT_LOG:
        return None if names.SNAPSHOT in record.headers else logged_event(record, route)
    if names.SWEEP in record.headers and names.is_command(record.headers):
        # A dropped table counts as truncated: ``on_truncate`` decides whether its rows
        # are kept.
        is_kept = names.DROPPED in record.headers and route.on_truncate == "keep"
        return None if is_kept else _sweep(record, route.name)
    if route.kind is RouteKind.AGGREGATE:
        return aggregate_change(record, route)
    return _row_change(record, route, routing)


def _sweep(record: Record, route: str) -> Floor:
    floor = position_in(record.headers, names.SWEEP)
    count = record.headers.get(names.SWEEP_PARTITIONS, b"")
    return Floor(
        route,
        floor,
        needs_all=True,
        origin=record.origin,
        partitions=int(count) if count.isdigit() else 0,
        snapshot_id=_shown(record.headers, names.SNAPSHOT),
    )


def _shown(headers: Headers, name: str) -> str:
    """Return a header as text, even if it is not UTF-8; empty if it is missing."""
    return headers.get(name, b"").decode("utf-8", "replace")


def _row_change(
    record: Record, route: Route, routing: Routing | None
) -> Change | Floor | None:
    envelope = None if record.value is None else object_in(record.value, "value")
    operation = _operation(envelope)
    if operation is Operation.TRUNCATE:
        # A snapshot of the recreated table follows; its sweep removes the old rows.
        if route.on_truncate == "keep" or names.DROPPED in record.headers:
            return None
        floor = position_in(record.headers)
        return Floor(route.name, floor, needs_all=False, origin=record.origin)
    if record.key is None:
        refuse("the row change has no key")
    key = object_in(record.key, "key")
    unchanged = _unchanged(record.headers)
    change = Change(
        route.name,
        _hashable(tuple(key.values())),
        tuple(key),
        position_in(record.headers),
        None if operation is Operation.DELETE else _after(envelope, unchanged),
        unchanged,
        operation is Operation.READ,
        record.origin,
    )
    if routing is not None:
        return _routed(change, routing)
    if change.row is not None and not RESERVED_COLUMNS.isdisjoint(change.row):
        refuse("a column has a name that sinks reserve")
    return change


def _hashable(key: tuple[Any, ...]) -> tuple[Value, ...]:
    """Return a key with arrays and composites as JSON text: lists are not hashable."""
    try:
        hash(key)
    except TypeError:
        return tuple(
            orjson.dumps(value).decode() if isinstance(value, list | dict) else value
            for value in key
        )
    return key


def _routed(change: Change, routing: Routing) -> Change:
    """Apply a route's routing to a change; after transforms, only to the key."""
    columns, key = routing.key(change.key_columns, change.key)
    if routing.is_after_transforms:
        return change._replace(key=key, key_columns=columns)
    return change._replace(
        key=key,
        key_columns=columns,
        row=None if change.row is None else routing.row(change.row),
        unchanged=change.unchanged and routing.names(change.unchanged),
    )


def _operation(envelope: dict[str, Any] | None) -> Operation:
    if envelope is None:
        return Operation.DELETE
    try:
        return _OPERATIONS[envelope["op"]]
    except (KeyError, TypeError):
        refuse("the value is not an envelope: it names no operation")


def _after(
    envelope: dict[str, Any] | None, unchanged: frozenset[str]
) -> dict[str, Any]:
    """Return the row without the unchanged columns, which hold a placeholder."""
    after = None if envelope is None else envelope.get("after")
    if not isinstance(after, dict):
        refuse("the envelope has no row in after")
    for name in unchanged:
        after.pop(name, None)
    return after


def _unchanged(headers: Headers) -> frozenset[str]:
    listed = headers.get(names.UNCHANGED)
    if listed is None:
        return ALL_PRESENT
    try:
        columns = orjson.loads(listed)
    except orjson.JSONDecodeError:
        columns = None
    is_list = isinstance(columns, list)
    if not is_list or not all(isinstance(name, str) for name in columns):
        refuse("the header unchanged is not a list of columns")
    return frozenset(columns)

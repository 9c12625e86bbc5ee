"""
Records into changes, events and floors: bytes in, values out.

Hot path, once per record: one look-up of the route, one parse of key and value. What
cannot be read is a ``Poison`` with its reason, never an exception and never silence.
Integers stay exact; numerics are text already. A tombstone is a delete at its own
position: after a compaction it may be all that is left of the delete.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from towpath.schemas import headers as names
from towpath.schemas.envelope import Operation
from towpath.settings import Route, RouteKind
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Floor, Origin, Record
from towpath.sinks.events import aggregate_change, logged_event
from towpath.sinks.record import (
    RESERVED_COLUMNS,
    Headers,
    UnreadableError,
    object_in,
    position_in,
    refuse,
)
from towpath.sinks.routes import Routes


class Poison(NamedTuple):
    """A record that cannot be read, and why."""

    origin: Origin
    reason: str


class Decoded(NamedTuple):
    """
    What the records of a batch say.

    ``skipped`` are READ events of event logs, and events that do not carry the state
    of their aggregate; barriers say nothing and are not counted.
    """

    changes: list[Change]
    events: list[EventRow]
    poison: list[Poison]
    skipped: int
    floors: list[Floor]


def decode(records: Iterable[Record], routes: Routes) -> Decoded:
    """Read records of the routes' topics."""
    changes: list[Change] = []
    events: list[EventRow] = []
    poison: list[Poison] = []
    floors: list[Floor] = []
    skipped = 0
    for record in records:
        if names.BARRIER in record.headers:
            continue
        try:
            said = _said(record, routes.of(record.origin.topic))
        except UnreadableError as error:
            poison.append(Poison(record.origin, str(error)))
            continue
        if said is None:
            skipped += 1
        elif isinstance(said, Change):
            changes.append(said)
        elif isinstance(said, EventRow):
            events.append(said)
        else:
            floors.append(said)
    return Decoded(changes, events, poison, skipped, floors)


def _said(record: Record, route: Route | None) -> Change | EventRow | Floor | None:
    """Read one record; ``None`` if it says nothing to its route."""
    if route is None:
        refuse("no route reads this topic")
    if route.kind is RouteKind.EVENT_LOG:
        return None if names.SNAPSHOT in record.headers else logged_event(record, route)
    if names.SWEEP in record.headers:
        floor = position_in(record.headers, names.SWEEP)
        return Floor(route.name, floor, needs_all=True, origin=record.origin)
    if route.kind is RouteKind.AGGREGATE:
        return aggregate_change(record, route)
    return _row_change(record, route.name)


def _row_change(record: Record, route: str) -> Change | Floor:
    envelope = None if record.value is None else object_in(record.value, "value")
    operation = _operation(envelope)
    if operation is Operation.TRUNCATE:
        floor = position_in(record.headers)
        return Floor(route, floor, needs_all=False, origin=record.origin)
    if record.key is None:
        refuse("a row change without a key")
    key = object_in(record.key, "key")
    return Change(
        route,
        tuple(key.values()),
        tuple(key),
        position_in(record.headers),
        None if operation is Operation.DELETE else _after(envelope),
        _unchanged(record.headers),
        operation is Operation.READ,
        record.origin,
    )


def _operation(envelope: dict[str, Any] | None) -> Operation:
    if envelope is None:
        return Operation.DELETE
    try:
        return Operation(envelope["op"])
    except (KeyError, ValueError):
        refuse("the value is not an envelope: it names no operation")


def _after(envelope: dict[str, Any] | None) -> dict[str, Any]:
    after = None if envelope is None else envelope.get("after")
    if not isinstance(after, dict):
        refuse("the envelope has no row in after")
    if not RESERVED_COLUMNS.isdisjoint(after):
        refuse("a column has a name that sinks keep for themselves")
    return after


def _unchanged(headers: Headers) -> frozenset[str]:
    listed = headers.get(names.UNCHANGED)
    if listed is None:
        return ALL_PRESENT
    try:
        columns = orjson.loads(listed)
    except orjson.JSONDecodeError:
        columns = None
    if not isinstance(columns, list):
        refuse("the header unchanged is not a list of columns")
    return frozenset(columns)

"""
Records into changes and events: bytes in, values out.

Hot path, once per record: one look-up of the route, one parse of key and value. What
cannot be read is a ``Poison`` with its reason, never an exception and never silence.
Integers stay exact; numerics are text already. A tombstone is a delete at its own
position: after a compaction it may be all that is left of the delete.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import orjson

from towpath.schemas import headers as names
from towpath.schemas.envelope import Operation
from towpath.settings import RouteKind
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin, Record
from towpath.sinks.routes import Routes

_POSITION: Final = re.compile(rb"([0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?\Z")
_NO_POSITION: Final = "the header position is missing or is not a position"

# What sinks write beside a row's own columns.
RESERVED_COLUMNS: Final = frozenset({"_position", "_deleted", "_x"})

_EVENT_COLUMNS: Final = frozenset(
    {
        names.EVENT_ID,
        names.EVENT_TYPE,
        names.AGGREGATE_TYPE,
        names.OCCURRED_AT,
        names.POSITION,
    }
)

Headers: TypeAlias = Mapping[str, bytes]


class Poison(NamedTuple):
    """A record that cannot be read, and why."""

    origin: Origin
    reason: str


class Decoded(NamedTuple):
    """
    What the records of a batch say.

    ``skipped`` are READ events of event logs; barriers say nothing and are not counted.
    """

    changes: list[Change]
    events: list[EventRow]
    poison: list[Poison]
    skipped: int


class _UnreadableError(ValueError):
    """The record says nothing that a sink could apply."""


def decode(records: Iterable[Record], routes: Routes) -> Decoded:
    """Read records of the routes' topics."""
    changes: list[Change] = []
    events: list[EventRow] = []
    poison: list[Poison] = []
    skipped = 0
    for record in records:
        if names.BARRIER in record.headers:
            continue
        route = routes.of(record.origin.topic)
        try:
            if route is None:
                _refuse("no route reads this topic")
            if route.kind is RouteKind.TABLE:
                changes.append(_change(record, route.name))
            elif names.SNAPSHOT in record.headers:
                skipped += 1
            else:
                events.append(_event(record, route.name))
        except _UnreadableError as error:
            poison.append(Poison(record.origin, str(error)))
    return Decoded(changes, events, poison, skipped)


def _change(record: Record, route: str) -> Change:
    envelope = None if record.value is None else _object(record.value, "value")
    operation = _operation(envelope)
    if record.key is None:
        _refuse("a row change without a key")
    key = _object(record.key, "key")
    return Change(
        route,
        tuple(key.values()),
        tuple(key),
        _position(record.headers),
        None if operation is Operation.DELETE else _after(envelope),
        _unchanged(record.headers),
        operation is Operation.READ,
        record.origin,
    )


def _operation(envelope: dict[str, Any] | None) -> Operation:
    if envelope is None:
        return Operation.DELETE
    try:
        operation = Operation(envelope["op"])
    except (KeyError, ValueError):
        _refuse("the value is not an envelope: it names no operation")
    if operation is Operation.TRUNCATE:
        # A floor below which rows are gone is not carried out by any sink yet: set
        # aside, where it is counted and can be found, it is at least not silent.
        _refuse("a truncation, which sinks do not carry out")
    return operation


def _after(envelope: dict[str, Any] | None) -> dict[str, Any]:
    after = None if envelope is None else envelope.get("after")
    if not isinstance(after, dict):
        _refuse("the envelope has no row in after")
    if not RESERVED_COLUMNS.isdisjoint(after):
        _refuse("a column has a name that sinks keep for themselves")
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
        _refuse("the header unchanged is not a list of columns")
    return frozenset(columns)


def _event(record: Record, route: str) -> EventRow:
    headers = record.headers
    others = {
        name: value.decode("utf-8", "replace")
        for name, value in headers.items()
        if name not in _EVENT_COLUMNS
    }
    return EventRow(
        route,
        _text(headers.get(names.EVENT_ID), "header id"),
        _text(headers.get(names.AGGREGATE_TYPE), "header aggregate_type"),
        _text(record.key, "key"),
        _text(headers.get(names.EVENT_TYPE), "header type"),
        None if record.value is None else _text(record.value, "value"),
        orjson.dumps(others).decode(),
        _position(headers),
        _text(headers.get(names.OCCURRED_AT), "header occurred_at"),
        record.origin,
    )


def _position(headers: Headers) -> str:
    match = _POSITION.match(headers.get(names.POSITION, b""))
    if match is None:
        _refuse(_NO_POSITION)
    return match[1].decode()


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        _refuse(f"the {what} is not JSON")
    if not isinstance(document, dict) or not document:
        _refuse(f"the {what} is not a JSON object")
    return document


def _text(value: bytes | None, what: str) -> str:
    if not value:
        _refuse(f"the {what} is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        _refuse(f"the {what} is not text")


def _refuse(reason: str) -> NoReturn:
    raise _UnreadableError(reason)

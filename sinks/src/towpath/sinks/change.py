"""
What a record says, once it is decoded: a row change, an event of a log, or a floor.

These are made once per record, on the hot path: named tuples, which are several times
cheaper to make than frozen dataclasses, and as immutable.

Parts of a record, read or refused: position, text, JSON object. Pure.

What cannot be read raises ``UnreadableError`` with its reason; ``decode`` makes poison
of it.

Values that Postgres has, and that no type of a warehouse has room for. Pure.

Infinite times, years before the first and above 9999, and what is no number in a
numeric of so many digits. They come as Postgres spells them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import orjson

from towpath.schemas import headers as names

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Value]

ALL_PRESENT: Final[frozenset[str]] = frozenset()


# How a position ends whose change was read, not streamed.
_READ_ENDING: Final = ".-"


class Origin(NamedTuple):
    """Where a record stands in Kafka, so that it can be found again."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """One record of Kafka, as it was read."""

    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class Change(NamedTuple):
    """
    One row change: the newest thing known of a key, at its position.

    An event that carries its aggregate's state is a change like any other; its row is
    the document, which may hold lists and objects.

    Attributes:
        route: Name of the route, that is, of the place in the sink.
        key: Values of the key's columns, in key order.
        key_columns: Their names; none where the key is no column, as an aggregate's id.
        position: The position as text that sorts as it compares, without the number
            among records of one change. Compare it, never parse it.
        row: Column values; ``None`` for a delete. A column whose value is ``None`` is
            null; a column listed in ``unchanged`` is missing from the row.
        unchanged: Columns that the stream left out: whatever is stored stays.
        is_read: Whether the row comes from a snapshot.
        origin: The record that said so.
        text: The row as the record has it, if that is a JSON object: its numbers may
            have more digits than ``row`` can hold.
    """

    route: str
    key: tuple[Value, ...]
    key_columns: tuple[str, ...]
    position: str
    row: Row | None
    unchanged: frozenset[str]
    is_read: bool
    origin: Origin
    text: bytes | None = None

    @property
    def is_partial(self) -> bool:
        """Tell whether the row lacks columns that only the sink may still have."""
        return bool(self.unchanged)

    @property
    def is_row_as_it_is(self) -> bool:
        """Tell whether a snapshot read all of a row: its columns, or its end."""
        is_read = self.is_read or self.position.endswith(_READ_ENDING)
        return is_read and not self.unchanged


# The lowest of all positions.
_LOWEST: Final = "0000000000000000.-"


class Floor(NamedTuple):
    """
    A position below which a route has no rows: what stands there is gone for good.

    Attributes:
        route: Name of the route.
        position: The floor as text; a row that stands at it stays.
        needs_all: Whether it counts only once each partition of its topic has told it:
            a sweep does, because what it must spare comes before it, partition by
            partition. A truncation counts at once.
        origin: The record that said so.
        partitions: Into how many a sweep was written; 0: into all there are.
        snapshot_id: The snapshot whose end a sweep tells.
    """

    route: str
    position: str
    needs_all: bool
    origin: Origin
    partitions: int = 0
    snapshot_id: str = ""

    @property
    def is_end_only(self) -> bool:
        """Tell whether nothing lies below it: only some of the rows were read."""
        return self.position == _LOWEST


class EventRow(NamedTuple):
    """
    One domain event, as an event log keeps it: append-only, each id once.

    Attributes:
        route: Name of the route, that is, of the log.
        id: The event's uuid as text: what makes it unique.
        type: The event type.
        payload: The payload's text, untouched; ``None`` if the event has none.
        headers: The record's other headers, as JSON text.
        position: The position as text.
        occurred_at: RFC 3339, UTC, microseconds.
    """

    route: str
    id: str
    aggregate_type: str
    aggregate_id: str
    type: str
    payload: str | None
    headers: str
    position: str
    occurred_at: str
    origin: Origin


class Refusal(NamedTuple):
    """
    A change that was not applied, and why.

    Attributes:
        reason: A sentence for the person who finds it.
        asks: Whether the row as it is now cures it, as of a partial change that found
            no row: it is asked for then. Any other change is set aside.
    """

    change: Change
    reason: str
    asks: bool = False


_POSITION: Final = re.compile(rb"([0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?\Z")

# What sinks write beside a row's own columns.
RESERVED_COLUMNS: Final = frozenset({"_position", "_deleted", "_x"})

Headers: TypeAlias = Mapping[str, bytes]


class UnreadableError(ValueError):
    """The record says nothing that a sink could apply."""


def position_in(headers: Headers, name: str = names.POSITION) -> str:
    """Return a position without the number among records of one change."""
    match = _POSITION.match(headers.get(name, b""))
    if match is None:
        refuse(f"the header {name} is missing or is not a position")
    return match[1].decode()


def object_in(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object that is not empty."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        refuse(f"the {what} is not JSON")
    if not isinstance(document, dict) or not document:
        refuse(f"the {what} is not a JSON object")
    return document


def text_in(value: bytes | None, what: str) -> str:
    """Return a text that is not empty."""
    if not value:
        refuse(f"the {what} is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        refuse(f"the {what} is not text")


def refuse(reason: str) -> NoReturn:
    """Give the record up."""
    raise UnreadableError(reason)


_NO_INSTANT: Final = re.compile(r"-?infinity|\d{5,}-.*|.* BC")


def is_no_instant(value: Value) -> bool:
    """Tell whether a date or a time is infinite, or out of the years 1 to 9999."""
    return isinstance(value, str) and _NO_INSTANT.fullmatch(value) is not None


def is_no_number(value: Value) -> bool:
    """Tell whether a numeric has no digits."""
    return value == "NaN"

"""
Changes, events and floors: the values that records decode to. No I/O.

They are made once per record, on the hot path, and are therefore named tuples, which
are several times cheaper to make than frozen dataclasses, and just as immutable.

The parsers of positions, strings and JSON objects raise ``UnreadableError`` with the
reason; ``decode`` turns it into an ``UnreadableRecord``. ``is_unrepresentable_time``
and ``is_nan`` find Postgres values that some targets cannot hold: infinite times, years
outside 1 to 9999, and NaN.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import orjson

from towpath.schemas import headers as names
from towpath.schemas.envelope import Value as Value  # noqa: PLC0414 - public here

Row: TypeAlias = Mapping[str, Value]

ALL_PRESENT: Final[frozenset[str]] = frozenset()


# The ending of the positions of rows that a snapshot read.
_READ_ENDING: Final = ".-"


class Origin(NamedTuple):
    """The location of a record in Kafka."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """One record as it was read from Kafka."""

    origin: Origin
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class Change(NamedTuple):
    """
    One row change: the newest state of a key, at its position.

    An event that carries its aggregate's state is a change, too: its row is the
    document, which may hold lists and objects.

    Attributes:
        route: Name of the route, that is, of the destination in the sink.
        key: Values of the key's columns, in key order.
        key_columns: The names of these columns; empty if there are none, as for an
            aggregate's id.
        position: The position as text that sorts as positions compare, without the
            suffix that numbers the records of one change. Compare it, never parse it.
        row: Column values; ``None`` for a delete. A value of ``None`` is null; a column
            listed in ``unchanged`` is missing.
        unchanged: Columns that the stream left out: the stored values are kept.
        is_read: Whether the row comes from a snapshot.
        origin: The record of the change.
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
        """Whether the row lacks columns that only the sink may still have."""
        return bool(self.unchanged)

    @property
    def is_row_as_it_is(self) -> bool:
        """Whether a snapshot read the whole row, or found it deleted."""
        is_read = self.is_read or self.position.endswith(_READ_ENDING)
        return is_read and not self.unchanged


# The lowest of all positions.
_LOWEST: Final = "0000000000000000.-"


class Floor(NamedTuple):
    """
    A position below which a route has no rows: older rows are deleted for good.

    Attributes:
        route: Name of the route.
        position: The floor as text; a row at the floor itself is kept.
        needs_all: Whether it takes effect only once each partition of its topic has
            delivered it. A sweep does, because the rows to keep precede it in each
            partition; a truncation takes effect immediately.
        origin: The record of the floor.
        partitions: The number of partitions that a sweep was written to; 0 means all
            partitions that the topic has now.
        snapshot_id: The snapshot that a sweep ends.
    """

    route: str
    position: str
    needs_all: bool
    origin: Origin
    partitions: int = 0
    snapshot_id: str = ""

    @property
    def is_end_only(self) -> bool:
        """Whether no row is below it: the snapshot read only some of the rows."""
        return self.position == _LOWEST


class EventRow(NamedTuple):
    """
    One domain event as an event log keeps it: append-only, each id once.

    Attributes:
        route: Name of the route, that is, of the log.
        id: The event's uuid as text.
        payload: The payload's text, unmodified; ``None`` if the event has none.
        headers: The record's other headers, as JSON text.
        position: The position as text.
        occurred_at: RFC 3339, in UTC, with microseconds.
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
        reason: A sentence for the operator.
        needs_refetch: Whether a refetch of the row repairs it, as for a partial change
            without a row. Any other refused change becomes a dead letter.
    """

    change: Change
    reason: str
    needs_refetch: bool = False


_POSITION: Final = re.compile(rb"([0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?\Z")

# The columns that sinks add to a row's own.
RESERVED_COLUMNS: Final = frozenset({"_position", "_deleted", "_x"})

Headers: TypeAlias = Mapping[str, bytes]


class UnreadableError(ValueError):
    """The record holds nothing that a sink could apply."""


def position_in(headers: Headers, name: str = names.POSITION) -> str:
    """Return a position without the suffix that numbers the records of one change."""
    match = _POSITION.match(headers.get(name, b""))
    if match is None:
        refuse(f"the header {name} is missing or is not a position")
    return match[1].decode()


def object_in(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object that is not empty."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        refuse(f"the {what} is not JSON")
    if not isinstance(document, dict):
        refuse(f"the {what} is not a JSON object")
    if not document:
        refuse(f"the {what} is an empty JSON object")
    return document


def text_in(value: bytes | None, what: str) -> str:
    """Decode a string that is not empty."""
    if not value:
        refuse(f"the {what} is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        refuse(f"the {what} is not text")


def refuse(reason: str) -> NoReturn:
    """Raise ``UnreadableError``."""
    raise UnreadableError(reason)


_UNREPRESENTABLE_TIME: Final = re.compile(r"-?infinity|\d{5,}-.*|.* BC")


def is_unrepresentable_time(value: Value) -> bool:
    """Return whether a date or time is infinite, or outside the years 1 to 9999."""
    return isinstance(value, str) and _UNREPRESENTABLE_TIME.fullmatch(value) is not None


def is_nan(value: Value) -> bool:
    """Return whether a numeric is NaN."""
    return value == "NaN"

"""
What a record says, once it is decoded: a row change, an event of a log, or a floor.

These are made once per record, on the hot path: named tuples, which are several times
cheaper to make than frozen dataclasses, and as immutable.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

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

"""An event in the making, for the options that change it after its usual form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from towpath.relay.routing.outbox_columns import Parts
from towpath.relay.routing.record import ANY_PARTITION, Header, Record
from towpath.relay.wal.messages import Row

# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__


@dataclass(slots=True)
class Draft:
    """
    A record that is not final yet.

    Attributes:
        topic: Its topic; empty until the rule that names it has run.
        key: The aggregate's id.
        value: The payload.
        headers: In the order written.
        position: The position's text.
        timestamp_ms: The commit time, or what a column says.
        size: An upper bound of its bytes.
        parts: What was picked from the row, in the order of ``PARTS``.
        row: The row as it came.
        partition: Explicit, or ``ANY_PARTITION``.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    position: bytes
    timestamp_ms: int
    size: int
    parts: Parts
    row: Row
    partition: int = ANY_PARTITION

    def extend(self, *more: Header) -> None:
        """Append headers."""
        self.headers += more
        self.size += sum([len(name) + len(value or b"") for name, value in more])

    def rewrite(self, name: str, change: Callable[[bytes], bytes]) -> None:
        """Give a header another value of the same length, if there is one."""
        for at, (known, value) in enumerate(self.headers):
            if known == name and isinstance(value, bytes):
                self.headers[at] = name, change(value)

    def record(self) -> Record:
        """Return what it has become."""
        return _make(
            Record,
            (
                self.topic,
                self.key,
                self.value,
                self.headers,
                self.position,
                self.timestamp_ms,
                self.size,
                self.partition,
            ),
        )


# One option's change of a draft.
Step = Callable[[Draft], None]

"""An event in the making, for the options that change it after its usual form."""

from collections.abc import Callable
from dataclasses import dataclass

from towpath.relay.routing.outbox_columns import Parts
from towpath.relay.routing.record import ANY_PARTITION, Header, Record
from towpath.relay.wal.messages import Row


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

    def add(self, name: str, value: bytes | None) -> None:
        """Append a header."""
        self.headers.append((name, value))
        self.size += len(name) + len(value or b"")

    def header(self, name: str) -> bytes | None:
        """Return the first header of a name; None without."""
        for known, value in self.headers:
            if known == name and isinstance(value, bytes):
                return value
        return None

    def replace(self, name: str, value: bytes) -> None:
        """Give the headers of a name another value of the same length."""
        self.headers[:] = [
            (known, value if known == name else old) for known, old in self.headers
        ]

    def record(self) -> Record:
        """Return what it has become."""
        return Record(
            self.topic,
            self.key,
            self.value,
            self.headers,
            self.position,
            self.timestamp_ms,
            self.size,
            self.partition,
        )


# One option's change of a draft.
Step = Callable[[Draft], None]

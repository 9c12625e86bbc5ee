"""
How much the next chunk may hold and when it may be read.

Three things slow reading down: the rate that the signal allows, a failed attempt, and
its repetition. Time is told, never asked for.
"""

from typing import Final

from towpath.schemas.backoff import Backoff

# A chunk that failed may have been too large for the server's statement timeout: the
# next holds half as many rows, and after a success twice as many.
MIN_CHUNK_ROWS: Final = 100


class Pace:
    """The pace of one table's reading."""

    def __init__(
        self,
        chunk_rows: int,
        max_rows_per_second: int | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._ceiling_rows = min(chunk_rows, max_rows_per_second or chunk_rows)
        self._floor_rows = min(MIN_CHUNK_ROWS, self._ceiling_rows)
        self._max_rows_per_second = max_rows_per_second
        self._backoff = backoff or Backoff()
        self._failures = 0
        self._next_read_at_s = 0.0
        self.max_rows = self._ceiling_rows
        self.now_s = 0.0

    @property
    def may_read(self) -> bool:
        """Whether it is time."""
        return self.now_s >= self._next_read_at_s

    def succeeded(self, row_count: int) -> None:
        """Take in a chunk that was read: its rows count against the rate."""
        self._failures = 0
        self.max_rows = min(self._ceiling_rows, self.max_rows * 2)
        if self._max_rows_per_second:
            earliest_s = max(self.now_s, self._next_read_at_s)
            self._next_read_at_s = earliest_s + row_count / self._max_rows_per_second

    def failed(self) -> None:
        """Take in a failed attempt: the next waits, longer each time."""
        delay_s = self._backoff.delay_s(self._failures)
        self._next_read_at_s = max(self._next_read_at_s, self.now_s + delay_s)
        self._failures += 1
        self.max_rows = max(self._floor_rows, self.max_rows // 2)

"""
How much the next chunk may hold and when it may be read.

A chunk grows and shrinks towards a time and a size. Reasons to yield: the rate
that the signal allows, a failed attempt and its repetition, and a source or a stream
that has other things to do (``Throttle``). Time is told, never asked for.
"""

from dataclasses import dataclass
from typing import Final

from towpath.relay.snapshot.shape import Chunk
from towpath.schemas.clock import Backoff

# A chunk that failed may have been too large for the server's statement timeout: the
# next holds half as many rows.
MIN_CHUNK_ROWS: Final = 100

# Whoever cannot read the smallest chunk in time, so often in a row, never will.
MAX_TIMEOUTS: Final = 5

# No chunk holds more rows, however narrow they are: each is a tuple in memory.
MAX_CHUNK_ROWS: Final = 20_000

# A chunk may be so much larger, or smaller, than the one before it: a server that
# answered slowly once is not slow.
_STEP: Final = 2.0

# How fast a speed is forgotten: half of it in this time.
_HALF_LIFE_S: Final = 5.0


@dataclass(slots=True)
class Throttle:
    """
    Whether reading should yield, for all tables together.

    Attributes:
        max_lag_s: While the stream is behind by more, nothing is read.
        max_active_sessions: While more sessions are at work in the source, nothing is
            read; 0: however many.
        lag_s: How far the stream is behind.
        active_sessions: How many sessions are at work.
    """

    max_lag_s: float
    max_active_sessions: int
    lag_s: float = 0.0
    active_sessions: int = 0

    @property
    def reason(self) -> str:
        """Why nothing should be read now; empty: it may be."""
        if self.lag_s > self.max_lag_s:
            return "the stream is behind by more than max_lag_s"
        limit = self.max_active_sessions
        if limit and self.active_sessions > limit:
            return "more than max_active_sessions are at work in the source"
        return ""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """
    The wanted size of chunks.

    Attributes:
        rows: How many rows the first has.
        time_s: How long reading one should take.
        size_bytes: How large one should be as COPY text.
    """

    rows: int
    time_s: float = 0.2
    size_bytes: int = 8 * 1024 * 1024


class ScanPace:
    """The pace of one table's reading."""

    def __init__(
        self,
        size: ChunkSize,
        max_rows_per_second: int | None = None,
        throttle: Throttle | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._size = size
        ceiling = max(size.rows, MAX_CHUNK_ROWS)
        self._ceiling_rows = min(ceiling, max_rows_per_second or ceiling)
        self._floor_rows = min(MIN_CHUNK_ROWS, size.rows, self._ceiling_rows)
        self._max_rows_per_second = max_rows_per_second
        self._throttle = throttle
        self._backoff = backoff or Backoff()
        self._failures = 0
        self._timeouts = 0
        self._next_read_at_s = 0.0
        self.max_rows = min(size.rows, self._ceiling_rows)
        self.now_s = 0.0

    @property
    def may_read(self) -> bool:
        """Whether it is time."""
        if self._throttle is not None and self._throttle.reason:
            return False
        return self.now_s >= self._next_read_at_s

    @property
    def is_hopeless(self) -> bool:
        """Whether even the smallest chunk takes longer than the server allows."""
        return self._timeouts >= MAX_TIMEOUTS

    def succeeded(self, row_count: int) -> None:
        """Take in that a chunk was read: its rows count against the rate."""
        self._failures = self._timeouts = 0
        if self._max_rows_per_second:
            earliest_s = max(self.now_s, self._next_read_at_s)
            self._next_read_at_s = earliest_s + row_count / self._max_rows_per_second

    def failed(self, *, has_timed_out: bool = False) -> None:
        """Take in a failed attempt: the next waits, longer each time."""
        if has_timed_out and self.max_rows == self._floor_rows:
            self._timeouts += 1
        delay_s = self._backoff.delay_s(self._failures)
        self._next_read_at_s = max(self._next_read_at_s, self.now_s + delay_s)
        self._failures += 1
        self.max_rows = max(self._floor_rows, self.max_rows // 2)

    def aim(self, chunk: Chunk) -> None:
        """Let the next chunk come nearer to the time and the size wanted."""
        row_count = len(chunk.rows)
        ratios = [_STEP]
        if chunk.elapsed_s > 0:
            ratios.append(self._size.time_s / chunk.elapsed_s)
        if chunk.size_bytes > 0:
            ratios.append(self._size.size_bytes / chunk.size_bytes)
        # A short chunk, the last of a range, says little of a whole one.
        wanted = max(row_count * min(ratios), self.max_rows / _STEP)
        if row_count < self.max_rows and wanted < self.max_rows and chunk.is_last:
            return
        rows = min(wanted, self.max_rows * _STEP)
        self.max_rows = int(max(self._floor_rows, min(self._ceiling_rows, rows)))


class ReadRate:
    """Rows a second of late: an average that forgets."""

    def __init__(self) -> None:
        self._rows_per_second: float | None = None
        self._since_s: float | None = None
        self._rows = 0

    @property
    def rows_per_second(self) -> float | None:
        """The speed; None: nothing was told yet."""
        return self._rows_per_second

    def told(self, rows: int, now_s: float) -> None:
        """Take in that so many rows are done."""
        if self._since_s is None:
            self._since_s, self._rows = now_s, 0
            return
        self._rows += rows
        elapsed_s = now_s - self._since_s
        if elapsed_s < 1.0:
            return
        newest = self._rows / elapsed_s
        old = self._rows_per_second
        weight = 0.5 ** (elapsed_s / _HALF_LIFE_S)
        speed = newest if old is None else weight * old + (1 - weight) * newest
        self._rows_per_second = round(speed, 1)
        self._since_s, self._rows = now_s, 0

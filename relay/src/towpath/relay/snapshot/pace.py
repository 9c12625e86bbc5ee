"""
The size of the next chunk, and the time at which it may be read.

Chunks grow and shrink towards a target time and size. Reading is held back by the rate
that the signal allows, by the backoff after a failed attempt, and by a busy source or a
lagging stream (``Throttle``). The time is passed in; nothing here reads a clock.
"""

from dataclasses import dataclass
from typing import Final

from towpath.relay.snapshot.shape import Chunk
from towpath.schemas.clock import Backoff

# A chunk that failed may have been too large for the server's statement timeout: the
# next one holds half as many rows, but at least this many, unless its limit is lower.
MIN_CHUNK_ROWS: Final = 100

# After this many timeouts of the smallest chunk, with no chunk read in between, the
# table fails. Other failures neither count nor reset the count.
MAX_TIMEOUTS: Final = 5

# The maximum number of rows in a chunk, unless ``ChunkSize.rows`` is larger: each row
# is a tuple in memory, however narrow it is.
MAX_CHUNK_ROWS: Final = 20_000

# The maximum factor between the sizes of two successive chunks: one slow response does
# not mean a slow server.
_STEP: Final = 2.0

# The half-life of the moving average of the rate.
_HALF_LIFE_S: Final = 5.0


@dataclass(slots=True)
class Throttle:
    """
    The conditions under which the reading of whole tables yields.

    Attributes:
        max_lag_s: Nothing is read while the stream lags by more than this.
        max_active_sessions: Nothing is read while more sessions than this are active in
            the source; 0 means no limit.
        lag_s: The current lag of the stream.
        active_sessions: The current number of active sessions.
    """

    max_lag_s: float
    max_active_sessions: int
    lag_s: float = 0.0
    active_sessions: int = 0

    @property
    def reason(self) -> str:
        """The reason to yield now; empty if there is none."""
        if self.lag_s > self.max_lag_s:
            return "the stream is behind by more than max_lag_s"
        limit = self.max_active_sessions
        if limit and self.active_sessions > limit:
            return "more than max_active_sessions sessions are active in the source"
        return ""


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """
    The target size of chunks.

    Attributes:
        rows: The number of rows of the first chunk.
        time_s: The time that reading a chunk should take.
        size_bytes: The size that a chunk should have as COPY text.
    """

    rows: int
    time_s: float = 0.2
    size_bytes: int = 8 * 1024 * 1024


class ScanPace:
    """The size of the next chunk of one table's scan, and when it may be read."""

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
        """Whether the next chunk may be read now."""
        if self._throttle is not None and self._throttle.reason:
            return False
        return self.now_s >= self._next_read_at_s

    @property
    def is_too_slow(self) -> bool:
        """Whether even the smallest chunk takes longer than the server allows."""
        return self._timeouts >= MAX_TIMEOUTS

    def succeeded(self, row_count: int) -> None:
        """Record a chunk: its rows count against the allowed rate."""
        self._failures = self._timeouts = 0
        if self._max_rows_per_second:
            earliest_s = max(self.now_s, self._next_read_at_s)
            self._next_read_at_s = earliest_s + row_count / self._max_rows_per_second

    def failed(self, *, has_timed_out: bool = False) -> None:
        """Record a failed attempt: the next one waits, longer each time."""
        if has_timed_out and self.max_rows == self._floor_rows:
            self._timeouts += 1
        delay_s = self._backoff.delay_s(self._failures)
        self._next_read_at_s = max(self._next_read_at_s, self.now_s + delay_s)
        self._failures += 1
        self.max_rows = max(self._floor_rows, self.max_rows // 2)

    def adapt(self, chunk: Chunk) -> None:
        """Adapt the next chunk to the target time and size."""
        row_count = len(chunk.rows)
        ratios = [_STEP]
        if chunk.elapsed_s > 0:
            ratios.append(self._size.time_s / chunk.elapsed_s)
        if chunk.size_bytes > 0:
            ratios.append(self._size.size_bytes / chunk.size_bytes)
        # A short chunk at the end of a range is not representative of full ones.
        wanted = max(row_count * min(ratios), self.max_rows / _STEP)
        if row_count < self.max_rows and wanted < self.max_rows and chunk.is_last:
            return
        rows = min(wanted, self.max_rows * _STEP)
        self.max_rows = int(max(self._floor_rows, min(self._ceiling_rows, rows)))


class ReadRate:
    """Rows per second, as an exponentially weighted average."""

    def __init__(self) -> None:
        self._rows_per_second: float | None = None
        self._since_s: float | None = None
        self._rows = 0

    @property
    def rows_per_second(self) -> float | None:
        """The rate; None if it is not known yet."""
        return self._rows_per_second

    def add(self, rows: int, now_s: float) -> None:
        """Add rows that were read."""
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
        rate = newest if old is None else weight * old + (1 - weight) * newest
        self._rows_per_second = round(rate, 1)
        self._since_s, self._rows = now_s, 0

"""
Counters and gauges of the relay, for the metrics; each new reason is logged once.

The slot monitor's thread writes the values of the slot, the dropped tables and the
source's problems, and counts its own reasons for skipped changes; the loop's thread
writes all other values. Any thread may read any value at any time.

Latencies are measured by the source's clock, which also sets commit times. With the
relay's own clock, a clock error would make them negative or large. Every frame
carries the server's send time. The smallest recent difference between the receive time
and the send time estimates the offset of the relay's clock. The estimate includes the
fastest transfer, which takes far less than a millisecond in one data center.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.wal.transactions import Transaction

# The bounds are close together up to 40 ms, where latencies usually lie, and far apart
# above that.
_BOUNDS_MS: Final = (1, 2, 3, 5, 10, 20, 40, 100, 250, 500, 1_000, 2_500)
BOUNDS_S: Final = (*(ms / 1000 for ms in _BOUNDS_MS), 10.0, 60.0, 600.0)

# How long the smallest difference counts: long enough to include a frame that did
# not wait in a queue. The estimate follows a corrected clock within two such windows.
_WINDOW_US: Final = 60_000_000


class Histogram:
    """Counts per bound, and a sum: written by one thread, read by any."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """
        Count a latency ``count`` times; a negative one counts as zero.

        Transactions that are settled together all count with the latency of the oldest.
        """
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as text with its cumulative count, in Prometheus's form."""
        buckets = []
        total = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), list(self.counts), strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return buckets


class SourceClock:
    """
    Estimates the offset of the relay's clock from the source's.

    ``ahead_us`` is the offset in microseconds; 0 before the first frame.
    """

    __slots__ = ("_before_us", "_began_us", "_smallest_us", "ahead_us")

    def __init__(self) -> None:
        self.ahead_us = 0
        self._began_us = 0
        self._smallest_us: int | None = None
        self._before_us: int | None = None

    def observe(self, sent_us: int, now_us: int) -> None:
        """
        Update the estimate from a frame.

        Args:
            sent_us: When the frame was sent, by the source's clock.
            now_us: When the frame was read, by the relay's clock.
        """
        ahead_us = now_us - sent_us
        if not 0 <= now_us - self._began_us < _WINDOW_US:
            self._before_us = self._smallest_us
            self._smallest_us = ahead_us
            self._began_us = now_us
        elif self._smallest_us is None or ahead_us < self._smallest_us:
            self._smallest_us = ahead_us
        before_us = ahead_us if self._before_us is None else self._before_us
        self.ahead_us = min(self._smallest_us, before_us)

    def since_s(self, committed_us: int, now_us: int) -> float:
        """Return the seconds from a source clock's time to a relay clock's time."""
        return max(0, now_us - self.ahead_us - committed_us) / 1_000_000


# One heartbeat may be late, and one may be lost with its connection.
_MISSED_HEARTBEATS: Final = 3

# The longest step of the loop is a request to Kafka or Postgres (10 s); a reconnect
# makes several such requests.
STUCK_AFTER_S: Final = 60.0

# Reasons are constants. Should one ever contain a variable part, this limit bounds the
# metrics and log records.
_MAX_REASONS: Final = 100
OTHER_REASONS: Final = "other reasons"


def _ignore(_event: str, _reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SlotStats:
    """
    The last observation of the slot.

    Attributes:
        retained_bytes: Log that the server keeps for it.
        lag_bytes: Log between the confirmed LSN and the server's current LSN.
        safe_wal_bytes: Log that may be written before the slot is lost; None without a
            limit.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
        is_active: Whether a process follows it.
        inactive_s: How long no process has followed it; None while one does, or if
            the server does not report it.
        is_archive_failing: Whether the server cannot archive its log, which it then
            keeps regardless of the slot's limits.
    """

    retained_bytes: int
    lag_bytes: int
    safe_wal_bytes: int | None
    wal_status: str
    is_active: bool
    inactive_s: float | None
    is_archive_failing: bool


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """
    The progress of this process's snapshots: tables by state.

    Attributes:
        waiting: Tables that are queued.
        running: Tables that are being read.
        completed: Tables that were completed.
        failed: Tables that failed.
        stopped: Tables that a signal stopped.
        incomplete: Tables with rows among the dead letters.
        paused: Tables that a signal has paused.
        rows: Rows sent, by ``schema.table``; ``other`` for all other collections.
        started_at_s: Monotonic start of the oldest running table; None without one.
    """

    waiting: int
    running: int
    completed: int
    failed: int
    stopped: int
    paused: int
    rows: dict[str, int]
    started_at_s: float | None
    incomplete: int = 0


@dataclass(slots=True)
class Stats:
    """
    Counters and gauges of one process, across sessions.

    ``on_first`` is called with the event and its reason, once for each reason.

    Attributes:
        run_id: The process's id: only its own heartbeats make it ready.
        heartbeat_interval_s: The interval of heartbeats.
        tables: The captured tables.
        max_in_flight_bytes: The limit on ``in_flight_bytes``.
        changes: Messages read in transactions, published or not.
        duplicates: Records that Kafka already held after a restart.
        marks: Marks published to the state topic.
        collection_rows: Rows that the last snapshot of each collection has sent.
        parked_keys: Parked aggregates.
        yielding: Why snapshots yield to the stream or the source; empty if they do not.
        dropped_tables: Captured tables that no longer exist, whose rows are kept.
        source_problems: Problems with the publications and the outbox.
        unacknowledged_bytes: Bytes in flight when the stop deadline passed.
        last_turn_at_s: Monotonic time of the loop's last turn.
        latency: From commit to acknowledgement, on the source's clock.
    """

    on_first: Callable[[str, str], None] = _ignore
    run_id: str = ""
    heartbeat_interval_s: float = 10.0
    tables: Collection[str] = ()
    dropped_tables: Collection[str] = ()
    source_problems: Collection[str] = ()
    max_in_flight_bytes: int = 0
    transactions: int = 0
    changes: int = 0
    records: int = 0
    duplicates: int = 0
    marks: int = 0
    parked_keys: int = 0
    in_flight_bytes: int = 0
    received_lsn: int = 0
    confirmed_lsn: int = 0
    snapshot_rows: int = 0
    snapshot_dropped_rows: int = 0
    collection_rows: dict[str, int] = field(default_factory=dict)
    is_streaming: bool = False
    yielding: str = ""
    unacknowledged_bytes: int = 0
    last_turn_at_s: float = 0.0
    slot: SlotStats | None = None
    snapshot: SnapshotProgress | None = None
    last_transaction: Transaction | None = None
    last_read_us: int = 0
    heartbeat_counter: int = 0
    heartbeat_at_s: float | None = None
    latency: Histogram = field(default_factory=Histogram)
    source_clock: SourceClock = field(default_factory=SourceClock)
    dead_letters: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    yields: Counter[str] = field(default_factory=Counter)

    def count_dead_letter(self, reason: str) -> None:
        """Count a dead letter."""
        self._count(self.dead_letters, "dead letter written", reason)

    def skip(self, reason: str) -> None:
        """Count a change without a record."""
        self._count(self.skipped, "change not published", reason)

    def snapshots_yield(self, reason: str) -> None:
        """Note why snapshots yield; empty if they do not."""
        if reason and reason != self.yielding:
            self._count(self.yields, "snapshot slowed down", reason)
        self.yielding = reason

    def alter(self, reason: str) -> None:
        """Count a value that its type in records cannot express."""
        self._count(self.altered, "value altered", reason)

    def committed(
        self, transaction: Transaction, end_lsn: int, changes: int, now_us: int
    ) -> None:
        """Count a transaction at its commit, with its messages."""
        self.transactions += 1
        self.changes += changes
        self.received_lsn = end_lsn
        self.last_transaction = transaction
        self.last_read_us = now_us

    def settled(self, committed_us: int, count: int, now_us: int) -> None:
        """
        Observe the latency of ``count`` transactions that were settled together.

        ``committed_us`` is the commit time of the oldest, ``now_us`` the current time.
        """
        self.latency.observe(self.source_clock.since_s(committed_us, now_us), count)

    def heartbeat_seen(self, counter: int, run_id: str, now_s: float) -> None:
        """Note a heartbeat that was streamed, if this process wrote it."""
        if run_id == self.run_id:
            self.heartbeat_counter = counter
            self.heartbeat_at_s = now_s

    def heartbeat_age_s(self, now_s: float) -> float | None:
        """Return the age of the last own heartbeat; None before the first."""
        return None if self.heartbeat_at_s is None else now_s - self.heartbeat_at_s

    def unready(self, now_s: float) -> str | None:
        """Return why the relay is not ready; None if it is."""
        if not self.is_streaming:
            return "not streaming"
        age_s = self.heartbeat_age_s(now_s)
        if age_s is None:
            return "no heartbeat has come back yet"
        if age_s > _MISSED_HEARTBEATS * self.heartbeat_interval_s:
            return f"the last heartbeat came back {age_s:.0f} s ago"
        return None

    def is_stuck(self, now_s: float) -> bool:
        """
        Return whether the loop's last turn was longer ago than any turn may take.

        Without a stream there is no loop; the waits at a session's start are bounded
        separately.
        """
        return self.is_streaming and now_s - self.last_turn_at_s > STUCK_AFTER_S

    def _count(self, counter: Counter[str], event: str, reason: str) -> None:
        if reason not in counter:
            if len(counter) >= _MAX_REASONS:
                reason = OTHER_REASONS
            if reason not in counter:
                self.on_first(event, reason)
        counter[reason] += 1

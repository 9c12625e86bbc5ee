"""
What the relay counts and last saw: read by the metrics, logged once per reason.

Plain values, written by the loop's thread (the slot's view by whoever watches it);
another thread may read them at any time. What needs the clock is told the time.

Latencies, and the one clock that they are measured by.

Commit times come from the source's clock. Were they compared with ours, a clock that
is off would make latencies negative or large. Every frame says when the server sent
it, so the smallest ``ours - theirs`` seen of late is what our clock is ahead (with the
quickest journey of a frame, far below a millisecond in one data centre). Latency is
then a difference on the source's clock.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.wal.transactions import Transaction

# Seconds. Narrow where the goals are (3, 10 and 40 ms), wide where only trouble is.
BOUNDS_S: Final = (
    0.001,
    0.002,
    0.003,
    0.005,
    0.01,
    0.02,
    0.04,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
    60.0,
    600.0,
)

# For how long the smallest difference holds: long enough to meet a frame that did not
# wait in a queue, short enough that a corrected clock is followed within two of them.
_WINDOW_US: Final = 60_000_000


class Histogram:
    """Counts per bound, and a sum: written by one thread, read by any."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """
        Count a latency; below zero counts as zero.

        Args:
            seconds: How long it took.
            count: How many it stands for: of what is settled together, the oldest.
        """
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.sum_s += seconds * count

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as text with the count up to it, as Prometheus does."""
        told = []
        total = 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), list(self.counts), strict=True):
            total += count
            told.append((str(bound), float(total)))
        return told


class SourceClock:
    """
    Estimates what our clock is ahead of the source's.

    ``ahead_us``: by how much, in microseconds; 0 as long as nothing is known.
    """

    __slots__ = ("_before_us", "_began_us", "_smallest_us", "ahead_us")

    def __init__(self) -> None:
        self.ahead_us = 0
        self._began_us = 0
        self._smallest_us: int | None = None
        self._before_us: int | None = None

    def observe(self, sent_us: int, now_us: int) -> None:
        """
        Take a frame's time of sending.

        Args:
            sent_us: By the source's clock, microseconds since 1970.
            now_us: By ours, when the frame was read.
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
        """Return the seconds from an instant of the source to one of ours."""
        return max(0, now_us - self.ahead_us - committed_us) / 1_000_000


# A beat may be late, and one may be lost with its connection; a third is not chance.
_BEATS: Final = 3

# The longest that one step of the loop takes on purpose is a request to Kafka or
# Postgres (10 s); several of them follow each other when a connection is made anew.
STUCK_AFTER_S: Final = 60.0

# A reason is a constant of ours; should one ever hold something that varies, neither
# metrics nor the log are flooded with it.
_MAX_REASONS: Final = 100
OTHER_REASONS: Final = "other reasons"


def _say_nothing(_what: str, _reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class SlotStats:
    """
    The last observation of the slot.

    Attributes:
        retained_bytes: Log that the server keeps for it.
        lag_bytes: Log between the confirmed position and the server's end.
        safe_wal_bytes: What may still be written until the slot is lost; None without
            a bound.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
        is_active: Whether somebody follows it.
        inactive_s: For how long nobody has; None while somebody does, or if the server
            does not tell.
    """

    retained_bytes: int
    lag_bytes: int
    safe_wal_bytes: int | None
    wal_status: str
    is_active: bool
    inactive_s: float | None


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """
    How far the snapshots of this process are.

    Attributes:
        waiting: Tables whose turn has not come.
        running: Tables that are being read.
        completed: Tables that were completed.
        failed: Tables that failed.
        stopped: Tables that were stopped by a signal.
        incomplete: Tables of which rows are dead letters.
        paused: Tables that wait until a signal resumes them.
        rows: Rows sent per table, by ``schema.table``: captured tables only.
        started_at_s: Monotonic, when the oldest running one began; None without.
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
    Counters and last sights of one process, across reconnects.

    ``on_first`` is told what happened and why, the first time for each reason.

    Attributes:
        run_id: Of this process: only its own heartbeats make it ready.
        heartbeat_interval_s: How often it beats.
        tables: The captured tables.
        max_in_flight_bytes: The bound of ``in_flight_bytes``.
        changes: Messages of transactions read, whatever became of them.
        duplicates: Records left out after a restart because Kafka had them.
        marks: Marks published to the state topic.
        parked_keys: Aggregates whose events are set aside.
        yielding: Why snapshots let others go first just now; empty: they do not.
        dropped_tables: Captured names without a table whose rows are kept.
        source_problems: Problems of publications and outbox.
        unacknowledged_bytes: Not acknowledged when the time for a stop was over.
        last_turn_at_s: Monotonic, when the loop last turned.
        latency: From commit to acknowledgement, on the source's clock.
    """

    on_first: Callable[[str, str], None] = _say_nothing
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
        self._count(
            self.dead_letters, "a record was set aside as a dead letter", reason
        )

    def skip(self, reason: str) -> None:
        """Count a change that gives no record although it might be expected to."""
        self._count(self.skipped, "a change gave no record", reason)

    def snapshots_yield(self, reason: str) -> None:
        """Take in whether snapshots let others go first, and why."""
        if reason and reason != self.yielding:
            self._count(self.yields, "snapshots yield for a while", reason)
        self.yielding = reason

    def alter(self, reason: str) -> None:
        """Count a value that its form cannot express: it is null, or left out."""
        self._count(self.altered, "a value is not published as it is", reason)

    def committed(
        self, transaction: Transaction, end_lsn: int, changes: int, now_us: int
    ) -> None:
        """Count a transaction that was read to its end, with its messages."""
        self.transactions += 1
        self.changes += changes
        self.received_lsn = end_lsn
        self.last_transaction = transaction
        self.last_read_us = now_us

    def settled(self, committed_us: int, count: int, now_us: int) -> None:
        """
        Count transactions whose every record Kafka has acknowledged.

        Args:
            committed_us: When the oldest of them was committed.
            count: How many were found settled at once.
            now_us: When they were.
        """
        self.latency.observe(self.source_clock.since_s(committed_us, now_us), count)

    def heartbeat_seen(self, counter: int, run_id: str, now_s: float) -> None:
        """Note that a heartbeat came round; those of other processes do not count."""
        if run_id == self.run_id:
            self.heartbeat_counter = counter
            self.heartbeat_at_s = now_s

    def heartbeat_age_s(self, now_s: float) -> float | None:
        """Return how long ago our last heartbeat came round; None before the first."""
        return None if self.heartbeat_at_s is None else now_s - self.heartbeat_at_s

    def unready(self, now_s: float) -> str | None:
        """Return why the relay is not ready; None if it is."""
        if not self.is_streaming:
            return "not streaming"
        age_s = self.heartbeat_age_s(now_s)
        if age_s is None:
            return "no heartbeat has come round yet"
        if age_s > _BEATS * self.heartbeat_interval_s:
            return f"the last heartbeat came round {age_s:.0f} s ago"
        return None

    def is_stuck(self, now_s: float) -> bool:
        """
        Tell whether the loop has not turned for so long that it never will.

        While nothing is streamed there is no loop: what is waited for then has bounds
        of its own.
        """
        return self.is_streaming and now_s - self.last_turn_at_s > STUCK_AFTER_S

    def _count(self, counter: Counter[str], what: str, reason: str) -> None:
        if reason not in counter:
            if len(counter) >= _MAX_REASONS:
                reason = OTHER_REASONS
            if reason not in counter:
                self.on_first(what, reason)
        counter[reason] += 1

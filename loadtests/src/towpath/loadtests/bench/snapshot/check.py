"""
Checks that a topic holds a table's rows, and computes a run's figures; does no I/O.

The topic must have every key with its last value, and no row may be stale.

The check takes the last record of each key, as any reader does. A READ row is *stale*
if a newer change to the same key precedes it in the topic: newer by the row's version,
or by position where records carry one.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towpath.loadtests.bench.figures import Figures, latency_figures, latency_ms

_NONE: Final = -1


class Delivered(NamedTuple):
    """
    One record of the topic.

    ``log_lsn`` is the log position in its header, 0 without one; ``is_read``
    distinguishes READ rows from streamed changes.
    """

    partition: int
    key: int
    version: int
    digest: int
    is_read: bool
    appended_ms: int
    log_lsn: int = 0


class Expected(NamedTuple):
    """
    The expected contents of the topic.

    Attributes:
        digests: Digests of the table's rows at the end, by id; ids start at one.
        updates: The commit time of each update (us), by id and version.
        is_initial: Whether updates before a row's first READ need not be streamed.
    """

    digests: "array[int]"
    updates: Mapping[tuple[int, int], int]
    is_initial: bool = False


class TableCheck(NamedTuple):
    """
    The number of expected rows, and the counts of everything that is wrong.

    ``lost`` keys and ``missing`` updates are not in the topic; ``changed`` keys end
    with a value other than the table's. ``stale`` READ rows come after a newer change,
    and ``outdated`` keys end with such a row and a value other than the table's.
    ``overtaken`` updates come after a newer READ row, and ``repeated`` ones occur
    twice. ``disordered`` are updates that come after a newer one, and all records of a
    key in a second partition. ``unknown`` are records of a key that the table lacks,
    and updates that were never committed.
    """

    rows: int
    lost: int = 0
    missing: int = 0
    changed: int = 0
    stale: int = 0
    outdated: int = 0
    overtaken: int = 0
    repeated: int = 0
    disordered: int = 0
    unknown: int = 0

    @property
    def without_stale(self) -> "TableCheck":
        """The check without counts of stale rows, which other systems may have."""
        return self._replace(stale=0, outdated=0, overtaken=0)

    def findings(self) -> tuple[str, ...]:
        """Describe each count above zero."""
        return tuple(
            f"{count:,} {name}"
            for name, count in self._asdict().items()
            if name != "rows" and count
        )


@dataclass(slots=True)
class TopicTimes:
    """
    The times of a topic's records.

    Attributes:
        read_at_ms: The append time of each READ row, in the order of the records.
        updated_at: The commit time (us) and append time (ms) of each update.
    """

    read_at_ms: "array[int]" = field(default_factory=lambda: array("q"))
    updated_at: list[tuple[int, int]] = field(default_factory=list)


class TableChecker:
    """
    Checks a topic's records.

    Call ``take`` for each record, in the order of each partition, and then ``close``.
    """

    def __init__(self, expected: Expected) -> None:
        self.times = TopicTimes()
        self._expected = expected
        count = len(expected.digests)
        self._home = array("i", (_NONE,)) * count
        self._streamed_version = array("i", (_NONE,)) * count
        self._read_version = array("i", (_NONE,)) * count
        self._digest = array("q", (0,)) * count
        self._streamed_lsn = array("Q", (0,)) * count
        self._stale_last = bytearray(count)
        # The version of a key's first record, if that was a READ row.
        self._first_read = array("i", (_NONE,)) * count
        self._streamed: set[tuple[int, int]] = set()
        self._stale = self._overtaken = self._repeated = 0
        self._disordered = self._unknown = 0

    def take(self, record: Delivered) -> None:
        """Take the next record."""
        key = record.key
        if not 0 < key < len(self._home):
            self._unknown += 1
            return
        if self._home[key] == _NONE:
            self._home[key] = record.partition
            self._first_read[key] = record.version if record.is_read else _NONE
        elif self._home[key] != record.partition:
            self._disordered += 1
        if record.is_read:
            self._read(record)
        else:
            self._update(record)
        self._digest[key] = record.digest

    def close(self) -> TableCheck:
        """Compare the topic with the expected contents."""
        digests = self._expected.digests
        lost = changed = outdated = 0
        for key in range(1, len(digests)):
            if self._home[key] == _NONE:
                lost += 1
            elif self._digest[key] != digests[key]:
                if self._stale_last[key]:
                    outdated += 1
                else:
                    changed += 1
        return TableCheck(
            rows=len(digests) - 1,
            lost=lost,
            missing=sum(self._is_missing(one) for one in self._expected.updates),
            changed=changed,
            stale=self._stale,
            outdated=outdated,
            overtaken=self._overtaken,
            repeated=self._repeated,
            disordered=self._disordered,
            unknown=self._unknown,
        )

    def _read(self, record: Delivered) -> None:
        key = record.key
        self.times.read_at_ms.append(record.appended_ms)
        # A READ row's position is below those of the changes with the same LSN.
        is_older = 0 < record.log_lsn <= self._streamed_lsn[key]
        is_stale = is_older or record.version < self._streamed_version[key]
        self._read_version[key] = record.version
        self._stale += is_stale
        self._stale_last[key] = is_stale

    def _update(self, record: Delivered) -> None:
        key, version = record.key, record.version
        self._stale_last[key] = False
        committed_us = self._expected.updates.get((key, version))
        if committed_us is None:
            self._unknown += 1
            return
        if (key, version) in self._streamed:
            self._repeated += 1
            return
        self._streamed.add((key, version))
        self._disordered += (
            version < self._streamed_version[key]
            or record.log_lsn < self._streamed_lsn[key]
        )
        self._overtaken += version < self._read_version[key]
        self._streamed_version[key] = version
        self._streamed_lsn[key] = max(self._streamed_lsn[key], record.log_lsn)
        self.times.updated_at.append((committed_us, record.appended_ms))

    def _is_missing(self, update: tuple[int, int]) -> bool:
        key, version = update
        if update in self._streamed:
            return False
        is_covered = self._first_read[key] >= version
        return not (self._expected.is_initial and is_covered)


def check_table(
    expected: Expected, records: Iterable[Delivered]
) -> tuple[TableCheck, TopicTimes]:
    """Compare a topic with its expected contents; return the check and the times."""
    one = TableChecker(expected)
    for record in records:
        one.take(record)
    return one.close(), one.times


_MS: Final = 1000.0


class Moments(NamedTuple):
    """
    The times of a run's steps, in milliseconds.

    Attributes:
        idle_ms: When the measured updates without a snapshot started.
        requested_ms: When the snapshot was requested.
        completed_ms: When the system reported completion.
    """

    idle_ms: float
    requested_ms: float
    completed_ms: float


def rate_figures(verdict: TableCheck, times: TopicTimes, moments: Moments) -> Figures:
    """
    Return the speed and stale counts of a snapshot that read at least one row.

    ``rows_per_s`` counts the table's rows from the first append to the last. A JVM has
    to warm up, so the rate of the second half is reported too.
    """
    ordered = sorted(times.read_at_ms)
    reads = len(ordered)
    first, middle, last = ordered[0], ordered[reads // 2], ordered[-1]
    requested_ms = moments.requested_ms
    return {
        "rows_per_s": _rate(verdict.rows, last - first),
        "second_half_per_s": _rate(reads - reads // 2, last - middle),
        "from_signal_per_s": _rate(verdict.rows, last - requested_ms),
        "first_row_s": (first - requested_ms) / _MS,
        "completed_s": (moments.completed_ms - requested_ms) / _MS,
        "rows_read": float(reads),
        "stale_rows": float(verdict.stale),
        "stale_at_end": float(verdict.outdated),
        "overtaken_updates": float(verdict.overtaken),
    }


def live_figures(times: TopicTimes, moments: Moments) -> Figures:
    """
    Return the latency of updates from commit to append, before and during a snapshot.

    A span without an update has no figure: a quiet server has none at all, and a small
    table is read before it can be updated.
    """
    last_ms = max(times.read_at_ms)
    found: Figures = {}
    spans = {
        "idle": (moments.idle_ms, moments.requested_ms),
        "live": (moments.requested_ms, last_ms),
    }
    for name, (since_ms, until_ms) in spans.items():
        latencies_ms = [
            latency_ms(committed_us, appended_ms)
            for committed_us, appended_ms in times.updated_at
            if since_ms <= committed_us / _MS < until_ms
        ]
        if latencies_ms:
            latency = latency_figures(latencies_ms)
            found |= {f"{name}_{figure}": value for figure, value in latency.items()}
    if found.get("idle_p99_ms") and "live_p99_ms" in found:
        found["live_ratio"] = found["live_p99_ms"] / found["idle_p99_ms"]
    return found


def _rate(count: int, elapsed_ms: float) -> float:
    return count * _MS / max(1.0, elapsed_ms)

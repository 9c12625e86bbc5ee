"""Figures of one run, from what was noted of its topic. Pure."""

from typing import Final, NamedTuple

from towpath.loadtests.bench.figures import Figures, latency_figures
from towpath.loadtests.bench.snapshot.verdict import Notes, Verdict

_MS: Final = 1000.0
# The broker's time is cut to whole milliseconds; on average that hides half of one.
_CUT_OFF_MS: Final = 0.5


class Moments(NamedTuple):
    """
    When a run's steps were, in milliseconds.

    Attributes:
        idle_ms: Since when updates are measured that no snapshot runs beside.
        asked_ms: When the snapshot was asked for.
        completed_ms: When the system was seen to say that it is over.
    """

    idle_ms: float
    asked_ms: float
    completed_ms: float


def rate_figures(verdict: Verdict, notes: Notes, moments: Moments) -> Figures:
    """
    Return the speed of a snapshot that read at least one row.

    ``rows_per_s`` counts the table's rows from the first append to the last. A JVM
    warms up, so the second half of what was read is told apart.
    """
    ordered = sorted(notes.read_at_ms)
    reads = len(ordered)
    first, middle, last = ordered[0], ordered[reads // 2], ordered[-1]
    asked_ms = moments.asked_ms
    return {
        "rows_per_s": _rate(verdict.rows, last - first),
        "second_half_per_s": _rate(reads - reads // 2, last - middle),
        "from_signal_per_s": _rate(verdict.rows, last - asked_ms),
        "first_row_s": (first - asked_ms) / _MS,
        "completed_s": (moments.completed_ms - asked_ms) / _MS,
        "rows_read": float(reads),
        "stale_rows": float(verdict.stale),
        "stale_at_end": float(verdict.outdated),
        "overtaken_updates": float(verdict.overtaken),
    }


def live_figures(notes: Notes, moments: Moments) -> Figures:
    """
    Return commit to append of the updates before the snapshot, and while it ran.

    What had no update in its time has no figure: a quiet server has none at all, and a
    small table is read before anybody could change it.
    """
    last_ms = max(notes.read_at_ms)
    found: Figures = {}
    spans = {
        "idle": (moments.idle_ms, moments.asked_ms),
        "live": (moments.asked_ms, last_ms),
    }
    for name, (since_ms, until_ms) in spans.items():
        latencies_ms = [
            appended_ms + _CUT_OFF_MS - committed_us / _MS
            for committed_us, appended_ms in notes.updated_at
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

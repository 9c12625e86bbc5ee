"""
Checks a topic's events, and computes the figures of runs; does no I/O.

A topic must have every event once, unchanged, in order per key. ``CommittedEvent`` is
an event that the server has committed, ``ArrivedEvent`` a record of the topic. Order is
checked on first arrivals: an event that a restart repeats counts as a duplicate.

The figures of a run are a flat mapping of names with units to numbers: rates from
append times, percentiles, ratios. The figures of a case are the minimum, median and
maximum over the rounds.
"""

import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from towpath.loadtests.load.samples import at


class CommittedEvent(NamedTuple):
    """One committed event; ``ordinal`` is its index in commit order."""

    ordinal: int
    key: bytes
    digest: bytes
    committed_us: int


class ArrivedEvent(NamedTuple):
    """
    One record of the topic.

    Attributes:
        appended_ms: The time at which the broker appended it.
        headers: The number of its headers.
    """

    partition: int
    offset: int
    event_id: bytes
    key: bytes
    digest: bytes
    appended_ms: int
    headers: int = 0


class EventCheck(NamedTuple):
    """
    The number of expected events, and the counts of those that are wrong.

    ``unknown`` were never committed; ``changed`` have a different payload or key;
    ``disordered`` arrived after a later event of their key, or in a second partition.
    """

    events: int
    lost: int
    duplicates: int
    unknown: int
    changed: int
    disordered: int

    @property
    def is_clean(self) -> bool:
        """Whether every event arrived once, unchanged and in order."""
        return not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Describe each count above zero."""
        return tuple(
            "1 duplicate" if (name, count) == ("duplicates", 1) else f"{count:,} {name}"
            for name, count in self._asdict().items()
            if name != "events" and count
        )


def digest(payload: bytes | None) -> bytes:
    """Return a payload's digest; a missing payload differs from an empty one."""
    return b"" if payload is None else hashlib.blake2b(payload, digest_size=8).digest()


def check_events(
    facts: Mapping[bytes, CommittedEvent], arrivals: Iterable[ArrivedEvent]
) -> EventCheck:
    """Compare committed events with arrivals; each partition's are in offset order."""
    seen: set[bytes] = set()
    last: dict[bytes, tuple[int, int]] = {}
    duplicates = unknown = changed = disordered = 0
    for partition, _, event_id, key, body, *_ in arrivals:
        fact = facts.get(event_id)
        if fact is None:
            unknown += 1
            continue
        if event_id in seen:
            duplicates += 1
            continue
        seen.add(event_id)
        changed += (key, body) != (fact.key, fact.digest)
        home, ordinal = last.get(fact.key, (partition, -1))
        disordered += partition != home or fact.ordinal < ordinal
        last[fact.key] = (home, max(ordinal, fact.ordinal))
    lost = len(facts) - len(seen)
    return EventCheck(len(facts), lost, duplicates, unknown, changed, disordered)


Figures = dict[str, float]

_MS: Final = 1000.0
# The broker's time is truncated to milliseconds, on average by half a millisecond.
_CUT_OFF_MS: Final = 0.5
_MIN_EVENTS: Final = 2


class Spread(NamedTuple):
    """One figure over the rounds."""

    min: float
    median: float
    max: float


def drain_figures(appended_ms: Sequence[int], started_ms: float) -> Figures:
    """
    Return the rates of a drain.

    ``events_per_s`` counts from the first append to the last. A JVM warms up, so the
    rates over the second half, and from the start of the process, are included.
    """
    ordered = sorted(appended_ms)
    count = len(ordered)
    first, middle, last = ordered[0], ordered[count // 2], ordered[-1]
    return {
        "events_per_s": _rate(count, last - first),
        "second_half_per_s": _rate(count - count // 2, last - middle),
        "from_start_per_s": _rate(count, last - started_ms),
        "first_event_s": (first - started_ms) / _MS,
    }


def latency_figures(latencies_ms: Iterable[float]) -> Figures:
    """Return percentiles, maximum and number of latencies; at least one is required."""
    ordered = sorted(latencies_ms)
    shares = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
    found = {name: at(ordered, share) for name, share in shares.items()}
    return found | {"max_ms": ordered[-1], "samples": float(len(ordered))}


def latencies_ms(
    facts: Mapping[bytes, CommittedEvent],
    arrivals: Iterable[ArrivedEvent],
    since_us: int,
) -> list[float]:
    """Return the latencies of the events committed at or after ``since_us``."""
    found = []
    for arrival in arrivals:
        committed_us = facts[arrival.event_id].committed_us
        if committed_us >= since_us:
            found.append(latency_ms(committed_us, arrival.appended_ms))
    return found


def latency_ms(committed_us: int, appended_ms: int) -> float:
    """Return the time from a commit to the broker's append."""
    return appended_ms + _CUT_OFF_MS - committed_us / _MS


def spread(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return minimum, median and maximum of each figure that every round has."""
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {
        name: Spread(
            min(one[name] for one in rounds),
            statistics.median(one[name] for one in rounds),
            max(one[name] for one in rounds),
        )
        for name in names
    }


def ratio(
    ours: Mapping[str, Spread] | None, theirs: Mapping[str, Spread] | None, name: str
) -> float | None:
    """Return the ratio of a figure's medians; None if one is missing or theirs is 0."""
    if not ours or not theirs or name not in ours or name not in theirs:
        return None
    other = theirs[name].median
    return ours[name].median / other if other else None


def _rate(count: int, elapsed_ms: float) -> float:
    """Return events per second; a time below 1 ms counts as 1 ms."""
    return count * _MS / max(1.0, elapsed_ms) if count >= _MIN_EVENTS else 0.0

"""
Whether a topic holds what it should: every event once, unchanged, in order per key.

Pure. ``Fact`` is what the server says was committed, ``Arrival`` what the topic holds.
Order is judged on first arrivals: what a restart repeats stands behind them, and is
counted as a duplicate.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Fact(NamedTuple):
    """One committed event; ``ordinal`` is its place in commit order."""

    ordinal: int
    key: bytes
    digest: bytes
    committed_us: int


class Arrival(NamedTuple):
    """One record of the topic, with the time at which the broker appended it."""

    partition: int
    offset: int
    event_id: bytes
    key: bytes
    digest: bytes
    appended_ms: int


class Verdict(NamedTuple):
    """
    How many events there ought to be, and what is wrong with those that are there.

    ``unknown`` were never committed; ``changed`` have another payload or key;
    ``disordered`` arrived behind a later event of their key, or in a second partition.
    """

    events: int
    lost: int
    duplicates: int
    unknown: int
    changed: int
    disordered: int

    @property
    def is_clean(self) -> bool:
        """Whether every event is there once, unchanged and in order."""
        return not self.findings()

    def findings(self) -> tuple[str, ...]:
        """Name what is wrong."""
        return tuple(
            f"{count:,} {name}"
            for name, count in self._asdict().items()
            if name != "events" and count
        )


def digest(payload: bytes | None) -> bytes:
    """Return what stands for a payload; a missing one differs from an empty one."""
    return b"" if payload is None else hashlib.blake2b(payload, digest_size=8).digest()


def judge(facts: Mapping[bytes, Fact], arrivals: Iterable[Arrival]) -> Verdict:
    """Compare; arrivals of one partition come in the order of their offsets."""
    seen: set[bytes] = set()
    last: dict[bytes, tuple[int, int]] = {}
    duplicates = unknown = changed = disordered = 0
    for partition, _, event_id, key, body, _ in arrivals:
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
    return Verdict(len(facts), lost, duplicates, unknown, changed, disordered)

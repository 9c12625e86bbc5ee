"""
What a sink counts between two flushes.

A failed ``apply`` must count nothing, because the same batch comes again: whoever
applies counts into a tally of its own and adds it at the end.
"""

from towpath.sinks.change import Origin, Refusal
from towpath.sinks.ports import Checkpoint


class Tally:
    """Counts of changes applied, stale and refused, and of values made null."""

    def __init__(self) -> None:
        self.applied = 0
        self.stale = 0
        self.nulled = 0
        self.refused: list[Refusal] = []
        self.refused_events: dict[Origin, str] = {}

    def add(self, other: "Tally") -> None:
        """Count what another tally counted, too."""
        self.applied += other.applied
        self.stale += other.stale
        self.nulled += other.nulled
        self.refused += other.refused
        self.refused_events |= other.refused_events

    def take(self) -> Checkpoint:
        """Return the counts and begin anew."""
        checkpoint = Checkpoint(
            *(self.applied, self.stale, tuple(self.refused), self.refused_events),
            nulled=self.nulled,
        )
        self.applied = self.stale = self.nulled = 0
        self.refused, self.refused_events = [], {}
        return checkpoint

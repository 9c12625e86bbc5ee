"""
What a sink counts between two flushes.

A failed ``apply`` must count nothing, because the same batch comes again: whoever
applies counts into a tally of its own and adds it at the end.
"""

from towpath.sinks.change import Refusal
from towpath.sinks.ports import Checkpoint


class Tally:
    """Counts of changes applied, stale and refused."""

    def __init__(self) -> None:
        self.applied = 0
        self.stale = 0
        self.refused: list[Refusal] = []

    def add(self, other: "Tally") -> None:
        """Count what another tally counted, too."""
        self.applied += other.applied
        self.stale += other.stale
        self.refused += other.refused

    def take(self) -> Checkpoint:
        """Return the counts and begin anew."""
        checkpoint = Checkpoint(self.applied, self.stale, tuple(self.refused))
        self.applied = self.stale = 0
        self.refused = []
        return checkpoint

"""Waiting between attempts, as a value: no loop invents a sleep of its own."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """
    Exponential delays with full jitter above a floor.

    Attributes:
        first_s: Upper bound of the first delay.
        ceiling_s: No delay is longer than this.
        factor: Growth of the bound from one attempt to the next.
    """

    first_s: float = 0.2
    ceiling_s: float = 10.0
    factor: float = 2.0

    def bound_s(self, attempt: int) -> float:
        """Return the longest delay before attempt ``attempt`` (0 is the first)."""
        # 64 doublings exceed any ceiling; more would overflow a float.
        return min(self.ceiling_s, self.first_s * self.factor ** min(attempt, 64))

    def delay_s(self, attempt: int) -> float:
        """Return a delay between half the bound and the bound."""
        bound_s = self.bound_s(attempt)
        return random.uniform(bound_s / 2, bound_s)  # noqa: S311 - jitter

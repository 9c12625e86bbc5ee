"""
How far a sink may be behind, and the alarm that tells when it is too far.

A budget is the age that the oldest record not yet applied may have. The alarm is raised
above twice the budget and cleared below the budget itself, so that a sink which stands
at the edge does not make it flap.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from towpath.settings import Sink

# What users of each kind expect: a cache within seconds, a search index within a
# minute, a warehouse within the hour.
_BUDGETS_S: Final[Mapping[str, float]] = MappingProxyType(
    {"cache": 10.0, "search": 60.0, "warehouse": 3600.0}
)
_OTHER_BUDGET_S: Final = 60.0

_RAISED_AT_BUDGETS: Final = 2


def budget_s(sink: Sink) -> float:
    """Return the sink's budget: as configured, else by its kind."""
    configured = sink.budget_s
    if configured is not None:
        return configured
    return _BUDGETS_S.get(str(sink.kind), _OTHER_BUDGET_S)


class Alarm:
    """Whether a sink is too far behind; told once when it begins, once when it ends."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.is_raised = False

    def take(self, lag_s: float) -> bool:
        """Take the present lag; tell whether the alarm was raised or cleared by it."""
        was_raised = self.is_raised
        if was_raised:
            self.is_raised = lag_s > self.budget_s
        else:
            self.is_raised = lag_s > _RAISED_AT_BUDGETS * self.budget_s
        return was_raised is not self.is_raised

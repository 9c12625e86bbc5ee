"""
How far a sink is behind, in records and in seconds.

The seconds are the age of the oldest record that is not applied yet, by the record's
own timestamp, which is when its transaction was committed: 0 when nothing is behind,
however long ago the last record came. A batch in flight counts as not applied.

How far a sink may be behind, and the alarm that tells when it is too far.

A budget is the age that the oldest record not yet applied may have. The alarm is raised
above twice the budget and cleared below the budget itself, so that a sink which stands
at the edge does not make it flap.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from towpath.settings import Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.state.progress import Offsets

_MS_PER_S: Final = 1000

# A partition, and the offset from which records are wanted.
Places = Mapping[tuple[str, int], int]


class Lag(NamedTuple):
    """How many records are not applied yet, and how old the oldest of them is."""

    records: int
    seconds: float


class RecordAges(Protocol):
    """Looks records up by where they stand."""

    def oldest_ms(self, places: Places) -> int | None:
        """
        Return the lowest timestamp of the first record at or behind each place.

        Returns:
            Milliseconds since 1970; None if there is no record.

        Raises:
            UnavailableError: The broker does not answer.
        """


def lag_of(
    sink: Sink, applied: Offsets, ends: Offsets, oldest: RecordAges, now: datetime
) -> Lag:
    """
    Compare what a sink has applied with the ends of its topics.

    Args:
        sink: Whose topics count.
        applied: Its progress; a partition that it says nothing of counts in full.
        ends: Of all topics, or of the sink's.
        oldest: Knows how old records are.
        now: The present.

    Raises:
        UnavailableError: The broker does not answer.
    """
    behind: dict[tuple[str, int], int] = {}
    records = 0
    for topic in Routes(sink).matching(ends):
        for partition, end in ends[topic].items():
            begin = applied.get(topic, {}).get(partition, 0)
            if end > begin:
                behind[topic, int(partition)] = begin
                records += end - begin
    at_ms = oldest.oldest_ms(behind) if behind else None
    if at_ms is None:
        return Lag(records, 0.0)
    # The record's clock is the source's: what seems to come from the future is new.
    return Lag(records, max(0.0, now.timestamp() - at_ms / _MS_PER_S))


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

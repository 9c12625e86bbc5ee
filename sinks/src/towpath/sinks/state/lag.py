"""
The lag of a sink in records and seconds, its budget, and the alarm.

The seconds are the age of the oldest record that is not applied, by the record's own
timestamp, which is the commit time of its transaction. They are 0 when every
record is applied, however old the last one is. A batch in flight counts as not applied.

A budget is the highest age that is expected. The alarm is raised above twice the budget
and cleared below the budget, so that it does not flap.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from towpath.settings import Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.state.progress import Offsets

_MS_PER_S: Final = 1000

# By partition, the offset from which records are counted.
PartitionOffsets = Mapping[tuple[str, int], int]


class Lag(NamedTuple):
    """The number of records that are not applied yet, and the age of the oldest."""

    records: int
    seconds: float


class RecordAges(Protocol):
    """Looks up the timestamps of records by their offsets."""

    def oldest_ms(self, offsets: PartitionOffsets) -> int | None:
        """
        Return the lowest timestamp among the first records at or after the offsets.

        Returns:
            Milliseconds since 1970; ``None`` if there are no such records.

        Raises:
            UnavailableError: The broker does not answer.
        """


def lag_of(
    sink: Sink, applied: Offsets, ends: Offsets, oldest: RecordAges, now: datetime
) -> Lag:
    """
    Compare a sink's progress with the ends of its topics.

    Args:
        sink: The sink whose topics count.
        applied: The sink's progress; a partition that is missing counts in full.
        ends: The end offsets of all topics, or of the sink's.
        oldest: Looks up the timestamps of records.
        now: The current time.

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
    # Timestamps come from the source's clock: one in the future counts as now.
    return Lag(records, max(0.0, now.timestamp() - at_ms / _MS_PER_S))


# Changes are expected in a cache within seconds, in a search index within a minute, and
# in a warehouse within the hour.
_BUDGETS_S: Final[Mapping[str, float]] = MappingProxyType(
    {"cache": 10.0, "search": 60.0, "warehouse": 3600.0}
)
_OTHER_BUDGET_S: Final = 60.0

_RAISED_AT_BUDGETS: Final = 2


def budget_s(sink: Sink) -> float:
    """Return the sink's budget: the configured one, or that of its kind."""
    configured = sink.budget_s
    if configured is not None:
        return configured
    return _BUDGETS_S.get(str(sink.kind), _OTHER_BUDGET_S)


class Alarm:
    """Whether a sink is too far behind."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.is_raised = False

    def update(self, lag_s: float) -> bool:
        """Take the current lag; return whether it raised or cleared the alarm."""
        was_raised = self.is_raised
        if was_raised:
            self.is_raised = lag_s > self.budget_s
        else:
            self.is_raised = lag_s > _RAISED_AT_BUDGETS * self.budget_s
        return was_raised is not self.is_raised

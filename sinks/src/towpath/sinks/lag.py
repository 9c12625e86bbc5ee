"""
How far a sink is behind, in records and in seconds.

The seconds are the age of the oldest record that is not applied yet, by the record's
own timestamp, which is when its transaction was committed: 0 when nothing is behind,
however long ago the last record came. A batch in flight counts as not applied.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from towpath.settings import Sink
from towpath.sinks.progress import Offsets
from towpath.sinks.routes import Routes

_MS_PER_S: Final = 1000

# A partition, and the offset from which records are wanted.
Places = Mapping[tuple[str, int], int]


class Lag(NamedTuple):
    """How many records are not applied yet, and how old the oldest of them is."""

    records: int
    seconds: float


class OldestRecord(Protocol):
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
    sink: Sink, applied: Offsets, ends: Offsets, oldest: OldestRecord, now: datetime
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

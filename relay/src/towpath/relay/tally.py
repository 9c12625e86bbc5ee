"""
What the relay counts: read by the metrics, and logged once per reason.

Plain integers, written by the loop alone; another thread may read them at any time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


def _say_nothing(_what: str, _reason: str) -> None:
    pass


@dataclass(slots=True)
class Tally:
    """
    Counters of one process, across reconnects.

    ``on_first`` is told what happened and why, the first time for each reason.
    """

    on_first: Callable[[str, str], None] = _say_nothing
    transactions: int = 0
    records: int = 0
    in_flight_bytes: int = 0
    received_lsn: int = 0
    confirmed_lsn: int = 0
    snapshot_rows: int = 0
    is_streaming: bool = False
    dead_letters: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def bury(self, reason: str) -> None:
        """Count a dead letter."""
        self._count(
            self.dead_letters, "a record was set aside as a dead letter", reason
        )

    def skip(self, reason: str) -> None:
        """Count a change that gives no record although it might be expected to."""
        self._count(self.skipped, "a change gave no record", reason)

    def _count(self, counter: Counter[str], what: str, reason: str) -> None:
        if reason not in counter:
            self.on_first(what, reason)
        counter[reason] += 1

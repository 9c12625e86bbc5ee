"""
Which transactions a query sees, and which streamed ones nobody may see yet.

A transaction's commit record is in the log, and so may be in the stream, before the
server takes it off its list of running transactions: until then no new snapshot sees
it. ``InvisibleTransactions`` keeps the streamed ones that no snapshot is known to see.
Adding one is on the hot path: a tuple and an append.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

# What touches outside any transaction has instead of an id: every query sees it.
NO_TRANSACTION: Final = 0

_XID_RANGE: Final = 1 << 32
_HALF_RANGE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class XidSnapshot:
    """
    What ``pg_current_snapshot()`` says, with 64-bit transaction ids.

    Attributes:
        xmin: Everything below has ended.
        xmax: Nothing at or above had ended.
        running: In between, those that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "XidSnapshot":
        """
        Read Postgres's text form, ``xmin:xmax:xid,xid``.

        Raises:
            ValueError: The text is not a snapshot.
        """
        xmin, xmax, running = text.split(":")
        xids = frozenset(map(int, running.split(","))) if running else frozenset[int]()
        return cls(int(xmin), int(xmax), xids)

    def extend(self, xid32: int) -> int:
        """Return the 64-bit id, nearest to ``xmax``, that ends in these 32 bits."""
        ahead = (xid32 - self.xmax) % _XID_RANGE
        if ahead >= _HALF_RANGE:
            ahead -= _XID_RANGE
        return self.xmax + ahead

    def sees(self, xid64: int) -> bool:
        """Tell whether what this transaction committed is visible."""
        return xid64 < self.xmax and xid64 not in self.running

    def sees_streamed(self, xid32: int) -> bool:
        """Tell the same of a transaction as the stream names it, with 32 bits."""
        return xid32 == NO_TRANSACTION or self.sees(self.extend(xid32))


class InvisibleTransactions:
    """
    The streamed transactions that are not yet known to be visible, in log order.

    The log may be forgotten only below the first of them, because after a restart its
    changes must be streamed, and so recorded, again.
    """

    def __init__(self, start_lsn: int) -> None:
        self._unseen: deque[tuple[int, int]] = deque()
        self._last_end_lsn = start_lsn

    @property
    def count(self) -> int:
        """How many there are; while there are any, visibility is worth a probe."""
        return len(self._unseen)

    def add(self, xid32: int, end_lsn: int) -> None:
        """Take in a streamed commit. Call order: as streamed."""
        self._unseen.append((xid32, self._last_end_lsn))
        self._last_end_lsn = end_lsn

    def see(self, snapshot: XidSnapshot) -> None:
        """Leave out whatever this snapshot sees, wherever in the order it stands."""
        unseen = self._unseen
        while unseen and snapshot.sees_streamed(unseen[0][0]):
            unseen.popleft()
        if unseen:
            sees = snapshot.sees_streamed
            self._unseen = deque(entry for entry in unseen if not sees(entry[0]))

    def marker(self) -> int:
        """Return a marker for "everything streamed until now"."""
        return self._last_end_lsn

    def are_visible_until(self, marker: int) -> bool:
        """Tell whether everything streamed before the marker is known visible."""
        return not self._unseen or self._unseen[0][1] >= marker

    def confirmable(self, lsn: int) -> int:
        """Return how far the log may be forgotten, given what Kafka acknowledged."""
        return min(lsn, self._unseen[0][1]) if self._unseen else lsn

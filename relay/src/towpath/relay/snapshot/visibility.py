"""
The visibility of transactions: to one query, and to all later ones.

A transaction's commit record is in the log, and so may be in the stream, before the
server removes the transaction from its list of running ones. Until then, no new
snapshot sees it. ``InvisibleTransactions`` keeps the streamed transactions that no
snapshot is known to see. Adding one is on the hot path: it costs a tuple and an append.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

# The id of changes outside any transaction: every query sees them.
NO_TRANSACTION: Final = 0

_XID_RANGE: Final = 1 << 32
_HALF_RANGE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class XidSnapshot:
    """
    A result of ``pg_current_snapshot()``, with 64-bit transaction ids.

    Attributes:
        xmin: All transactions below it had ended.
        xmax: No transaction at or above it had ended.
        running: The transactions in between that had not ended.
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "XidSnapshot":
        """
        Parse Postgres's text form, ``xmin:xmax:xid,xid``.

        Raises:
            ValueError: The text is not a snapshot.
        """
        xmin, xmax, running = text.split(":")
        xids = frozenset(map(int, running.split(","))) if running else frozenset[int]()
        return cls(int(xmin), int(xmax), xids)

    def extend(self, xid32: int) -> int:
        """Return the 64-bit id nearest to ``xmax`` that ends in these 32 bits."""
        ahead = (xid32 - self.xmax) % _XID_RANGE
        if ahead >= _HALF_RANGE:
            ahead -= _XID_RANGE
        return self.xmax + ahead

    def sees(self, xid64: int) -> bool:
        """Return whether the transaction's changes are visible."""
        return xid64 < self.xmax and xid64 not in self.running

    def sees_streamed(self, xid32: int) -> bool:
        """Return whether a streamed transaction, by its 32-bit id, is visible."""
        return xid32 == NO_TRANSACTION or self.sees(self.extend(xid32))


class InvisibleTransactions:
    """
    The streamed transactions that are not yet known to be visible, in log order.

    The log may be confirmed only below the first of them: after a restart, the changes
    of that transaction must be streamed, and so recorded, again.
    """

    def __init__(self, start_lsn: int) -> None:
        self._unseen: deque[tuple[int, int]] = deque()
        self._last_end_lsn = start_lsn

    @property
    def count(self) -> int:
        """The number of these transactions; visibility is probed while it is not 0."""
        return len(self._unseen)

    def add(self, xid32: int, end_lsn: int) -> None:
        """Add a streamed commit; commits are added in stream order."""
        self._unseen.append((xid32, self._last_end_lsn))
        self._last_end_lsn = end_lsn

    def observe(self, snapshot: XidSnapshot) -> None:
        """Remove all transactions that this snapshot sees, not only the oldest."""
        unseen = self._unseen
        while unseen and snapshot.sees_streamed(unseen[0][0]):
            unseen.popleft()
        if unseen:
            sees = snapshot.sees_streamed
            self._unseen = deque(entry for entry in unseen if not sees(entry[0]))

    def marker(self) -> int:
        """Return a marker for all transactions streamed so far."""
        return self._last_end_lsn

    def are_visible_until(self, marker: int) -> bool:
        """Return whether all transactions before the marker are known to be visible."""
        return not self._unseen or self._unseen[0][1] >= marker

    def confirmable(self, lsn: int) -> int:
        """Return the LSN that may be confirmed, at most the acknowledged ``lsn``."""
        return min(lsn, self._unseen[0][1]) if self._unseen else lsn

"""
The keys that the stream changed in one table during its scan.

A change evicts a row from a chunk if the change came after the chunk's low watermark,
or if the chunk's snapshot does not see its transaction. The outcome of a change is

FULL
    The stream carries the key's whole state: a row, or its absence.
PARTIAL
    The stream omits columns (unchanged TOAST), so a consumer without the previous row
    cannot build this one.
MOVED
    The row moved to this key from another one, and the stream omits columns. No earlier
    change to this key has their values.

After MOVED, and after PARTIAL with no change before it, the key must be refetched. A
row may also move from the unread range into the range that has been read: the relay
requests such a key itself (``key_requests``), and the scan does not end before that
request has ended.

Recording is on the hot path, and the number of changes is bounded. Above the bound, all
of them are dropped, and the scan restarts its recording from a new start mark. Several
readers may share the changed keys of a scan: a change is dropped when none of them
needs it anymore. Several scans of one table record separately, since each starts and
restarts independently.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final

from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot

# One change to a short key costs about 300 bytes: 60 MB at the bound. With half the
# bound, a busy table restarts its recording while the stream lags; twice the bound
# would endanger the relay's memory budget of 150 MB.
MAX_CHANGED_KEYS: Final = 200_000


class ChangeOutcome(enum.IntEnum):
    """The outcome of a change for its key."""

    FULL = 0
    PARTIAL = 1
    MOVED = 2


# Transaction id, sequence and outcome of one change.
_KeyChange = tuple[int, int, ChangeOutcome]


class ChangedKeys:
    """The changed keys of a table, as one scan records them."""

    def __init__(self, *, max_changed_keys: int = MAX_CHANGED_KEYS) -> None:
        self._max_changed_keys = max_changed_keys
        self._by_key: dict[Key, list[_KeyChange]] = {}
        self._of_all_keys: list[_KeyChange] = []
        self._count = 0
        self._is_recording = False
        self._has_overflowed = False
        # Per reader, the low mark and snapshot of its last chunk; None before the first
        # chunk.
        self._passed: dict[int, tuple[int, XidSnapshot] | None] = {}
        self._next_reader = 0

    def record(self, key: Key, xid: int, sequence: int, outcome: ChangeOutcome) -> None:
        """Record a change to one key."""
        if not self._is_recording:
            return
        changes = self._by_key.setdefault(key, [])
        if changes and changes[-1][0] == xid:
            changes[-1] = (xid, sequence, _after(changes[-1][2], outcome))
        else:
            changes.append((xid, sequence, outcome))
            self._grow()

    def record_truncate(self, xid: int, sequence: int) -> None:
        """Record a change to every key."""
        if self._is_recording:
            self._of_all_keys.append((xid, sequence, ChangeOutcome.FULL))
            self._grow()

    def begin(self) -> None:
        """Start recording, and drop earlier changes."""
        self._drop_all()
        self._has_overflowed = False
        self._is_recording = True

    @property
    def has_overflowed(self) -> bool:
        """Whether changes were lost: no chunk read since ``begin`` can be emitted."""
        return self._has_overflowed

    def changed_among(self, keys: Iterable[Key]) -> Collection[Key]:
        """Return the keys that may have an ``outcome``. Hot path."""
        if self._of_all_keys:
            return set(keys)
        return self._by_key.keys() & keys if self._by_key else ()

    def outcome(
        self, key: Key, low: int, snapshot: XidSnapshot
    ) -> ChangeOutcome | None:
        """
        Return the outcome of the changes that evict a key's row from a chunk.

        Args:
            key: The key of a row, or a listed key.
            low: The sequence of the chunk's low watermark.
            snapshot: The chunk's visibility.

        Returns:
            None if no change evicts the row, so that it may be emitted.
        """
        changes = self._by_key.get(key, ())
        if self._of_all_keys:
            changes = sorted((*changes, *self._of_all_keys), key=itemgetter(1))
        outcome: ChangeOutcome | None = None
        for xid, sequence, newer in changes:
            if sequence > low or not snapshot.sees_streamed(xid):
                outcome = _after(outcome, newer)
        return outcome

    def add_reader(self) -> int:
        """
        Return the number of a new reader.

        Until ``remove_reader``, no change that the reader has not passed is dropped.
        """
        reader = self._next_reader
        self._next_reader += 1
        self._passed[reader] = None
        return reader

    def remove_reader(self, reader: int) -> None:
        """Remove a reader that has no open window."""
        self._passed.pop(reader, None)

    def passed(self, reader: int, low: int, snapshot: XidSnapshot) -> None:
        """
        Record a reader's finished chunk, and drop the changes that no reader needs.

        Args:
            reader: The reader of the chunk.
            low: The sequence of the chunk's low watermark. Later chunks of this reader
                have a higher one, and see all transactions that this one has seen.
            snapshot: The chunk's visibility.
        """
        self._passed[reader] = (low, snapshot)
        if self._count:
            self._forget(tuple(self._passed.values()))

    def _forget(self, passed: tuple[tuple[int, XidSnapshot] | None, ...]) -> None:
        if None in passed:
            return

        def is_needed(change: _KeyChange) -> bool:
            return any(
                change[1] > low or not snapshot.sees_streamed(change[0])
                for low, snapshot in filter(None, passed)
            )

        kept = ((k, [c for c in cs if is_needed(c)]) for k, cs in self._by_key.items())
        self._by_key = {key: changes for key, changes in kept if changes}
        self._of_all_keys = [c for c in self._of_all_keys if is_needed(c)]
        self._count = sum(map(len, self._by_key.values())) + len(self._of_all_keys)

    def set_limit(self, max_changed_keys: int) -> None:
        """Set the number of changes that may be kept."""
        self._max_changed_keys = max_changed_keys

    def _grow(self) -> None:
        self._count += 1
        if self._count > self._max_changed_keys:
            self._drop_all()
            self._has_overflowed = True
            self._is_recording = False

    def _drop_all(self) -> None:
        self._by_key = {}
        self._of_all_keys = []
        self._count = 0


class ChangedKeyFeed:
    """The feed of one table's changes to every scan that records them."""

    def __init__(self) -> None:
        self.recordings: list[ChangedKeys] = []

    def record(
        self, key: Key, xid: int, sequence: int, *, partial: bool = False
    ) -> None:
        """Record an insert, update or delete of a key."""
        outcome = ChangeOutcome.PARTIAL if partial else ChangeOutcome.FULL
        for recording in self.recordings:
            recording.record(key, xid, sequence, outcome)

    def record_move(
        self,
        old_key: Key,
        new_key: Key,
        xid: int,
        sequence: int,
        *,
        partial: bool = False,
    ) -> None:
        """Record an update of a row's key."""
        outcome = ChangeOutcome.MOVED if partial else ChangeOutcome.FULL
        for recording in self.recordings:
            recording.record(old_key, xid, sequence, ChangeOutcome.FULL)
            recording.record(new_key, xid, sequence, outcome)

    def record_truncate(self, xid: int, sequence: int) -> None:
        """Record a TRUNCATE: it changes every key."""
        for recording in self.recordings:
            recording.record_truncate(xid, sequence)


def _after(outcome: ChangeOutcome | None, newer: ChangeOutcome) -> ChangeOutcome:
    """Return the combined outcome of a key's older changes and a newer one."""
    if newer is ChangeOutcome.PARTIAL and outcome is not None:
        return outcome
    return newer


class ChangedKeyFeeds:
    """
    The feeds of all tables that are being scanned.

    Attributes:
        tables: The feeds of table changes, by oid.
        aggregates: The feeds of aggregate events, by aggregate type.
        reordered: The oids of tables that are read by a surrogate key, paused ones
            included. An update may move a row of such a table out of the unread range
            without changing its primary key, so each update with columns left out leads
            to a key request.
    """

    def __init__(self, views: Mapping[str, str]) -> None:
        """
        Start with no feeds.

        Args:
            views: The aggregate type of each collection that is a view.
        """
        self.tables: dict[int, ChangedKeyFeed] = {}
        self.aggregates: dict[str, ChangedKeyFeed] = {}
        self.reordered: set[int] = set()
        self._reordered_of: dict[str, frozenset[int]] = {}
        self._views = views

    @property
    def views(self) -> Collection[str]:
        """The collections that are aggregate views."""
        return self._views.keys()

    def set_reordered(self, queue: str, oids: Iterable[int]) -> None:
        """Replace the reordered tables of one queue; keep those of the others."""
        self._reordered_of[queue] = frozenset(oids)
        self.reordered.clear()
        self.reordered.update(*self._reordered_of.values())

    def start(self, table: StoredTable, changed_keys: ChangedKeys) -> None:
        """Start feeding a scan with the changes to its table."""
        feeds, key = self._place(table)
        feeds.setdefault(key, ChangedKeyFeed()).recordings.append(changed_keys)

    def stop(self, table: StoredTable, changed_keys: ChangedKeys) -> None:
        """Stop feeding a scan."""
        feeds, key = self._place(table)
        feeds[key].recordings.remove(changed_keys)
        if not feeds[key].recordings:
            del feeds[key]

    def _place(self, table: StoredTable) -> tuple[dict[Any, ChangedKeyFeed], str | int]:
        """Return the feeds for a table's kind, and the table's key in them."""
        aggregate_type = self._views.get(table.collection)
        if aggregate_type is None:
            return self.tables, table.table_oid
        return self.aggregates, aggregate_type

"""
The keys that the stream changed in one table during its scan.

Which touches drop a row
    A touch drops a row of a chunk if it came after the chunk's low watermark, or if the
    chunk's snapshot does not see its transaction.

What such a touch leaves behind
    FULL: the stream carries all that the key has now, a row or its absence.
    PARTIAL: the stream left columns out (unchanged TOAST); whoever lacks the row before
    it lacks the row.
    MOVED: the row came here from another key, with columns left out; no earlier change
    of this key can fill them in.

After PARTIAL on nothing, and after MOVED, the key must be read again. A row may also
leave the part that is still to be read for the part that has been read: such a key is
asked for by the relay itself (``requests``), and the scan ends after that.

Touches are on the hot path and bounded. Above the bound they are all forgotten, and the
driver records anew, as at the beginning. Several readers may share the notes of a scan:
a touch is forgotten when none of them needs it. Several scans may read one table at a
time: each takes notes of its own, since each begins and begins anew by itself.

Who takes notes of what: by table for row changes, by type for aggregates' events.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot

# One touch of a short key costs about 300 bytes: 60 MB at the bound. Half of it makes
# a busy table record anew while the stream lags; double threatens the relay's 150 MB.
MAX_CHANGED_KEYS: Final = 200_000


class TouchOutcome(enum.IntEnum):
    """The outcome of a change for its key."""

    FULL = 0
    PARTIAL = 1
    MOVED = 2


_Touch = tuple[int, int, TouchOutcome]


class ChangedKeys:
    """The changed keys of its table, as one scan records them."""

    def __init__(self, *, max_changed_keys: int = MAX_CHANGED_KEYS) -> None:
        self._max_changed_keys = max_changed_keys
        self._by_key: dict[Key, list[_Touch]] = {}
        self._of_all: list[_Touch] = []
        self._count = 0
        self._is_recording = False
        self._has_overflowed = False
        # Of each reader, its last chunk's low mark and view; None: it has judged none.
        self._passed: dict[int, tuple[int, XidSnapshot] | None] = {}
        self._next_reader = 0

    def note(self, key: Key, xid: int, sequence: int, left: TouchOutcome) -> None:
        """Note what a change left behind of a key."""
        if not self._is_recording:
            return
        touches = self._by_key.setdefault(key, [])
        if touches and touches[-1][0] == xid:
            touches[-1] = (xid, sequence, _after(touches[-1][2], left))
        else:
            touches.append((xid, sequence, left))
            self._grow()

    def note_all(self, xid: int, sequence: int) -> None:
        """Note that a change touched every key."""
        if self._is_recording:
            self._of_all.append((xid, sequence, TouchOutcome.FULL))
            self._grow()

    def begin(self) -> None:
        """Record from here on; whatever came before is forgotten."""
        self._forget_all()
        self._has_overflowed = False
        self._is_recording = True

    @property
    def has_overflowed(self) -> bool:
        """Whether touches were lost: no chunk read since ``begin`` can be judged."""
        return self._has_overflowed

    def touched(self, keys: Iterable[Key]) -> Collection[Key]:
        """Return the keys that ``judge`` may have something to say of. Hot path."""
        if self._of_all:
            return set(keys)
        return self._by_key.keys() & keys if self._by_key else ()

    def judge(self, key: Key, low: int, snapshot: XidSnapshot) -> TouchOutcome | None:
        """
        Say what the touches leave of a key that a chunk has read.

        Args:
            key: The key of a row, or of a row that was looked for.
            low: The sequence of the chunk's low watermark.
            snapshot: The chunk's visibility.

        Returns:
            None if nothing touched it, so that the row may be emitted; else what is
            left behind by the touches that drop it.
        """
        touches = self._by_key.get(key, ())
        if self._of_all:
            touches = sorted((*touches, *self._of_all), key=lambda touch: touch[1])
        left: TouchOutcome | None = None
        for xid, sequence, newer in touches:
            if sequence > low or not snapshot.sees_streamed(xid):
                left = _after(left, newer)
        return left

    def join(self) -> int:
        """
        Take in a reader, and return its number.

        What it may still judge by is kept: from now on until ``leave``, nothing is
        forgotten that it has not passed.
        """
        reader = self._next_reader
        self._next_reader += 1
        self._passed[reader] = None
        return reader

    def leave(self, reader: int) -> None:
        """Take in that a reader judges nothing any more."""
        self._passed.pop(reader, None)

    def passed(self, reader: int, low: int, snapshot: XidSnapshot) -> None:
        """
        Take in that a reader has judged a chunk, and forget what nobody needs.

        Args:
            reader: The reader of the chunk.
            low: The sequence of the chunk's low watermark. Later chunks of this reader
                have theirs above it, and see whatever this one has seen.
            snapshot: The chunk's visibility.
        """
        self._passed[reader] = (low, snapshot)
        if self._count:
            self._forget(tuple(self._passed.values()))

    def _forget(self, passed: tuple[tuple[int, XidSnapshot] | None, ...]) -> None:
        if None in passed:
            return

        def is_needed(touch: _Touch) -> bool:
            return any(
                touch[1] > low or not snapshot.sees_streamed(touch[0])
                for low, snapshot in filter(None, passed)
            )

        kept = ((k, [t for t in ts if is_needed(t)]) for k, ts in self._by_key.items())
        self._by_key = {key: touches for key, touches in kept if touches}
        self._of_all = [touch for touch in self._of_all if is_needed(touch)]
        self._count = sum(map(len, self._by_key.values())) + len(self._of_all)

    def allow(self, max_changed_keys: int) -> None:
        """Set how many touches may be kept from here on."""
        self._max_changed_keys = max_changed_keys

    def _grow(self) -> None:
        self._count += 1
        if self._count > self._max_changed_keys:
            self._forget_all()
            self._has_overflowed = True
            self._is_recording = False

    def _forget_all(self) -> None:
        self._by_key = {}
        self._of_all = []
        self._count = 0


class ChangedKeyFeed:
    """The touches of one table: told by the loop, per change; noted by every scan."""

    def __init__(self) -> None:
        self.notes: list[ChangedKeys] = []

    def touch(
        self, key: Key, xid: int, sequence: int, *, partial: bool = False
    ) -> None:
        """Record that a change touched a key."""
        left = TouchOutcome.PARTIAL if partial else TouchOutcome.FULL
        for notes in self.notes:
            notes.note(key, xid, sequence, left)

    def move(
        self,
        old_key: Key,
        new_key: Key,
        xid: int,
        sequence: int,
        *,
        partial: bool = False,
    ) -> None:
        """Record that an update changed a row's key."""
        left = TouchOutcome.MOVED if partial else TouchOutcome.FULL
        for notes in self.notes:
            notes.note(old_key, xid, sequence, TouchOutcome.FULL)
            notes.note(new_key, xid, sequence, left)

    def touch_all(self, xid: int, sequence: int) -> None:
        """Record a TRUNCATE: it touches every key."""
        for notes in self.notes:
            notes.note_all(xid, sequence)


def _after(left: TouchOutcome | None, newer: TouchOutcome) -> TouchOutcome:
    """Fold what a newer touch of the same key leaves onto what older ones left."""
    if newer is TouchOutcome.PARTIAL and left is not None:
        return left
    return newer


class ChangedKeyFeeds:
    """
    The touches that the loop tells, and the scans that note them.

    Attributes:
        tables: The feeds of table changes, by oid.
        aggregates: The feeds of aggregate events, by aggregate type.
        reordered: The tables, by oid, that are read by another key than their own, also
            while they are paused. Such a row may leave the part that is still to be
            read without a word of it in the stream: whatever changes of it with columns
            left out is to be asked for.
    """

    def __init__(self, views: Mapping[str, str]) -> None:
        """
        Record nothing yet.

        Args:
            views: The aggregate type of each collection that is a view.
        """
        self.tables: dict[int, ChangedKeyFeed] = {}
        self.aggregates: dict[str, ChangedKeyFeed] = {}
        self.reordered: set[int] = set()
        self._views = views

    @property
    def views(self) -> Collection[str]:
        """The collections that are aggregate views."""
        return self._views.keys()

    def record(self, table: StoredTable, notes: ChangedKeys) -> None:
        """Let a scan take notes of its table from here on."""
        aggregate_type = self._views.get(table.collection)
        if aggregate_type is None:
            touches = self.tables.setdefault(table.table_oid, ChangedKeyFeed())
        else:
            touches = self.aggregates.setdefault(aggregate_type, ChangedKeyFeed())
        touches.notes.append(notes)

    def forget(self, table: StoredTable, notes: ChangedKeys) -> None:
        """Let a scan take no more notes."""
        aggregate_type = self._views.get(table.collection)
        if aggregate_type is None:
            touches = self.tables[table.table_oid]
        else:
            touches = self.aggregates[aggregate_type]
        touches.notes.remove(notes)
        if touches.notes:
            return
        if aggregate_type is None:
            del self.tables[table.table_oid]
        else:
            del self.aggregates[aggregate_type]

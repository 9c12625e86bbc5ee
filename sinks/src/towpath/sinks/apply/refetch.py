"""
Rows that were asked for and have not come yet: what partial changes leave open.

A partial change is right upon the row that was there before it, and upon no other. It
rests upon nothing if the target has no row; and while a route lacks rows, what the
target has may be older than the row was. So the row is asked for, as it is now.

Until it comes, whatever else is partial would be laid upon the same wrong row, at a
position above the answer, which would then be refused as stale: the row would be wrong
for good. So a row is owed until something whole stands above all partial changes of it.
Something whole that stands below the newest of them, and above the one that was asked
for, has come too early, and the row is asked for once more: there is one question for a
row at a time, however often it changes. A question that nobody answers is asked again
with the next partial change, after a while.

With too many rows of one route, all of it is asked for. So it is where no signal can
list the keys of its rows; but then these are kept count of, as nothing else of the
route may be wrong: the rest is rested upon meanwhile, and only what is owed still, once
the answer was applied, has the route asked for again. One question for a route at a
time, whoever asked it, and not soon again: it reads the whole table.

What is owed is kept in a file, written before the batch counts as done.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from towpath.schemas import headers
from towpath.schemas.clock import Clock
from towpath.sinks.change import Change, Floor, Record
from towpath.sinks.dead_letters.letter import ParkedKey, shared_topic
from towpath.sinks.fold import highest_per_route
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file
from towpath.sinks.state.refetches import (
    NO_SNAPSHOT,
    PendingRefetch,
    Row,
    StoredRefetches,
    file_of,
    read,
    written,
)

# With more of one route all of it is read; so the file stays small.
MAX_OWED: Final = 20_000
ASKED_AGAIN_AFTER_S: Final = 60.0
# A row that changes faster than answers come would have its table read without end.
ROUTE_AGAIN_AFTER_S: Final = 600.0


class RefetchPlan(NamedTuple):
    """
    What a batch makes of what is owed.

    Attributes:
        rows: What is known of rows from now on; ``None``: they are not owed any more.
        ask: The rows to be asked for, in this order.
        whole: Routes whose rows are asked for with all others.
    """

    rows: dict[Row, PendingRefetch | None]
    ask: dict[Row, None]
    whole: set[str]

    def forget(self, route: str) -> None:
        """Forget what was owed of a route: its rows cannot be told one by one."""
        self.rows.update(dict.fromkeys(row for row in self.rows if row[0] == route))


class PendingRefetches:
    """The rows that are owed to one sink."""

    def __init__(
        self, state_folder: Path, sink: str, routes: Collection[str], clock: Clock
    ) -> None:
        """
        Recall what is owed.

        Args:
            state_folder: Where it is kept.
            sink: Whose it is.
            routes: The sink's; of one that is gone nothing is owed.
            clock: For questions that nobody answers.
        """
        self._routes = frozenset(routes)
        self._state_folder = state_folder
        self._sink = sink
        self._clock = clock
        self._path = file_of(state_folder, sink)
        self._asked_s: dict[str, float] = {}
        kept = read(self._read(), self._routes, clock.monotonic_s())
        self._is = kept.without_remains(self._reading())

    def __len__(self) -> int:
        """Return how many rows are owed."""
        return len(self._is.rows)

    def record_keys(self) -> frozenset[ParkedKey]:
        """Return the keys of the rows that are owed, as records have them."""
        return frozenset(owing.record_key for owing in self._is.rows.values())

    def lacking(self) -> frozenset[str]:
        """
        Return the routes that lack rows: nothing may rest upon what they have.

        One that is only read for the rows that it is owed lacks no others.
        """
        whole = self._is.whole
        return frozenset(
            route
            for route, snapshots in self._reading().items()
            if snapshots - whole.get(route, NO_SNAPSHOT)
        )

    def has_room(self, route: str, rows: Iterable[Row]) -> bool:
        """Tell whether these rows of a route can be owed beside those that are."""
        owed = {row for row in self._is.rows if row[0] == route}
        return len(owed.union(rows)) <= MAX_OWED

    def is_due(self, route: str) -> bool:
        """Tell whether a route may be asked for as a whole by now."""
        if route in self._is.asking:
            return True
        asked_s = self._asked_s.get(route)
        now_s = self._clock.monotonic_s()
        is_soon = asked_s is not None and now_s - asked_s < ROUTE_AGAIN_AFTER_S
        return not is_soon and route not in self._reading()

    def comes_whole(self, route: str) -> bool:
        """Tell whether rows of a route are asked for with all others already."""
        return route in self._is.whole

    def is_put_off(self, route: str) -> bool:
        """Tell whether a route is to be asked for, for rows that are not counted."""
        return route in self._is.put_off

    def put_off(self, route: str) -> None:
        """Have a route asked for as a whole when it is due, for rows not counted."""
        self._store(self._is._replace(put_off=self._is.put_off | {route}))

    def overdue(self) -> frozenset[str]:
        """Return the routes to be asked for as wholes that are due now."""
        waiting = self._is.put_off
        if self._is.whole:
            owed = {route for route, _ in self._is.rows}
            waiting |= owed & self._is.whole.keys()
        return frozenset(route for route in waiting if self.is_due(route))

    def asking(self, route: str) -> None:
        """Take note that a route is about to be asked for: what fails is due again."""
        self._store(self._is._replace(asking=self._is.asking | {route}))

    def asked_whole(self, route: str) -> None:
        """Take note that a route was asked for as a whole: nothing of it is owed."""
        self._asked_s[route] = self._clock.monotonic_s()
        self.forget(route)

    def asked_with_all(self, route: str) -> None:
        """Take note that a route was asked for as a whole, for what is owed of it."""
        self._asked_s[route] = self._clock.monotonic_s()
        snapshots = self._reading().get(route, NO_SNAPSHOT)
        whole = {**self._is.whole, route: snapshots}
        asking = self._is.asking - {route}
        self._store(self._is._replace(whole=whole, asking=asking))

    def forget(self, route: str) -> None:
        """Owe nothing of a route."""
        self._store(self._is.without(route))

    def owe(self, row: Row, record_key: ParkedKey, position: str) -> None:
        """Take note of a row that was asked for because it lacks a change."""
        known = self._is.rows.get(row)
        highest = position if known is None else max(position, known.highest)
        since = position if known is None else known.since
        now_s = self._clock.monotonic_s()
        owing = PendingRefetch(record_key, highest, highest, since, now_s)
        self.take(RefetchPlan({row: owing}, {}, set()))

    def due(
        self,
        written: Iterable[Change],
        absent: Collection[Change],
        records: Iterable[Record],
        behind: Sequence[Change] = (),
    ) -> RefetchPlan:
        """
        Hold a batch against what is owed.

        Args:
            written: Its changes that are applied, or stale.
            absent: Its partial changes that found no row.
            records: All of it.
            behind: Its changes that wait behind a dead letter. They may have mended
                the row, which as it is now lets the key go.
        """
        due = RefetchPlan({}, {}, set())
        lacking = self.lacking()
        if not (lacking or absent or behind or self._is.rows):
            return due
        records = list(records)
        told = [c for c in written if self._matters(c, lacking)]
        if told or absent or behind:
            keys = {record.origin: record.key or b"" for record in records}
            lost = {id(change) for change in absent}
            waiting = {id(change) for change in behind}
            for change in sorted((*told, *absent, *behind), key=attrgetter("position")):
                topic = shared_topic(change.origin.topic)
                record_key = ParkedKey(topic, keys[change.origin])
                if id(change) in waiting:
                    self._judge_waiting(change, record_key, due)
                    continue
                is_doubtful = change.route in lacking or id(change) in lost
                self._judge(change, record_key, due, is_doubtful=is_doubtful)
        self._end_undelivered(records, due)
        return due

    def _end_undelivered(self, records: Iterable[Record], due: RefetchPlan) -> None:
        """End the refetches of rows that the relay cannot deliver: they are parked."""
        keys = {
            ParkedKey(shared_topic(record.origin.topic), record.key or b"")
            for record in records
            if headers.UNDELIVERED in record.headers
        }
        for row, owing in {**self._is.rows, **due.rows}.items() if keys else ():
            if owing is not None and owing.record_key in keys:
                due.rows[row] = None
                due.ask.pop(row, None)

    def settle(self, change: Change, due: RefetchPlan) -> None:
        """Let a batch owe a change's row no more."""
        row = change.route, change.key
        if row in self._is.rows or row in due.rows:
            due.rows[row] = None
            due.ask.pop(row, None)

    def take(self, due: RefetchPlan, floors: Iterable[Floor] = ()) -> None:
        """Keep what a batch has made of it, durably; what was to be asked for, is."""
        below = highest_per_route(floors)
        if not due.rows and not (below and self._is.rows):
            return
        rows = {
            row: owing
            for row, owing in {**self._is.rows, **due.rows}.items()
            if owing is not None and owing.highest >= below.get(row[0], "")
        }
        whole = {**dict.fromkeys(due.whole, NO_SNAPSHOT), **self._is.whole}
        kept = self._is._replace(rows=rows, whole=whole)
        self._store(kept.without_remains(self._reading()) if whole else kept)

    def _matters(self, change: Change, lacking: Collection[str]) -> bool:
        is_open = bool(change.unchanged) and change.route in lacking
        return is_open or (change.route, change.key) in self._is.rows

    def _judge_waiting(
        self, change: Change, record_key: ParkedKey, due: RefetchPlan
    ) -> None:
        """Say what a change makes of its row that waits behind a dead letter."""
        row = change.route, change.key
        owing = due.rows.get(row, self._is.rows.get(row))
        if change.is_row_as_it_is:
            # It was read too early, unless nobody has asked for it.
            if owing is not None and change.position > owing.asked_at:
                self._ask_again(row, owing, due)
            return
        now_s = self._clock.monotonic_s()
        if owing is None:
            owing = PendingRefetch(record_key, *(change.position,) * 3, now_s)
            due.rows[row], due.ask[row] = owing, None
            return
        owing = owing._replace(highest=max(owing.highest, change.position))
        due.rows[row] = owing
        if now_s - owing.asked_s > ASKED_AGAIN_AFTER_S:
            self._ask_again(row, owing, due)

    def _ask_again(self, row: Row, owing: PendingRefetch, due: RefetchPlan) -> None:
        """Have a row asked for once more, as of the newest change of it."""
        asked_s = self._clock.monotonic_s()
        due.rows[row] = owing._replace(asked_at=owing.highest, asked_s=asked_s)
        due.ask[row] = None

    def _judge(
        self,
        change: Change,
        record_key: ParkedKey,
        due: RefetchPlan,
        *,
        is_doubtful: bool,
    ) -> None:
        """Say what a change makes of its row, after those below it."""
        row = change.route, change.key
        position, now_s = change.position, self._clock.monotonic_s()
        owing = due.rows.get(row, self._is.rows.get(row))
        if not change.unchanged:
            if owing is None:
                return
            if position >= owing.highest:
                due.rows[row] = None
                due.ask.pop(row, None)
                return
            is_asking = position > owing.asked_at
            highest = owing.highest
        elif owing is None and row in due.rows and not is_doubtful:
            # Laid upon what has settled it in this very batch.
            return
        else:
            is_old = owing is not None and now_s - owing.asked_s > ASKED_AGAIN_AFTER_S
            is_asking = owing is None or is_old
            highest = position if owing is None else max(position, owing.highest)
        if is_asking:
            due.ask[row] = None
            since = position if owing is None else owing.since
            due.rows[row] = PendingRefetch(record_key, highest, highest, since, now_s)
        elif owing is not None:
            due.rows[row] = owing._replace(highest=highest)

    def _reading(self) -> Mapping[str, frozenset[str]]:
        """Return the routes that are being read anew, each with the snapshots' ids."""
        found: dict[str, set[str]] = defaultdict(set)
        noted = incomplete.noted(self._state_folder, self._sink, self._routes)
        for route, snapshot_id in noted:
            found[route].add(snapshot_id)
        return {route: frozenset(ids) for route, ids in found.items()}

    def _store(self, kept: StoredRefetches) -> None:
        if kept != self._is:
            self._write(written(kept))
        self._is = kept

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, content: bytes) -> None:
        replace_file(self._path, content)

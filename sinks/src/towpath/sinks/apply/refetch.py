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
from towpath.sinks.dead_letters.entries import ParkedKey, shared_topic
from towpath.sinks.fold import highest_per_route
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file
from towpath.sinks.state.refetches import (
    NO_SNAPSHOT,
    PendingRefetch,
    Row,
    StoredRefetches,
    read,
    refetches_path,
    written,
)

# With more of one route all of it is read; so the file stays small.
MAX_PENDING: Final = 20_000
REFETCH_AGAIN_AFTER_S: Final = 60.0
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
    requests: dict[Row, None]
    whole_routes: set[str]

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
        self._path = refetches_path(state_folder, sink)
        self._asked_s: dict[str, float] = {}
        kept = read(self._read(), self._routes, clock.monotonic_s())
        self._stored = kept.without_remains(self._reading())

    def __len__(self) -> int:
        """Return how many rows are owed."""
        return len(self._stored.rows)

    def record_keys(self) -> frozenset[ParkedKey]:
        """Return the keys of the rows that are owed, as records have them."""
        return frozenset(refetch.record_key for refetch in self._stored.rows.values())

    def incomplete_routes(self) -> frozenset[str]:
        """
        Return the routes that lack rows: nothing may rest upon what they have.

        One that is only read for the rows that it is owed lacks no others.
        """
        whole = self._stored.whole
        return frozenset(
            route
            for route, snapshots in self._reading().items()
            if snapshots - whole.get(route, NO_SNAPSHOT)
        )

    def has_room(self, route: str, rows: Iterable[Row]) -> bool:
        """Tell whether these rows of a route can be owed beside those that are."""
        refetches = {row for row in self._stored.rows if row[0] == route}
        return len(refetches.union(rows)) <= MAX_PENDING

    def is_route_due(self, route: str) -> bool:
        """Tell whether a route may be asked for as a whole by now."""
        if route in self._stored.requested:
            return True
        requested_s = self._asked_s.get(route)
        now_s = self._clock.monotonic_s()
        is_soon = requested_s is not None and now_s - requested_s < ROUTE_AGAIN_AFTER_S
        return not is_soon and route not in self._reading()

    def is_requested_whole(self, route: str) -> bool:
        """Tell whether rows of a route are asked for with all others already."""
        return route in self._stored.whole

    def is_postponed(self, route: str) -> bool:
        """Tell whether a route is to be asked for, for rows that are not counted."""
        return route in self._stored.postponed

    def postpone(self, route: str) -> None:
        """Have a route asked for as a whole when it is due, for rows not counted."""
        self._store(self._stored._replace(postponed=self._stored.postponed | {route}))

    def overdue_routes(self) -> frozenset[str]:
        """Return the routes to be asked for as wholes that are due now."""
        waiting = self._stored.postponed
        if self._stored.whole:
            refetches = {route for route, _ in self._stored.rows}
            waiting |= refetches & self._stored.whole.keys()
        return frozenset(route for route in waiting if self.is_route_due(route))

    def begin_route_request(self, route: str) -> None:
        """Take note that a route is about to be asked for: what fails is due again."""
        self._store(self._stored._replace(requested=self._stored.requested | {route}))

    def end_uncounted_request(self, route: str) -> None:
        """Take note that a route was asked for as a whole: nothing of it is owed."""
        self._asked_s[route] = self._clock.monotonic_s()
        self.forget(route)

    def end_route_request(self, route: str) -> None:
        """Take note that a route was asked for as a whole, for what is owed of it."""
        self._asked_s[route] = self._clock.monotonic_s()
        snapshots = self._reading().get(route, NO_SNAPSHOT)
        whole = {**self._stored.whole, route: snapshots}
        requested = self._stored.requested - {route}
        self._store(self._stored._replace(whole=whole, requested=requested))

    def forget(self, route: str) -> None:
        """Owe nothing of a route."""
        self._store(self._stored.without(route))

    def add(self, row: Row, record_key: ParkedKey, position: str) -> None:
        """Take note of a row that was asked for because it lacks a change."""
        known = self._stored.rows.get(row)
        highest = position if known is None else max(position, known.highest)
        since = position if known is None else known.since
        now_s = self._clock.monotonic_s()
        refetch = PendingRefetch(record_key, highest, highest, since, now_s)
        self.store(RefetchPlan({row: refetch}, {}, set()))

    def plan(
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
        incomplete_routes = self.incomplete_routes()
        if not (incomplete_routes or absent or behind or self._stored.rows):
            return due
        records = list(records)
        told = [c for c in written if self._matters(c, incomplete_routes)]
        if told or absent or behind:
            keys = {record.origin: record.key or b"" for record in records}
            lost = {id(change) for change in absent}
            waiting = {id(change) for change in behind}
            for change in sorted((*told, *absent, *behind), key=attrgetter("position")):
                topic = shared_topic(change.origin.topic)
                record_key = ParkedKey(topic, keys[change.origin])
                if id(change) in waiting:
                    self._judge_held_back(change, record_key, due)
                    continue
                is_doubtful = change.route in incomplete_routes or id(change) in lost
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
        for row, refetch in {**self._stored.rows, **due.rows}.items() if keys else ():
            if refetch is not None and refetch.record_key in keys:
                due.rows[row] = None
                due.requests.pop(row, None)

    def complete(self, change: Change, due: RefetchPlan) -> None:
        """Let a batch owe a change's row no more."""
        row = change.route, change.key
        if row in self._stored.rows or row in due.rows:
            due.rows[row] = None
            due.requests.pop(row, None)

    def store(self, due: RefetchPlan, floors: Iterable[Floor] = ()) -> None:
        """Keep what a batch has made of it, durably; what was to be asked for, is."""
        below = highest_per_route(floors)
        if not due.rows and not (below and self._stored.rows):
            return
        rows = {
            row: refetch
            for row, refetch in {**self._stored.rows, **due.rows}.items()
            if refetch is not None and refetch.highest >= below.get(row[0], "")
        }
        whole = {**dict.fromkeys(due.whole_routes, NO_SNAPSHOT), **self._stored.whole}
        kept = self._stored._replace(rows=rows, whole=whole)
        self._store(kept.without_remains(self._reading()) if whole else kept)

    def _matters(self, change: Change, incomplete_routes: Collection[str]) -> bool:
        is_open = bool(change.unchanged) and change.route in incomplete_routes
        return is_open or (change.route, change.key) in self._stored.rows

    def _judge_held_back(
        self, change: Change, record_key: ParkedKey, due: RefetchPlan
    ) -> None:
        """Say what a change makes of its row that waits behind a dead letter."""
        row = change.route, change.key
        refetch = due.rows.get(row, self._stored.rows.get(row))
        if change.is_row_as_it_is:
            # It was read too early, unless nobody has asked for it.
            if refetch is not None and change.position > refetch.requested_at:
                self._request_again(row, refetch, due)
            return
        now_s = self._clock.monotonic_s()
        if refetch is None:
            refetch = PendingRefetch(record_key, *(change.position,) * 3, now_s)
            due.rows[row], due.requests[row] = refetch, None
            return
        refetch = refetch._replace(highest=max(refetch.highest, change.position))
        due.rows[row] = refetch
        if now_s - refetch.requested_s > REFETCH_AGAIN_AFTER_S:
            self._request_again(row, refetch, due)

    def _request_again(
        self, row: Row, refetch: PendingRefetch, due: RefetchPlan
    ) -> None:
        """Have a row asked for once more, as of the newest change of it."""
        requested_s = self._clock.monotonic_s()
        due.rows[row] = refetch._replace(
            requested_at=refetch.highest, requested_s=requested_s
        )
        due.requests[row] = None

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
        refetch = due.rows.get(row, self._stored.rows.get(row))
        if not change.unchanged:
            if refetch is None:
                return
            if position >= refetch.highest:
                due.rows[row] = None
                due.requests.pop(row, None)
                return
            is_requesting = position > refetch.requested_at
            highest = refetch.highest
        elif refetch is None and row in due.rows and not is_doubtful:
            # Laid upon what has settled it in this very batch.
            return
        else:
            is_old = (
                refetch is not None
                and now_s - refetch.requested_s > REFETCH_AGAIN_AFTER_S
            )
            is_requesting = refetch is None or is_old
            highest = position if refetch is None else max(position, refetch.highest)
        if is_requesting:
            due.requests[row] = None
            since = position if refetch is None else refetch.since
            due.rows[row] = PendingRefetch(record_key, highest, highest, since, now_s)
        elif refetch is not None:
            due.rows[row] = refetch._replace(highest=highest)

    def _reading(self) -> Mapping[str, frozenset[str]]:
        """Return the routes that are being read anew, each with the snapshots' ids."""
        found: dict[str, set[str]] = defaultdict(set)
        noted = incomplete.noted(self._state_folder, self._sink, self._routes)
        for route, snapshot_id in noted:
            found[route].add(snapshot_id)
        return {route: frozenset(ids) for route, ids in found.items()}

    def _store(self, kept: StoredRefetches) -> None:
        if kept != self._stored:
            self._write(written(kept))
        self._stored = kept

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, content: bytes) -> None:
        replace_file(self._path, content)

"""
Pending refetches: rows requested from the source for partial changes without one.

A partial change is correct only when merged with the row that preceded it. If the
target has no row, or the route lacks rows so that the target's row may be too old, the
current row is requested from the source.

Until the row arrives, further partial changes to it would be merged with the same wrong
row, at positions above the requested row, which the guard would then refuse as stale.
So a refetch stays pending until a whole row is above all partial changes. A whole row
below the newest of them was read too early: the row is requested once more. There is
one request per row at a time; a request without an answer is repeated with the next
partial change after ``REFETCH_AGAIN_AFTER_S``.

If a route has more pending rows than ``MAX_PENDING``, the whole route is requested. So
is a route whose keys no signal can list; its pending rows stay counted, because only
these may be wrong. If rows are still pending after the route has been read, the route
is requested again. There is one request per route at a time and, while the streaming
query runs, at most one in ``ROUTE_AGAIN_AFTER_S``, because each reads the whole table.

The pending refetches are kept in a file, written before the batch counts as done.
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
    decode_refetches,
    encode_refetches,
    refetches_path,
)

# Above this number the whole route is read, so that the file stays small.
MAX_PENDING: Final = 20_000
REFETCH_AGAIN_AFTER_S: Final = 60.0
# Otherwise a row that changes faster than it is read would cause endless table reads.
ROUTE_AGAIN_AFTER_S: Final = 600.0


class RefetchPlan(NamedTuple):
    """
    The refetches that a batch starts and completes.

    Attributes:
        rows: The new state of each row; ``None`` if its refetch is complete.
        requests: The rows to be requested, in this order.
        whole_routes: Routes whose rows are requested by a snapshot of the route.
    """

    rows: dict[Row, PendingRefetch | None]
    requests: dict[Row, None]
    whole_routes: set[str]

    def forget(self, route: str) -> None:
        """Complete the planned refetches of a route; its rows are no longer counted."""
        self.rows.update(dict.fromkeys(row for row in self.rows if row[0] == route))


class PendingRefetches:
    """The pending refetches of one sink."""

    def __init__(
        self, state_folder: Path, sink: str, routes: Collection[str], clock: Clock
    ) -> None:
        """
        Restore the pending refetches.

        Args:
            state_folder: The state folder.
            sink: The name of the sink.
            routes: The sink's routes; refetches of others are dropped.
            clock: Measures the time since each request.
        """
        self._routes = frozenset(routes)
        self._state_folder = state_folder
        self._sink = sink
        self._clock = clock
        self._path = refetches_path(state_folder, sink)
        self._requested_s: dict[str, float] = {}
        kept = decode_refetches(self._read(), self._routes, clock.monotonic_s())
        self._stored = kept.without_complete_requests(self._reading())

    @property
    def sink_name(self) -> str:
        """The name of the sink."""
        return self._sink

    def __len__(self) -> int:
        """Return the number of rows whose refetch is pending."""
        return len(self._stored.rows)

    def record_keys(self) -> frozenset[ParkedKey]:
        """Return the record keys of the rows whose refetch is pending."""
        return frozenset(refetch.record_key for refetch in self._stored.rows.values())

    def incomplete_routes(self) -> frozenset[str]:
        """
        Return the routes that lack rows: their rows must not be merged with changes.

        A route that is read only for its pending refetches lacks no other rows.
        """
        whole = self._stored.whole
        return frozenset(
            route
            for route, snapshots in self._reading().items()
            if snapshots - whole.get(route, NO_SNAPSHOT)
        )

    def can_count(self, route: str, rows: Iterable[Row]) -> bool:
        """Return whether these rows of a route can also be counted as pending."""
        refetches = {row for row in self._stored.rows if row[0] == route}
        return len(refetches.union(rows)) <= MAX_PENDING

    def is_route_due(self, route: str) -> bool:
        """Return whether a route may be requested as a whole now."""
        if route in self._stored.requested:
            return True
        requested_s = self._requested_s.get(route)
        now_s = self._clock.monotonic_s()
        is_recent = (
            requested_s is not None and now_s - requested_s < ROUTE_AGAIN_AFTER_S
        )
        return not is_recent and route not in self._reading()

    def is_requested_whole(self, route: str) -> bool:
        """Return whether a snapshot of the route is requested for its pending rows."""
        return route in self._stored.whole

    def is_postponed(self, route: str) -> bool:
        """Return whether a route's request for its uncounted rows is postponed."""
        return route in self._stored.postponed

    def postpone(self, route: str) -> None:
        """Postpone a route's request for its uncounted rows until it is due."""
        self._store(self._stored._replace(postponed=self._stored.postponed | {route}))

    def overdue_routes(self) -> frozenset[str]:
        """Return the due routes that are waiting to be requested as a whole."""
        waiting = self._stored.postponed
        if self._stored.whole:
            refetches = {route for route, _ in self._stored.rows}
            waiting |= refetches & self._stored.whole.keys()
        return frozenset(route for route in waiting if self.is_route_due(route))

    def begin_route_request(self, route: str) -> None:
        """
        Record that a request for the route begins.

        If it fails, the route is due again.
        """
        self._store(self._stored._replace(requested=self._stored.requested | {route}))

    def end_uncounted_request(self, route: str) -> None:
        """Record that a route was requested for uncounted rows; none is pending now."""
        self._requested_s[route] = self._clock.monotonic_s()
        self.forget(route)

    def end_route_request(self, route: str) -> None:
        """Record that the route was requested for its pending refetches."""
        self._requested_s[route] = self._clock.monotonic_s()
        snapshots = self._reading().get(route, NO_SNAPSHOT)
        whole = {**self._stored.whole, route: snapshots}
        requested = self._stored.requested - {route}
        self._store(self._stored._replace(whole=whole, requested=requested))

    def forget(self, route: str) -> None:
        """Drop the pending refetches of a route."""
        self._store(self._stored.without(route))

    def plan_discarded(
        self, row: Row, record_key: ParkedKey, position: str
    ) -> RefetchPlan:
        """Plan the refetch of a row that lacks a discarded change."""
        known = self._stored.rows.get(row)
        highest = position if known is None else max(position, known.highest)
        since = position if known is None else known.since
        now_s = self._clock.monotonic_s()
        refetch = PendingRefetch(record_key, highest, highest, since, now_s)
        return RefetchPlan({row: refetch}, {row: None}, set())

    def plan(
        self,
        written: Iterable[Change],
        absent: Collection[Change],
        records: Iterable[Record],
        held_back: Sequence[Change] = (),
    ) -> RefetchPlan:
        """
        Compare a batch with the pending refetches.

        Args:
            written: The batch's changes that were applied or were stale.
            absent: The batch's partial changes without a row.
            records: All records of the batch.
            held_back: Changes that are held back behind a dead letter. They may have
                corrected the row; then a refetch of the current row releases the key.
        """
        due = RefetchPlan({}, {}, set())
        incomplete_routes = self.incomplete_routes()
        if not (incomplete_routes or absent or held_back or self._stored.rows):
            return due
        records = list(records)
        matching = [c for c in written if self._matters(c, incomplete_routes)]
        if matching or absent or held_back:
            keys = {record.origin: record.key or b"" for record in records}
            lost = {id(change) for change in absent}
            waiting = {id(change) for change in held_back}
            for change in sorted(
                (*matching, *absent, *held_back), key=attrgetter("position")
            ):
                topic = shared_topic(change.origin.topic)
                record_key = ParkedKey(topic, keys[change.origin])
                if id(change) in waiting:
                    self._plan_held_back(change, record_key, due)
                    continue
                is_doubtful = change.route in incomplete_routes or id(change) in lost
                self._plan_row(change, record_key, due, is_doubtful=is_doubtful)
        self._end_undelivered(records, due)
        return due

    def _end_undelivered(self, records: Iterable[Record], due: RefetchPlan) -> None:
        """
        Complete the refetches of rows that the relay cannot deliver.

        Their keys are parked instead.
        """
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
        """Complete the refetch of a change's row."""
        row = change.route, change.key
        if row in self._stored.rows or row in due.rows:
            due.rows[row] = None
            due.requests.pop(row, None)

    def store(self, due: RefetchPlan, floors: Iterable[Floor] = ()) -> None:
        """Store the plan of a batch durably; its requests have been sent."""
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
        self._store(kept.without_complete_requests(self._reading()) if whole else kept)

    def _matters(self, change: Change, incomplete_routes: Collection[str]) -> bool:
        is_open = bool(change.unchanged) and change.route in incomplete_routes
        return is_open or (change.route, change.key) in self._stored.rows

    def _plan_held_back(
        self, change: Change, record_key: ParkedKey, due: RefetchPlan
    ) -> None:
        """Plan the refetch of a row whose change is held back behind a dead letter."""
        row = change.route, change.key
        refetch = due.rows.get(row, self._stored.rows.get(row))
        if change.is_row_as_it_is:
            # The row was read too early, if it was requested at all.
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
        """Request a row once more, because of its newest change."""
        requested_s = self._clock.monotonic_s()
        due.rows[row] = refetch._replace(
            requested_at=refetch.highest, requested_s=requested_s
        )
        due.requests[row] = None

    def _plan_row(
        self,
        change: Change,
        record_key: ParkedKey,
        due: RefetchPlan,
        *,
        is_doubtful: bool,
    ) -> None:
        """Plan the refetch of a change's row; pass changes in position order."""
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
            # The change is merged with this batch's row, which completes the refetch.
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
        """Return the routes that are being read, each with the ids of its snapshots."""
        found: dict[str, set[str]] = defaultdict(set)
        noted = incomplete.noted(self._state_folder, self._sink, self._routes)
        for route, snapshot_id in noted:
            found[route].add(snapshot_id)
        return {route: frozenset(ids) for route, ids in found.items()}

    def _store(self, kept: StoredRefetches) -> None:
        if kept != self._stored:
            self._write(encode_refetches(kept))
        self._stored = kept

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, content: bytes) -> None:
        replace_file(self._path, content, is_durable=True)

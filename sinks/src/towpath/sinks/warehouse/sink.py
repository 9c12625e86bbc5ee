"""
Writes rows and events into the warehouse: one guarded statement per table and batch.

A statement that returns is committed, so ``flush`` has nothing to wait for; it is where
compaction runs, between batches, because there is one writer. A table that was never
written to is filled by a plain append: it holds nothing that could be newer, and the
batch has each key once. Whether it was written to is asked of the table itself, again
after every statement that failed, because a failed statement may have committed.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, TypeVar

import structlog

from towpath.schemas.failure import TowpathError
from towpath.settings import Route, RouteKind, Sink
from towpath.sinks.change import Change, EventRow
from towpath.sinks.errors import ShapeUnknownError
from towpath.sinks.floors import Floors
from towpath.sinks.ports import Batch, Checkpoint, RelationSource, SqlSession
from towpath.sinks.tally import Tally
from towpath.sinks.warehouse import compaction, merge, rows
from towpath.sinks.warehouse.ddl import floor_property, live_view
from towpath.sinks.warehouse.opening import Commit, ensure, newest, remembered_floor
from towpath.sinks.warehouse.partial import without_absent
from towpath.sinks.warehouse.tables import (
    LakeName,
    LakeTable,
    current_state,
    event_log,
)

_BATCH: Final = "towpath_batch"

_log = structlog.get_logger("towpath.sinks.warehouse")

_T = TypeVar("_T", Change, EventRow)


class WarehouseSink:
    """One warehouse, written by one sink."""

    def __init__(
        self, sink: Sink, relations: RelationSource, session: SqlSession
    ) -> None:
        """
        Describe the warehouse; nothing is opened yet.

        Args:
            sink: Its routes; the session already knows its catalog (``catalog_conf``).
            relations: The shapes of the routes' tables.
            session: The engine that writes. It belongs to the caller.
        """
        self._routes: dict[str, Route] = {route.name: route for route in sink.route}
        self._relations = relations
        self._session = session
        self._tables: dict[str, LakeTable] = {}
        self._newest: dict[LakeName, Commit] = {}
        self._compaction = compaction.Compaction()
        self._left_out: set[tuple[str, str]] = set()
        self._floors = Floors()
        self._tally = Tally()

    def open(self) -> None:
        for route in self._routes.values():
            try:
                self._table(route)
            except ShapeUnknownError:
                # Announced with the table's first record, which is when it is needed.
                _log.info("table not announced yet", route=route.name)

    def apply(self, batch: Batch) -> None:
        tally = Tally()
        # Opened first: a table may remember a floor of its own.
        for name in {c.route for c in batch.changes} | {f.route for f in batch.floors}:
            self._table(self._routes[name])
        for name, floor in self._floors.due(batch.floors):
            self._sweep(self._routes[name], floor)
        for route, changes in _by_route(self._floors.above(batch.changes, tally)):
            self._upsert(self._routes[route], changes, tally)
        for route, events in _by_route(batch.events):
            self._append(self._routes[route], events, tally)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        due = self._compaction.due()
        if due is not None:
            self._compact(due)
        return self._tally.take()

    def close(self) -> None:
        """Nothing to let go of: the session belongs to the caller."""

    def _table(self, route: Route) -> LakeTable:
        """Return a route's table; the first time, make it exist and fit."""
        table = self._tables.get(route.name)
        if table is not None:
            return table
        if route.kind is RouteKind.EVENT_LOG:
            table = event_log(route.name)
            ensure(self._session, table)
        else:
            table = current_state(route.name, self._relations.shape(route.topic))
            ensure(self._session, table)
            self._session.sql(live_view(table))
            self._floors.learn(route.name, remembered_floor(self._session, table))
        self._tables[route.name] = table
        return table

    def _refreshed_table(self, route: Route) -> LakeTable:
        """Return a route's table, made to fit what was announced since."""
        self._relations.refresh()
        shape = self._relations.shape(route.topic)
        if current_state(route.name, shape) != self._table(route):
            del self._tables[route.name]
        return self._table(route)

    def _upsert(self, route: Route, changes: list[Change], tally: Tally) -> None:
        table = self._table(route)
        if _unknown_columns(table, changes):
            table = self._refreshed_table(route)
            self._tell_left_out(route, _unknown_columns(table, changes))
        laid = rows.lay_out(table, changes)
        if laid.refused:
            table = self._refreshed_table(route)
            laid = rows.lay_out(table, changes)
        laid = without_absent(self._session, table, laid)
        tally.refused += laid.refused
        if laid.changes:
            kept = frozenset().union(*(change.unchanged for change in laid.changes))
            self._session.register(_BATCH, laid.rows)
            applied = self._write(table, merge.upsert(table, _BATCH, kept))
            tally.applied += applied
            tally.stale += len(laid.changes) - applied

    def _sweep(self, route: Route, floor: str) -> None:
        """Remember a floor, then take away what is below it."""
        table = self._table(route)
        self._session.sql(floor_property(table, floor))
        self._floors.learn(route.name, floor)
        self._newest.pop(table.name, None)
        self._session.sql(merge.sweep(table, floor))
        self._floors.carried_out(route.name, floor)
        _log.info("rows below a floor taken away", route=route.name, floor=floor)

    def _append(self, route: Route, events: list[EventRow], tally: Tally) -> None:
        table = self._table(route)
        laid = rows.lay_out_events(table, events)
        if laid.untimed:
            _log.warning(
                "the warehouse cannot hold the time of some events",
                route=route.name,
                events=laid.untimed,
            )
        self._session.register(_BATCH, laid.rows)
        applied = self._write(
            table, merge.insert_new(table, _BATCH, laid.occurred_between)
        )
        tally.applied += applied
        tally.stale += len(events) - applied

    def _write(self, table: LakeTable, guarded: str) -> int:
        """Write the batch, guarded unless the table is new; return the rows written."""
        # Forgotten while the statement runs: if it fails, the table is asked again.
        before = self._newest.pop(table.name, None) or newest(self._session, table.name)
        self._session.sql(merge.append(table, _BATCH) if before is None else guarded)
        after = newest(self._session, table.name)
        if after is None or after == before:
            return 0
        self._newest[table.name] = after
        self._compaction.note(table.name, after.summary)
        return after.added_rows

    def _tell_left_out(self, route: Route, names: Iterable[str]) -> None:
        """Say once that an older record has a column which the source dropped."""
        for name in names:
            if (route.name, name) not in self._left_out:
                self._left_out.add((route.name, name))
                _log.warning(
                    "column left out: the source no longer has it",
                    route=route.name,
                    column=name,
                )

    def _compact(self, name: LakeName) -> None:
        try:
            for statement in compaction.statements(name):
                self._session.sql(statement)
        except TowpathError as error:
            # The rows are safe without it; it is due again when the table has grown.
            _log.warning("compaction failed", table=name.table, error=str(error))
        commit = newest(self._session, name)
        if commit is not None:
            self._newest[name] = commit
            self._compaction.settle(name, commit.summary)


def _by_route(items: Iterable[_T]) -> list[tuple[str, list[_T]]]:
    grouped: dict[str, list[_T]] = defaultdict(list)
    for item in items:
        grouped[item.route].append(item)
    return list(grouped.items())


def _unknown_columns(table: LakeTable, changes: Iterable[Change]) -> set[str]:
    known = frozenset(column.name for column in table.columns)
    unknown: set[str] = set()
    for change in changes:
        if change.row is not None and not known.issuperset(change.row):
            unknown |= change.row.keys() - known
    return unknown

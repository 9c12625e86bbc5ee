"""
Writes rows and events into the warehouse: one guarded commit per table and batch.

What returns is committed, so ``flush`` has nothing to wait for; it is where
upkeep runs, between batches, because there is one writer. Tables are in ``shelves``,
how rows are written is in ``writing``.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from towpath.schemas.clock import Clock, SystemClock
from towpath.settings import RouteKind, Sink, Unfit
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.changes.columns import Columns, EncodedColumns, newest_rows
from towpath.sinks.errors import (
    BatchRefusedError,
    ShapeUnknownError,
    StatementRefusedError,
    TargetUnavailableError,
)
from towpath.sinks.key_text import key_parts
from towpath.sinks.ports import Batch, Checkpoint, RelationSource, Repairs
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.warehouse import rows, statements
from towpath.sinks.targets.warehouse.ddl import floor_property
from towpath.sinks.targets.warehouse.opening import UNFIT, TableLosses, TableRegistry
from towpath.sinks.targets.warehouse.schema import POSITION, LakeTable, lake_name
from towpath.sinks.targets.warehouse.upkeep import Upkeep
from towpath.sinks.targets.warehouse.write import (
    BATCH,
    Engines,
    Rows,
    Writer,
    carry_out,
    without_absent,
)

_log = structlog.get_logger("towpath.sinks.warehouse")

_T = TypeVar("_T", Change, EventRow)


class WarehouseSink:
    """One warehouse, written by one sink."""

    def __init__(
        self,
        sink: Sink,
        relations: RelationSource,
        engines: Engines,
        repairs: Repairs | None = None,
        clock: Clock | None = None,
        known: Path | None = None,
    ) -> None:
        """
        Describe the warehouse; nothing is opened yet.

        Args:
            sink: Its routes.
            relations: The shapes of the routes' tables.
            engines: What writes. The session belongs to the caller; it already knows
                the warehouse's catalog (``catalog_conf``).
            repairs: Has tables read anew that were lost; without it, they stay empty.
            clock: For upkeep by age; left out, the machine's.
            known: Where to keep what is known of the tables, in the sink's own folder.
        """
        self._kinds = {route.name: route.kind for route in sink.route}
        session = self._session = engines.session
        # Nobody else's: who is taken for dead must not write to another's.
        branch = f"towpath_{uuid.uuid4().hex}"
        self._losses = TableLosses(known, repairs)
        self._shelves = TableRegistry(
            *(sink, relations, session), losses=self._losses, branch=branch
        )
        self._upkeep = Upkeep(sink.warehouse, clock or SystemClock())
        self._writer = Writer(engines, sink.warehouse, self._upkeep, branch)
        self._nulls_unfit = sink.warehouse.unfit is Unfit.NULL
        self._left_out: set[tuple[str, str]] = set()
        self._nulled: set[tuple[str, str]] = set()
        self._followed: set[str] = set()
        self._floors = Floors()
        self._tally = Tally()

    def open(self) -> None:
        self._shelves.check()
        self._losses.recall()
        for name in self._kinds:
            try:
                self._fitting_table(name)
            except ShapeUnknownError:
                # Announced with the table's first record, which is when it is needed.
                _log.info("table not announced yet", route=name)

    def apply(self, batch: Batch) -> None:
        tally = Tally()
        self._shelves.follow({c.route for c in batch.changes})
        # Opened first: a table may remember a floor of its own.
        for name in {c.route for c in batch.changes} | {f.route for f in batch.floors}:
            self._fitting_table(name)
        for name, floor in self._floors.due(batch.floors):
            self._sweep(name, floor)
        for name, changes in _by_route(self._floors.above(batch.changes, tally)):
            self._upsert(name, changes, tally)
        for name, events in _by_route(batch.events):
            self._append(name, events, tally)
        if batch.safe is not None:
            self._upkeep.safe_below(batch.safe)
        self._tally.add(tally)

    def encode_columns(self, columns: Columns) -> EncodedColumns | None:
        # Looked at once for a batch: what comes later goes with its own record.
        if columns.route not in self._followed:
            self._shelves.follow({columns.route})
            self._followed.add(columns.route)
        table = self._fitting_table(columns.route)
        return None if table is None else rows.lay_out_columns(table, columns)

    def write_rows(self, route: str, rows: pa.Table) -> None:
        table = self._fitting_table(route)
        if table is None or rows.schema != table.schema:
            message = f"{route} has changed since its rows were laid out"
            raise BatchRefusedError(message)
        newest = newest_rows(rows, table.key, POSITION)
        floor = self._floors.of(route)
        if floor is not None:
            newest = newest.filter(pc.greater_equal(newest.column(POSITION), floor))
        guarded = partial(_upsert_statement, table, frozenset())
        applied = self._writer.write(Rows(table, newest, guarded))
        self._tally.applied += applied
        self._tally.stale += len(rows) - applied

    def erase(self, route: str, keys: Sequence[str]) -> None:
        table = self._fitting_table(route)
        if table is None:
            raise TargetUnavailableError(self._shelves.reason(route))
        parts = [key_parts(key) for key in keys]
        fit = [key for key in parts if len(key) == len(table.key)]
        self._writer.forget(table.name)
        if fit:
            self._session.sql(statements.erase(table, fit))

    def flush(self) -> Checkpoint:
        self._followed.clear()
        carry_out(self._session, self._upkeep, self._writer)
        return self._tally.take()

    def close(self) -> None:
        """Nothing to let go of: the session belongs to the caller."""

    def _fitting_table(self, name: str) -> LakeTable | None:
        """Return a route's table, or hold the route back if it has none that fits."""
        try:
            return self._table(name)
        except UNFIT as error:
            self._shelves.hold(name, error)
            return None

    def _table(self, name: str) -> LakeTable:
        """Return a route's table; the first time, make it exist and fit."""
        table, found = self._shelves.open(name)
        is_log = self._kinds[name] is RouteKind.EVENT_LOG
        if found is not None:
            self._writer.begin(table.name, is_new=found.is_new)
            self._upkeep.take_on(table.name, has_tombstones=not is_log)
            self._floors.learn(name, found.floor)
        return table

    def _upsert(self, name: str, changes: list[Change], tally: Tally) -> None:
        table = self._fitting_table(name)
        if table is None:
            reason = self._shelves.reason(name)
            tally.refused += [Refusal(change, reason) for change in changes]
            return
        table, retained = self._with_retained(name, table, changes)
        laid = rows.encode_columns(
            table, changes, retained, nulls_unfit=self._nulls_unfit
        )
        tally.applied += len(changes) - len(laid.changes) - len(laid.refused)
        laid = without_absent(self._session, table, laid)
        tally.refused += laid.refused
        self._tell_nulled(name, laid.nulled, tally)
        if laid.changes:
            kept = retained.union(*(change.unchanged for change in laid.changes))
            guarded = partial(_upsert_statement, table, kept)
            applied = self._writer.write(Rows(table, laid.rows, guarded))
            tally.applied += applied
            tally.stale += len(laid.changes) - applied

    def _with_retained(
        self, name: str, table: LakeTable, changes: Iterable[Change]
    ) -> tuple[LakeTable, frozenset[str]]:
        """Add those columns that older records still have and the source has not."""
        unknown = _unknown_columns(table, changes)
        carried = tuple(c for c in table.retained if c.name in unknown)
        names = frozenset(column.name for column in carried)
        self._tell_left_out(name, unknown - names)
        return replace(table, columns=(*table.columns, *carried)), names

    def _sweep(self, name: str, floor: str) -> None:
        """Remember a floor, then take away what is below it."""
        place = lake_name(name)
        try:
            self._session.sql(floor_property(place, floor))
        except StatementRefusedError as error:
            if self._fitting_table(name) is not None:
                raise
            # Held back, and there is no table: nothing is below any floor.
            _log.warning("floor without a table", route=name, error=str(error))
            return
        self._floors.learn(name, floor)
        self._writer.forget(place)
        self._session.sql(statements.sweep(place, floor))
        self._floors.carried_out(name, floor)
        _log.info("rows below a floor taken away", route=name, floor=floor)

    def _append(self, name: str, events: list[EventRow], tally: Tally) -> None:
        table = self._fitting_table(name)
        if table is None:
            reason = self._shelves.reason(name)
            tally.refused_events |= {event.origin: reason for event in events}
            return
        laid = rows.lay_out_events(table, events)
        tally.nulled += laid.untimed
        if laid.untimed:
            _log.warning(
                "the warehouse cannot hold the time of some events",
                route=name,
                events=laid.untimed,
            )
        statement = statements.insert_new(table, BATCH, laid.occurred_between)
        applied = self._writer.write(Rows(table, laid.rows, lambda _: statement))
        tally.applied += applied
        tally.stale += len(events) - applied

    def _tell_nulled(self, route: str, nulled: Mapping[str, int], tally: Tally) -> None:
        """Count what was made null, and say once that a column has such values."""
        tally.nulled += sum(nulled.values())
        for name, count in nulled.items():
            if count and (route, name) not in self._nulled:
                self._nulled.add((route, name))
                _log.warning(
                    "null in the warehouse: its type has no room for the value",
                    route=route,
                    column=name,
                )

    def _tell_left_out(self, route: str, names: Iterable[str]) -> None:
        """Say once that an older record has a column which the table never had."""
        for name in names:
            if (route, name) not in self._left_out:
                self._left_out.add((route, name))
                _log.warning(
                    "column left out: the source no longer has it",
                    route=route,
                    column=name,
                )


def _upsert_statement(table: LakeTable, kept: frozenset[str], part: pa.Table) -> str:
    return statements.upsert(table, BATCH, kept, rows.key_span(table, part))


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

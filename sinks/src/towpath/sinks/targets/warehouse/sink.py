"""
A sink that writes rows and events into the warehouse: one commit per table and batch.

Rows that arrive as columns are collected, and committed together by the next ``apply``
or ``flush``; other changes are committed when ``apply`` returns. ``flush`` also runs
upkeep, so that upkeep and a write never run at the same time.

On a cluster, the rows of a large batch do not pass through this process: tasks encode
them (``encode``), and the executors append or merge them (``encoded_table``).
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from towpath.schemas.clock import Clock, SystemClock
from towpath.settings import RouteKind, Sink, Unfit
from towpath.sinks.apply.encoded import EncodedSummary, EngineRows, RowEncoder
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.changes.columns import Columns, newest_rows
from towpath.sinks.errors import ShapeUnknownError, TargetUnavailableError
from towpath.sinks.fold import by_route
from towpath.sinks.key_text import key_parts
from towpath.sinks.ports import (
    Batch,
    Checkpoint,
    RelationSource,
    Repairs,
)
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.routes import IgnoredColumns
from towpath.sinks.targets.warehouse import rows, statements
from towpath.sinks.targets.warehouse.ddl import floor_property
from towpath.sinks.targets.warehouse.encode import TableForm, WarehouseEncoder
from towpath.sinks.targets.warehouse.encoded_table import EncodedTable
from towpath.sinks.targets.warehouse.opening import (
    HOLDING_BACK_ERRORS,
    TableLosses,
    TableRegistry,
)
from towpath.sinks.targets.warehouse.schema import POSITION, LakeTable, lake_name
from towpath.sinks.targets.warehouse.upkeep import TableUpkeep
from towpath.sinks.targets.warehouse.write import (
    BATCH,
    Engines,
    TableRows,
    TableWriter,
    run_upkeep,
    without_absent,
)

_log = structlog.get_logger("towpath.sinks.warehouse")


class WarehouseSink:
    """One warehouse, written to by one sink."""

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
            sink: The settings of the sink, with its routes.
            relations: The shapes of the routes' tables.
            engines: The engines that write. The session belongs to the caller, and is
                configured with the warehouse's catalog (``catalog_conf``).
            repairs: Requests snapshots of lost tables; without it, they stay empty.
            clock: The clock of the upkeep schedule; by default, the machine's clock.
            known: The file of the known tables, in the sink's folder.
        """
        self._kinds = {route.name: route.kind for route in sink.route}
        self._logs = frozenset(
            name for name, kind in self._kinds.items() if kind is RouteKind.EVENT_LOG
        )
        session = self._session = engines.session
        # Each process has its own branch: a process that is presumed dead must not
        # write to another process's branch.
        branch = f"towpath_{uuid.uuid4().hex}"
        self._losses = TableLosses(known, repairs)
        self._tables = TableRegistry(
            *(sink, relations, session), losses=self._losses, branch=branch
        )
        self._upkeep = TableUpkeep(sink.warehouse, clock or SystemClock())
        self._writer = TableWriter(engines, sink.warehouse, self._upkeep, branch)
        self._treats_unfit_as_null = sink.warehouse.unfit is Unfit.NULL
        self._ignored_columns = IgnoredColumns(_log)
        self._logged_nulled: set[tuple[str, str]] = set()
        self._refreshed_routes: set[str] = set()
        # Rows accepted as columns, by route; ``apply`` and ``flush`` write them.
        self._accepted: dict[str, tuple[LakeTable, list[pa.Table]]] = {}
        self._floors = Floors()
        self._tally = Tally()

    def open(self) -> None:
        self._tables.check()
        self._losses.load()
        for name in self._kinds:
            try:
                self._fitting_table(name)
            except ShapeUnknownError:
                # The source is announced with its first record, which is when the table
                # is needed.
                _log.info(
                    "warehouse table not created yet: its source is not announced",
                    route=name,
                )

    def apply(self, batch: Batch) -> None:
        with self._reset_on_failure():
            self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        tally = Tally()
        # Written first, because a partial change may depend on one of these rows.
        self._write_accepted()
        self._tables.drop_outdated({c.route for c in batch.changes})
        # Opened first, because a table may have a stored floor.
        names = {c.route for c in batch.changes} | {e.route for e in batch.events}
        names |= {f.route for f in batch.floors}
        tables = {name: self._fitting_table(name) for name in names}
        for name, floor in self._floors.due(batch.floors):
            self._sweep(name, tables[name], floor)
        above = self._floors.above(batch.changes, tally)
        for name, changes in by_route(above).items():
            self._upsert(name, tables[name], changes, tally)
        for name, events in by_route(batch.events).items():
            self._append(name, tables[name], events, tally)
        if batch.safe is not None:
            self._upkeep.raise_safe_position(batch.safe)
        self._tally.add(tally)

    def apply_columns(self, columns: Columns) -> pa.Array | None:
        with self._reset_on_failure():
            return self._accept(columns)

    def _accept(self, columns: Columns) -> pa.Array | None:
        route = columns.route
        # Checked once per batch: records with fields that the table does not have are
        # left to ``apply``, which checks again.
        if route not in self._refreshed_routes:
            self._tables.drop_outdated({route})
            self._refreshed_routes.add(route)
        table = self._fitting_table(route)
        encoded = None if table is None else rows.encode_columns(table, columns)
        if table is None or encoded is None:
            return None
        self._accepted.setdefault(route, (table, []))[1].append(encoded.rows)
        return encoded.indices

    def _write_accepted(self) -> None:
        """Write the rows accepted as columns, with one commit per table."""
        accepted, self._accepted = self._accepted, {}
        for route, (table, encoded) in accepted.items():
            collected = pa.concat_tables(encoded)
            newest = newest_rows(collected, table.key, POSITION)
            floor = self._floors.of(route)
            if floor is not None:
                newest = newest.filter(pc.greater_equal(newest.column(POSITION), floor))
            guarded = partial(_upsert_statement, table, frozenset())
            applied = self._writer.write(TableRows(table, newest, guarded))
            self._tally.applied += applied
            self._tally.stale += len(collected) - applied

    def make_encoder(self) -> Callable[[], RowEncoder]:
        self._tables.drop_outdated(self._kinds)
        tables: dict[str, LakeTable] = {}
        for name in self._kinds:
            # A source that has not been announced has no records.
            with suppress(ShapeUnknownError):
                table = self._fitting_table(name)
                if table is not None:
                    tables[name] = table
        return partial(WarehouseEncoder, tables, self._logs)

    def write_encoded(self, encoded: EngineRows) -> None:
        forms: dict[str, dict[TableForm, list[EncodedSummary]]] = defaultdict(dict)
        records: Counter[str] = Counter()
        for one in encoded.summaries:
            form = TableForm.parse(one.statement)
            forms[form.route].setdefault(form, []).append(one)
            records[form.route] += one.records
        with self._reset_on_failure():
            for route, summaries in forms.items():
                is_log = route in self._logs
                floor = None if is_log else self._floors.of(route)
                applied = self._writer.write_encoded(
                    EncodedTable(
                        *(self._table(route), encoded, summaries),
                        *(is_log, floor, self._session),
                    )
                )
                self._tally.applied += applied
                self._tally.stale += records[route] - applied

    def erase(self, route: str, keys: Sequence[str]) -> None:
        table = self._fitting_table(route)
        if table is None:
            raise TargetUnavailableError(self._tables.held_back.reason(route))
        parts = [key_parts(key) for key in keys]
        fit = [key for key in parts if len(key) == len(table.key)]
        self._writer.forget(table.name)
        if fit:
            self._session.sql(statements.erase(table, fit))

    def flush(self) -> Checkpoint:
        with self._reset_on_failure():
            self._write_accepted()
        self._refreshed_routes.clear()
        run_upkeep(self._session, self._upkeep, self._writer)
        return self._tally.take()

    def close(self) -> None:
        """Do nothing: the session belongs to the caller."""

    @contextmanager
    def _reset_on_failure(self) -> Iterator[None]:
        """Drop rows and counts after a failure: the whole batch is delivered again."""
        try:
            yield
        except BaseException:
            self._accepted.clear()
            self._refreshed_routes.clear()
            self._tally = Tally()
            raise

    def _fitting_table(self, name: str) -> LakeTable | None:
        """Return a route's table; hold the route back if the table does not fit."""
        try:
            return self._table(name)
        except HOLDING_BACK_ERRORS as error:
            self._tables.held_back.hold(name, error)
            return None

    def _table(self, name: str) -> LakeTable:
        """Return a route's table; create and fit it the first time."""
        table, found = self._tables.open(name)
        is_log = name in self._logs
        if found is not None:
            self._writer.open_table(table.name, is_new=found.is_new)
            self._upkeep.register(table.name, has_tombstones=not is_log)
            self._floors.learn(name, found.floor)
        return table

    def _upsert(
        self, name: str, table: LakeTable | None, changes: list[Change], tally: Tally
    ) -> None:
        if table is None:
            reason = self._tables.held_back.reason(name)
            tally.refused += [Refusal(change, reason) for change in changes]
            return
        table, retained = self._with_retained(name, table, changes)
        encoded = rows.encode_changes(
            table, changes, retained, treats_unfit_as_null=self._treats_unfit_as_null
        )
        tally.applied += len(changes) - len(encoded.changes) - len(encoded.refused)
        encoded = without_absent(self._session, table, encoded)
        tally.refused += encoded.refused
        self._count_nulled(name, encoded.nulled, tally)
        if encoded.changes:
            kept_columns = retained.union(
                *(change.unchanged for change in encoded.changes)
            )
            guarded = partial(_upsert_statement, table, kept_columns)
            applied = self._writer.write(TableRows(table, encoded.rows, guarded))
            tally.applied += applied
            tally.stale += len(encoded.changes) - applied

    def _with_retained(
        self, name: str, table: LakeTable, changes: Iterable[Change]
    ) -> tuple[LakeTable, frozenset[str]]:
        """Add the dropped columns that older records still have."""
        unknown = rows.unknown_columns(table, changes)
        retained = tuple(c for c in table.retained if c.name in unknown)
        names = frozenset(column.name for column in retained)
        self._ignored_columns.add(name, unknown - names)
        return replace(table, columns=(*table.columns, *retained)), names

    def _sweep(self, name: str, table: LakeTable | None, floor: str) -> None:
        """Store a floor, then delete the rows below it."""
        if table is None and not self._tables.is_own(name):
            _log.warning(
                "warehouse floor ignored: the route is held back, without a table",
                route=name,
                floor=floor,
            )
            return
        table_name = lake_name(name)
        self._session.sql(floor_property(table_name, floor))
        self._floors.learn(name, floor)
        self._writer.forget(table_name)
        self._session.sql(statements.sweep(table_name, floor))
        self._floors.mark_applied(name, floor)
        _log.info(
            "sink floor applied: rows below it are deleted", route=name, floor=floor
        )

    def _append(
        self, name: str, table: LakeTable | None, events: list[EventRow], tally: Tally
    ) -> None:
        if table is None:
            reason = self._tables.held_back.reason(name)
            tally.refused_events |= {event.origin: reason for event in events}
            return
        encoded = rows.encode_events(table, events)
        tally.nulled += encoded.untimed
        if encoded.untimed:
            _log.warning(
                "warehouse event times out of range: they are written as null",
                route=name,
                events=encoded.untimed,
            )
        statement = statements.insert_new(table, BATCH, encoded.occurred_between)
        applied = self._writer.write(
            TableRows(table, encoded.rows, lambda _: statement)
        )
        tally.applied += applied
        tally.stale += len(events) - applied

    def _count_nulled(
        self, route: str, nulled: Mapping[str, int], tally: Tally
    ) -> None:
        """Count values made null, and log once that a column has some."""
        tally.nulled += sum(nulled.values())
        for name, count in nulled.items():
            if count and (route, name) not in self._logged_nulled:
                self._logged_nulled.add((route, name))
                _log.warning(
                    "warehouse values unrepresentable: they are written as null",
                    route=route,
                    column=name,
                )


def _upsert_statement(
    table: LakeTable, kept_columns: frozenset[str], part: pa.Table
) -> str:
    return statements.upsert(table, BATCH, kept_columns, rows.key_span(table, part))

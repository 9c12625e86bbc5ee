"""
A sink that writes rows, documents and events into tables of a Postgres database.

A batch is one transaction: the rows of each table are copied into a temporary table,
from which guarded statements write them. So rows are durable once ``apply`` returns;
``flush`` only reports their counts. Plain records of a route are written the same way,
in a separate transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog

from towpath.settings import Sink
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.changes.columns import Columns
from towpath.sinks.errors import (
    BatchRefusedError,
    ShapeUnknownError,
    TargetUnavailableError,
)
from towpath.sinks.fold import ABSENT_ROW, OTHER_PARTITION, by_route, highest_per_route
from towpath.sinks.ports import Batch, Checkpoint, RelationSource, Repairs
from towpath.sinks.postgres import Connection
from towpath.sinks.tally import Tally
from towpath.sinks.targets.postgres import schema, write
from towpath.sinks.targets.postgres.client import TargetSession
from towpath.sinks.targets.postgres.read import erasure
from towpath.sinks.targets.postgres.schema import TargetTable
from towpath.sinks.targets.postgres.tables import OpenTable, TargetTables
from towpath.sinks.targets.routes import IgnoredColumns

# Limits how long a suspended executor blocks a floor; a running one needs only seconds
# between statements, to encode rows.
_IDLE_LIMIT: Final = "2min"

_log = structlog.get_logger("towpath.sinks.postgres")


class PostgresSink:
    """Tables of one database, written to by one sink and its executors."""

    def __init__(
        self,
        sink: Sink,
        relations: RelationSource,
        *,
        known: Path | None = None,
        repairs: Repairs | None = None,
    ) -> None:
        """
        Describe the target; nothing is opened yet.

        Args:
            sink: The settings of the sink, with its address and routes.
            relations: The shapes of the routes' tables.
            known: The file of the known tables, in the sink's folder.
            repairs: Requests snapshots of lost tables; without it, they stay empty.
        """
        self._routes = tuple(route.name for route in sink.route)
        self._session = TargetSession(sink.url, idle_limit=_IDLE_LIMIT)
        self._tables = TargetTables(
            *(sink.route, relations, self._session), known=known, repairs=repairs
        )
        self._ignored_columns = IgnoredColumns(_log)
        self._refreshed_routes: set[str] = set()
        self._tally = Tally()

    def open(self) -> None:
        self._tables.load()
        for name in self._routes:
            try:
                self._tables.fitting(name)
            except ShapeUnknownError:
                _log.info(
                    "postgres table not created yet: its source is not announced",
                    route=name,
                )

    def apply(self, batch: Batch) -> None:
        try:
            self._apply(batch)
        except BatchRefusedError:
            # All records since the last flush are delivered again.
            self._tally = Tally()
            raise

    def _apply(self, batch: Batch) -> None:
        tally = Tally()
        changes, events = by_route(batch.changes), by_route(batch.events)
        floors = highest_per_route(batch.floors)
        # All writers lock the tables in the same order, so that they cannot deadlock.
        names = sorted({*changes, *events, *floors})
        with self._reset_on_failure():
            self._tables.reopen_replaced()
            self._tables.refresh(changes)
            opened = {name: self._tables.fitting(name) for name in names}
        with self._writing() as connection:
            for name, open_table in opened.items():
                if open_table is None:
                    if name in floors:
                        self._sweep_held_back(connection, name, floors[name])
                    self._refuse(name, changes, events, tally)
                    continue
                if name in floors:
                    _sweep(connection, name, open_table.table, floors[name])
                if name in changes:
                    self._upsert(connection, open_table, changes[name], tally)
                if name in events:
                    self._append(connection, open_table, events[name], tally)
            if batch.safe is not None:
                self._purge(connection, batch.safe)
        self._tally.add(tally)

    def apply_columns(self, columns: Columns) -> pa.Array | None:
        route = columns.route
        with self._reset_on_failure():
            # Checked once per batch: later announcements are for records of later
            # batches.
            if route not in self._refreshed_routes:
                self._tables.refresh([route])
                self._refreshed_routes.add(route)
            opened = self._tables.fitting(route)
        plain = None if opened is None else write.encode_columns(opened.table, columns)
        if opened is None or plain is None or not len(plain.rows):
            return None
        try:
            with self._writing() as connection:
                floor = self._locked_floor(connection, opened)
                batch = self._copy(connection, opened.table, plain.rows)
                written = connection.execute(schema.upsert(opened.table, batch, floor))
                applied = written.rowcount
        except BatchRefusedError:
            # The records are then read as changes and bisected to find the refused one.
            return None
        self._tally.applied += applied
        self._tally.stale += len(plain.rows) - applied
        return plain.indices

    def flush(self) -> Checkpoint:
        self._refreshed_routes.clear()
        return self._tally.take()

    def erase(self, route: str, keys: Sequence[str]) -> None:
        opened = self._tables.fitting(route)
        if opened is None:
            raise TargetUnavailableError(self._tables.held_back.reason(route))
        with self._writing() as connection:
            self._locked_floor(connection, opened)
            connection.execute(erasure(opened.table, keys))

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Run one transaction."""
        with self._reset_on_failure(), self._session.transaction() as connection:
            yield connection

    @contextmanager
    def _reset_on_failure(self) -> Iterator[None]:
        """Forget the tables and counts after any failure except a refused value."""
        try:
            yield
        except BatchRefusedError:
            raise
        except BaseException:
            self._tables.forget()
            # The batch is applied again, as a whole.
            self._tally = Tally()
            self._refreshed_routes.clear()
            raise

    def _upsert(
        self,
        connection: Connection,
        opened: OpenTable,
        changes: Sequence[Change],
        tally: Tally,
    ) -> None:
        table = opened.table
        self._ignored_columns.add(changes[0].route, _unknown_columns(table, changes))
        encoded = write.encode_changes(table, changes)
        floor = self._locked_floor(connection, opened)
        batch = self._copy(connection, table, encoded.rows)
        applied = 0
        refused: list[Refusal] = []
        if any(change.unchanged for change in changes):
            for reason, unfit in (
                (ABSENT_ROW, schema.without_row(table, batch, floor)),
                (OTHER_PARTITION, schema.above_partial(table, batch, floor)),
            ):
                refused += [
                    Refusal(changes[number], reason, needs_refetch=True)
                    for (number,) in connection.execute(unfit).fetchall()
                ]
            merge = schema.merge(table, batch, floor, encoded.kept)
            applied += connection.execute(merge).rowcount
        applied += connection.execute(schema.upsert(table, batch, floor)).rowcount
        tally.refused += refused
        tally.applied += applied
        tally.stale += len(changes) - applied - len(refused)

    def _append(
        self,
        connection: Connection,
        opened: OpenTable,
        events: Sequence[EventRow],
        tally: Tally,
    ) -> None:
        self._locked_floor(connection, opened)
        rows = write.encode_events(opened.table, events)
        batch = self._copy(connection, opened.table, rows)
        insert = schema.insert_new(opened.table, batch)
        applied = connection.execute(insert).rowcount
        tally.applied += applied
        tally.stale += len(events) - applied

    def _refuse(
        self,
        name: str,
        changes: Mapping[str, Sequence[Change]],
        events: Mapping[str, Sequence[EventRow]],
        tally: Tally,
    ) -> None:
        """Refuse all changes and events of a route that is held back."""
        reason = self._tables.held_back.reason(name)
        tally.refused += [Refusal(change, reason) for change in changes.get(name, ())]
        tally.refused_events |= {e.origin: reason for e in events.get(name, ())}

    def _sweep_held_back(self, connection: Connection, name: str, floor: str) -> None:
        """Apply a floor to a table of the sink that does not fit its source."""
        table = self._tables.registered(connection, name)
        if table is not None:
            _sweep(connection, name, table, floor)
            return
        _log.warning(
            "postgres floor ignored: the route is held back, without a table",
            route=name,
            floor=floor,
        )

    def _copy(self, connection: Connection, table: TargetTable, rows: pa.Table) -> str:
        """Copy rows into the temporary table of a batch; return its name."""
        made = self._session.batch_tables
        batch = made.get(table)
        if batch is None:
            batch = made[table] = f"towpath_batch_{len(made)}"
            for statement in schema.batch_table(table, batch):
                connection.execute(statement)
        statement = schema.copy_in(batch, rows.column_names)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(write.copy_text(rows))
        return batch

    def _locked_floor(self, connection: Connection, opened: OpenTable) -> str:
        """
        Return a table's floor, and lock it until the transaction ends.

        Raises:
            TargetUnavailableError: The table was replaced after it was opened.
        """
        read = schema.registered(opened.table, lock="share")
        found = connection.execute(read).fetchone()
        if found is None or found[0] != opened.id:
            message = f"the table {opened.table.name} was replaced"
            raise TargetUnavailableError(message)
        return found[2] or ""

    def _purge(self, connection: Connection, safe: str) -> None:
        """Delete the tombstones below a position from all open tables."""
        for table in self._tables.with_tombstones():
            connection.execute(schema.purge(table, safe))


def _unknown_columns(table: TargetTable, changes: Iterable[Change]) -> set[str]:
    """Return the columns that only older records have: the source has dropped them."""
    known = {column.name for column in table.columns}
    rows = (c.row for c in changes if c.row is not None and c.key_columns)
    return {name for row in rows for name in row.keys() - known}


def _sweep(connection: Connection, route: str, table: TargetTable, floor: str) -> None:
    """Store a floor above the stored one, and delete the rows below it."""
    if connection.execute(schema.raise_floor(table, floor)).rowcount:
        deleted = connection.execute(schema.sweep(table, floor)).rowcount
        _log.info(
            "sink floor applied: rows below it are deleted",
            route=route,
            floor=floor,
            rows=deleted,
        )

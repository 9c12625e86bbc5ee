"""
Create tables, fit them to their sources, and detect tables that were replaced.

Everything is done in one transaction per table, under a lock on its schema, because
executors open the tables too. A table gains the columns that its source gains, and
keeps those that the source drops; a column keeps its type, even if the table's owner
has changed it. A value that does not fit becomes a dead letter.

A table gets an id when it is created, and the server gives its relation an OID; a file
next to the sink's checkpoint stores both for each table. A table with a different id or
OID was dropped and recreated, by an executor or by its owner: first its rows are
requested, and only then is the new id stored.
"""

import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from psycopg import sql

from towpath.settings import Route, RouteKind
from towpath.sinks.errors import BatchRefusedError, KeylessTableError
from towpath.sinks.ports import RelationSource, Repairs
from towpath.sinks.postgres import Connection
from towpath.sinks.state.files import KnownIds
from towpath.sinks.targets.postgres import schema
from towpath.sinks.targets.postgres.client import ForeignRelationError, TargetSession
from towpath.sinks.targets.postgres.schema import TargetColumn, TargetTable
from towpath.sinks.targets.routes import HeldBackRoutes

_log = structlog.get_logger("towpath.sinks.postgres")

# Errors that hold a route back: the source's shape or an existing table does not fit.
HOLDING_BACK_ERRORS: Final = (ForeignRelationError, KeylessTableError)


class OpenTable(NamedTuple):
    """
    A table that fits its source.

    Attributes:
        table: The table, with the types of its columns in the target.
        id: Its id, then the OID of its relation.
    """

    table: TargetTable
    id: str


def ensure(connection: Connection, table: TargetTable) -> OpenTable:
    """
    Create a table, or fit it to its source.

    Raises:
        ForeignRelationError: The table exists, but no sink created it with this key.
    """
    _lock_schema(connection, table)
    found = columns_of(connection, table.schema, table.name)
    stored = connection.execute(schema.registered(table)).fetchone()
    if not found:
        for statement in schema.creation(table):
            connection.execute(statement)
        connection.execute(schema.registration(table, uuid.uuid4().hex))
        stored = connection.execute(schema.registered(table)).fetchone()
        found = {column.name: column.type for column in table.stored}
    id_ = _checked(table, stored)
    added = [column for column in table.columns if column.name not in found]
    for column in added:
        connection.execute(schema.addition(table, column))
    found |= {column.name: column.type for column in added}
    if not table.is_log and (added or not _has_view(connection, table)):
        connection.execute(schema.live_view(table, list(found)))
    columns = tuple(TargetColumn(c.name, found[c.name]) for c in table.columns)
    return OpenTable(replace(table, columns=columns), id_)


def columns_of(connection: Connection, namespace: str, name: str) -> dict[str, str]:
    """Read a table's columns and their types, in order; empty if there is no table."""
    rows = connection.execute(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = (select pg_class.oid from pg_class"
        " join pg_namespace on pg_namespace.oid = relnamespace"
        " where nspname = %s and relname = %s)"
        " and attnum > 0 and not attisdropped order by attnum",
        (namespace, name),
    )
    return dict(rows.fetchall())


def _checked(table: TargetTable, stored: tuple[str, list[str], str] | None) -> str:
    """Return the id of an existing table that the sink created."""
    name = f"{table.schema}.{table.name}"
    if stored is None:
        message = f"{name} exists, but no sink has created it"
        raise ForeignRelationError(message)
    id_, key, _ = stored
    if tuple(key) != table.key:
        wanted = ", ".join(table.key)
        message = f"{name}: its key is {', '.join(key)}, the source's is {wanted}"
        raise ForeignRelationError(message)
    return id_


def _lock_schema(connection: Connection, table: TargetTable) -> None:
    """Lock a schema for the transaction; create it and its registry if missing."""
    connection.execute(
        "select pg_advisory_xact_lock(hashtextextended(%s, 0))",
        (f"towpath {table.schema}",),
    )
    known = "select 1 from pg_namespace where nspname = %s"
    if connection.execute(known, (table.schema,)).fetchone() is None:
        name = sql.Identifier(table.schema)
        connection.execute(sql.SQL("create schema {}").format(name))
    if not columns_of(connection, table.schema, schema.REGISTRY):
        connection.execute(schema.registry_creation(table))


def _has_view(connection: Connection, table: TargetTable) -> bool:
    return bool(columns_of(connection, table.schema, schema.live_name(table.name)))


class TargetTables:
    """
    The open tables of one sink, by route.

    Attributes:
        held_back: The routes whose tables do not fit.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        relations: RelationSource,
        session: TargetSession,
        *,
        known: Path | None,
        repairs: Repairs | None,
    ) -> None:
        """
        Describe the tables; nothing is opened yet.

        Args:
            routes: The sink's routes.
            relations: The shapes of their tables.
            session: The session with the target.
            known: The file of the tables' ids; ``None`` on an executor.
            repairs: Requests snapshots of lost tables; without it, they stay empty.
        """
        self._routes = {route.name: route for route in routes}
        self._relations = relations
        self._session = session
        self._known = KnownIds(known)
        self._repairs = repairs
        self._open: dict[str, OpenTable] = {}
        self._wanted: dict[str, TargetTable] = {}
        self.held_back = HeldBackRoutes(_log)

    def load(self) -> None:
        """Read the ids of the tables that the sink has written to."""
        self._known.restore()

    def forget(self) -> None:
        """Forget the open tables: one of them may have been replaced."""
        self._open.clear()

    def refresh(self, names: Iterable[str]) -> None:
        """Read new shapes, and forget the open tables that no longer fit them."""
        row_routes = [n for n in names if self._routes[n].kind is RouteKind.TABLE]
        if not row_routes:
            return
        self._relations.refresh()
        for name in row_routes:
            if name in self._open and self._is_outdated(name):
                del self._open[name]

    def reopen_replaced(self) -> None:
        """
        Reopen the tables that were replaced, or forgotten after a failure.

        Executors recreate a dropped table, but only the driver requests its rows.

        Raises:
            UnavailableError: The target does not answer, or a request may not have been
                sent; try again.
        """
        if self._repairs is None:
            return
        try:
            replaced = self._replaced()
        except BaseException:
            # The registry may be gone, too.
            self.forget()
            raise
        for name in replaced:
            del self._open[name]
        for name in self._wanted:
            # A route that is held back is fitted when it next has records.
            if name not in self.held_back:
                self.fitting(name)

    def with_tombstones(self) -> list[TargetTable]:
        """Return the open tables that store tombstones, sorted by route name."""
        opened = (self._open[name].table for name in sorted(self._open))
        return [table for table in opened if not table.is_log]

    def fitting(self, name: str) -> OpenTable | None:
        """
        Return a route's table; create and fit it the first time.

        Returns:
            The table; ``None`` if the route is held back.

        Raises:
            ShapeUnknownError: Its source has not been announced yet.
        """
        known = self._open.get(name)
        if known is not None:
            return known
        try:
            wanted = self._describe(name)
            with self._session.transaction() as connection:
                opened = ensure(connection, wanted)
        except HOLDING_BACK_ERRORS as error:
            self.held_back.hold(name, error)
            return None
        except BatchRefusedError as error:
            # The server refuses the sink's own statements: no batch is at fault.
            self.held_back.hold(name, ForeignRelationError(str(error)))
            return None
        self._check_id(name, opened.id)
        self._open[name], self._wanted[name] = opened, wanted
        self.held_back.resume(name)
        return opened

    def registered(self, connection: Connection, name: str) -> TargetTable | None:
        """
        Look up a route's table in the registry of its schema.

        Returns:
            The table with only its name, without columns and key; ``None`` if the sink
            has not created it, it was dropped, or it is an event log, which has no
            floors.
        """
        table = TargetTable(*schema.table_name(name), columns=(), key=())
        if schema.POSITION not in columns_of(connection, table.schema, table.name):
            return None
        if not columns_of(connection, table.schema, schema.REGISTRY):
            return None
        stored = connection.execute(schema.registered(table)).fetchone()
        return None if stored is None else table

    def _replaced(self) -> list[str]:
        """Return the routes whose open tables were dropped or replaced."""
        by_schema: dict[str, list[str]] = {}
        for name, opened in self._open.items():
            by_schema.setdefault(opened.table.schema, []).append(name)
        replaced: list[str] = []
        for names in by_schema.values():
            read = schema.all_registered(self._open[names[0]].table)
            with self._session.transaction() as connection:
                ids = dict(connection.execute(read).fetchall())
            replaced += [
                name
                for name in names
                if ids.get(self._open[name].table.name) != self._open[name].id
            ]
        return replaced

    def _describe(self, name: str) -> TargetTable:
        route = self._routes[name]
        is_table = route.kind is RouteKind.TABLE
        shape = self._relations.shape(route.topic) if is_table else None
        return schema.table_of(route, shape)

    def _is_outdated(self, name: str) -> bool:
        try:
            return self._describe(name) != self._wanted[name]
        except HOLDING_BACK_ERRORS:
            return True

    def _check_id(self, route: str, id_: str) -> None:
        """
        Request the rows of a route if its table has been replaced.

        Raises:
            UnavailableError: The request may not have been sent; try again.
        """
        # A file that an earlier build of 0.2.0 wrote lacks the OIDs of relations.
        same = {None, id_, id_.partition(" ")[0]}
        if self._known.of(route) not in same and self._repairs is not None:
            why = f"the table of {route} is not the one that was written"
            if self._repairs.request_all(route, why):
                _log.warning(
                    "postgres table lost rows: a snapshot of them is requested",
                    reason=why,
                )
            else:
                _log.error(
                    "postgres table lost rows: no snapshot can be requested", reason=why
                )
        self._known.learn(route, id_)

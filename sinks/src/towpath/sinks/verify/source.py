"""
Reads tables of the source in one snapshot, every value as text that SQL writes.

The forms are those of records, arrived at independently of the relay: the database
formats times, booleans and bytes itself. Rows come in key order, through a cursor of
the server's, so that memory does not grow with the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, LiteralString, Self

import psycopg
from psycopg import errors as sqlstate
from psycopg import sql

from towpath.schemas.position import parse_lsn
from towpath.sinks.verify.errors import SourceUnavailableError

# Some hundred kilobytes a round trip; larger gains nothing, smaller costs round trips.
ROWS_AT_ONCE: Final = 5000
_CONNECT_TIMEOUT_S: Final = 10

# What decides a value's text; the same choices as whoever reads the log makes.
_SESSION: Final[LiteralString] = """
    set time zone 'UTC';
    set datestyle = 'ISO';
    set intervalstyle = 'postgres';
    set extra_float_digits = 3;
    set search_path = pg_catalog;
"""
_COLUMNS: Final[LiteralString] = """
    select attname, atttypid::regtype::text
    from pg_attribute
    where attrelid = %s::regclass and attnum > 0 and not attisdropped
      and attgenerated = ''
    order by attnum
"""
_KEY: Final[LiteralString] = """
    select attname
    from pg_index, unnest(indkey) with ordinality as place(attnum, ordinal)
    join pg_attribute using (attnum)
    where indrelid = %s::regclass and indisprimary and attrelid = indrelid
    order by ordinal
"""
_IS_PARTITIONED: Final[LiteralString] = (
    "select relkind = 'p' from pg_class where oid = %s::regclass"
)
_TIMES: Final[LiteralString] = """
    case when not isfinite({column}) then {column}::text
         else to_char({moment}, {form})
              || case when extract(year from {moment}) < 0 then ' BC' else '' end
    end
"""
_MARK: Final[LiteralString] = (
    "select pg_logical_emit_message(true, 'towpath.verify', '')::text"
)
_CURRENT: Final[LiteralString] = "select pg_current_wal_lsn()::text"
_CONFIRMED: Final[LiteralString] = (
    "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
)
_HAS_SNAPSHOTS: Final[LiteralString] = "select to_regclass('towpath.snapshot')::text"
_UNFINISHED: Final[LiteralString] = (
    "select count(*) from towpath.snapshot"
    " where state in ('queued', 'running', 'paused')"
    " and (target is null or target = %s)"
)
_TIME_FORM: Final = 'YYYY-MM-DD"T"HH24:MI:SS.US'


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column and Postgres's own name of its type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """
    A table, or a part of one.

    Attributes:
        columns: What is compared.
        key: Columns of the primary key, in key order.
        is_partitioned: Whether its rows are those of its partitions.
        only: A column and the values that its rows are limited to, if they are.
    """

    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    is_partitioned: bool = False
    only: tuple[str, tuple[str, ...]] | None = None


class Source:
    """
    The database, as of one moment.

    Call order: ``with``, then anything; the moment is that of the first read.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> Self:
        """
        Open the snapshot.

        Raises:
            SourceUnavailableError: The database cannot be reached.
        """
        with translated():
            self._connection = psycopg.connect(
                self._dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
            )
            self._connection.execute(_SESSION)
            self._connection.autocommit = False
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self._connection.read_only = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def table(self, schema: str, name: str) -> SourceTable:
        """
        Look a table up.

        Raises:
            SourceUnavailableError: It is not there, has no key or cannot be read.
        """
        full = sql.Identifier(schema, name).as_string()
        with translated():
            columns = self._connection.execute(_COLUMNS, [full]).fetchall()
            key = self._connection.execute(_KEY, [full]).fetchall()
            partitioned = self._connection.execute(_IS_PARTITIONED, [full]).fetchone()
        if not key:
            message = f"{schema}.{name} has no primary key to compare by"
            raise SourceUnavailableError(message)
        return SourceTable(
            schema,
            name,
            tuple(SourceColumn(*row) for row in columns),
            tuple(row[0] for row in key),
            is_partitioned=partitioned == (True,),
        )

    def values_of(self, schema: str, table: str, column: str) -> list[str]:
        """
        List the different values of a column.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        query = sql.SQL("select distinct {}::text from {} order by 1").format(
            sql.Identifier(column), sql.Identifier(schema, table)
        )
        with translated():
            return [row[0] for row in self._connection.execute(query).fetchall()]

    def rows(self, table: SourceTable) -> Iterator[list[tuple[str | None, ...]]]:
        """
        Go through a table in key order, some thousand rows at a time.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        with translated(), self._connection.cursor("towpath_verify") as cursor:
            cursor.execute(_select(table), table.only and [list(table.only[1])])
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows


class SourceLog:
    """How far the database's log is read; sees what happens as it happens."""

    def __init__(self, dsn: str) -> None:
        """
        Connect.

        Raises:
            SourceUnavailableError: The database cannot be reached.
        """
        with translated():
            self._connection = psycopg.connect(
                dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
            )

    def mark(self) -> int:
        """
        Return an LSN that a slot confirms only after all that is committed now.

        Where it may, it writes one itself, a transaction without rows: a slot of a
        quiet database would otherwise have nothing to confirm.
        """
        with translated():
            try:
                row = self._connection.execute(_MARK).fetchone()
            except (sqlstate.InsufficientPrivilege, sqlstate.ReadOnlySqlTransaction):
                row = self._connection.execute(_CURRENT).fetchone()
        return parse_lsn("" if row is None else row[0])

    def confirmed(self, slot: str) -> int | None:
        """Return what a slot has confirmed; a slot that is not there has nothing."""
        with translated():
            row = self._connection.execute(_CONFIRMED, [slot]).fetchone()
        return None if row is None or row[0] is None else parse_lsn(row[0])

    def unfinished_tables(self, sink: str) -> int:
        """Count the tables that running snapshots have still to read for a sink."""
        with translated():
            if self._connection.execute(_HAS_SNAPSHOTS).fetchone() == (None,):
                return 0
            row = self._connection.execute(_UNFINISHED, [sink]).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn the driver's errors into ours.

    Raises:
        SourceUnavailableError: The database cannot be read.
    """
    try:
        yield
    except psycopg.Error as error:
        told = error.diag.message_primary or str(error).strip().partition("\n")[0]
        message = f"the source cannot be read: {told}"
        raise SourceUnavailableError(message) from error


def _select(table: SourceTable) -> sql.Composed:
    columns = sql.SQL(", ").join(_text(column) for column in table.columns)
    key = sql.SQL(", ").join(sql.Identifier(name) for name in table.key)
    where: sql.Composable = sql.SQL("")
    if table.only is not None:
        where = sql.SQL("where {} = any(%s)").format(sql.Identifier(table.only[0]))
    return sql.SQL(
        "select {columns} from {only} {table} {where} order by {key}"
    ).format(
        columns=columns,
        # Rows of tables that merely inherit are rows of those tables.
        only=sql.SQL("" if table.is_partitioned else "only"),
        table=sql.Identifier(table.schema, table.name),
        where=where,
        key=key,
    )


def _text(column: SourceColumn) -> sql.Composed:
    """Write the expression that gives a column's canonical text."""
    name = sql.Identifier(column.name)
    match column.type:
        case "timestamp with time zone":
            moment = sql.SQL("({} at time zone 'UTC')").format(name)
            return _time(name, moment, _TIME_FORM + '"Z"')
        case "timestamp without time zone":
            return _time(name, name, _TIME_FORM)
        case "bytea":
            # Postgres breaks base64 into lines.
            return sql.SQL(r"translate(encode({}, 'base64'), E'\n', '')").format(name)
        case "character":
            # A cast would cut the padding off, which is part of the value's text.
            padded = sql.SQL("case when {0} is not null then concat({0}) end")
            return padded.format(name)
        case _:
            return sql.SQL("{}::text").format(name)


def _time(name: sql.Identifier, moment: sql.Composable, form: str) -> sql.Composed:
    return sql.SQL(_TIMES).format(column=name, moment=moment, form=sql.Literal(form))

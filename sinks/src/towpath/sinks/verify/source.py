"""
Read tables of the source chunk by chunk, every value as text from SQL.

The texts have the form of records, but no code of the relay produces them: the database
formats times, booleans and bytes itself. Each chunk of a table is a separate statement,
because a database snapshot that is held for longer keeps vacuum from removing dead
rows; a view or a sample is read by one statement, which holds its snapshot to the end.

Column types come from the catalog. A domain is resolved to its base type; an array, a
composite and an hstore include the types inside them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, LiteralString, Self, TypeAlias

import psycopg
from psycopg import sql

from towpath.schemas.failure import first_line
from towpath.schemas.table_name import TableName
from towpath.sinks.changes.relations import Column
from towpath.sinks.errors import SourceUnavailableError
from towpath.sinks.postgres import connected
from towpath.sinks.verify import statements
from towpath.sinks.verify.statements import Statement
from towpath.sinks.verify.table import SourceColumn, SourceTable, is_kept_as_text
from towpath.sinks.verify.types import HSTORE, SourceType

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_COLUMNS: Final[LiteralString] = """
    select attname, atttypid::bigint, atttypmod, typtype = 'd'
    from pg_attribute join pg_type t on t.oid = atttypid
    where attrelid = %s::regclass and attnum > 0 and not attisdropped
      and (attgenerated = '' or exists (
          select from pg_publication p
          left join pg_publication_rel r on prpubid = p.oid and prrelid = attrelid
          where pubname = %s and current_setting('server_version_num')::int >= 180000
            and (attnum = any (prattrs::smallint[]) or prattrs is null
                 and attgenerated = 's' and to_jsonb(p) ->> 'pubgencols' = 's')))
    order by attnum
"""
# Unqualified operator names do not find the operators of an extension's type; they find
# those of another type to which the extension's type can be cast.
_TYPE: Final[LiteralString] = """
    select oid::regtype::text, typname::text, typdelim::text, typbasetype::bigint,
           (select e.oid::bigint from pg_type e where e.typarray = t.oid),
           (select json_agg(json_build_array(attname, atttypid::bigint) order by attnum)
            from pg_attribute
            where t.typtype = 'c' and attrelid = t.typrelid and attnum > 0
              and not attisdropped),
           not exists (
               select from pg_opclass c
               join pg_am m on m.oid = opcmethod and amname = 'btree'
               join pg_amop on amopfamily = opcfamily and amopstrategy = 5
                   and amoplefttype = opcintype and amoprighttype = opcintype
               where opcdefault and opcintype = t.oid
                 and not pg_operator_is_visible(amopopr))
    from pg_type t where oid = %s
"""
_PRIMARY_KEY: Final[LiteralString] = """
    select attname
    from pg_index, unnest(indkey) with ordinality as listed(attnum, ordinal)
    join pg_attribute using (attnum)
    where indrelid = %s::regclass and indisprimary and attrelid = indrelid
    order by ordinal
"""
_IS_UNIQUE: Final[LiteralString] = """
    select exists (
        select from pg_index i
        where indrelid = %(table)s::regclass and indisunique and indisvalid
          and indpred is null and indexprs is null
          and not exists (
              select from unnest(indkey) with ordinality as listed(attnum, ordinal)
              join pg_attribute a using (attnum)
              where a.attrelid = indrelid and ordinal <= indnkeyatts
                and (not attnotnull or attname <> all (%(names)s::text[]))))
       and not exists (
        select from pg_attribute
        where attrelid = %(table)s::regclass and attname = any (%(names)s::text[])
          and not attnotnull)
"""
_IS_PARTITIONED: Final[LiteralString] = (
    "select relkind = 'p' from pg_class where oid = %s::regclass"
)


def columns_of(
    connection: Connection, table: str, publication: str
) -> tuple[SourceColumn, ...]:
    """Return the columns, without generated ones that the publication leaves out."""
    found = connection.execute(_COLUMNS, [table, publication]).fetchall()
    columns = []
    for name, oid, typmod, is_domain in found:
        kind = _type(connection, oid)
        column = SourceColumn(
            name,
            kind.name,
            inside=kind if kind.is_nested else None,
            has_plain_order=kind.has_plain_order,
            is_kept_as_text=is_domain or is_kept_as_text(Column("", kind.name, typmod)),
        )
        columns.append(column)
    return tuple(columns)


def primary_key_of(connection: Connection, table: str) -> tuple[str, ...]:
    """Return the columns of a table's primary key, in key order."""
    found = connection.execute(_PRIMARY_KEY, [table]).fetchall()
    return tuple(name for (name,) in found)


def is_unique(connection: Connection, table: str, names: tuple[str, ...]) -> bool:
    """Return whether the values of these columns are unique and never null."""
    parameters = {"table": table, "names": list(names)}
    return connection.execute(_IS_UNIQUE, parameters).fetchone() == (True,)


def is_partitioned(connection: Connection, table: str) -> bool:
    """Return whether a table is partitioned."""
    return connection.execute(_IS_PARTITIONED, [table]).fetchone() == (True,)


def _type(connection: Connection, oid: int) -> SourceType:
    row = connection.execute(_TYPE, [oid]).fetchone()
    if row is None:
        return SourceType("text")
    name, bare_name, delimiter, base_oid, element_oid, fields, is_plain = row
    if base_oid:
        return _type(connection, base_oid)
    if element_oid:
        return SourceType(name, _type(connection, element_oid), delimiter)
    inside = [(field, _type(connection, of)) for field, of in fields or ()]
    is_hstore = bare_name == HSTORE and name.endswith(HSTORE)
    return SourceType(
        HSTORE if is_hstore else name, fields=tuple(inside), has_plain_order=is_plain
    )


Texts = tuple[str | None, ...]

# A few hundred kilobytes per round trip: going above it gains nothing, and fewer rows
# cost more round trips.
ROWS_AT_ONCE: Final = 5000

_ESTIMATE: Final[LiteralString] = """
    select sum(greatest(reltuples, 0))::bigint
    from pg_partition_tree(%s::regclass) join pg_class on oid = relid where isleaf
"""
_REPEATABLE_READ: Final[LiteralString] = (
    "set transaction isolation level repeatable read"
)


class Source:
    """
    The source database.

    Call order: ``with``, then any method.
    """

    def __init__(self, dsn: str, publication: str = "") -> None:
        self._dsn = dsn
        self._publication = publication

    def __enter__(self) -> Self:
        """
        Connect.

        Raises:
            SourceUnavailableError: The database cannot be reached.
        """
        with translated():
            self._connection = connected(self._dsn, default_transaction_read_only="on")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def table(self, name: TableName) -> SourceTable:
        """
        Describe a table; its key is the primary key, if it has one.

        Raises:
            SourceUnavailableError: The table does not exist or cannot be read.
        """
        # In one transaction, so that columns and key are consistent.
        with translated(), self._connection.transaction():
            self._connection.execute(_REPEATABLE_READ)
            return SourceTable(
                name.schema,
                name.table,
                columns_of(self._connection, name.sql, self._publication),
                primary_key_of(self._connection, name.sql),
                is_partitioned=is_partitioned(self._connection, name.sql),
            )

    def has_table(self, name: TableName) -> bool:
        """
        Return whether a table exists.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        query = "select to_regclass(%s) is not null"
        with translated():
            return self._connection.execute(query, [name.sql]).fetchone() == (True,)

    def has_key(self, table: SourceTable) -> bool:
        """
        Return whether a table's key identifies its rows.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        with translated():
            return is_unique(self._connection, table.full_name.sql, table.key)

    def values_of(self, table: TableName, column: str) -> list[str]:
        """
        Return the distinct values of a column, without null.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        query = sql.SQL(
            "select distinct {0}::text from {1} where {0} is not null"
        ).format(sql.Identifier(column), sql.Identifier(table.schema, table.table))
        with translated():
            return [row[0] for row in self._connection.execute(query).fetchall()]

    def estimate(self, table: SourceTable) -> int:
        """
        Return the estimated number of rows; 0 if the server has no estimate.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        with translated():
            row = self._connection.execute(_ESTIMATE, [table.full_name.sql]).fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    def rows(self, table: SourceTable) -> Iterator[list[Texts]]:
        """
        Yield the rows of a table in key order, a few thousand at a time.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        if table.is_view:
            yield from self._stream(statements.all_rows(table))
            return
        last: list[str] | None = None
        while rows := self._fetch(statements.next_rows(table, last, ROWS_AT_ONCE)):
            yield rows
            last = [str(rows[-1][index]) for index in table.key_indexes]

    def sample(self, table: SourceTable, size: float) -> Iterator[list[Texts]]:
        """
        Yield random rows, a few thousand at a time.

        Args:
            table: The table.
            size: The number of rows; below one, their share.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        is_share = size < 1
        yield from self._stream(
            statements.random_share(table, size)
            if is_share
            else statements.random_rows(table, int(size))
        )

    def listed_rows(
        self, table: SourceTable, keys: Sequence[Sequence[str]]
    ) -> Iterator[Texts]:
        """
        Yield the rows of the given keys; an impossible key has none.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        try:
            yield from self._connection.execute(*statements.listed_rows(table, keys))
        except psycopg.DataError:
            if len(keys) > 1:
                for key in keys:
                    yield from self.listed_rows(table, [key])
        except psycopg.Error as error:
            raise _unavailable(error) from error

    def possible_keys(
        self, table: SourceTable, keys: Sequence[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        """
        Return the keys that are canonical, and that the table can contain.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        if not keys:
            return []
        try:
            statement = statements.canonical_keys(table, keys)
            found = self._connection.execute(*statement).fetchall()
        except psycopg.DataError:
            half = len(keys) // 2
            parts = (keys[:half], keys[half:]) if half else ()
            return [key for part in parts for key in self.possible_keys(table, part)]
        except psycopg.Error as error:
            raise _unavailable(error) from error
        return [
            key for key, canonical in zip(keys, found, strict=True) if key == canonical
        ]

    def _fetch(self, statement: Statement) -> list[Texts]:
        with translated():
            return self._connection.execute(*statement).fetchall()

    def _stream(self, statement: Statement) -> Iterator[list[Texts]]:
        with (
            translated(),
            self._connection.transaction(),
            self._connection.cursor("towpath_verify") as cursor,
        ):
            cursor.execute(*statement)
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn psycopg's errors into ours.

    Raises:
        SourceUnavailableError: The database cannot be read.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _unavailable(error) from error


def _unavailable(error: psycopg.Error) -> SourceUnavailableError:
    message = error.diag.message_primary or first_line(error)
    return SourceUnavailableError(f"the source cannot be read: {message}")

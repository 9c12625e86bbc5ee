"""
Reads tables of the source chunk by chunk, every value as text that SQL writes.

The forms are those of records, arrived at independently of the relay: the database
formats times, booleans and bytes itself. A chunk is a statement of its own: no view of
the database is held for longer, which would keep the server from cleaning up.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, LiteralString, Self

import psycopg
from psycopg import sql

from towpath.schemas.table_name import TableName
from towpath.sinks.source_session import connected
from towpath.sinks.verify import catalog, statements
from towpath.sinks.verify.errors import SourceUnavailableError
from towpath.sinks.verify.statements import Statement
from towpath.sinks.verify.table import SourceTable

Texts = tuple[str | None, ...]

# Some hundred kilobytes a round trip; larger gains nothing, smaller costs round trips.
ROWS_AT_ONCE: Final = 5000

_ESTIMATE: Final[LiteralString] = """
    select sum(greatest(reltuples, 0))::bigint
    from pg_partition_tree(%s::regclass) join pg_class on oid = relid where isleaf
"""
_ONE_VIEW: Final[LiteralString] = "set transaction isolation level repeatable read"


class Source:
    """
    The database.

    Call order: ``with``, then anything.
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
        Look a table up; its key is the primary key, if it has one.

        Raises:
            SourceUnavailableError: It is not there or cannot be read.
        """
        # In one view of the catalog, so that columns and key belong together.
        with translated(), self._connection.transaction():
            self._connection.execute(_ONE_VIEW)
            return SourceTable(
                name.schema,
                name.table,
                catalog.columns_of(self._connection, name.sql, self._publication),
                catalog.primary_key_of(self._connection, name.sql),
                is_partitioned=catalog.is_partitioned(self._connection, name.sql),
            )

    def has_table(self, name: TableName) -> bool:
        """
        Tell whether there is such a table.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        query = "select to_regclass(%s) is not null"
        with translated():
            return self._connection.execute(query, [name.sql]).fetchone() == (True,)

    def has_key(self, table: SourceTable) -> bool:
        """
        Tell whether the rows of a table can be told apart by its key.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        with translated():
            return catalog.is_unique(self._connection, table.full_name.sql, table.key)

    def values_of(self, table: TableName, column: str) -> list[str]:
        """
        List the different values of a column, null aside.

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
        Return about how many rows a table has; 0 if the server does not know.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        with translated():
            row = self._connection.execute(_ESTIMATE, [table.full_name.sql]).fetchone()
        return 0 if row is None or row[0] is None else int(row[0])

    def rows(self, table: SourceTable) -> Iterator[list[Texts]]:
        """
        Go through a table in key order, some thousand rows at a time.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        if table.is_view:
            yield from self._stream(statements.whole(table))
            return
        last: list[str] | None = None
        while rows := self._fetch(statements.part(table, last, ROWS_AT_ONCE)):
            yield rows
            last = [str(rows[-1][place]) for place in table.key_places]

    def sample(self, table: SourceTable, size: float) -> Iterator[list[Texts]]:
        """
        Go through rows that chance picks.

        Args:
            table: Where to read.
            size: How many rows; below one, how large a part of them.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        is_part = size < 1
        yield from self._stream(
            statements.share(table, size)
            if is_part
            else statements.some(table, int(size))
        )

    def listed(
        self, table: SourceTable, keys: Sequence[Sequence[str]]
    ) -> Iterator[Texts]:
        """
        Read the rows of some keys; what cannot be a key of the table has none.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        try:
            yield from self._connection.execute(*statements.listed(table, keys))
        except psycopg.DataError:
            if len(keys) > 1:
                for key in keys:
                    yield from self.listed(table, [key])
        except psycopg.Error as error:
            raise _unavailable(error) from error

    def possible(
        self, table: SourceTable, keys: Sequence[tuple[str, ...]]
    ) -> list[tuple[str, ...]]:
        """
        Return those keys that rows of the table can have, spelt as theirs are.

        Raises:
            SourceUnavailableError: The database cannot be read.
        """
        if not keys:
            return []
        try:
            found = self._connection.execute(*statements.spelt(table, keys)).fetchall()
        except psycopg.DataError:
            half = len(keys) // 2
            parts = (keys[:half], keys[half:]) if half else ()
            return [key for part in parts for key in self.possible(table, part)]
        except psycopg.Error as error:
            raise _unavailable(error) from error
        return [key for key, spelt in zip(keys, found, strict=True) if key == spelt]

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
    Turn the driver's errors into ours.

    Raises:
        SourceUnavailableError: The database cannot be read.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _unavailable(error) from error


def _unavailable(error: psycopg.Error) -> SourceUnavailableError:
    told = error.diag.message_primary or str(error).strip().partition("\n")[0]
    return SourceUnavailableError(f"the source cannot be read: {told}")

"""The source's tables and columns, to make expressions into names."""

from collections.abc import Mapping
from typing import Final

import psycopg

from towpath.deploy.errors import SourceUnreachableError
from towpath.schemas.table_name import TableName
from towpath.sinks.source_session import connected

_TABLES: Final = """\
select n.nspname, c.relname, array_agg(a.attname::text order by a.attnum)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a
    on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p') and not c.relispartition
    and n.nspname not in ('information_schema', 'pg_catalog', 'pg_toast')
    and n.nspname not like 'pg\\_temp%'
group by 1, 2
order by 1, 2
"""


def read_catalog(dsn: str) -> Mapping[str, tuple[str, ...]]:
    """
    Return every table of the database with its columns; partitions by their root.

    Raises:
        SourceUnreachableError: The database does not answer.
    """
    try:
        with connected(dsn) as connection:
            rows = connection.execute(_TABLES).fetchall()
    except psycopg.Error as error:
        message = f"the source does not answer: {str(error).strip()}"
        raise SourceUnreachableError(message) from error
    return {
        TableName(schema, table).text: tuple(columns) for schema, table, columns in rows
    }

"""Sessions with the source's database, for verifying, waiting and the command line."""

from typing import Any, TypeAlias

import psycopg

from towpath.schemas import session
from towpath.schemas.failure import TooManyFilesError, has_no_descriptor

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_S = 10


def connected(dsn: str, **settings: str) -> Connection:
    """
    Open a session in autocommit, unaffected by environment, role and database.

    Args:
        dsn: The connection string, as libpq takes it.
        settings: The settings that differ from ``schemas.session``.

    Raises:
        psycopg.Error: The database cannot be reached.
        TooManyFilesError: This process has no file descriptor left.
    """
    try:
        connection = psycopg.connect(
            dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
        )
    except psycopg.Error as error:
        if error.sqlstate is None and has_no_descriptor(error):
            doing = "connecting to the source"
            raise TooManyFilesError(doing) from error
        raise
    try:
        version = connection.info.server_version
        connection.execute(session.statement(version, **settings).encode())
    except psycopg.Error:
        connection.close()
        raise
    return connection

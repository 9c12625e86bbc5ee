"""Sessions of verifier, wait and command line with the source's database."""

from typing import Any, TypeAlias

import psycopg

from towpath.schemas import session

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_S = 10


def connected(dsn: str, **settings: str) -> Connection:
    """
    Open a session in autocommit, whatever environment, role or database set.

    Args:
        dsn: Where to, in libpq's words.
        settings: What differs from ``schemas.session``.

    Raises:
        psycopg.Error: The database cannot be reached.
    """
    connection = psycopg.connect(
        dsn, connect_timeout=_CONNECT_TIMEOUT_S, autocommit=True
    )
    try:
        version = connection.info.server_version
        connection.execute(session.statement(version, **settings).encode())
    except psycopg.Error:
        connection.close()
        raise
    return connection

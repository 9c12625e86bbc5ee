"""
The engine, and the one place where a driver's error becomes one of ours.

Errors are told apart by SQLSTATE, never by text. What is not in the table is unforeseen
and stays what it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

import psycopg2
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from towpath.schemas import session
from towpath.schemas.failure import BusyError, UnavailableError

CONNECT_TIMEOUT_S: Final = 3
# A request that waits longer for a row lock or an answer is refused and may be tried
# again; it would hold one of few threads otherwise.
LOCK_TIMEOUT_MS: Final = 5_000
STATEMENT_TIMEOUT_MS: Final = 10_000
# An abandoned transaction holds row locks and keeps the relay's snapshots waiting.
IDLE_TIMEOUT_MS: Final = 30_000
POOL_WAIT_S: Final = 5.0


class DatabaseUnavailableError(UnavailableError):
    """The database cannot be reached, or is starting or stopping."""

    remedy: ClassVar[str] = "Try again; the same Idempotency-Key makes that safe."


class MissingTableError(UnavailableError):
    """A table is not there yet, the outbox most of all."""

    remedy: ClassVar[str] = "Run towpath relay init, and the service's own migrations."


class DatabaseBusyError(BusyError):
    """A lock, a connection or an answer took too long, or two transactions collided."""

    remedy: ClassVar[str] = "Try again; the same Idempotency-Key makes that safe."


_UNAVAILABLE: Final = ("08", "57P")
_BUSY: Final = ("40001", "40P01", "53", "55P03", "57014", "25P03")
_MISSING: Final = ("42P01", "3F000")


def make_engine(dsn: str, *, pool_size: int) -> Engine:
    """
    Make an engine for a libpq connection string, URI or keywords; nothing is opened.

    Args:
        dsn: Where the database is, as libpq takes it.
        pool_size: Connections kept; one for each thread that serves requests.
    """

    def connect() -> psycopg2.extensions.connection:
        connection = psycopg2.connect(
            dsn, connect_timeout=CONNECT_TIMEOUT_S, application_name="towpath-shop"
        )
        settings = session.statement(
            connection.server_version,
            lock_timeout=str(LOCK_TIMEOUT_MS),
            statement_timeout=str(STATEMENT_TIMEOUT_MS),
            idle_in_transaction_session_timeout=str(IDLE_TIMEOUT_MS),
            row_security="on",
            # An order that was confirmed is on the standby, too.
            synchronous_commit="on",
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(settings)
        return connection

    return create_engine(
        "postgresql+psycopg2://",
        creator=connect,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=True,
    )


@contextmanager
def translated() -> Iterator[None]:
    """
    Raise the platform's failures instead of the driver's.

    Raises:
        UnavailableError: The database cannot be reached, or lacks a table.
        BusyError: Something took too long; trying again may help.
    """
    try:
        yield
    except PoolTimeoutError as error:
        message = "No database connection became free in time."
        raise DatabaseBusyError(message, retry_after_s=POOL_WAIT_S) from error
    except DBAPIError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        raise failure from error


def failure_of(error: DBAPIError) -> UnavailableError | None:
    """Name the platform's failure for a driver's error, if it is one."""
    state = sqlstate(error)
    if state.startswith(_BUSY):
        message = "The database did not answer in time, or another request was first."
        return DatabaseBusyError(message, retry_after_s=1.0)
    if state.startswith(_MISSING):
        return MissingTableError("A table of the database is not there yet.")
    lost = not state and isinstance(error.orig, psycopg2.OperationalError)
    if state.startswith(_UNAVAILABLE) or error.connection_invalidated or lost:
        return DatabaseUnavailableError("The database cannot be reached.")
    return None


def sqlstate(error: DBAPIError) -> str:
    """Return the five characters by which Postgres names an error, or nothing."""
    return getattr(error.orig, "pgcode", None) or ""


def constraint_of(error: DBAPIError) -> str:
    """Return the name of the constraint that was violated, or nothing."""
    diagnosis = getattr(error.orig, "diag", None)
    return getattr(diagnosis, "constraint_name", None) or ""

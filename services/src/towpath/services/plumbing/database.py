"""
The database of a service: engine, errors, migrations, unit of work, health.

A driver's error becomes one of ours in one place, by its SQLSTATE, never by its text.
An error that is not in the table is unforeseen and stays as it was.

A service's tables are brought to the newest version also when two of it start at once:
the whole run is one transaction under one advisory lock: the second to come waits,
finds nothing to do, and goes on.

A unit of work is one transaction for one command; without a commit it is rolled back.
The driver's errors leave it as the platform's failures. Aggregates that the command
touched are tracked, so that what they say is committed with their state. The connection
stays the unit's until its end, so that it can be asked after the commit how far the log
is.

``/health/live`` asks nothing of anyone. ``/health/ready`` asks the database whether it
answers and has every table that a write needs, the outbox among them.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from types import TracebackType
from typing import ClassVar, Final, Self

import psycopg2
from alembic import command
from alembic.config import Config
from flask import Blueprint
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from towpath.schemas import session
from towpath.schemas.failure import BusyError, UnavailableError
from towpath.services.plumbing.http import written_lsn

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


# How long the second to come waits for the first; migrations take seconds.
_WAIT_MS: Final = 60_000


def migrate(engine: Engine, *, package: str, schema: str) -> None:
    """
    Apply what is missing.

    Args:
        engine: The database.
        package: The package that holds ``env.py`` and ``versions``.
        schema: The service's schema; made first, because alembic keeps its own table
            there.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    key = zlib.crc32(f"towpath:migrate:{schema}".encode())
    with translated(), engine.begin() as connection:
        connection.execute(text(f"set local lock_timeout = {_WAIT_MS}"))
        connection.execute(text(f"set local statement_timeout = {_WAIT_MS}"))
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": key})
        there = text("select to_regnamespace(:schema) is not null")
        if not connection.scalar(there, {"schema": schema}):
            connection.execute(text(f'create schema "{schema}"'))
        folder = resources.files(package)
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


TRACEPARENT: Final = "traceparent"


class UnitOfWork:
    """
    A transaction that begins with the first statement and ends with the block.

    Args:
        sessions: Makes the session; its collector records what aggregates say.
        traceparent: The trace context of the request, kept with its events.
    """

    session: Session
    _connection: Connection

    def __init__(
        self, sessions: sessionmaker[Session], traceparent: str | None = None
    ) -> None:
        self._sessions = sessions
        self._traceparent = traceparent

    def __enter__(self) -> Self:
        engine: Engine = self._sessions.kw["bind"]
        with translated():
            self._connection = engine.connect()
        self.session = self._sessions(bind=self._connection)
        self.session.info[TRACEPARENT] = self._traceparent
        return self

    def commit(self) -> None:
        """Make everything until now durable, events included."""
        self.session.commit()

    def written_lsn(self) -> str | None:
        """Return an LSN behind everything that was committed and can be seen here."""
        return written_lsn(self._connection)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.session.close()
        self._connection.close()
        if isinstance(error, DBAPIError | PoolTimeoutError):
            with translated():
                raise error


def health_blueprint(engine: Engine, tables: Sequence[str]) -> Blueprint:
    """
    Make the two routes.

    Args:
        engine: The database that is asked.
        tables: Qualified names of the tables that a write needs.
    """
    blueprint = Blueprint("health", __name__, url_prefix="/health")
    missing = text(
        "select name from unnest(cast(:names as text[])) as name"
        " where to_regclass(name) is null"
    )

    @blueprint.get("/live")
    def live() -> dict[str, str]:
        return {"status": "live"}

    @blueprint.get("/ready")
    def ready() -> dict[str, str]:
        with translated(), engine.connect() as connection:
            absent = connection.scalars(missing, {"names": list(tables)}).all()
        if absent:
            message = f"There is no table {', '.join(absent)} yet."
            raise MissingTableError(message)
        return {"status": "ready"}

    return blueprint

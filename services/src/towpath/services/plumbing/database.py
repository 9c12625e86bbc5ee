"""
The database of a service: engine, errors, role, migrations, unit of work, health.

One function turns the driver's errors into failures of the platform: by SQLSTATE, by a
lost connection or, for an error without a SQLSTATE, by its class. All other errors are
raised unchanged.

Each service has its own role. The role may create schemas, and owns those that it
creates; its only other right is to insert rows into the outbox.

Two processes of a service may migrate its tables at the same time: a whole run is one
transaction under one advisory lock, so the second run finds nothing to do.

A unit of work is one transaction for one command; without a commit it is rolled back.
It raises the driver's errors as the platform's failures. Aggregates that the command
changed are tracked, so that their events are committed with their state. The unit keeps
its connection until it ends, because the LSN is read on it after the commit.

Services that seed a shop compute their parts of the same orders from one query, because
none of them reads another's tables.

A service is ready if its database answers, and has the outbox and the tables that the
service names.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import psycopg2
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from towpath.outbox.alembic import SourceTableOperation
from towpath.schemas import session
from towpath.schemas.failure import (
    BusyError,
    HaltError,
    UnavailableError,
    UsageError,
    first_line,
)
from towpath.schemas.table_name import quoted
from towpath.services.plumbing.http import written_lsn

CONNECT_TIMEOUT_S: Final = 3
# A request that waits longer for a row lock or a statement's result is refused, and may
# be retried; without these limits it would occupy one of the few threads.
LOCK_TIMEOUT_MS: Final = 5_000
STATEMENT_TIMEOUT_MS: Final = 10_000
# An abandoned transaction holds row locks and delays the relay's snapshots.
IDLE_TIMEOUT_MS: Final = 30_000
POOL_WAIT_S: Final = 5.0


# The number of products in seeded orders; a product's id is a hash of its number, and
# numbers start at 0.
SEEDED_PRODUCTS: Final = 1_000
# A common table expression with the lines of seeded orders; the orders are numbered
# from 1. Every value follows from the seed, the order's number and the line's number,
# so no state is kept.
SEEDED_LINES: Final = f"""
seeded_lines as materialized (
    select n, line_no::int,
           md5('product ' || (d.dice / 100000 % {SEEDED_PRODUCTS}))::uuid as product_id,
           (1 + d.dice % 5)::int as quantity,
           (100 + d.dice / 7 % 20000)::numeric(12, 2) / 100 as unit_price
      from generate_series(1, :orders) as n,
           lateral (select hashint8extended(n, :seed) & 2147483647 as dice) as o,
           generate_series(1, 1 + o.dice % 4) as line_no,
           lateral (select hashint8extended(n * 16 + line_no, :seed + 1)
                           & 2147483647 as dice) as d
)
"""  # noqa: S608 - a constant


class DatabaseUnavailableError(UnavailableError):
    """The database cannot be reached, or is starting or stopping."""

    remedy: ClassVar[str] = "Try again; the same Idempotency-Key makes that safe."


class RefusedLoginError(UnavailableError):
    """The database refuses the login."""

    remedy: ClassVar[str] = (
        "Correct the user, the password and the database of the service's address, or"
        " run migrate once with --admin-dsn."
    )


class MissingTableError(UnavailableError):
    """A table, such as the outbox, does not exist yet."""

    remedy: ClassVar[str] = "Run towpath relay init, and the service's own migrations."


class MissingRightsError(UnavailableError):
    """The service's role lacks a right in the database."""

    remedy: ClassVar[str] = (
        "Run migrate once with --admin-dsn, or grant what docs/rights.md lists."
    )


class NewerTablesError(HaltError):
    """The tables of a service are from a newer release than the service."""

    remedy: ClassVar[str] = "Start the release that made the tables, or a later one."


class DatabaseBusyError(BusyError):
    """The database is busy or short of a resource, or two transactions collided."""

    remedy: ClassVar[str] = "Try again; the same Idempotency-Key makes that safe."


_UNAVAILABLE: Final = ("08", "57P")
_BUSY: Final = ("40001", "40P01", "53", "55P03", "57014", "25P03")
_MISSING: Final = ("42P01", "3F000")
_REFUSED: Final = "42501"


# Messages from the server or libpq about a connection that may succeed later.
_TRANSIENT: Final = re.compile(
    "connection slots|too many connections|closed the connection|database system is"
    "|[Cc]onnection (?:reset|timed out)|timeout expired"
)


# Messages from the server about a login that it refuses without asking for a password.
_REFUSED_LOGIN: Final = re.compile(
    r"FATAL: +(?:(?:role|database) .* does not exist|role .* not permitted to log in"
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects)"
)


class _RefusedLogin(psycopg2.OperationalError):
    """The server did answer, but refused the login."""


class _Connection(psycopg2.extensions.connection):
    """
    A connection that distinguishes a refused login from an unreachable server.

    The driver gives neither error a SQLSTATE. After a request for a password, every
    error counts as a refused login, unless the server is full, starting or stopping.
    Without such a request, only an error whose English text says so counts as one.
    """

    def __init__(self, dsn: str) -> None:
        try:
            super().__init__(dsn)
        except psycopg2.OperationalError as error:
            asked_password = self.info.needs_password or self.info.used_password
            is_refused = asked_password and not _TRANSIENT.search(str(error))
            if is_refused or _REFUSED_LOGIN.search(str(error)):
                raise _RefusedLogin(*error.args) from error
            raise


def make_engine(dsn: str, *, pool_size: int, is_tested: bool = True) -> Engine:
    """
    Create an engine for a libpq connection string; no connection is opened.

    Args:
        dsn: The database, as a libpq URI or keyword/value string.
        pool_size: The number of connections, one for each thread that serves requests.
        is_tested: Whether each use tests its connection first. Without the test, the
            first use after a database restart fails, and the next one reconnects.

    Raises:
        UsageError: The connection string cannot be read.
    """
    _parts_of(dsn)

    def connect() -> psycopg2.extensions.connection:
        connection = psycopg2.connect(
            dsn,
            connection_factory=_Connection,
            connect_timeout=CONNECT_TIMEOUT_S,
            application_name="towpath-shop",
        )
        settings = session.statement(
            connection.server_version,
            lock_timeout=str(LOCK_TIMEOUT_MS),
            statement_timeout=str(STATEMENT_TIMEOUT_MS),
            idle_in_transaction_session_timeout=str(IDLE_TIMEOUT_MS),
            row_security="on",
            # If there is a synchronous standby, it has every confirmed order.
            synchronous_commit="on",
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(settings)
        return connection

    engine = create_engine(
        "postgresql+psycopg2://",
        creator=connect,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S,
        pool_pre_ping=is_tested,
        # Errors are logged, and values of rows must not be.
        hide_parameters=True,
        # An update of several rows is sent as one message, like an insert.
        executemany_mode="values_plus_batch",
    )
    event.listen(engine, "handle_error", _remove_details)
    return engine


def _remove_details(context: ExceptionContext) -> None:
    """Keep the first line of a server's error; the other lines quote whole rows."""
    error = context.sqlalchemy_exception
    if isinstance(error, DBAPIError) and sqlstate(error):
        for each in (error, context.original_exception):
            each.args = tuple(str(text).partition("\n")[0] for text in each.args)


@contextmanager
def translated() -> Iterator[None]:
    """
    Raise the platform's failures instead of the driver's.

    Raises:
        UnavailableError: The database cannot be reached, lacks a table, or refuses
            the role.
        BusyError: The database is busy or short of a resource (its disk may be full),
            or two transactions collided; a retry may succeed.
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
    """Return the platform's failure for a driver's error, if there is one."""
    state = sqlstate(error)
    if state.startswith(_BUSY):
        message = (
            "The database is busy or short of a resource, or two transactions collided."
        )
        return DatabaseBusyError(message, retry_after_s=1.0)
    if state.startswith(_MISSING):
        message = "A table or schema that the service needs does not exist yet."
        return MissingTableError(message)
    if isinstance(error.orig, _RefusedLogin):
        reason = first_line(error.orig)
        return RefusedLoginError(f"The database refuses the login: {reason}.")
    if state == _REFUSED:
        reason = first_line(error.orig)
        return MissingRightsError(f"The database refuses the role: {reason}.")
    lost = not state and isinstance(error.orig, psycopg2.OperationalError)
    if state.startswith(_UNAVAILABLE) or error.connection_invalidated or lost:
        return DatabaseUnavailableError("The database cannot be reached.")
    return None


def sqlstate(error: DBAPIError) -> str:
    """Return the SQLSTATE of an error, or an empty string."""
    return getattr(error.orig, "pgcode", None) or ""


def constraint_of(error: DBAPIError) -> str:
    """Return the name of the violated constraint, or an empty string."""
    diagnosis = getattr(error.orig, "diag", None)
    return getattr(diagnosis, "constraint_name", None) or ""


# The longest wait for another process's migration, and the longest statement of a
# migration; both usually take seconds.
_WAIT_MS: Final = 60_000


_ROLE_EXISTS: Final = text("select from pg_roles where rolname = :role")


def create_role(administration: Engine, dsn: str) -> None:
    """
    Create the role that a service logs in as, and allow it to write to the outbox.

    A repeated call changes nothing except the role's password, if ``dsn`` has one.

    Args:
        administration: The service's database, logged in as a role that may create
            roles.
        dsn: The address that the service uses; its user is the new role.

    Raises:
        UsageError: The address cannot be read, or names no user.
        UnavailableError: The database cannot be reached, or refuses the administrator.
    """
    role, password = _login_of(dsn)
    with translated(), administration.begin() as connection:
        key = zlib.crc32(b"towpath:roles")
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": key})
        if connection.execute(_ROLE_EXISTS, {"role": role}).first() is None:
            connection.exec_driver_sql(f"create role {quoted(role)} login")
        if password is not None:
            _set_password(connection, role, password)
        database = quoted(str(connection.scalar(text("select current_database()"))))
        # The role's own migrations create its schemas.
        connection.exec_driver_sql(
            f"grant create on database {database} to {quoted(role)}"
        )
        operations = Operations(MigrationContext.configure(connection))
        SourceTableOperation.create_outbox(operations, writers=[role])


def _parts_of(dsn: str) -> dict[str, str]:
    """
    Parse an address.

    The driver's error must not reach a log: it quotes an unreadable address, including
    the password.
    """
    with suppress(psycopg2.ProgrammingError):
        parts: dict[str, str] = psycopg2.extensions.parse_dsn(dsn)
        return parts
    message = (
        "the database's address cannot be read: write name=value pairs, with quotes"
        " around values that contain spaces, or a URI, with special characters in the"
        " password written as %XX"
    )
    raise UsageError(message)


def _login_of(dsn: str) -> tuple[str, str | None]:
    """Return the user and the password of an address."""
    login = _parts_of(dsn)
    if "user" not in login:
        message = "the service's --dsn names no user: there is no role to create"
        raise UsageError(message)
    return login["user"], login.get("password")


def _set_password(connection: Connection, role: str, password: str) -> None:
    """Set a role's password; the server and its log receive only the hash."""
    driver: Any = connection.connection.dbapi_connection
    hashed = psycopg2.extensions.encrypt_password(password, role, driver)
    connection.exec_driver_sql(
        f"alter role {quoted(role)} login password %s", (hashed,)
    )


def migrate(engine: Engine, *, package: str, schema: str) -> None:
    """
    Apply the pending migrations.

    Args:
        engine: The database.
        package: The package of the migrations; it needs no ``env.py``, because this
            function is its environment.
        schema: The service's schema; created first, because it holds Alembic's version
            table.

    Raises:
        NewerTablesError: A newer release has migrated the tables.
        UnavailableError: The database cannot be reached, or refuses the role.
    """
    key = zlib.crc32(f"towpath:migrate:{schema}".encode())
    with translated(), engine.begin() as connection:
        connection.execute(text(f"set local lock_timeout = {_WAIT_MS}"))
        connection.execute(text(f"set local statement_timeout = {_WAIT_MS}"))
        connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": key})
        exists = text("select to_regnamespace(:schema) is not null")
        if not connection.scalar(exists, {"schema": schema}):
            connection.exec_driver_sql(f"create schema {quoted(schema)}")
        _upgrade(connection, package, schema)


def _upgrade(connection: Connection, package: str, schema: str) -> None:
    """Run Alembic on the caller's connection, in its transaction."""
    folder = str(resources.files(package))
    scripts = ScriptDirectory(folder, version_locations=[folder])

    def pending(revision: Any, _context: MigrationContext) -> Any:  # noqa: ANN401
        # Alembic's documentation calls this method in such a function.
        return scripts._upgrade_revs("head", revision)  # noqa: SLF001

    with EnvironmentContext(Config(), scripts, fn=pending) as environment:
        environment.configure(connection=connection, version_table_schema=schema)
        try:
            environment.run_migrations()
        except CommandError as error:
            message = f"the tables in the schema {schema} are newer: {error}"
            raise NewerTablesError(message) from error


TRACEPARENT: Final = "traceparent"


class UnitOfWork:
    """
    A transaction that begins with the first statement and ends with the block.

    Args:
        sessions: Creates the session, whose ``Collector`` records the aggregates'
            events.
        traceparent: The trace context of the request, stored with its events.
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
        """Commit the changes with their events."""
        self.session.commit()

    def written_lsn(self) -> str | None:
        """Return an LSN at or after the last commit of this unit."""
        return written_lsn(self._connection)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with translated():
            try:
                # This rolls back, so it fails if the connection was lost.
                self.session.close()
            finally:
                self._connection.close()
            if isinstance(error, DBAPIError | PoolTimeoutError):
                raise error


def table_check(engine: Engine, tables: Sequence[str]) -> Callable[[], None]:
    """
    Return a readiness check: whether the database answers and has all tables.

    Args:
        engine: The database to check.
        tables: Qualified names of tables without which the service is not ready.

    Returns:
        A function that raises UnavailableError if the service is not ready.
    """
    missing = text(
        "select name from unnest(cast(:names as text[])) as name"
        " where to_regclass(name) is null"
    )

    def check() -> None:
        with translated(), engine.connect() as connection:
            absent = connection.scalars(missing, {"names": list(tables)}).all()
        if absent:
            message = f"There is no table {', '.join(absent)} yet."
            raise MissingTableError(message)

    return check

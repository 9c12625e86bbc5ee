"""
Runs statements in the caller's transaction, with any of the drivers listed below.

A session's driver is recognized by the module of the session's class, so that a driver
that the application does not use is never imported:

================  ==================================================================
SQLAlchemy 2      ``Session``, ``scoped_session``, ``Connection``; ``AsyncSession``,
                  ``AsyncConnection``
psycopg 3         connections and cursors, including asynchronous ones
psycopg2          connections and cursors
Django            ``django.db.connection``
asyncpg           connections
================  ==================================================================

Each parameter is text, cast in the statement, so that all drivers send the same values.
A connection that commits each statement by itself is refused: statements that belong
together would be committed separately.
"""

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from towpath.schemas.failure import UsageError

# Stands for a parameter in the SQL of a statement; no SQL contains a NUL.
MARK: Final = "\0"
# A parameter as text: without the cast, the server expects the column's type.
TEXT: Final = f"cast({MARK} as text)"

# libpq's PQTRANS_IDLE: no transaction is open.
IDLE: Final = 0

Parameters = Mapping[str, str | None]
Rows = list[Any]


class SessionTypeError(UsageError):
    """The session has an unknown or unsuitable type, or an open psycopg pipeline."""

    remedy: ClassVar[str] = (
        "Pass a session or connection of SQLAlchemy, psycopg, psycopg2, asyncpg or "
        "Django; for an asynchronous session, call the asynchronous function; end a "
        "psycopg pipeline first."
    )


class NoTransactionError(UsageError):
    """Each statement is committed by itself: state and event would not be atomic."""

    remedy: ClassVar[str] = "Begin a transaction, and write state and event inside it."


class Statement(NamedTuple):
    """
    A statement for any driver.

    Attributes:
        parts: The SQL texts before, between and after the parameters.
        values: The parameters by name, in order.
    """

    parts: tuple[str, ...]
    values: Parameters

    @classmethod
    def of(cls, sql: str, values: Parameters) -> "Statement":
        """Make a statement from SQL in which ``MARK`` stands for each parameter."""
        return cls(tuple(sql.split(MARK)), values)

    @property
    def form(self) -> "Form":
        """The texts and the names of the parameters, without their values."""
        return self.parts, tuple(self.values)


# The texts and the names of the parameters of a statement.
Form = tuple[tuple[str, ...], tuple[str, ...]]

Result = TypeVar("Result")
# Steps yield statements, receive the rows of each, and return a result.
Steps = Generator[Statement, Rows, Result]


def run(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401 - any driver
    """
    Run statements in the session's transaction; return the rows of the last one.

    Raises:
        SessionTypeError: The session is asynchronous, of an unknown kind, or in a
            psycopg pipeline that has not read the rows.
        NoTransactionError: The session commits each statement by itself.
    """
    kind, is_async = _kind(session)
    runner = _RUNNERS.get(kind)
    if runner is None or is_async:
        raise SessionTypeError(_refusal(session, "the synchronous function"))
    return runner(session, statements)


async def run_async(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401 - any driver
    """
    Run statements in the transaction of an asynchronous session; return the last rows.

    Raises:
        SessionTypeError: The session is not asynchronous, of an unknown kind, or in a
            psycopg pipeline that has not read the rows.
        NoTransactionError: The session commits each statement by itself.
    """
    kind, is_async = _kind(session)
    if kind == "sqlalchemy" and is_async:
        found: Rows = await session.run_sync(_run_sqlalchemy, statements)
        return found
    if kind == "psycopg" and is_async:
        return await _run_psycopg_async(session, statements)
    if kind == "asyncpg":
        return await _run_asyncpg(session, statements)
    raise SessionTypeError(_refusal(session, "the asynchronous function"))


def drive(session: Any, steps: Steps[Result]) -> Result:  # noqa: ANN401 - any driver
    """Run steps in the transaction of a session, and return their result."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(run(session, (statement,)))
    except StopIteration as end:
        result: Result = end.value
        return result


async def drive_async(session: Any, steps: Steps[Result]) -> Result:  # noqa: ANN401
    """Run steps in the transaction of an asynchronous session."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await run_async(session, (statement,)))
    except StopIteration as end:
        result: Result = end.value
        return result


def _kind(session: object) -> tuple[str, bool]:
    """
    Return the driver of a session (empty if none), and whether it is asynchronous.

    A driver's engines, pools and transactions are not sessions.
    """
    # A class is hashable, though mypy does not believe it.
    kind, is_async = _kind_of(type(session))  # type: ignore[arg-type]
    names = _ATTRIBUTES.get((kind, is_async), ("cursor", "execute"))
    return kind if any(hasattr(session, name) for name in names) else "", is_async


@functools.cache
def _kind_of(cls: type) -> tuple[str, bool]:
    """Return the driver of a class (empty if none), and whether it is asynchronous."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    kind = next((root for root in roots if root in _KINDS), "")
    is_async = any(base.__name__.lower().startswith("async") for base in cls.__mro__)
    return kind, is_async or kind == "asyncpg"


def _refusal(session: object, function: str) -> str:
    cls = type(session)
    return f"{function} cannot use a {cls.__module__}.{cls.__qualname__}"


def _require(*, is_transaction: bool) -> None:
    if not is_transaction:
        message = "the connection commits each statement by itself"
        raise NoTransactionError(message)


def _run_sqlalchemy(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    from sqlalchemy import Connection  # noqa: PLC0415 - present, as the session is

    connection = session if isinstance(session, Connection) else session.connection()
    driver = connection.connection.dbapi_connection
    _require(is_transaction=not getattr(driver, "autocommit", False))
    rows: Rows = []
    for statement in statements:
        result = connection.execute(_clause(statement.form), dict(statement.values))
        rows = list(result) if result.returns_rows else []
    return rows


def _run_psycopg(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    connection = session if hasattr(session, "cursor") else session.connection
    _require_psycopg(connection)
    if connection is not session:
        rows = _run_on_cursor(session, statements)
    else:
        with connection.cursor() as cursor:
            rows = _run_on_cursor(cursor, statements)
    return rows or _require_rows_read(connection, statements)


def _run_on_cursor(cursor: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    for statement in statements:
        cursor.execute(_pyformat(statement.form), statement.values)
    return _sequences(cursor.fetchall()) if cursor.description else []


def _sequences(rows: Rows) -> Rows:
    """Return rows by position, even if the session's cursors return mappings."""
    return [tuple(row.values()) if isinstance(row, dict) else row for row in rows]


def _require_rows_read(connection: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    """
    Return an empty list if the statements are known to have no rows.

    Raises:
        SessionTypeError: A pipeline of psycopg has not read the last statement's rows
            yet, and treating them as absent would lose an event.
    """
    pgconn = getattr(connection, "pgconn", None)
    if pgconn is None or not pgconn.pipeline_status:
        return []
    text = _pyformat(statements[-1].form).lower()
    # The LSN of a message is of no use to its writer.
    is_read = text.startswith("select") and "pg_logical_emit_message" not in text
    if is_read or " returning " in text:
        message = "the session is in psycopg's pipeline mode: end the pipeline first"
        raise SessionTypeError(message)
    return []


async def _run_psycopg_async(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    connection = session if hasattr(session, "cursor") else session.connection
    _require_psycopg(connection)
    cursor = session
    for statement in statements:
        # A connection's method returns a new cursor.
        sql = _pyformat(statement.form)
        cursor = await session.execute(sql, statement.values)
    rows = _sequences(await cursor.fetchall()) if cursor.description else []
    return rows or _require_rows_read(connection, statements)


def _run_django(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    is_atomic = session.in_atomic_block or not session.get_autocommit()
    _require(is_transaction=is_atomic)
    with session.cursor() as cursor:
        return _run_on_cursor(cursor, statements)


async def _run_asyncpg(session: Any, statements: Sequence[Statement]) -> Rows:  # noqa: ANN401
    _require(is_transaction=session.is_in_transaction())
    rows: Rows = []
    for statement in statements:
        sql = _numbered(statement.form)
        rows = list(await session.fetch(sql, *statement.values.values()))
    return rows


# The SQL of a form is built once per driver: SQLAlchemy's ``text`` is slow.
_built_once = functools.lru_cache(maxsize=1_024)


@_built_once
def _clause(form: Form) -> Any:  # noqa: ANN401 - SQLAlchemy's
    from sqlalchemy import text  # noqa: PLC0415 - present, as the session is

    parts, names = form
    escaped = [part.replace(":", "\\:") for part in parts]
    return text(_joined(escaped, [f":{name}" for name in names]))


@_built_once
def _pyformat(form: Form) -> str:
    parts, names = form
    escaped = [part.replace("%", "%%") for part in parts]
    return _joined(escaped, [f"%({name})s" for name in names])


@_built_once
def _numbered(form: Form) -> str:
    parts, names = form
    return _joined(parts, [f"${number}" for number, _ in enumerate(names, 1)])


def _joined(parts: Sequence[str], placeholders: Sequence[str]) -> str:
    return "".join(map("".join, zip_longest(parts, placeholders, fillvalue="")))


def _require_psycopg(connection: Any) -> None:  # noqa: ANN401 - of psycopg or psycopg2
    is_idle = transaction_status(connection) == IDLE
    _require(is_transaction=not (connection.autocommit and is_idle))


def transaction_status(connection: Any) -> int:  # noqa: ANN401
    """Return libpq's transaction status of a connection of psycopg or psycopg2."""
    if hasattr(connection, "get_transaction_status"):
        return int(connection.get_transaction_status())
    return int(connection.info.transaction_status)


_RUNNERS: Final[Mapping[str, Callable[[Any, Sequence[Statement]], Rows]]] = {
    "sqlalchemy": _run_sqlalchemy,
    "psycopg": _run_psycopg,
    "psycopg2": _run_psycopg,
    "django": _run_django,
}
_KINDS: Final = frozenset({*_RUNNERS, "asyncpg"})
# The attributes that identify sessions, any one of which is enough; the other drivers
# are like psycopg.
_ATTRIBUTES: Final[Mapping[tuple[str, bool], tuple[str, ...]]] = {
    ("sqlalchemy", False): ("execute",),
    ("sqlalchemy", True): ("run_sync",),
    ("django", False): ("in_atomic_block",),
    ("asyncpg", True): ("is_in_transaction",),
}

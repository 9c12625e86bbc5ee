"""
The session with the target, its errors, and its transactions.

::

    TowpathError
    └── HaltError
        ├── ForeignRelationError      a table exists that does not belong to the route
        └── StatementDeniedError      the target refuses a statement permanently

After a value error (from a cast, or from a constraint or trigger of the target's owner)
the batch is bisected. After a temporary error (a lost session, a deadlock, a full disk,
a standby) the batch is retried.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from towpath.schemas.failure import HaltError
from towpath.sinks.errors import (
    BatchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.postgres import Connection, connected, parameters_of

_NAME: Final = "a sink's Postgres"
# A target with a synchronous standby waits for it: a batch that counts as durable must
# survive a failover.
_SETTINGS: Final = {"synchronous_commit": "on"}

# These limits detect a server that disappears silently; the url can override them.
_LIMITS: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

# Classes and codes of SQLSTATE.
_VALUE_ERRORS: Final = ("22", "23", "44", "54", "P0")
_BUSY: Final = ("40", "53", "55P03")
# A lost session, an operator's intervention, a system error; a server that has become a
# standby, or has ended a session that was idle in a transaction; a table, column or
# schema that was dropped.
_PASSING: Final = ("08", "57", "58", "25", "42P01", "42703", "3F000")
_BUSY_PAUSE_S: Final = 1.0


class ForeignRelationError(HaltError):
    """
    A table exists that no sink created for the route, or that has a different key.

    A verification also raises it for a table that lacks one of its key columns or one
    of the sink's own columns.
    """

    remedy = (
        "Give the route another name, or drop the table in the target and fill the "
        "route again: towpath sink refill."
    )


class StatementDeniedError(HaltError):
    """The target refuses a statement, and a retry does not help."""

    remedy = "Read the target's message; towpath sink check lists the missing rights."


class TargetSession:
    """A session with the target; if it is lost, the next transaction reopens it."""

    def __init__(self, dsn: str, *, idle_limit: str = "0") -> None:
        """
        Store the address; nothing is opened yet.

        Args:
            dsn: The address, as libpq accepts it.
            idle_limit: How long a transaction may be without a statement before the
                server ends the session; "0" means forever.
        """
        self._dsn = dsn
        self._idle_limit = idle_limit
        self._connection: Connection | None = None
        # Names of this session's temporary tables, by the table that they fill.
        self.batch_tables: dict[object, str] = {}

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """
        Run one transaction.

        Raises:
            BatchRefusedError: The target refuses a value; nothing is written.
            TargetBusyError: The target asks for a pause.
            TargetUnavailableError: The target cannot be reached.
            StatementDeniedError: The target refuses a statement.
            ConfigurationError: The url is not the address of a database.
        """
        try:
            with translated():
                if self._connection is None:
                    self._connection = self._connected()
                with self._connection.transaction():
                    yield self._connection
        except BatchRefusedError:
            # The session is intact, but tables that the transaction created are gone.
            self.batch_tables.clear()
            raise
        except BaseException:
            self.close()
            raise

    def _connected(self) -> Connection:
        given = {k: str(v) for k, v in parameters_of(self._dsn).items()}
        limited = make_conninfo("", **{**_LIMITS, **given})
        return connected(
            *(limited, _NAME),
            **_SETTINGS,
            idle_in_transaction_session_timeout=self._idle_limit,
        )

    def close(self) -> None:
        """Close the session; never raises."""
        self.batch_tables.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn psycopg's errors into ours.

    Raises:
        BatchRefusedError: The target refuses a value.
        TargetBusyError: The target asks for a pause.
        TargetUnavailableError: The target cannot be reached.
        StatementDeniedError: The target refuses a statement.
    """
    try:
        yield
    except psycopg.Error as error:
        code = error.sqlstate or ""
        if code.startswith(_VALUE_ERRORS):
            raise BatchRefusedError(_message(error)) from error
        if code.startswith(_BUSY):
            message = f"the target's Postgres is busy: {_message(error)}"
            raise TargetBusyError(message, retry_after_s=_BUSY_PAUSE_S) from error
        if not code or code.startswith(_PASSING):
            message = f"the target's Postgres cannot be used: {_message(error)}"
            raise TargetUnavailableError(message) from error
        message = f"the target's Postgres refuses a statement: {_message(error)}"
        raise StatementDeniedError(message) from error


def _message(error: psycopg.Error) -> str:
    """Return the server's message, with the column of the value that it refuses."""
    message = error.diag.message_primary or str(error).strip()
    # For a copied value: ``COPY batch_0, line 1, column v: "x"``.
    where = (error.diag.context or "").partition("\n")[0]
    _, found, column = where.partition(", column ")
    detail = f"column {column}" if found else error.diag.message_detail
    return f"{message} ({detail})" if detail else message

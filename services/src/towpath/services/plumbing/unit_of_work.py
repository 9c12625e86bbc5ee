"""
One transaction for one command: what is not committed is rolled back.

The driver's errors leave it as the platform's failures. Aggregates that the command
touched are tracked, so that what they say is committed with their state. The connection
stays the unit's until its end, so that it can be asked after the commit how far the log
is.
"""

from types import TracebackType
from typing import Final, Self

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from towpath.services.plumbing.database import translated
from towpath.services.plumbing.written import written_lsn

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

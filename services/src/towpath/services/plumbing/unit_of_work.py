"""
One transaction for one command: what is not committed is rolled back.

The driver's errors leave it as the platform's failures. Aggregates that the command
touched are tracked, so that what they say is committed with their state.
"""

from types import TracebackType
from typing import Final, Self

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from towpath.services.plumbing.database import translated

TRACEPARENT: Final = "traceparent"


class UnitOfWork:
    """
    A transaction that begins with the first statement and ends with the block.

    Args:
        sessions: Makes the session; its collector records what aggregates say.
        traceparent: The trace context of the request, kept with its events.
    """

    def __init__(
        self, sessions: sessionmaker[Session], traceparent: str | None = None
    ) -> None:
        self.session = sessions()
        self.session.info[TRACEPARENT] = traceparent

    def __enter__(self) -> Self:
        return self

    def commit(self) -> None:
        """Make everything until now durable, events included."""
        self.session.commit()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.session.close()
        if isinstance(error, DBAPIError | PoolTimeoutError):
            with translated():
                raise error

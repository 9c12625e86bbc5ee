"""
Record the events that aggregates collect, through SQLAlchemy sessions.

Domain code appends events to its aggregate, and ``track`` registers the aggregate with
the session. Its events are recorded when the session flushes changed rows, or commits:
state and events share one commit, and no handler can forget an event or publish it
separately.

Two rules keep that true with savepoints and rollbacks:

1. A rollback, even to a savepoint, discards the unrecorded events of tracked
   aggregates, as it discards their rows: load the aggregates again.
2. A savepoint cannot begin while a tracked aggregate has unrecorded events. If they
   were recorded inside the savepoint, its rollback would separate them from state that
   was written before the savepoint. Call ``drain`` first: a flush records nothing if no
   row of the session has changed.

For asynchronous sessions, install the collector on the factory of their synchronous
sessions::

    sessions = sessionmaker()
    Collector().install(sessions)
    async_sessions = async_sessionmaker(engine, sync_session_class=sessions)
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from towpath.outbox.errors import SavepointError
from towpath.outbox.outbox import Outbox, outbox_of

_TRACKED: Final = "towpath.outbox.tracked"


class Aggregate(Protocol):
    """An object that appends its events to ``events``."""

    @property
    def events(self) -> list[Any]:
        """The events not yet recorded."""


AnyAggregate = TypeVar("AnyAggregate", bound=Aggregate)


def track(session: Session, aggregate: AnyAggregate) -> AnyAggregate:
    """Register an aggregate: the session's transaction records its events."""
    tracked = session.info.setdefault(_TRACKED, [])
    if not any(known is aggregate for known in tracked):
        tracked.append(aggregate)
    return aggregate


class Collector:
    """
    Records the events of tracked aggregates, at flush and at commit.

    Args:
        translate: Turns a domain event into an event that the outbox accepts. It is
            also passed the session, whose ``info`` can hold values of the request.
        outbox: Records the events; if None, the outbox of the session's engine does,
            or else the default one.
    """

    def __init__(
        self,
        translate: Callable[[Any, Session], object] | None = None,
        *,
        outbox: Outbox | None = None,
    ) -> None:
        self._translate = translate or (lambda event, _session: event)
        self._outbox = outbox

    def install(self, sessions: sessionmaker[Session]) -> None:
        """Collect events in every session that the factory creates from now on."""
        event.listen(sessions, "before_flush", self._before_flush)
        event.listen(sessions, "before_commit", self.drain)
        event.listen(sessions, "after_transaction_create", self._on_begin)
        event.listen(sessions, "after_soft_rollback", self._on_rollback)
        event.listen(sessions, "after_transaction_end", self._on_end)

    def drain(self, session: Session) -> None:
        """
        Record the collected events of all tracked aggregates, in order.

        Raises:
            InvalidEventError: An event is invalid; none was written.
            UsageError: An object is not an event, or the session cannot be used.
        """
        events = [
            self._translate(each, session)
            for aggregate in session.info.get(_TRACKED, ())
            for each in aggregate.events
        ]
        if events:
            (self._outbox or outbox_of(session)).record_all(session, events)
            _forget(session)

    def _before_flush(
        self, session: Session, _context: object, _instances: object
    ) -> None:
        self.drain(session)

    def _on_begin(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.nested and any(a.events for a in session.info.get(_TRACKED, ())):
            message = "a savepoint cannot begin while aggregates have unrecorded events"
            raise SavepointError(message)

    def _on_rollback(self, session: Session, _previous: SessionTransaction) -> None:
        _forget(session)

    def _on_end(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            _forget(session)
            session.info.pop(_TRACKED, None)


def _forget(session: Session) -> None:
    for aggregate in session.info.get(_TRACKED, ()):
        aggregate.events.clear()

"""
The aggregate speaks, the unit of work records.

Domain code appends events to its aggregate; ``track`` tells the session of it; what the
aggregate said is recorded when the session flushes or commits. State and events are one
commit, and there is nothing a handler could forget or publish on its own.

Two rules keep that true beside savepoints and rollbacks:

1. After a rollback, to a savepoint too, what tracked aggregates have said and not yet
   recorded is forgotten, as their rows are: load them again.
2. A savepoint cannot begin while a tracked aggregate still holds events. They would be
   recorded inside it, and its rollback would take them away from state that was written
   before it. Flush, or call ``drain``, first.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, TypeVar

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from towpath.outbox.event import OutboxEvent
from towpath.outbox.writer import record_all
from towpath.schemas.failure import UsageError

_TRACKED: Final = "towpath.outbox.tracked"


class SavepointError(UsageError):
    """A savepoint was to begin while aggregates held events not yet recorded."""

    remedy: ClassVar[str] = "Flush the session, or drain it, before the savepoint."


class Aggregate(Protocol):
    """Whatever appends what it has to say to ``events``."""

    @property
    def events(self) -> list[Any]:
        """What was said since it was last recorded."""


AnyAggregate = TypeVar("AnyAggregate", bound=Aggregate)


def track(session: Session, aggregate: AnyAggregate) -> AnyAggregate:
    """Have the aggregate's events recorded in the session's transaction."""
    tracked = session.info.setdefault(_TRACKED, [])
    if not any(known is aggregate for known in tracked):
        tracked.append(aggregate)
    return aggregate


class Collector:
    """
    Records what tracked aggregates say, at flush and at commit.

    Args:
        translate: Turns a domain event into an outbox event; it is given the session,
            whose ``info`` may hold what the whole request shares.
    """

    def __init__(
        self, translate: Callable[[Any, Session], OutboxEvent] | None = None
    ) -> None:
        self._translate = translate or (lambda said, _session: said)

    def install(self, sessions: sessionmaker[Session]) -> None:
        """Serve every session that the factory makes from now on."""
        event.listen(sessions, "before_flush", self._before_flush)
        event.listen(sessions, "before_commit", self.drain)
        event.listen(sessions, "after_transaction_create", self._on_begin)
        event.listen(sessions, "after_soft_rollback", self._on_rollback)
        event.listen(sessions, "after_transaction_end", self._on_end)

    def drain(self, session: Session) -> None:
        """
        Record what tracked aggregates have said until now, in order.

        Raises:
            InvalidEventError: An event is not what its schema says; none was written.
        """
        said = [
            self._translate(one, session)
            for aggregate in session.info.get(_TRACKED, ())
            for one in aggregate.events
        ]
        if said:
            record_all(session, said)
            _forget(session)

    def _before_flush(
        self, session: Session, _context: object, _instances: object
    ) -> None:
        self.drain(session)

    def _on_begin(self, session: Session, transaction: SessionTransaction) -> None:
        if transaction.nested and any(a.events for a in session.info.get(_TRACKED, ())):
            message = "a savepoint cannot begin before the events until now are written"
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

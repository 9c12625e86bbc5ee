"""
Test what an application records, without a relay: a pytest plugin.

The plugin comes with the package, and has two fixtures:

- ``recorded_events`` lists the events that a test has recorded, in order. The events
  of a SQLAlchemy transaction or savepoint that was rolled back are removed again;
  other drivers do not report their rollbacks, so their events stay.
- ``no_dual_writes`` fails a test whose code sends a record to Kafka itself while a
  transaction is open: the transaction may still be rolled back, or the record may be
  lost after the commit. Transactions of SQLAlchemy, psycopg, psycopg2, asyncpg and
  Django are detected, whether they record an event or not. The clients confluent-kafka,
  kafka-python and aiokafka are watched. If the application imports a producer written
  in C before the fixture runs, the producer is watched only if ``guard_producers`` was
  called even earlier, in ``conftest.py``.
"""

import functools
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from towpath.outbox.event import OutboxEvent
from towpath.outbox.outbox import observed
from towpath.schemas.transactions import transaction_status

# The producers of Python's Kafka clients: module, class, and the method that sends.
_PRODUCERS: Final = (
    ("confluent_kafka", "Producer", "produce"),
    ("confluent_kafka", "Producer", "produce_batch"),
    ("confluent_kafka", "SerializingProducer", "produce"),
    ("confluent_kafka.aio", "AIOProducer", "produce"),
    ("kafka", "KafkaProducer", "send"),
    ("aiokafka", "AIOKafkaProducer", "send"),
)
# The classes of connections: module, class.
_CONNECTIONS: Final = (
    ("psycopg2.extensions", "connection"),
    ("psycopg", "Connection"),
    ("psycopg", "AsyncConnection"),
    ("asyncpg", "Connection"),
)
# libpq's PQTRANS_INTRANS and PQTRANS_INERROR.
_IN_TRANSACTION: Final = frozenset({2, 3})


class DualWriteError(AssertionError):
    """A record was sent to Kafka while a transaction was open."""


class RecordedEvents(list[OutboxEvent]):
    """The recorded events, oldest first."""

    @property
    def types(self) -> list[str]:
        """Return the event types, in order."""
        return [event.type for event in self]

    def of(self, event_type: str) -> list[OutboxEvent]:
        """Return the events of one type."""
        return [event for event in self if event.type == event_type]


class _Watch:
    """
    The transactions of a test, as far as drivers report them, and its events.

    Attributes:
        events: The events that no rollback has removed.
        violations: A message for each dual write.
    """

    def __init__(self) -> None:
        self.events = RecordedEvents()
        self.violations: list[str] = []
        # SQLAlchemy's open transactions: the events of each connection's transaction,
        # and of each of its savepoints.
        self._open: dict[Any, list[list[OutboxEvent]]] = {}

    def record(self, session: object, events: Sequence[OutboxEvent]) -> None:
        """Keep the events, along with the transaction that they belong to."""
        self.events += events
        connection = _sqlalchemy_connection(session)
        if connection is not None:
            self._levels(connection)[-1].extend(events)

    def sent(self, what: str) -> None:
        """
        Refuse a record that is sent to Kafka while a transaction is open.

        Raises:
            DualWriteError: A transaction is open.
        """
        if self._has_open_transaction():
            message = (
                f"{what} was called while a transaction was open: if it is rolled "
                "back, or the process dies before its commit, Kafka and the database "
                "will differ. Record an event instead."
            )
            self.violations.append(message)
            raise DualWriteError(message)

    def listen(self) -> Callable[[], None]:
        """Follow SQLAlchemy's transactions; return a function that stops following."""
        try:
            from sqlalchemy import Engine, event  # noqa: PLC0415 - an extra
        except ImportError:
            return lambda: None
        handlers: dict[str, Callable[..., None]] = {
            "begin": self._begin,
            "commit": self._end,
            "rollback": self._roll_back,
            "savepoint": self._enter_nested,
            "release_savepoint": self._leave_nested,
            "rollback_savepoint": self._undo_nested,
            "begin_twophase": self._begin,
            "commit_twophase": self._end,
            "rollback_twophase": self._roll_back,
        }
        for name, handler in handlers.items():
            event.listen(Engine, name, handler)

        def stop() -> None:
            for name, handler in handlers.items():
                event.remove(Engine, name, handler)

        return stop

    def _begin(self, connection: Any, *_: object) -> None:  # noqa: ANN401 - SQLAlchemy's
        # SQLAlchemy also reports a begin if the driver commits each statement itself.
        driver = connection.connection.dbapi_connection
        # Since Python 3.12, sqlite3's -1 means that the driver begins transactions.
        if getattr(driver, "autocommit", False) is not True:
            self._open[connection] = [[]]

    def _end(self, connection: Any, *_: object) -> None:  # noqa: ANN401
        self._open.pop(connection, None)

    def _roll_back(self, connection: Any, *_: object) -> None:  # noqa: ANN401
        for events in reversed(self._open.pop(connection, [])):
            self._remove(events)

    def _enter_nested(self, connection: Any, _name: str) -> None:  # noqa: ANN401
        self._levels(connection).append([])

    def _leave_nested(self, connection: Any, *_: object) -> None:  # noqa: ANN401
        events = self._leave(connection)
        self._levels(connection)[-1].extend(events)

    def _undo_nested(self, connection: Any, *_: object) -> None:  # noqa: ANN401
        self._remove(self._leave(connection))

    def _levels(self, connection: Any) -> list[list[OutboxEvent]]:  # noqa: ANN401
        """Return the events of an open transaction, which may predate the watch."""
        return self._open.setdefault(connection, [[]])

    def _leave(self, connection: Any) -> list[OutboxEvent]:  # noqa: ANN401
        """Return the events of the innermost savepoint, and forget it."""
        levels = self._levels(connection)
        events = levels.pop()
        if not levels:
            # The savepoint is older than the test.
            levels.append([])
        return events

    def _remove(self, events: Sequence[OutboxEvent]) -> None:
        """Remove each event once; an event that was recorded twice may remain."""
        for event in reversed(events):
            for index in reversed(range(len(self.events))):
                if self.events[index] is event:
                    del self.events[index]
                    break

    def _has_open_transaction(self) -> bool:
        if self._open:
            return True
        django = sys.modules.get("django.db")
        if django is not None and any(
            each.in_atomic_block for each in django.connections.all()
        ):
            return True
        return any(map(_is_in_transaction, _driver_connections()))


def _sqlalchemy_connection(session: Any) -> Any:  # noqa: ANN401 - any driver's
    """Return the connection of a SQLAlchemy session; None for any other session."""
    sqlalchemy, orm = map(sys.modules.get, ("sqlalchemy", "sqlalchemy.orm"))
    if hasattr(session, "registry"):
        # A scoped session.
        session = session.registry()
    for name in ("sync_session", "sync_connection"):
        session = getattr(session, name, session)
    if orm is not None and isinstance(session, orm.Session):
        return session.connection()
    is_known = sqlalchemy is not None and isinstance(session, sqlalchemy.Connection)
    return session if is_known else None


def _driver_connections() -> Iterator[Any]:
    """
    Yield the open and closed connections of all imported drivers.

    Drivers do not report their transactions, so this searches all live objects: the
    check must also catch a handler that records no event and sends to Kafka instead.
    """
    modules = [(sys.modules.get(name), cls) for name, cls in _CONNECTIONS]
    classes = tuple(getattr(module, cls) for module, cls in modules if module)
    for each in gc.get_objects():
        # ``isinstance`` would read ``__class__``, which may be a property that raises.
        if issubclass(type(each), classes):
            yield each


def _is_in_transaction(connection: Any) -> bool:  # noqa: ANN401 - any driver's
    if hasattr(connection, "is_in_transaction"):
        return not connection.is_closed() and bool(connection.is_in_transaction())
    return transaction_status(connection) in _IN_TRANSACTION


_watches: list[_Watch] = []


@pytest.fixture
def recorded_events() -> Iterator[RecordedEvents]:
    """Provide the events that the test records."""
    with _watching() as watch:
        yield watch.events


@pytest.fixture
def no_dual_writes() -> Iterator[None]:
    """Fail the test if its code sends to Kafka while a transaction is open."""
    guard_producers()
    with _watching() as watch:
        _watches.append(watch)
        try:
            yield
        finally:
            _watches.remove(watch)
    # The application may have caught the error.
    if watch.violations:
        raise DualWriteError(watch.violations[0])


@contextmanager
def _watching() -> Iterator[_Watch]:
    """Watch the recorded events and the transactions of a block."""
    watch = _Watch()
    with observed(watch.record):
        stop = watch.listen()
        try:
            yield watch
        finally:
            stop()


def guard_producers() -> None:
    """
    Watch the producers of all installed Kafka clients; safe to repeat.

    Call this function in ``conftest.py`` before the application is imported: a class
    that is already imported cannot always be replaced.
    """
    for module_name, class_name, method in _PRODUCERS:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        # Releases of a client differ in their classes and methods, and a module of the
        # application may have a client's name.
        cls: Any = getattr(module, class_name, None)
        send = getattr(cls, method, None)
        if send is None or hasattr(send, "is_guarded_by_towpath"):
            continue
        guarded = _guarded(f"{module_name}.{class_name}.{method}", send)
        try:
            setattr(cls, method, guarded)
        except TypeError:
            # A class written in C: replaced by a subclass in its module.
            setattr(module, class_name, type(class_name, (cls,), {method: guarded}))


def _guarded(name: str, send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the client's own
        for watch in _watches:
            watch.sent(name)
        return send(*args, **kwargs)

    guarded.is_guarded_by_towpath = True  # type: ignore[attr-defined]
    return guarded

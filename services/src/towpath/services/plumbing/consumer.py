"""
A service as a consumer: it follows events of other services, each applied once.

``consume`` is a process of its own beside ``serve``: it applies events by the inbox,
and repeats the service's background work. An event is applied in one transaction with
the inbox's record of it and with the events that follow from it, which belong to the
same trace. A failure of the database counts as no attempt; an event that cannot be
applied is parked with its followers, and ``towpath inbox`` replays it.
"""

import argparse
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from towpath.inbox import Consumer, Event, Inbox
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock, SystemClock
from towpath.services.plumbing.database import TRACEPARENT, make_engine, translated
from towpath.services.plumbing.http import valid_traceparent
from towpath.services.plumbing.server import BackgroundTask, Lifecycle

TOPIC_PREFIX: Final = "outbox.event."
# The consumer, and the background work.
_CONNECTIONS: Final = 2
_CLIENT: Final[Mapping[str, Any]] = {
    # The relay creates a topic with its first event: it is looked for this often.
    "topic.metadata.refresh.interval.ms": 2_000,
    "allow.auto.create.topics": False,
}

log = structlog.get_logger(__name__)

Store = TypeVar("Store")
# Applies the payload of an event at a time.
Apply = Callable[[Mapping[str, Any], Store, datetime], None]
Begin = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True, kw_only=True)
class EventConsumer(Generic[Store]):
    """
    The declaration of a service's consumer.

    Attributes:
        name: The name of the inbox, and the Kafka group.
        schema: The schema of the inbox's tables.
        aggregates: The types of the aggregates whose events are consumed.
        handlers: Applies an event, by its type; other types are passed over.
        store: Makes the repository of a transaction.
    """

    name: str
    schema: str
    aggregates: Sequence[str]
    handlers: Mapping[str, Apply[Store]]
    store: Callable[[Session], Store]

    def make(self, bootstrap_servers: str, begin: Begin, clock: Clock) -> Consumer:
        """Make the consumer; nothing is connected yet."""

        def handle(event: Event, session: Session) -> None:
            session.info[TRACEPARENT] = valid_traceparent(
                event.headers.get(TRACEPARENT)
            )
            with translated():
                apply = self.handlers[event.type]
                apply(event.payload, self.store(session), clock.now())
                session.flush()

        return Consumer(
            Inbox(self.name, schema=self.schema),
            {**_CLIENT, "bootstrap.servers": bootstrap_servers},
            [f"{TOPIC_PREFIX}{aggregate}" for aggregate in self.aggregates],
            begin=begin,
            handle=handle,
            types=self.handlers.keys(),
            clock=clock,
        )


def begin_in(sessions: sessionmaker[Session]) -> Begin:
    """Return a function that opens a transaction, and commits it at the block's end."""

    @contextmanager
    def begin() -> Iterator[Session]:
        with translated(), sessions.begin() as session:
            yield session

    return begin


def make_sessions(engine: Engine, collector: Collector) -> sessionmaker[Session]:
    """Return the factory of sessions that record the events of aggregates."""
    sessions = sessionmaker(engine, expire_on_commit=False)
    collector.install(sessions)
    return sessions


# Returns the background work of a service, given its transactions.
MakeTasks = Callable[[Begin, Engine, Clock], Sequence[BackgroundTask]]


def consume(
    consumer: EventConsumer[Any],
    collector: Callable[[Clock], Collector],
    make_tasks: MakeTasks,
    options: argparse.Namespace,
) -> None:
    """
    Consume until the process is stopped; the event in progress is finished.

    Args:
        consumer: The declaration of the consumer.
        collector: Makes the collector that records the service's own events.
        make_tasks: Makes the background work.
        options: ``dsn`` and ``kafka``.

    Raises:
        KafkaException: The brokers refuse the client.
    """
    clock = SystemClock()
    engine = make_engine(options.dsn, pool_size=_CONNECTIONS)
    begin = begin_in(make_sessions(engine, collector(clock)))
    lifecycle = Lifecycle(tasks=list(make_tasks(begin, engine, clock)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: lifecycle.stopping.set())
    lifecycle.start_tasks()
    log.info("consumer starts", consumer=consumer.name, kafka=options.kafka)
    try:
        consumer.make(options.kafka, begin, clock).run(lifecycle.stopping)
    finally:
        lifecycle.stopping.set()
        engine.dispose()
    log.info("consumer stopped", consumer=consumer.name)

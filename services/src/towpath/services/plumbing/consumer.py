"""
A service as a consumer: it applies each event of other services once.

A process applies events through the inbox, and repeats the service's background work.
One transaction contains an event's effects, the inbox's record of the event, and the
events that follow from it, which belong to the same trace. A database failure does not
count as an attempt. An event that cannot be applied is parked with its followers, and
``towpath inbox`` replays it.
"""

import functools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from towpath.inbox import Consumer, Event, Inbox
from towpath.outbox import Events, Outbox, OutboxEvent
from towpath.outbox.sqlalchemy import Collector
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.events import EventSchemas
from towpath.schemas.failure import UsageError
from towpath.schemas.tracing import NO_TRACER, Tracer
from towpath.services.plumbing.database import TRACEPARENT, make_engine, translated
from towpath.services.plumbing.metrics import ServiceMetrics, counted
from towpath.services.plumbing.server import BackgroundTask, Lifecycle
from towpath.services.plumbing.tracing import close_tracer, event_span

# The same as the relay's default.
TOPIC_PREFIX: Final = "outbox.event."
# The pause before a consumer is restarted after a refusal or an unforeseen error.
_RESTARTED_AFTER_S: Final = 1.0
# The number of consumers in a process: each mostly waits for Postgres.
_CONSUMERS: Final = 3
# One for each consumer, and one for the background work.
_CONNECTIONS: Final = _CONSUMERS + 1
_CLIENT: Final[Mapping[str, Any]] = {
    # The relay creates a topic when it publishes the topic's first event; the consumer
    # notices the topic within this time.
    "topic.metadata.refresh.interval.ms": 2_000,
    "allow.auto.create.topics": False,
    # A killed process's partitions are idle for this long; the default is 45 s.
    "session.timeout.ms": 10_000,
}

log = structlog.get_logger(__name__)

Store = TypeVar("Store")
# Applies an event's payload to a store; the last argument is the current time.
Apply = Callable[[Mapping[str, Any], Store, datetime], None]
Begin = Callable[[], AbstractContextManager[Session]]


class Brokers(NamedTuple):
    """
    The brokers, and the prefixes of the topics and consumer groups on them.

    Attributes:
        client: Settings of the Kafka client: the brokers, and a login if they need one.
        topic_prefix: The prefix of all topics.
        group_prefix: The prefix of all groups.
    """

    client: Mapping[str, str]
    topic_prefix: str = TOPIC_PREFIX
    group_prefix: str = ""


def check_client(settings: Mapping[str, str]) -> None:
    """
    Check the settings of the Kafka client; no broker needs to be reachable.

    Raises:
        UsageError: No broker is named, or the client refuses a setting.
    """
    if not settings["bootstrap.servers"].strip():
        message = "--kafka names no broker"
        raise UsageError(message)
    try:
        Client({**_CLIENT, **settings, "group.id": "checked"}).close()
    except KafkaException as error:
        message = f"--kafka or --kafka-file: {error.args[0].str()}"
        raise UsageError(message) from error


@dataclass(frozen=True, kw_only=True)
class EventConsumer(Generic[Store]):
    """
    The declaration of a service's consumer.

    Attributes:
        name: The name of the inbox and, after the group prefix, of the Kafka group.
        schema: The schema of the inbox's tables.
        aggregates: The types of the aggregates whose events are consumed.
        handlers: The functions that apply events, by type; other types are skipped.
        store: Makes the repository of a transaction.
    """

    name: str
    schema: str
    aggregates: Sequence[str]
    handlers: Mapping[str, Apply[Store]]
    store: Callable[[Session], Store]

    def make(
        self,
        brokers: Brokers,
        begin: Begin,
        clock: Clock,
        metrics: ServiceMetrics,
        tracer: Tracer = NO_TRACER,
    ) -> Consumer:
        """Make the consumer; no connection is opened yet."""
        inbox = Inbox(self.name, schema=self.schema)
        group = f"{brokers.group_prefix}{self.name}"

        def handle(event: Event, session: Session) -> None:
            with event_span(tracer, group, event) as traceparent:
                session.info[TRACEPARENT] = traceparent
                apply = self.handlers[event.type]
                apply(event.payload, self.store(session), clock.now())

        return Consumer(
            inbox,
            {**_CLIENT, **brokers.client, "group.id": group},
            [f"{brokers.topic_prefix}{aggregate}" for aggregate in self.aggregates],
            begin=begin,
            handle=handle,
            types=self.handlers.keys(),
            clock=clock,
            observer=metrics.inbox.of(inbox),
        )


def begin_in(sessions: sessionmaker[Session]) -> Begin:
    """Return a function that opens a transaction, and commits it at the block's end."""

    @contextmanager
    def begin() -> Iterator[Session]:
        with translated(), sessions.begin() as session:
            yield session

    return begin


@functools.cache
def event_schemas_in(package: str) -> EventSchemas:
    """Return the event schemas in a package."""
    return EventSchemas.from_folder(resources.files(package))


def events_by_order(
    package: str, aggregate_type: str, classes: Iterable[type]
) -> Events:
    """
    Return the event types of a service whose aggregate belongs to an order.

    Args:
        package: The package with the schemas of its events.
        aggregate_type: The type of the aggregate.
        classes: The event classes; each has ``order_id``.
    """
    events = Events(event_schemas_in(package))
    for cls in classes:
        events.event(aggregate_type=aggregate_type, key="order_id")(cls)
    return events


def make_collector(make_events: Callable[[], Events], clock: Clock) -> Collector:
    """
    Make the collector of a service whose aggregate belongs to an order.

    Args:
        make_events: Returns the service's event types; each event has the time of its
            change as ``updated_at``.
        clock: Gives the time at which the events are recorded.
    """
    events = make_events()

    def convert(event: Any, session: Session) -> OutboxEvent:  # noqa: ANN401 - the service's own
        return replace(
            events.convert(event),
            occurred_at=event.updated_at,
            traceparent=session.info.get(TRACEPARENT),
        )

    # Schemas are compiled now, not in the first transaction.
    return Collector(counted(convert), outbox=Outbox(events, clock=clock))


def make_sessions(
    engine: Engine, collector: Collector, metrics: ServiceMetrics
) -> sessionmaker[Session]:
    """Return a factory of sessions that record and count the aggregates' events."""
    sessions = sessionmaker(engine, expire_on_commit=False)
    collector.install(sessions)
    metrics.count_rows(sessions)
    return sessions


# Makes a service's background tasks, from its transactions, its engine, a clock, and an
# event that is set when the service stops: a long-running task then returns.
MakeTasks = Callable[[Begin, Engine, Clock, threading.Event], Sequence[BackgroundTask]]


def no_tasks(
    _begin: Begin, _engine: Engine, _clock: Clock, _stopping: threading.Event
) -> Sequence[BackgroundTask]:
    """Return no background work."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Consuming:
    """
    The declaration of a service's consumer process.

    Attributes:
        consumer: The consumer.
        collector: Makes the collector that records the service's own events.
        tasks: Makes the background tasks that run alongside the consumer.
    """

    consumer: EventConsumer[Any]
    collector: Callable[[Clock], Collector]
    tasks: MakeTasks = no_tasks


def consuming_tasks(
    declared: Consuming,
    dsn: str,
    brokers: Brokers,
    stopping: threading.Event,
    tracer: Tracer,
    metrics: ServiceMetrics,
) -> Sequence[BackgroundTask]:
    """
    Return the consumers and their background work as tasks of a process.

    Args:
        declared: The declaration of the consumer process.
        dsn: The service's database, as a libpq URI or keyword/value string.
        brokers: The brokers.
        stopping: Ends the consumers once set; they finish the events in progress.
        tracer: Records the spans of events.
        metrics: Counts deliveries and outbox rows.
    """
    clock = SystemClock()
    # An event whose transaction fails is retried, so connections need no test.
    engine = make_engine(dsn, pool_size=_CONNECTIONS, is_tested=False)
    begin = begin_in(make_sessions(engine, declared.collector(clock), metrics))
    tasks = [
        _consumer_task(
            declared.consumer.make(brokers, begin, clock, metrics, tracer),
            name,
            stopping,
        )
        for name in (f"{declared.consumer.name}-{n}" for n in range(1, _CONSUMERS + 1))
    ]
    return [*tasks, *declared.tasks(begin, engine, clock, stopping)]


def _consumer_task(
    consumer: Consumer, name: str, stopping: threading.Event
) -> BackgroundTask:
    def run() -> None:
        log.info("consumer starts", consumer=name)
        consumer.run(stopping)
        log.info("consumer stopped", consumer=name)

    return BackgroundTask(f"consumer {name}", _RESTARTED_AFTER_S, run)


def consume(
    declared: Consuming,
    dsn: str,
    brokers: Brokers,
    tracer: Tracer,
    metrics: ServiceMetrics,
) -> None:
    """
    Consume until the process is stopped; finish the events in progress.

    Args:
        declared: The declaration of the consumer process.
        dsn: The service's database, as a libpq URI or keyword/value string.
        brokers: The brokers.
        tracer: Records the spans of events.
        metrics: Counts deliveries and outbox rows.
    """
    lifecycle = Lifecycle()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: lifecycle.stopping.set())
    lifecycle.tasks.extend(
        consuming_tasks(declared, dsn, brokers, lifecycle.stopping, tracer, metrics)
    )
    for thread in lifecycle.start_tasks():
        thread.join()
    close_tracer(tracer)

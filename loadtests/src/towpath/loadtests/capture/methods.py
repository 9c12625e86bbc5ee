"""
The common parts of all methods: a run's context, a protocol, and a polling worker.

A method is a context manager. Call order: ``prepare`` once the table exists, then the
block, and in it ``settle`` and ``finish``.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from towpath.loadtests.bench.context import Bench
from towpath.loadtests.capture import CapturedRecord
from towpath.loadtests.capture.writers import (
    TABLE,
    NoPublisher,
    PublisherFactory,
    Session,
)
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Deadline

_FLUSHED_WITHIN_S: Final = 30.0
_SETTLED_WITHIN_S: Final = 30.0
_STOPPED_WITHIN_S: Final = 30.0
# The first poll may have begun before the commit that a caller awaits.
_SETTLING_TURNS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRun:
    """
    The context of the run of one method.

    Attributes:
        name: The name of the run, its database, topic prefix, slot and processes.
        bench: The benchmark's context, which all runs share.
        interval_s: The pause of a worker between two polls.
    """

    name: str
    bench: Bench
    interval_s: float

    @property
    def dsn(self) -> str:
        """The DSN of the run's database."""
        return self.bench.environment.dsn_of(self.name)

    @property
    def kafka(self) -> str:
        """The broker's bootstrap address."""
        return self.bench.environment.kafka

    @property
    def topic(self) -> str:
        """The topic of the table, under the name that the relay gives it."""
        return f"{self.name}.{TABLE}"


class CaptureMethod(Protocol):
    """One method of capturing the table."""

    def prepare(self, session: Session) -> None:
        """Create the method's database objects, while the table is still empty."""

    def __enter__(self) -> Self:
        """Begin to capture; return once it has begun."""

    def __exit__(self, *_: object) -> None:
        """Stop capturing."""

    @property
    def publisher(self) -> PublisherFactory:
        """The part of the method that runs in the writers."""

    def settle(self) -> None:
        """Wait until the method has had time to capture everything committed so far."""

    def finish(self) -> None:
        """Wait until the method has captured all that it can; no writer is running."""


class NoCapture:
    """No capture at all: the cost of the load itself."""

    publisher: PublisherFactory = NoPublisher()

    def prepare(self, session: Session) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settle(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


class RecordProducer:
    """Produces records of the contract, and waits for their acknowledgment."""

    def __init__(self, kafka: str, topic: str) -> None:
        self._topic = topic
        self._refusal: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )

    def publish(self, records: Iterable[CapturedRecord]) -> None:
        """
        Produce records, and wait until the broker has all of them.

        Raises:
            BenchError: The broker refuses a record, or does not answer in time.
        """
        for record in records:
            self._producer.produce(
                self._topic,
                key=record.key_bytes(),
                value=record.value_bytes(),
                headers=record.headers(),
                on_delivery=self._keep_refusal,
            )
        left = self._producer.flush(_FLUSHED_WITHIN_S)
        if left or self._refusal is not None:
            message = f"{self._topic}: records left: {left}; refusal: {self._refusal}"
            raise BenchError(message)

    def _keep_refusal(self, error: KafkaError | None, _message: Message) -> None:
        self._refusal = self._refusal or error


class ChangeReader(Protocol):
    """Reads the records that a polling worker publishes from the database."""

    def prepare(self, session: Session) -> None:
        """Create the database objects that reading needs."""

    def read(self, session: Session) -> Sequence[CapturedRecord]:
        """Return the records to publish next, in order."""

    def is_behind(self, session: Session) -> bool:
        """Return whether a later ``read`` can return more of the committed changes."""


class PollingMethod:
    """A method with a worker: a thread that reads at an interval, and publishes."""

    publisher: PublisherFactory = NoPublisher()

    def __init__(self, run: CaptureRun, reader: ChangeReader) -> None:
        self._run = run
        self._reader = reader
        self._stopping = threading.Event()
        self._turned = threading.Condition()
        self._turns = 0
        self._is_behind = True
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def prepare(self, session: Session) -> None:
        """Create the topic, and the database objects that the reader needs."""
        self._run.bench.broker.make_topic(self._run.topic)
        self._reader.prepare(session)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_STOPPED_WITHIN_S)

    def settle(self) -> None:
        """
        Wait until the worker has polled twice.

        Raises:
            BenchError: The worker failed, or no longer polls.
        """
        until = self._turns + _SETTLING_TURNS
        deadline = Deadline(self._run.bench.clock, _SETTLED_WITHIN_S)
        with self._turned:
            while self._turns < until and self._failure is None:
                if deadline.passed():
                    message = f"{self._run.name}: the worker does not poll"
                    raise BenchError(message)
                self._turned.wait(deadline.remaining_s())
        if self._failure is not None:
            message = f"{self._run.name}: the worker failed: {self._failure!r}"
            raise BenchError(message) from self._failure

    def finish(self) -> None:
        """
        Wait until the reader has returned everything that it ever will.

        Raises:
            BenchError: The worker failed, or does not catch up.
        """
        deadline = Deadline(self._run.bench.clock, _SETTLED_WITHIN_S)
        self.settle()
        while self._is_behind:
            if deadline.passed():
                message = f"{self._run.name}: the worker does not catch up"
                raise BenchError(message)
            self.settle()

    def _work(self) -> None:
        try:
            with psycopg.connect(self._run.dsn, autocommit=True) as session:
                producer = RecordProducer(self._run.kafka, self._run.topic)
                while not self._stopping.is_set():
                    self._turn(session, producer)
                    self._stopping.wait(self._run.interval_s)
        except BaseException as error:  # noqa: BLE001 - raised by settle
            with self._turned:
                self._failure = error
                self._turned.notify_all()

    def _turn(self, session: psycopg.Connection[Any], producer: RecordProducer) -> None:
        """Read and publish once; the records are published before the next read."""
        producer.publish(self._reader.read(session))
        is_behind = self._reader.is_behind(session)
        with self._turned:
            self._turns += 1
            self._is_behind = is_behind
            self._turned.notify_all()

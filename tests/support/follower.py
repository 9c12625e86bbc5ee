"""A sink that follows its topics in a thread, as a driver does, without its engine."""

import threading
from contextlib import suppress
from typing import Any, Self

from confluent_kafka import Consumer, Message

from support.dead_letters import Letters, MemoryRefetches, context_of
from support.published import SinkRun
from towpath.schemas.failure import UnavailableError
from towpath.schemas.topics import backfill_topic
from towpath.settings import Settings, Sink
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.changes.routing import Routes
from towpath.sinks.fold import newest_per_key
from towpath.sinks.kafka.repairs import KafkaRepairs
from towpath.sinks.ports import Batch
from towpath.sinks.state.progress import Offsets, Progress

_BATCH_RECORDS = 2000
_PAUSE_S = 0.2


class Follower:
    """
    Applies every record of a sink's topics, and publishes its progress.

    Attributes:
        tamper: Receives each batch's changes, and returns those that the sink gets.
        process_requests: Called between batches, when a driver processes requests.
    """

    def __init__(self, settings: Settings, sink: Sink, target: Any) -> None:
        self._routes = Routes(sink)
        self._sink = sink
        self._target = target
        self._driver = SinkRun.in_kafka(settings, sink.name)
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.kafka.bootstrap_servers,
                "group.id": f"{settings.database.prefix}.{sink.name}",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
            }
        )
        self._highest = ""
        self._applied: dict[str, dict[str, int]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.tamper = lambda changes: changes
        self.process_requests = lambda: None
        self.failure: Exception | None = None

    @property
    def applied_records(self) -> int:
        """The number of records that have been applied so far."""
        parts = [dict(topic) for topic in list(self._applied.values())]
        return sum(offset for part in parts for offset in part.values())

    @property
    def applied(self) -> Offsets:
        """The next offset of each topic and partition."""
        return {topic: dict(part) for topic, part in list(self._applied.items())}

    def __enter__(self) -> Self:
        self._target.open()
        # As patterns, so that topics created later are found.
        topics = [route.topic for route in self._sink.route]
        topics += [backfill_topic(topic, self._sink.name) for topic in topics]
        self._consumer.subscribe([f"^{topic}$" for topic in topics])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        self._target.close()
        assert self.failure is None, self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                found = self._consumer.consume(_BATCH_RECORDS, 0.1)
                self._until_applied([each for each in found if each.error() is None])
                with suppress(UnavailableError):
                    self.process_requests()
        except Exception as failure:  # noqa: BLE001 - raised where the test waits
            self.failure = failure

    def _until_applied(self, messages: list[Message]) -> None:
        """Apply a batch as a driver does, with retries if the target is unreachable."""
        is_applied = False
        while not (is_applied or self._stop.is_set()):
            try:
                self._apply(messages)
                is_applied = True
            except UnavailableError:
                self._stop.wait(_PAUSE_S)

    def _apply(self, messages: list[Message]) -> None:
        if not messages:
            return
        self._highest = max(self._highest, self.write(list(map(_record, messages))))
        for each in messages:
            topic = self._applied.setdefault(str(each.topic()), {})
            topic[str(each.partition())] = (each.offset() or 0) + 1
        progress = Progress(
            self._sink.name, applied=self._applied, position=self._highest
        )
        self._driver.publish(progress)

    def write(self, records: list[Record]) -> str:
        """Write a batch without refetches; return its highest position."""
        decoded = decode(records, self._routes)
        assert not decoded.unreadable, decoded.unreadable
        folded = newest_per_key(decoded.changes, decoded.floors)
        changes = tuple(self.tamper(folded.changes))
        self._target.apply(Batch(0, changes, (), tuple(decoded.floors)))
        self._target.apply(Batch(0, folded.after))
        self._target.flush()
        positions = (each.position for each in (*decoded.changes, *decoded.floors))
        return max(positions, default="")


class WritingFollower(Follower):
    """
    Writes batches as a driver does: with transforms, refetches and dead letters.

    Attributes:
        letters: The dead letters.
        refetches: The pending refetches.
    """

    def __init__(self, settings: Settings, sink: Sink, target: Any) -> None:
        super().__init__(settings, sink, target)
        self.letters, self.refetches = Letters(), MemoryRefetches()
        context = context_of(
            self.letters,
            repairs=KafkaRepairs(settings, sink),
            refetches=self.refetches,
        )
        self._writer = RecordWriter(self._routes, target, context)

    def write(self, records: list[Record]) -> str:
        """Write a batch; return its highest position."""
        return self._writer.write_records(records, 0).position


def _record(message: Message) -> Record:
    origin = str(message.topic()), message.partition() or 0, message.offset() or 0
    return Record(
        Origin(*origin), message.key(), message.value(), dict(message.headers() or [])
    )

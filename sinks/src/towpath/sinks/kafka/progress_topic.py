"""
The topic in which drivers publish the progress of their sinks: ``<prefix>.progress``.

It has one partition and is compacted by the name of the sink. A tombstone means that
the sink was dropped. A second key of each sink holds the result of its last
verification. Kafka compacts the topic within minutes, so a reader that begins with the
first record reads a few megabytes at most.

``ProgressTopic`` publishes for a driver, for the verifier, and for the command that
drops a sink. ``ProgressReader.read`` reads up to the current end of the topic, and
fails if the broker does not answer: its result is never older than the call.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from towpath.schemas import topics
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.settings import Settings
from towpath.sinks.errors import BrokerUnavailableError, UnreadableProgressError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    SINKS_GROUP,
    Topics,
    end_offset,
    records_to,
    unavailable,
)
from towpath.sinks.state.published import (
    NewestRuns,
    PublishedVerification,
    ReceivedProgress,
    decode_published,
    decode_verification,
    encode_verification,
    verification_key,
    verified_sink,
)

# Records are sent immediately. A record that waits for long is outdated: the next one
# replaces it.
_PUBLISHING: Final = {"linger.ms": 0, "message.timeout.ms": 10_000}
_READING: Final = {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}

_log = structlog.get_logger("towpath.sinks.kafka")


class ProgressReader:
    """Implements ``ProgressSource``; its calls must not overlap."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Store the parameters; the first read connects."""
        self.name = topics.progress_topic(settings.database.prefix)
        self._kafka = settings.kafka
        self._clock = clock
        self._consumer: Consumer | None = None
        self._next_offsets: dict[int, int] = {}
        self._runs = NewestRuns()
        self._unreadable: dict[str, UnreadableProgressError] = {}
        self._verifications: dict[str, PublishedVerification | None] = {}
        # The time at which the previous read began.
        self._read_s: float | None = None

    def read(self, sink: str) -> ReceivedProgress | None:
        began_s = self._clock.monotonic_s()
        try:
            self._read_on()
        except KafkaException as error:
            raise unavailable(error) from error
        self._read_s = began_s
        if sink in self._unreadable:
            raise self._unreadable[sink]
        return self._runs.received(sink, self._clock.now(), began_s)

    def newest_run(self, sink: str) -> int:
        """Return the number of a sink's newest run, as of the last read."""
        return self._runs.newest_run(sink)

    def times(self) -> Mapping[str, datetime]:
        """Return the time of each sink's newest record, as of the last read."""
        return self._runs.times()

    def verification(self, sink: str) -> PublishedVerification | None:
        """Return the last verification of a sink, as of the last read."""
        return self._verifications.get(sink)

    def close(self) -> None:
        """Close the connection."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _read_on(self) -> None:
        if self._consumer is None:
            self._consumer = client.consumer(self._kafka, SINKS_GROUP, _READING)
        if not self._next_offsets:
            known = self._consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            if self.name not in known:
                return
        partition = TopicPartition(self.name, 0)
        end = end_offset(self._consumer, partition, self._clock)
        if end < self._next_offsets.get(0, 0):
            # The topic was recreated.
            self._next_offsets, self._runs = {}, NewestRuns()
            self._verifications, self._unreadable = {}, {}
        reading = records_to({0: end}, self._consumer, self.name, self._next_offsets)
        for message in reading:
            self._take(message)

    def _take(self, message: Message) -> None:
        sink = (message.key() or b"").decode(errors="replace")
        value = message.value()
        verified = verified_sink(sink)
        if verified is not None:
            found = None if value is None else decode_verification(value)
            self._verifications[verified] = found
            return
        try:
            record = None if value is None else decode_published(value)
        except UnreadableProgressError as error:
            self._unreadable[sink] = error
            return
        self._unreadable.pop(sink, None)
        self._runs.take(sink, record, self._read_s)


class ProgressTopic:
    """
    Implements ``ProgressStore``.

    Any thread may call it, but calls to ``read`` must not overlap.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Store the parameters; the first record connects."""
        self.name = topics.progress_topic(settings.database.prefix)
        self._settings = settings
        self._reader = ProgressReader(settings, clock)
        self._exists = False
        self._connecting = threading.Lock()
        self._producer: Producer | None = None
        self._failures: Counter[str] = Counter()
        self._failing: set[str] = set()

    def read(self, sink: str) -> ReceivedProgress | None:
        if not self._exists:
            cluster = Topics(self._settings.kafka)
            cluster.create(self.name, self._settings, is_compacted_often=True)
        # Not certain until a read succeeds: the topic may have been deleted.
        self._exists = False
        received = self._reader.read(sink)
        self._exists = True
        return received

    def newest_run(self, sink: str) -> int:
        return self._reader.newest_run(sink)

    def send(self, sink: str, record: bytes) -> None:
        try:
            producer = self._connected()
            producer.produce(
                self.name,
                key=sink.encode(),
                value=record,
                on_delivery=partial(self._delivered, sink),
            )
            # Only calls the callbacks of earlier records.
            producer.poll(0)
        except KafkaException as error:
            # A client with a fatal error remains unusable.
            self._producer = None
            self._failed(sink, str(error))
        except (BufferError, TowpathError) as error:
            self._failed(sink, str(error))

    def flush(self, within_s: float) -> None:
        # Another thread's ``send`` may drop the client meanwhile.
        producer = self._producer
        if producer is not None:
            producer.flush(within_s)

    def failures(self, sink: str) -> int:
        return self._failures[sink]

    def times(self) -> Mapping[str, datetime]:
        return self._reader.times()

    def verification(self, sink: str) -> PublishedVerification | None:
        return self._reader.verification(sink)

    def drop(self, sink: str) -> None:
        """
        Publish that a sink was dropped; safe to repeat.

        Raises:
            BrokerUnavailableError: The drop may not have been published.
        """
        self._publish_now({sink.encode(): None, verification_key(sink): None})

    def publish_verification(self, found: PublishedVerification) -> None:
        """
        Publish the result of a verification, for the driver that runs the sink.

        Raises:
            BrokerUnavailableError: The result may not have been published.
        """
        self._publish_now({found.key: encode_verification(found)})

    def _publish_now(self, records: Mapping[bytes, bytes | None]) -> None:
        """Publish records and wait; do nothing if no driver has created the topic."""
        known = Topics(self._settings.kafka).names()
        if self.name not in known:
            return
        failures: list[str] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error.str())

        producer = self._connected()
        try:
            for key, value in records.items():
                producer.produce(self.name, key=key, value=value, on_delivery=delivered)
            if producer.flush(REQUEST_TIMEOUT_S):
                failures.append("no answer in time")
        except KafkaException as error:
            # A client with a fatal error remains unusable.
            self._producer = None
            raise unavailable(error) from error
        if failures:
            message = f"Kafka: {self.name}: {failures[0]}"
            raise BrokerUnavailableError(message)

    def close(self) -> None:
        """Close the connection of the reader."""
        self._reader.close()

    def _connected(self) -> Producer:
        with self._connecting:
            producer = self._producer
            if producer is None:
                kafka = self._settings.kafka
                producer = client.producer(kafka, more=_PUBLISHING)
                self._producer = producer
            return producer

    def _delivered(
        self, sink: str, error: KafkaError | None, _message: Message
    ) -> None:
        if error is not None:
            self._failed(sink, error.str())
        elif sink in self._failing:
            self._failing.discard(sink)
            _log.info("sink progress published again", sink=sink)

    def _failed(self, sink: str, why: str) -> None:
        self._failures[sink] += 1
        if sink not in self._failing:
            self._failing.add(sink)
            _log.warning(
                "sink progress not published: retrying",
                sink=sink,
                topic=self.name,
                error=why,
                remedy=BrokerUnavailableError.remedy,
            )

"""
The dead-letter topic of one sink: ``<prefix>.dead.<sink>``.

It has one partition, and its records are kept forever: parked keys are restored from it
at each start, however old their dead letters are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from towpath.schemas import headers as names
from towpath.schemas import topics
from towpath.schemas.headers import trace_id_in
from towpath.settings import Settings
from towpath.sinks.change import Record
from towpath.sinks.dead_letters.entries import (
    DeadLetter,
    DeadLetterRequest,
    Entry,
    Header,
    Reply,
    Resolution,
    dead_letter_headers,
    entry_content,
    entry_of,
)
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import (
    REQUEST_TIMEOUT_S,
    SINKS_GROUP,
    Topics,
    headers_of,
    records_to,
    unavailable,
)

# The topic, not the client, limits the size of a record.
_WRITING: Final = {"message.max.bytes": topics.LARGEST_RECORD_BYTES}
# Enough records in flight to keep the broker busy, few enough to hold in memory.
_PRODUCED_AT_ONCE: Final = 5_000
# The client drops an unsent record this long before the wait for it ends. Otherwise it
# might send a dead letter after a retry has applied the record. The client checks for
# such records once per second.
_DROPPED_BEFORE_S: Final = 2.0

_log = structlog.get_logger("towpath.sinks.kafka")


class DeadLetterTopic:
    """
    Implements ``DeadLetterStore``.

    Used by one thread, except for ``put`` and ``resolve``.
    """

    def __init__(
        self,
        settings: Settings,
        sink: str,
        before_resolving: Callable[[], None] | None = None,
    ) -> None:
        """
        Store the parameters; nothing is read yet.

        Args:
            settings: The configuration.
            sink: The sink's name.
            before_resolving: Called before resolutions are written.
        """
        self._before_resolving = before_resolving
        self.name = topics.dead_letter_topic(settings.database.prefix, sink)
        self._settings = settings
        self._cluster = Topics(settings.kafka)
        self._producer = self._new_producer()
        self._exists = False
        self._failures: list[KafkaError] = []
        # The offset after the last record seen, by partition.
        self._seen: dict[int, int] = {}

    def put(self, dead_letters: Iterable[DeadLetter]) -> int:
        """
        Write dead letters, each with its reason; they are durable when this returns.

        Raises:
            BrokerUnavailableError: Some of the dead letters may not be durable.
        """
        given = list(dead_letters)
        self._write(
            (
                dead_letter.record.key,
                dead_letter.record.value,
                dead_letter_headers(dead_letter),
            )
            for dead_letter in given
        )
        self._log_written(given)
        return len(given)

    def resolve(self, resolutions: Iterable[Resolution]) -> None:
        """
        Write resolutions of dead letters.

        Raises:
            BrokerUnavailableError: The resolutions may not be durable.
        """
        if self._before_resolving is not None:
            self._before_resolving()
        self._write_entries(list(resolutions))

    def reply(self, reply: Reply) -> None:
        """
        Write the reason why a request was not carried out.

        Raises:
            BrokerUnavailableError: The reply may not be durable.
        """
        self._write_entries([reply])

    def request(self, requests: Sequence[DeadLetterRequest]) -> None:
        """
        Write requests for the sink, which handles them when it runs.

        Raises:
            BrokerUnavailableError: The requests may not be durable.
        """
        self._write_entries(requests)

    def entries(self) -> Iterator[Entry]:
        """
        Yield all entries of the topic, oldest first per key.

        Raises:
            BrokerUnavailableError: The topic could not be read to its end.
        """
        self._seen = {}
        # A topic that was just created is empty, and may have no leader yet.
        if not self._create():
            yield from self._read_on()

    def requests(self) -> list[DeadLetterRequest]:
        """
        Return the requests written since the topic was last read.

        Raises:
            BrokerUnavailableError: The topic could not be read to its end.
        """
        return [entry for entry in self.since() if isinstance(entry, DeadLetterRequest)]

    def since(self) -> list[Entry]:
        """
        Return the entries written since the topic was last read.

        Raises:
            BrokerUnavailableError: The topic could not be read to its end.
        """
        before = dict(self._seen)
        try:
            return list(self._read_on())
        except BrokerUnavailableError:
            self._seen = before
            raise

    def close(self) -> None:
        """Do nothing: each call waits for its records, and closes its consumer."""

    def _create(self) -> bool:
        """Create the topic unless it exists; return whether it was created."""
        if self._exists:
            return False
        is_new = self._cluster.create(self.name, self._settings, is_kept_whole=True)
        self._exists = True
        return is_new

    def _read_on(self) -> Iterator[Entry]:
        """Yield the entries written since the last read."""
        ends = self._cluster.end_offsets([self.name]).get(self.name, {})
        wanted = {int(partition): end for partition, end in ends.items()}
        if any(end < self._seen.get(p, 0) for p, end in wanted.items()):
            _log.warning(
                "dead letter topic recreated: it is read from its start",
                topic=self.name,
            )
            self._seen = {}
        if all(self._seen.get(p, 0) >= end for p, end in wanted.items()):
            return
        consumer = client.consumer(self._settings.kafka, SINKS_GROUP, _READING)
        try:
            for message in records_to(wanted, consumer, self.name, self._seen):
                headers = headers_of(message)
                entry = entry_of(message.key(), message.value(), headers)
                if entry is not None:
                    yield entry
        except KafkaException as error:
            raise unavailable(error) from error
        finally:
            consumer.close()

    def _write_entries(
        self, entries: Sequence[Resolution | DeadLetterRequest | Reply]
    ) -> None:
        if entries:
            self._write(
                (entry.subject.key, value, headers)
                for entry in entries
                for headers, value in [entry_content(entry)]
            )

    def _write(
        self, records: Iterable[tuple[bytes | None, bytes | None, list[Header]]]
    ) -> None:
        self._create()
        self._failures.clear()
        try:
            self._produce_all(records)
        except KafkaException as error:
            # A client with a fatal error remains unusable.
            self._producer = self._new_producer()
            raise unavailable(error) from error

    def _produce_all(
        self, records: Iterable[tuple[bytes | None, bytes | None, list[Header]]]
    ) -> None:
        for count, (key, value, headers) in enumerate(records, 1):
            try:
                self._produce(key, value, headers)
            except BufferError:
                # The client's queue is full of large records.
                self._flush()
                self._produce(key, value, headers)
            self._producer.poll(0)
            if count % _PRODUCED_AT_ONCE == 0:
                self._flush()
        self._flush()

    def _new_producer(self) -> Producer:
        kept_ms = max(1, round((REQUEST_TIMEOUT_S - _DROPPED_BEFORE_S) * 1000))
        limits = {**_WRITING, "message.timeout.ms": kept_ms}
        return client.producer(self._settings.kafka, more=limits)

    def _produce(
        self, key: bytes | None, value: bytes | None, headers: Iterable[Header]
    ) -> None:
        self._producer.produce(
            self.name,
            key=key,
            value=value,
            headers=list(headers),
            on_delivery=self._delivered,
        )

    def _flush(self) -> None:
        waiting = self._producer.flush(REQUEST_TIMEOUT_S)
        if waiting or self._failures:
            # The topic may have been deleted: the next write creates it again.
            self._exists = False
            why = self._failures[0].str() if self._failures else "no answer in time"
            message = f"records could not be written to {self.name}: {why}"
            if any(e.code() == KafkaError.MSG_SIZE_TOO_LARGE for e in self._failures):
                message += "; raise the topic's max.message.bytes"
            raise BrokerUnavailableError(message)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failures.append(error)

    def _log_written(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Log the dead letters, once per reason and topic."""
        by_cause: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for dead_letter in dead_letters:
            record = dead_letter.record
            by_cause[dead_letter.reason, record.origin.topic].append(record)
        for (reason, topic), records in by_cause.items():
            first = records[0]
            traceparent = first.headers.get(names.TRACEPARENT)
            _log.warning(
                "dead letters written",
                reason=reason,
                topic=topic,
                count=len(records),
                first_partition=first.origin.partition,
                first_offset=first.origin.offset,
                first_trace_id=trace_id_in(traceparent),
                dead_letters=self.name,
            )


_READING: Final = {
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
}

"""
The state topic, read and written at start; the loop's producer writes it too.

``towpath.relay.recovery.state`` describes its content.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from towpath.relay.encode.record import FIRST_PARTITION, Record
from towpath.relay.errors import BrokerRefusedError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    is_permanent,
    make_client,
    relay_error,
    unavailable,
)
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.recovery.state import State, StateDocument, parse_state
from towpath.schemas import topics
from towpath.schemas.clock import StallTimeout, SystemClock
from towpath.settings import Kafka

# How many records one step of ``publish_now`` hands over to the client.
RECORDS_AT_ONCE: Final = 1_000
_POLL_S: Final = 0.1
_UNBATCHED: Final[Mapping[str, Any]] = {
    "acks": "all",
    "linger.ms": 0,
    # The topic limits the size, so the client gets the largest limit. The client makes
    # no batches: a batch can exceed the limit of a topic that accepts each of its
    # records.
    "message.max.bytes": topics.LARGEST_RECORD_BYTES,
    "batch.num.messages": 1,
}


class StateTopic:
    """Reads and writes the state. Call order: after the topic is created."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._kafka = kafka
        self.topic = topics.state_topic(prefix)

    def read(self, reader: TopicReader) -> State:
        """
        Return the stored state.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            StateLostError: The stored state cannot be parsed.
        """
        newest: dict[str, bytes] = {}
        for message in self.messages(reader):
            key = (message.key() or b"").decode(errors="replace")
            value = message.value()
            newest.pop(key, None)
            if value:
                newest[key] = value
        return parse_state(newest)

    def messages(self, reader: TopicReader) -> Iterator[Message]:
        """
        Return every record of the topic, oldest first.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
        """
        return reader.read_to_ends({(self.topic, 0): 0}, self.topic)

    def write(self, key: str, document: StateDocument) -> None:
        """
        Write one document; it is durable when this returns.

        Raises:
            BrokerUnavailableError: Kafka does not answer in time.
            BrokerRefusedError: Kafka refuses the document.
        """
        self.write_all({key: document})

    def write_all(self, documents: Mapping[str, StateDocument]) -> None:
        """
        Write documents; they are durable when this returns.

        Raises:
            BrokerUnavailableError: Kafka does not answer in time.
            BrokerRefusedError: Kafka refuses a document.
        """
        write_now(self._kafka, *map(self._record, documents, documents.values()))

    def _record(self, key: str, document: StateDocument) -> Record:
        name, value = key.encode(), orjson.dumps(document)
        return Record(self.topic, name, value, [], b"", 0, len(value), FIRST_PARTITION)


def write_now(kafka: Kafka, *records: Record) -> None:
    """
    Write records to compacted topics; they are durable when this returns.

    Raises:
        BrokerUnavailableError: Kafka does not answer in time.
        BrokerRefusedError: Kafka refuses a record.
    """
    # A duplicate does no harm, as it has the same key. So the producer need not be
    # idempotent, which would mean waiting for a producer id.
    _produce(make_client(Producer, kafka, _UNBATCHED), records)


def publish_now(kafka: Kafka, *records: Record) -> None:
    """
    Write records in order, each once; they are durable when this returns.

    A record goes to its explicit partition, or to the one that the topic's current
    partition count gives its key. Its timestamp is the current time, so that retention
    does not delete a replayed event immediately. Records are written in bounded steps.
    A step begins once all records of earlier steps are durable; after a refused record,
    no further step begins.

    Raises:
        BrokerUnavailableError: Kafka does not answer in time.
        BrokerRefusedError: Kafka refuses a record, or the producer.
    """
    # The partitioner agrees with the relay's own, ``partition_of``.
    own = {"enable.idempotence": True, "partitioner": "murmur2_random"}
    producer = make_client(Producer, kafka, {**_UNBATCHED, **own})
    for first in range(0, len(records), RECORDS_AT_ONCE):
        _produce(producer, records[first : first + RECORDS_AT_ONCE])


def _produce(producer: Producer, records: Sequence[Record]) -> None:
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            refused.append(error)

    if not _deliver(producer, records, on_delivery) or refused:
        names = ", ".join(sorted({record.topic for record in records}))
        permanent = list(filter(is_permanent, refused))
        why = f": {(permanent or refused)[0].str()}" if refused else ""
        reason = f"Kafka did not acknowledge a record to {names}{why}"
        doing = f"writing to {names}"
        raise BrokerRefusedError(reason) if permanent else unavailable(doing, reason)


def _deliver(
    producer: Producer,
    records: Iterable[Record],
    on_delivery: Callable[[KafkaError | None, Message], None],
) -> bool:
    """Produce records; return whether Kafka responded to all without a long pause."""
    stall = StallTimeout(SystemClock(), REQUEST_TIMEOUT_S)
    waiting = deque(records)
    while left := len(waiting) + len(producer):
        if waiting and _hand_over(producer, waiting[0], on_delivery):
            waiting.popleft()
            continue
        producer.poll(_POLL_S)
        if stall.is_over(left):
            return False
    return True


def _hand_over(
    producer: Producer,
    record: Record,
    on_delivery: Callable[[KafkaError | None, Message], None],
) -> bool:
    """Give a record to the client; return whether its queue had room."""
    try:
        producer.produce(
            record.topic,
            record.value,
            record.key,
            record.partition,
            headers=record.headers,
            on_delivery=on_delivery,
        )
    except BufferError:
        return False
    except KafkaException as error:
        # An error that is fatal for the client, such as a refused producer id.
        raise relay_error(error, f"writing to {record.topic}") from error
    return True

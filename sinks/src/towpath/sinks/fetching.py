"""
The records of a batch, read by the driver itself.

The engine says which records a batch has, by their offsets, and keeps count of them.
Handing them over is what costs it most: through a job of its own, a record takes ten
times the processor's time that the client takes which reads it here, straight into
Arrow's columns; and each batch waits for that job. Executors have no driver to ask, and
read what the engine gives them.

Reading goes on behind the end of a batch, while it is written: what came too early is
kept for the next one. Only a batch that begins elsewhere, as the first one does and one
that is delivered again, has the broker asked anew.

Hot path, once per record: no value is looked into.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from towpath.schemas.failure import TowpathError
from towpath.sinks.batches import RECORDS
from towpath.sinks.errors import BrokerUnavailableError, RecordsGoneError
from towpath.sinks.kafka import REQUEST_TIMEOUT_S, connection, unavailable
from towpath.sinks.progress import Place, Span, records_in

# Some 30 ms of work for whoever writes them; more has the target wait for the first.
PORTION_RECORDS: Final = 5_000

# What a partition that has come to its batch's end may give beside, before it is told
# to wait for the others.
_AHEAD_RECORDS: Final = 50_000

# What stands at the end of a batch and is no record costs it so much at most.
_POLL_S: Final = 0.02
_ASK_WITHIN_S: Final = 5.0

_CLIENT: Final[dict[str, Any]] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # What is gone is named, never skipped.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 32 * 1024,
    # The default waits a second before it reads on once its queue was full.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 100,
}

# Of records that were deleted, and of topics: the next start of the query says which.
_GONE: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 - librdkafka's own name
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - librdkafka's own name
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's own name
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class KafkaBatches:
    """
    Reads the batches of one query (see ``batches.Batches``).

    Belongs to the query: its calls do not overlap.
    """

    def __init__(self, bootstrap_servers: str, sink: str) -> None:
        """
        Describe what is read; nothing is opened yet.

        Args:
            bootstrap_servers: Kafka's.
            sink: Name of the sink, for whoever looks at the broker.
        """
        # The group is never joined: partitions are assigned, offsets are the engine's.
        group = {"group.id": f"towpath-{sink}"}
        self._settings = connection(bootstrap_servers) | _CLIENT | group
        self._consumer: Consumer | None = None
        # Up to where all was handed out; nothing, if a batch was given up.
        self._next: dict[Place, int] = {}
        self._ahead: dict[Place, list[Message]] = {}
        # Where a partition ended when its end was met; it is told once only.
        self._met: dict[Place, int] = {}
        self._paused: set[Place] = set()

    def portions(self, span: Span) -> Iterator[pa.Table]:
        consumer = self._at(span)
        self._next = {}
        left = {place: end for place, (begin, end) in span.items() if begin < end}
        taken: list[Message] = []
        missing = records_in(span)
        for place, end in tuple(left.items()):
            missing -= self._sort(self._ahead.pop(place, []), left, taken)
            if self._met.get(place, 0) >= end:
                left.pop(place, None)
        waited_s = 0.0
        while left:
            if len(taken) >= PORTION_RECORDS:
                yield table_of(taken)
                taken = []
            messages = _arrived(consumer, min(missing, PORTION_RECORDS))
            waited_s = 0.0 if messages else waited_s + _POLL_S
            if waited_s >= REQUEST_TIMEOUT_S:
                raise _silence_of(consumer, min(left))
            missing -= self._sort(messages, left, taken)
            self._restrain(consumer)
        if taken:
            yield table_of(taken)
        self._next = {place: end for place, (_, end) in span.items()}

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _at(self, span: Span) -> Consumer:
        """Return the client, about to give what follows where a batch begins."""
        begins = {place: begin for place, (begin, _) in span.items()}
        try:
            if self._consumer is None:
                self._consumer = Consumer(self._settings)
            consumer = self._consumer
            if self._paused:
                consumer.resume([TopicPartition(*place) for place in self._paused])
                self._paused.clear()
            if self._next != begins:
                self._ahead.clear()
                self._met.clear()
                consumer.assign([TopicPartition(*p, o) for p, o in begins.items()])
        except KafkaException as error:
            raise unavailable(error) from error
        return consumer

    def _sort(
        self, messages: list[Message], left: dict[Place, int], taken: list[Message]
    ) -> int:
        """Take the batch's records, and keep what comes too early; tell how many."""
        before = len(taken)
        for message in messages:
            offset = message.offset() or 0
            place = (message.topic() or "", message.partition() or 0)
            end = left.get(place, 0)
            if (error := message.error()) is not None:
                _judge(error, place)
                # Not each offset is a record: the marks of transactions, what was
                # compacted away.
                self._met[place] = offset
                if offset >= end:
                    left.pop(place, None)
            elif offset < end:
                taken.append(message)
                if offset == end - 1:
                    del left[place]
            else:
                left.pop(place, None)
                self._ahead.setdefault(place, []).append(message)
        return len(taken) - before

    def _restrain(self, consumer: Consumer) -> None:
        """Have those partitions wait that are far ahead of the batch."""
        for place, ahead in self._ahead.items():
            if len(ahead) > _AHEAD_RECORDS and place not in self._paused:
                consumer.pause([TopicPartition(*place)])
                self._paused.add(place)


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Lay records out as columns."""
    names: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    for message in messages:
        for name, value in message.headers() or ():  # type: ignore[str-unpack]  # pairs
            names.append(name)
            values.append(value)  # type: ignore[arg-type]  # likewise
        ends.append(len(names))
    header = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], ["key", "value"]
    )
    columns = [
        pa.array([m.topic() for m in messages], pa.string()),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array([m.key() for m in messages], pa.binary()),
        pa.array([m.value() for m in messages], pa.binary()),
        pa.ListArray.from_arrays(pa.array(ends, pa.int32()), header),
    ]
    return pa.table(columns, schema=RECORDS)


def _arrived(consumer: Consumer, most: int) -> list[Message]:
    """
    Return so many messages, or what there is after a moment.

    Whoever asks for more than there will be waits for that moment; who asks for what
    is there at once is given it in crumbs, each at the price of a call.
    """
    try:
        return consumer.consume(most, _POLL_S)
    except KafkaException as error:
        raise unavailable(error) from error


def _silence_of(consumer: Consumer, place: Place) -> TowpathError:
    """Find out why a partition gives nothing: the client is not told of all."""
    topic, partition = place
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, partition), _ASK_WITHIN_S)
    except KafkaException as error:
        if error.args[0].code() in _GONE:
            return _gone(place, error.args[0])
    message = f"Kafka: {topic} gives no record of partition {partition}"
    return BrokerUnavailableError(message)


def _judge(error: KafkaError, place: Place) -> None:
    """Say what it means that a partition gives an error instead of a record."""
    if error.code() in _GONE:
        raise _gone(place, error)
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
        raise unavailable(KafkaException(error))


def _gone(place: Place, error: KafkaError) -> RecordsGoneError:
    topic, partition = place
    message = f"partition {partition} of {topic} cannot be read: {error.str()}"
    return RecordsGoneError(message)

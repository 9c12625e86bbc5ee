"""
The records of a batch, read by the driver itself.

The engine plans the offsets of a batch and keeps its checkpoint. The driver reads the
records with Kafka's client, straight into Arrow columns: a job of the engine would take
ten times the processor time per record, and each batch would wait for that job.
Executors read the records that the engine gives them.

The client reads ahead while a batch is written, and keeps the records for the next one.
It seeks only for a batch that does not continue the last one: the first batch, and one
that is delivered again.

Hot path, once per record: no value is decoded here.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import methodcaller
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from towpath.schemas.clock import Clock, StallTimeout, SystemClock
from towpath.settings import Kafka
from towpath.sinks.errors import BrokerUnavailableError, RecordsGoneError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import REQUEST_TIMEOUT_S, unavailable
from towpath.sinks.state.progress import Place, Span, records_in

# The columns of a batch's records, as Kafka has them.
RECORDS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    ]
)


class Batches(Protocol):
    """
    Reads the records of one query's batches; which they are, the engine says.

    Call order: ``portions`` for each batch, then ``close``.
    """

    def slices(self, span: Span) -> Iterator[pa.Table]:
        """
        Read a batch, portion by portion; one that has no record gives none.

        Returns:
            Tables of ``RECORDS``, each partition in its order.

        Raises:
            UnavailableError: The broker does not answer; begin the batch again.
            RecordsGoneError: It does not have all of the batch any more.
        """

    def close(self) -> None:
        """Close the connections; a reader that still waits gets an error."""


# Some 30 ms of work for whoever writes them; more has the target wait for the first.
FETCH_SLICE_RECORDS: Final = 5_000

# What partitions that have come to their batch's end may give beside, all together,
# before they wait for the others.
_AHEAD_BYTES: Final = 64 * 1024 * 1024

# How far the offsets of an array of bytes reach.
_MOST_BYTES: Final = 2**31 - 1

# What stands at the end of a batch and is no record costs it so much at most.
_POLL_S: Final = 0.02
_ASK_WITHIN_S: Final = 5.0
# A broker that answers is waited for two minutes in all, as the engine would.
_MOST_LOOKS: Final = 12

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


_Headers: TypeAlias = Iterable[tuple[str, bytes | None]]
_headers: Callable[[Message], _Headers | None] = methodcaller("headers")


class KafkaBatches:
    """
    Reads the batches of one query (see ``batches.Batches``).

    Belongs to the query: its calls do not overlap.
    """

    def __init__(self, kafka: Kafka, sink: str, clock: Clock | None = None) -> None:
        """
        Describe what is read; nothing is opened yet.

        Args:
            kafka: The brokers.
            sink: Name of the sink, for whoever looks at the broker.
            clock: For the stall timeout; left out, the machine's.
        """
        self._clock = clock or SystemClock()
        self._closed = False
        # The group is never joined: partitions are assigned, offsets are the engine's.
        group = {"group.id": f"towpath-{sink}"}
        self._kafka, self._own = kafka, {**_CLIENT, **group}
        self._consumer: Consumer | None = None
        # Held while the client is asked: it must not be closed under its own hands.
        self._asking = threading.Lock()
        # Up to where all was handed out; nothing, if a batch was given up.
        self._next: dict[Place, int] = {}
        self._reached: dict[Place, int] = {}
        self._ahead: dict[Place, list[Message]] = {}
        self._ahead_bytes = 0
        # The end of a partition when it was reached; the client reports it once only.
        self._met: dict[Place, int] = {}
        self._paused: set[Place] = set()

    def slices(self, span: Span) -> Iterator[pa.Table]:
        with self._asking:
            consumer = self._at(span)
        self._next = {}
        left = {place: end for place, (begin, end) in span.items() if begin < end}
        taken: list[Message] = []
        for place, end in tuple(left.items()):
            self._sort(self._let_go_of(place), left, taken)
            if self._met.get(place, 0) >= end:
                left.pop(place, None)
        silence = _FetchPatience(consumer, self._clock)
        missing = asked = records_in(span) - len(taken)
        while left:
            while len(taken) >= FETCH_SLICE_RECORDS:
                yield table_of(taken[:FETCH_SLICE_RECORDS])
                del taken[:FETCH_SLICE_RECORDS]
            asked = min(max(asked, 1), FETCH_SLICE_RECORDS)
            with self._asking:
                self._go_on()
                messages = _arrived(consumer, asked)
                missing -= self._sort(messages, left, taken)
                silence.bear(missing + len(left), left)
                self._restrain(consumer)
            # Else what is far ahead would come in crumbs, as many as are missing.
            asked = 2 * asked if len(messages) == asked else missing
        for begin in range(0, len(taken), FETCH_SLICE_RECORDS):
            yield table_of(taken[begin : begin + FETCH_SLICE_RECORDS])
        self._next = {place: end for place, (_, end) in span.items()}

    def close(self) -> None:
        # Whoever reads notices before the client is asked again.
        self._closed = True
        with self._asking:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _go_on(self) -> None:
        if self._closed:
            message = "the query that read this batch has ended"
            raise BrokerUnavailableError(message)

    def _at(self, span: Span) -> Consumer:
        """Return the client, about to give what follows where a batch begins."""
        self._go_on()
        begins = {place: begin for place, (begin, _) in span.items()}
        try:
            if self._consumer is None:
                self._consumer = client.consumer(self._kafka, self._own)
            consumer = self._consumer
            if self._paused:
                consumer.resume([TopicPartition(*place) for place in self._paused])
                self._paused.clear()
            if self._next != begins:
                self._ahead.clear()
                self._ahead_bytes = 0
                self._met.clear()
                self._reached = dict(begins)
                consumer.assign([TopicPartition(*p, o) for p, o in begins.items()])
        except KafkaException as error:
            raise unavailable(error) from error
        return consumer

    def _sort(
        self, messages: list[Message], left: dict[Place, int], taken: list[Message]
    ) -> int:
        """Take the batch's records, and keep what comes too early; tell how many."""
        before = len(taken)
        reached = self._reached
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
            elif offset < reached.get(place, offset + 1):
                # It was given before, or nobody asked for it.
                continue
            elif offset < end:
                taken.append(message)
                reached[place] = offset + 1
                if offset == end - 1:
                    del left[place]
            else:
                left.pop(place, None)
                self._ahead.setdefault(place, []).append(message)
                self._ahead_bytes += len(message)
        return len(taken) - before

    def _let_go_of(self, place: Place) -> list[Message]:
        """Return what came too early of a partition."""
        ahead = self._ahead.pop(place, [])
        self._ahead_bytes -= sum(map(len, ahead))
        return ahead

    def _restrain(self, consumer: Consumer) -> None:
        """Have partitions wait that are ahead of the batch, if together too far."""
        places = self._ahead.keys() - self._paused
        if places and self._ahead_bytes > _AHEAD_BYTES:
            consumer.pause([TopicPartition(*place) for place in places])
            self._paused |= places


class _FetchPatience:
    """How long a batch's records may be waited for, and what it means if they are."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._looks = 0
        self._least: int | None = None
        self._stall = StallTimeout(clock, REQUEST_TIMEOUT_S)

    def bear(self, missing: int, left: Mapping[Place, int]) -> None:
        """
        Look at the broker if what is missing has been no less for a while.

        Raises:
            BrokerUnavailableError: It does not answer, or gives nothing for too long.
            RecordsGoneError: It does not have the records.
        """
        if self._least is None or missing < self._least:
            self._least, self._looks = missing, 0
        if not self._stall.is_over(missing):
            return
        self._stall = StallTimeout(self._clock, REQUEST_TIMEOUT_S)
        self._looks += 1
        for place, end in left.items():
            self._look(place, end)

    def _look(self, place: Place, end: int) -> None:
        """Find out why a partition gives nothing; the client does not report it."""
        topic, partition = place
        message = f"Kafka: {topic} gives no record of partition {partition}"
        at = TopicPartition(topic, partition)
        try:
            bounds = self._consumer.get_watermark_offsets(at, _ASK_WITHIN_S)
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                raise _gone(place, error.args[0].str()) from error
            raise BrokerUnavailableError(message) from error
        if bounds[1] < end:
            raise _gone(place, f"it ends at {bounds[1]}, not at {end}")
        # One answer of the broker may be large, and the way to it narrow.
        if self._looks >= _MOST_LOOKS:
            raise BrokerUnavailableError(message)


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Lay records out as columns."""
    columns = [
        pa.array([m.topic() for m in messages], pa.string()),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array([m.key() for m in messages], pa.binary()),
        _laid([m.value() for m in messages]),
        _headers_of(messages),
    ]
    return pa.table(columns, schema=RECORDS)


def _laid(values: list[bytes | None]) -> pa.Array | pa.ChunkedArray:
    """Lay values out, copied once: what Arrow builds is copied again as it grows."""
    given = [value for value in values if value is not None]
    ends = [*accumulate(map(len, given), initial=0)]
    # Nulls need a mask, and more bytes than one array can hold need several.
    if len(given) < len(values) or ends[-1] > _MOST_BYTES:
        return pa.array(values, pa.binary())
    places = pa.array(ends, pa.int32()).buffers()[1]
    held = [None, places, pa.py_buffer(b"".join(given))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(given), held)


def _headers_of(messages: Sequence[Message]) -> pa.ListArray:
    """
    Lay headers out; of a record with a name that is no text none, so it is set aside.

    Such a name has the client return a list that is none. Only a call from C, as this
    one is, checks that; and only the first one tells.
    """
    given = map(_headers, messages)
    flat: list[tuple[str, bytes | None]] = []
    ends = [0]
    while len(ends) <= len(messages):
        try:
            for headers in given:
                flat += headers or ()
                ends.append(len(flat))
        except (SystemError, UnicodeDecodeError):
            ends.append(len(flat))
    fields = [
        pa.array([name for name, _ in flat], pa.string()),
        pa.array([value for _, value in flat], pa.binary()),
    ]
    header = pa.StructArray.from_arrays(fields, ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), header)


def _arrived(consumer: Consumer, most: int) -> list[Message]:
    """
    Return up to ``most`` messages, or those that arrive within a moment.

    A call for more messages than will come waits for that moment; calls for the ones
    that are there would return few at a time, each at the price of a call.
    """
    try:
        return consumer.consume(most, _POLL_S)
    except KafkaException as error:
        raise unavailable(error) from error


def _judge(error: KafkaError, place: Place) -> None:
    """Say what it means that a partition gives an error instead of a record."""
    if error.code() in _GONE:
        raise _gone(place, error.str())
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
        raise unavailable(KafkaException(error))


def _gone(place: Place, why: str) -> RecordsGoneError:
    topic, partition = place
    message = f"partition {partition} of {topic} cannot be read: {why}"
    return RecordsGoneError(message)

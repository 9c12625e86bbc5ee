"""
Reads the records of batches, in the driver and in tasks.

The engine plans the offsets of a batch and keeps the checkpoint. The records are read
with Kafka's client, straight into Arrow columns: the engine's own source would take
several times the CPU time per record, and in the driver each batch would wait for a
job.

While a batch of a backlog is written, the client prefetches records of the next one.
Without a backlog it fetches nothing between batches, since it would send a request for
every few records that arrive. It seeks to the first batch after such a pause, and to a
batch that does not continue the last one: a repeated batch, or one with different
partitions.

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
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.errors import BrokerUnavailableError, RecordsGoneError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import REQUEST_TIMEOUT_S, unavailable
from towpath.sinks.state.progress import PartitionId, Span, records_in


class Batches(Protocol):
    """
    Reads the batches of one query, between the offsets that the engine plans.

    Call order: ``slices`` for each batch, then ``close``.
    """

    def slices(self, span: Span) -> Iterator[pa.Table]:
        """
        Yield a batch slice by slice; a batch without records yields none.

        Returns:
            Tables of ``RECORDS``; the records of a partition are in offset order.

        Raises:
            UnavailableError: The broker does not answer; read the batch again.
            RecordsGoneError: Records of the batch no longer exist.
        """

    def take_oldest_ms(self) -> int | None:
        """
        Return the lowest timestamp in a sample of the records read since the last call.

        Returns:
            Milliseconds since 1970; ``None`` if no records were read here.
        """

    def check(self, span: Span) -> None:
        """
        Check that the records of a batch still exist.

        Raises:
            UnavailableError: The broker does not answer.
            RecordsGoneError: Records of the batch no longer exist.
        """

    def close(self) -> None:
        """Close the connections; a read in progress fails."""


# The writer encodes a slice in about 30 ms. The target waits for the first slice, so
# larger slices would delay the target.
FETCH_SLICE_RECORDS: Final = 5_000

# Reading a timestamp takes 190 ns of the 10 us that a record takes in all. Timestamps
# ascend in a partition, so only every eleventh one of a full slice is read, which may
# miss a few older ones.
_TIMESTAMPS_OF_SLICE: Final = 500

# The limit on buffered messages beyond the end of a batch, across all partitions.
# Above it, the partitions with buffered messages are paused.
_AHEAD_BYTES: Final = 64 * 1024 * 1024

# Fewer records than this after a batch are not a backlog: the next batch fetches them
# within a few milliseconds.
_BACKLOG_RECORDS: Final = 1_000

# The offsets of a binary array have 32 bits.
_MAX_ARRAY_BYTES: Final = 2**31 - 1

# The longest wait of one call. A batch that ends with offsets without records, such as
# transaction markers, is delayed by at most this.
_POLL_S: Final = 0.02
_QUERY_TIMEOUT_S: Final = 5.0
# With one check per request timeout: two minutes, as long as the engine would wait for
# a broker that answers.
_MAX_CHECKS: Final = 12

_CLIENT: Final[dict[str, Any]] = {
    # Deleted records are an error; they are never skipped.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # A fetch left open at the end of one partition would delay the next.
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 32 * 1024,
    # By default, fetching pauses for a second after the queue was full.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 100,
}

# Errors of deleted records, partitions and topics. The next start of the query finds
# out which of them it was.
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
# The kind of a timestamp, which all records of a topic share, and its milliseconds.
_timestamp: Callable[[Message], tuple[int, int]] = methodcaller("timestamp")


class KafkaBatches:
    """
    Reads the batches of one query (see ``Batches``).

    Calls do not overlap, except for ``close``.
    """

    def __init__(
        self,
        kafka: Kafka,
        sink: str,
        clock: Clock | None = None,
        ahead_records: int | None = None,
    ) -> None:
        """
        Store the parameters; nothing is opened yet.

        Args:
            kafka: The brokers.
            sink: The name of the sink, for the name of the consumer group.
            clock: The clock of the stall timeout; by default the system's.
            ahead_records: The number of prefetched records; by default as many as the
                client's queue holds.
        """
        self._clock = clock or SystemClock()
        self._closed = False
        self._kafka, self._group = kafka, f"towpath-{sink}"
        self._settings = _CLIENT
        if ahead_records is not None:
            self._settings = _CLIENT | {"queued.min.messages": ahead_records}
        self._consumer: Consumer | None = None
        # Held during calls to the client, so that ``close`` waits for them.
        self._client_lock = threading.Lock()
        # The ends of the last batch, from which the client keeps fetching; empty while
        # a batch is incomplete, and while the client fetches nothing.
        self._batch_ends: dict[PartitionId, int] = {}
        self._next_offsets: dict[PartitionId, int] = {}
        self._ahead: dict[PartitionId, list[Message]] = {}
        self._ahead_bytes = 0
        # The offset at which each partition ended; the client reports an end only once.
        self._eof_offsets: dict[PartitionId, int] = {}
        self._paused: set[PartitionId] = set()
        self._oldest_ms: int | None = None

    def slices(self, span: Span) -> Iterator[pa.Table]:
        with self._client_lock:
            consumer = self._consumer_at(span)
        self._batch_ends = {}
        left = {
            partition_id: end
            for partition_id, (begin, end) in span.items()
            if begin < end
        }
        taken: list[Message] = []
        for partition_id, end in tuple(left.items()):
            self._distribute(self._take_ahead(partition_id), left, taken)
            if self._eof_offsets.get(partition_id, 0) >= end:
                left.pop(partition_id, None)
        timeout = _FetchTimeout(consumer, self._clock)
        missing = requested = records_in(span) - len(taken)
        while left:
            while len(taken) >= FETCH_SLICE_RECORDS:
                yield self._table(taken[:FETCH_SLICE_RECORDS])
                del taken[:FETCH_SLICE_RECORDS]
            requested = min(max(requested, 1), FETCH_SLICE_RECORDS)
            with self._client_lock:
                self._check_open()
                messages = _consume(consumer, requested)
                missing -= self._distribute(messages, left, taken)
                timeout.check(missing + len(left), left)
                self._pause_ahead(consumer)
            # Messages beyond the batch also count towards a request, so the size of a
            # full one is doubled: small requests would return a few messages each.
            is_full = len(messages) == requested
            requested = 2 * requested if is_full else missing
        for begin in range(0, len(taken), FETCH_SLICE_RECORDS):
            yield self._table(taken[begin : begin + FETCH_SLICE_RECORDS])
        self._end_batch(
            consumer, {partition_id: end for partition_id, (_, end) in span.items()}
        )

    def take_oldest_ms(self) -> int | None:
        found, self._oldest_ms = self._oldest_ms, None
        return found

    def check(self, span: Span) -> None:
        # With a separate client: the one that reads slices may be in use.
        consumer = client.consumer(self._kafka, self._group, self._settings)
        try:
            for partition_id, (begin, end) in span.items():
                if begin < end:
                    _check_bounds(consumer, partition_id, begin, end)
        finally:
            consumer.close()

    def close(self) -> None:
        # A reader checks this before its next call to the client.
        self._closed = True
        with self._client_lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _end_batch(self, consumer: Consumer, ends: dict[PartitionId, int]) -> None:
        """Keep fetching after a batch of a backlog; stop fetching after any other."""
        with self._client_lock:
            is_free = not self._closed and not self._paused
            if is_free and not _has_backlog(consumer, ends):
                # Not paused: a resumed partition is fetched again only after a second.
                consumer.unassign()
                ends = {}
        self._batch_ends = ends

    def _table(self, messages: Sequence[Message]) -> pa.Table:
        """Return messages as a table, and note the oldest timestamp."""
        step = 1 + len(messages) // _TIMESTAMPS_OF_SLICE
        # The kind is ignored: a batch may have records of topics with different kinds.
        oldest_ms = min(ms for _, ms in map(_timestamp, messages[::step]))
        if self._oldest_ms is None or oldest_ms < self._oldest_ms:
            self._oldest_ms = oldest_ms
        return table_of(messages)

    def _check_open(self) -> None:
        if self._closed:
            message = "the query that read this batch has ended"
            raise BrokerUnavailableError(message)

    def _consumer_at(self, span: Span) -> Consumer:
        """Return the client, positioned at the beginning of a batch."""
        self._check_open()
        begins = {partition_id: begin for partition_id, (begin, _) in span.items()}
        try:
            if self._consumer is None:
                self._consumer = client.consumer(
                    self._kafka, self._group, self._settings
                )
            consumer = self._consumer
            if self._paused:
                consumer.resume(
                    [TopicPartition(*partition_id) for partition_id in self._paused]
                )
                self._paused.clear()
            if self._batch_ends != begins:
                self._ahead.clear()
                self._ahead_bytes = 0
                self._eof_offsets.clear()
                self._next_offsets = dict(begins)
                consumer.assign([TopicPartition(*p, o) for p, o in begins.items()])
        except KafkaException as error:
            raise unavailable(error) from error
        return consumer

    def _distribute(
        self,
        messages: list[Message],
        left: dict[PartitionId, int],
        taken: list[Message],
    ) -> int:
        """
        Add the batch's records to ``taken``, and buffer those beyond its end.

        Return the number added.
        """
        before = len(taken)
        next_offsets = self._next_offsets
        for message in messages:
            offset = message.offset() or 0
            partition_id = (message.topic() or "", message.partition() or 0)
            end = left.get(partition_id, 0)
            if (error := message.error()) is not None:
                _check_error(error, partition_id)
                # The last offsets may have no records: transaction markers, and records
                # that compaction removed.
                self._eof_offsets[partition_id] = offset
                if offset >= end:
                    left.pop(partition_id, None)
            elif offset < next_offsets.get(partition_id, offset + 1):
                # The message was read before, or its partition is no longer assigned.
                continue
            elif offset < end:
                taken.append(message)
                next_offsets[partition_id] = offset + 1
                if offset == end - 1:
                    del left[partition_id]
            else:
                left.pop(partition_id, None)
                self._ahead.setdefault(partition_id, []).append(message)
                self._ahead_bytes += len(message)
        return len(taken) - before

    def _take_ahead(self, partition_id: PartitionId) -> list[Message]:
        """Remove and return the buffered messages of a partition."""
        ahead = self._ahead.pop(partition_id, [])
        self._ahead_bytes -= sum(map(len, ahead))
        return ahead

    def _pause_ahead(self, consumer: Consumer) -> None:
        """Pause the partitions with buffered messages if the buffer is full."""
        partition_ids = self._ahead.keys() - self._paused
        if partition_ids and self._ahead_bytes > _AHEAD_BYTES:
            consumer.pause(
                [TopicPartition(*partition_id) for partition_id in partition_ids]
            )
            self._paused |= partition_ids


class _FetchTimeout:
    """The limit on the wait for a batch's records."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._checks = 0
        self._lowest_missing: int | None = None
        self._stall = StallTimeout(clock, REQUEST_TIMEOUT_S)

    def check(self, missing: int, left: Mapping[PartitionId, int]) -> None:
        """
        Query the broker if the number of missing records has stalled.

        Raises:
            BrokerUnavailableError: The broker does not answer, or returns no records
                for too long.
            RecordsGoneError: The records no longer exist.
        """
        if self._lowest_missing is None or missing < self._lowest_missing:
            self._lowest_missing, self._checks = missing, 0
        if not self._stall.is_over(missing):
            return
        self._stall = StallTimeout(self._clock, REQUEST_TIMEOUT_S)
        self._checks += 1
        for partition_id, end in left.items():
            self._check_partition(partition_id, end)

    def _check_partition(self, partition_id: PartitionId, end: int) -> None:
        """Raise an error if a partition cannot progress; the client reports none."""
        _check_bounds(self._consumer, partition_id, None, end)
        # The broker answers, but a large response may take long over a slow network.
        if self._checks >= _MAX_CHECKS:
            raise _unreadable(partition_id, "no records are returned")


def _has_backlog(consumer: Consumer, ends: Mapping[PartitionId, int]) -> bool:
    """Return whether many records follow a batch, as far as the client knows."""
    behind = 0
    for partition_id, end in ends.items():
        try:
            _, last = consumer.get_watermark_offsets(
                TopicPartition(*partition_id), cached=True
            )
        except KafkaException as error:
            raise unavailable(error) from error
        # The end is negative for a partition that the client has not fetched from yet.
        behind += max(0, last - end)
    return behind >= _BACKLOG_RECORDS


def _check_bounds(
    consumer: Consumer, partition_id: PartitionId, begin: int | None, end: int
) -> None:
    """Check that a partition has the offsets from ``begin``, if given, to ``end``."""
    at = TopicPartition(*partition_id)
    try:
        first, last = consumer.get_watermark_offsets(at, _QUERY_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() in _GONE:
            raise _gone(partition_id, error.args[0].str()) from error
        raise _unreadable(partition_id, error.args[0].str()) from error
    if begin is not None and begin < first:
        raise _gone(partition_id, f"it begins at {first}, not at {begin}")
    if last < end:
        raise _gone(partition_id, f"it ends at {last}, not at {end}")


def _unreadable(partition_id: PartitionId, why: str) -> BrokerUnavailableError:
    topic, partition = partition_id
    message = f"Kafka: partition {partition} of {topic} cannot be read: {why}"
    return BrokerUnavailableError(message)


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Return messages as a table of ``RECORDS``."""
    columns = [
        pa.array([m.topic() for m in messages], pa.string()),
        pa.array([m.partition() for m in messages], pa.int32()),
        pa.array([m.offset() for m in messages], pa.int64()),
        pa.array([m.key() for m in messages], pa.binary()),
        _binary_array([m.value() for m in messages]),
        _headers_of(messages),
    ]
    return pa.table(columns, schema=RECORDS)


def _binary_array(values: list[bytes | None]) -> pa.Array | pa.ChunkedArray:
    """Return values as an array, copied once; Arrow's builder copies as it grows."""
    present = [value for value in values if value is not None]
    ends = [*accumulate(map(len, present), initial=0)]
    # Nulls need a mask, and more bytes than one array can hold need several arrays.
    if len(present) < len(values) or ends[-1] > _MAX_ARRAY_BYTES:
        return pa.array(values, pa.binary())
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    buffers = [None, offsets, pa.py_buffer(b"".join(present))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(present), buffers)


def _headers_of(messages: Sequence[Message]) -> pa.ListArray:
    """
    Return the headers of messages as an array.

    A record with a header name that is not UTF-8 gets no headers, and becomes a dead
    letter. The client returns an invalid list for it. Only a call from C detects that,
    such as ``methodcaller``'s, and only the first call for a message.
    """
    headers_of_each = map(_headers, messages)
    flat: list[tuple[str, bytes | None]] = []
    ends = [0]
    while len(ends) <= len(messages):
        try:
            for headers in headers_of_each:
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


def _consume(consumer: Consumer, most: int) -> list[Message]:
    """
    Return up to ``most`` messages, fewer if no more arrive within ``_POLL_S``.

    A request for more messages than arrive always waits that long; smaller requests
    would need a call for every few messages.
    """
    try:
        return consumer.consume(most, _POLL_S)
    except KafkaException as error:
        raise unavailable(error) from error


def _check_error(error: KafkaError, partition_id: PartitionId) -> None:
    """Raise the error of a message; the end of a partition is not an error."""
    if error.code() in _GONE:
        raise _gone(partition_id, error.str())
    if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own name
        raise unavailable(KafkaException(error))


def _gone(partition_id: PartitionId, why: str) -> RecordsGoneError:
    topic, partition = partition_id
    message = f"partition {partition} of {topic} cannot be read: {why}"
    return RecordsGoneError(message)

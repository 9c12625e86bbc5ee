"""
The loop's only producer: idempotent, ``acks=all``, with no limit on delivery time.

With ``delivery = "transactional"`` its records are also part of Kafka transactions,
which the loop commits every tenth of a second. A new process fences the old one, and
the broker then aborts the old one's open transaction.

If the client ever fails to deliver a record, the session restarts from the log, and
publishes each record whose position is above the last one in its partition. So no
record may be appended after one that failed: ``enable.gapless.guarantee`` makes the
client fail with a fatal error when a broker refuses a batch, and the broker itself
refuses the batches that were sent meanwhile, because a sequence number is missing. A
transactional producer needs no such setting, because its transaction is aborted.

librdkafka exports its partitioner as a function: a call through ctypes takes a third of
a microsecond, a tenth of the time of the Python version. The Python version is the
fallback if the symbol is missing, or assigns the sample keys to other partitions.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, cimpl

from towpath.relay.encode.record import partition_of
from towpath.relay.errors import DeliveryFailedError
from towpath.relay.kafka.client import REQUEST_TIMEOUT_S, make_client, relay_error
from towpath.relay.ports import Outgoing, Partitioner
from towpath.schemas.clock import Deadline, SystemClock
from towpath.schemas.topics import LARGEST_RECORD_BYTES
from towpath.settings import Kafka

_SYMBOL: Final = "rd_kafka_msg_partitioner_murmur2"
# Sample keys: tails of every length in murmur2, a zero, and bytes above 127.
_SAMPLES: Final = (b"", b"a", b"42", b"\xff\x00\x80", b"four", b"\xfe" * 9 + b"12345")
_COUNT: Final = 1_000_003


def find_partitioner() -> Partitioner:
    """Return librdkafka's partitioner, or the Python version if it cannot be used."""
    try:
        # PyDLL keeps the GIL: a call takes less time than releasing the lock would.
        # Without declared argument types, numbers are passed as C ints, which are wide
        # enough for lengths and counts; declaring the types doubles the cost of a call.
        exported = ctypes.PyDLL(cimpl.__file__)[_SYMBOL]
    except (OSError, AttributeError):
        return _in_python
    exported.restype = ctypes.c_int32
    is_ours = all(
        exported(None, key, len(key), _COUNT, None, None) == partition_of(key, _COUNT)
        for key in _SAMPLES
    )
    return exported if is_ours else _in_python


def _in_python(
    _topic: None, key: bytes, _length: int, count: int, _rkt: None, _message: None
) -> int:
    return partition_of(key, count)


_LOG = structlog.get_logger(__name__)

# How long a batch waits for more records: not at all, as the loop has already gathered
# them (``GATHER_S``), and a backlog fills batches while others are in transit.
LINGER_MS: Final = 0

# The client's limits are above the loop's limit, which is checked once per read: only a
# read far above the loop's limit reaches them.
_ROOM_FACTOR: Final = 2
_MAX_MESSAGES: Final = 500_000

# The size limit of a batch of records; topics may have lower ones.
MAX_BATCH_BYTES: Final = 1_000_000
# The greatest value that the client accepts.
_LARGEST_QUEUE_KBYTES: Final = 2_147_483_647

# A client that lost its transaction or its whole state refuses records with these
# errors.
_LOST: Final = frozenset({KafkaError._FATAL, KafkaError._FENCED, KafkaError._STATE})  # noqa: SLF001


# Settings that [kafka.client] may override: name, another name of it, and value.
_TUNED: Final = (
    ("compression.type", "compression.codec", "lz4"),
    ("linger.ms", "queue.buffering.max.ms", LINGER_MS),
)


def _tuned(kafka: Kafka) -> dict[str, object]:
    """Return the producer settings that ``[kafka.client]`` does not override."""
    return {
        name: value
        for name, other, value in _TUNED
        if kafka.client.keys().isdisjoint({name, other})
    }


class KafkaProducer:
    """Produces records to Kafka. The loop's thread calls its methods."""

    def __init__(
        self,
        kafka: Kafka,
        *,
        max_in_flight_bytes: int,
        batch_bytes: int,
        record_bytes: int,
        transactional_id: str | None = None,
    ) -> None:
        """
        Create the producer; it connects in the background.

        Args:
            kafka: The brokers.
            max_in_flight_bytes: The loop's limit of bytes in flight.
            batch_bytes: The largest batch: the smallest limit of any topic.
            record_bytes: The largest record: the largest limit of any topic.
            transactional_id: The id of its transactions; None without transactions.
        """
        self._fatal: str | None = None
        self._is_transactional = transactional_id is not None
        self._has_uncommitted = False
        self._outage = _Outage()
        guarantee: dict[str, object] = {"enable.gapless.guarantee": True}
        if transactional_id is not None:
            guarantee = {"transactional.id": transactional_id}
        self._producer = make_client(
            Producer,
            kafka,
            {
                **_tuned(kafka),
                **guarantee,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "batch.size": min(MAX_BATCH_BYTES, batch_bytes),
                "message.max.bytes": min(
                    max(MAX_BATCH_BYTES, record_bytes), LARGEST_RECORD_BYTES
                ),
                # Even the largest record fits.
                "queue.buffering.max.kbytes": min(
                    _ROOM_FACTOR * max(max_in_flight_bytes, record_bytes) // 1024,
                    _LARGEST_QUEUE_KBYTES,
                ),
                "queue.buffering.max.messages": _MAX_MESSAGES,
                "error_cb": self._outage.notice,
            },
        )
        self._produce = self._producer.produce

    def begin(self) -> None:
        """
        Fence the previous process, and abort its open transaction.

        Call order: before topics are read. Without transactions it does nothing.

        Raises:
            BrokerUnavailableError: Kafka cannot be reached.
            BrokerRefusedError: Kafka refuses transactions.
        """
        if not self._is_transactional:
            return
        try:
            self._producer.init_transactions(REQUEST_TIMEOUT_S)
            self._producer.begin_transaction()
        except KafkaException as error:
            raise relay_error(error, "beginning transactions") from error

    @property
    def needs_commit(self) -> bool:
        """Whether sent records become visible only with the next ``commit``."""
        return self._has_uncommitted

    def commit(self) -> None:
        """
        Commit the transaction and begin the next. Does nothing without transactions.

        Raises:
            DeliveryFailedError: The commit failed, or another process uses the id.
        """
        if not self._is_transactional:
            return
        # The commit then has nothing left to flush: see ``flush``.
        self.flush(REQUEST_TIMEOUT_S)
        if self._fatal is not None:
            reason = f"committing to Kafka: {self._fatal}"
            raise DeliveryFailedError(reason)
        try:
            self._producer.commit_transaction(REQUEST_TIMEOUT_S)
            self._producer.begin_transaction()
        except KafkaException as error:
            reason = f"committing to Kafka: {error.args[0].str()}"
            raise DeliveryFailedError(reason) from error
        self._has_uncommitted = False

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        """
        Queue records; return how many of them fit in the queue.

        A record whose time is in the future gets the current time: brokers refuse times
        far ahead of their clock. The value of a row change keeps the commit time.

        Raises:
            DeliveryFailedError: The producer has failed.
            BrokerRefusedError: The client refuses a record.
            BrokerUnavailableError: The client reports a transient error.
        """
        produce = self._produce
        taken = 0
        topic = ""
        self._has_uncommitted = self._is_transactional
        now_ms = int(SystemClock().now().timestamp() * 1000)
        try:
            for record, partition, on_delivery in outgoing:
                topic, key, value, headers, _, time_ms, _, _ = record
                if time_ms > now_ms:  # noqa: PLR1730 - a call per record costs more
                    time_ms = now_ms
                # Positional: topic, value, key, partition, callback, on_delivery,
                # timestamp, headers. Keywords would cost a third of the call.
                produce(
                    topic, value, key, partition, on_delivery, None, time_ms, headers
                )
                taken += 1
        except BufferError:
            return taken
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in _LOST:
                raise DeliveryFailedError(cause.str()) from error
            raise relay_error(error, f"producing to {topic}") from error
        return taken

    def poll(self, timeout_s: float) -> None:
        """
        Receive acknowledgements.

        Raises:
            DeliveryFailedError: The producer has failed.
        """
        self._outage.served(self._serve(timeout_s))
        if self._fatal is not None:
            raise DeliveryFailedError(self._fatal)

    def flush(self, timeout_s: float) -> None:
        """
        Wait until nothing is in flight, or the timeout expires. Never raises.

        The client's own flush continues after a fatal error: it runs callbacks while
        the exception is set, so Python raises a ``SystemError``. Its poll returns
        instead.
        """
        deadline = Deadline(SystemClock(), timeout_s)
        while len(self._producer) and self._fatal is None and not deadline.passed():
            self._serve(deadline.remaining_s())

    def settle(self, timeout_s: float) -> None:
        """Wait for records in flight, unless the producer has failed. Never raises."""
        if self._fatal is None:
            self.flush(timeout_s)

    def close(self) -> None:
        """Drop records in flight. Never raises."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._serve(0)

    def _serve(self, timeout_s: float) -> int:
        """
        Let the client run its callbacks, and return how many events it has served.

        A fatal error reaches no callback: the client raises it here, once.
        """
        try:
            return int(self._producer.poll(timeout_s))
        except KafkaException as error:
            self._fatal = error.args[0].str()
            return 0


class _Outage:
    """
    Logs when no broker is reachable, and when one is again.

    The client refers to this object, not the reverse, so that a closed client is freed
    immediately.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._notices = 0
        self._last = ""

    def notice(self, error: KafkaError) -> None:
        """
        Record an error of the client; called from ``poll``.

        The client first reports a connection's error, and then that all brokers are
        down.
        """
        self._notices += 1
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._last = error.str()
        elif not self._is_on:
            self._is_on = True
            reason = self._last or error.str()
            _LOG.warning("broker not reachable: waiting", reason=reason)

    def served(self, count: int) -> None:
        """Record how many events ``poll`` has served, errors included."""
        notices, self._notices = self._notices, 0
        if self._is_on and count > notices:
            self._is_on = False
            _LOG.info("broker reachable again")


def fence(kafka: Kafka, transactional_id: str) -> None:
    """
    Fence the process with this id, and abort its open transaction.

    Raises:
        BrokerUnavailableError: Kafka cannot be reached.
        BrokerRefusedError: Kafka refuses transactions.
    """
    producer = make_client(Producer, kafka, {"transactional.id": transactional_id})
    try:
        producer.init_transactions(REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise relay_error(error, "fencing the previous process") from error

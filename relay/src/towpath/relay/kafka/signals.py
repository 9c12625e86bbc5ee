"""
Signals from a Kafka topic, in Debezium's format.

::

    read -> stored in towpath.signal -> offset committed

A record is a signal if its key is the source's prefix; its value is a JSON object with
``type``, ``data`` and optionally ``id``. Records with other keys are other connectors'
signals. An invalid signal is refused, and the refusal names its offset. Sinks request
refetches through this topic, which needs no permission on the source.

A separate thread reads the topic with the relay's own consumer group, which begins with
the earliest record. The thread creates the topic if it is missing, and again if it is
deleted while the relay is running. A record that is read again after a crash has the
same id, and is ignored.
"""

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public
    AdminClient,
    NewTopic,
)

from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.client import (
    REQUEST_TIMEOUT_S,
    is_transient,
    make_client,
    relay_error,
)
from towpath.relay.snapshot.signals import (
    ExternalSignal,
    SignalRefusal,
    SignalRejectedError,
    read_document,
)
from towpath.schemas.clock import Backoff, Deadline, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.settings import Kafka, Topics

_LOG = structlog.get_logger("towpath.relay")
_CLOCK: Final = SystemClock()

# How long a stop waits for a poll, and for the thread. Nothing is lost: the next start
# reads uncommitted records again. If a broker hangs, waiting longer does not help.
_POLL_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 0.5
# How long a killed reader blocks the next one: the minimum that brokers allow.
_SESSION_MS: Final = 6_000
# The client detects a deleted topic only every five minutes, and reports it at most
# once.
_CHECK_EVERY_S: Final = 5.0
# A new topic may be unknown to a broker for a moment.
_MISSED_CHECKS: Final = 2

# Not failures: a new topic that some brokers do not know yet, and a partition's end.
_SPREADING: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's public names
        KafkaError._PARTITION_EOF,  # noqa: SLF001
    }
)


class SignalSource(NamedTuple):
    """The topic and the key of the relay's signals, and the group that reads them."""

    topic: str
    prefix: str
    group: str


class SignalTopicReader:
    """Reads a topic and stores its signals, from ``start`` to ``close``."""

    def __init__(
        self,
        clients: tuple[Kafka, Topics],
        place: SignalSource,
        store: Callable[[ExternalSignal], object],
        refuse: Callable[[SignalRefusal], None],
    ) -> None:
        """
        Prepare the thread; ``start`` starts it.

        Args:
            clients: The brokers, and the settings of topics.
            place: The topic, the key of its signals, and the group.
            store: Stores a signal; raises ``SignalRejectedError`` for an invalid one,
                and a different ``TowpathError`` if a retry may help.
            refuse: Called with each refusal.
        """
        self._kafka, self._topics = clients
        self._place = place
        self._store = store
        self._refuse = refuse
        self._backoff = Backoff()
        self._attempt = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading. Never raises."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    # In the thread ---------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow()
            except TowpathError as failure:
                reason = str(failure)
            except KafkaException as error:
                reason = str(relay_error(error, f"reading {self._place.topic}"))
            else:
                continue
            _LOG.warning("signal topic not read: retrying", reason=reason)
            self._ending.wait(self._backoff.delay_s(self._attempt))
            self._attempt += 1

    def _follow(self) -> None:
        """
        Read signals until ``close``, or until Kafka or the source is unreachable.

        Raises:
            BrokerUnavailableError: The topic was deleted.
        """
        self._ensure_topic()
        consumer = make_client(
            Consumer,
            self._kafka,
            {
                "group.id": self._place.group,
                "enable.auto.commit": False,
                "session.timeout.ms": _SESSION_MS,
                "auto.offset.reset": "earliest",
            },
        )
        try:
            consumer.subscribe([self._place.topic])
            missed, checking = 0, Deadline(_CLOCK, _CHECK_EVERY_S)
            while not self._ending.is_set():
                message = consumer.poll(_POLL_S)
                if message is not None:
                    self._take(consumer, message)
                elif checking.passed():
                    missed = missed + 1 if self._is_missing(consumer) else 0
                    if missed == _MISSED_CHECKS:
                        reason = f"topic {self._place.topic} was deleted"
                        raise BrokerUnavailableError(reason)
                    checking = Deadline(_CLOCK, _CHECK_EVERY_S)
        finally:
            consumer.close()

    def _is_missing(self, consumer: Consumer) -> bool:
        """Return whether the topic is known to be missing."""
        name = self._place.topic
        try:
            known = consumer.list_topics(name, timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            reason = str(relay_error(error, f"looking for {name}"))
            _LOG.debug("signal topic reader waits for the broker", reason=reason)
            return False
        return name not in known or not known[name].partitions

    def _take(self, consumer: Consumer, message: Message) -> None:
        """Store one signal, then commit its offset."""
        error = message.error()
        if error is not None:
            if is_transient(error) or error.code() in _SPREADING:
                _LOG.debug(
                    "signal topic reader waits for the broker", reason=error.str()
                )
                return
            raise KafkaException(error)
        if message.key() == self._place.prefix.encode():
            self._read(message)
        consumer.commit(message=message, asynchronous=False)
        self._attempt = 0

    def _read(self, message: Message) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        source = f"{self._place.topic}[{partition}]@{offset}"
        # A recreated topic repeats the offsets; the timestamp keeps the id unique.
        fallback_id = f"kafka-{partition}-{offset}-{message.timestamp()[1]:x}"
        signal_id = fallback_id
        try:
            signal = read_document(message.value() or b"", fallback_id, source)
            signal_id = signal.signal_id
            self._store(signal)
        except SignalRejectedError as rejection:
            self._refuse(SignalRefusal(signal_id, str(rejection), source))

    def _ensure_topic(self) -> None:
        """Create a missing topic, with one partition to keep the order of signals."""
        name = self._place.topic
        admin = make_client(AdminClient, self._kafka)
        known = admin.list_topics(name, timeout=REQUEST_TIMEOUT_S).topics
        if name in known and known[name].partitions:
            return
        retention_ms = self._topics.retention_hours * 3_600_000
        topic = NewTopic(
            name,
            num_partitions=1,
            replication_factor=self._topics.replication_factor,
            config={"retention.ms": str(retention_ms)},
        )
        [future] = admin.create_topics(
            [topic], request_timeout=REQUEST_TIMEOUT_S
        ).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            _LOG.info("topic created", topic=name)

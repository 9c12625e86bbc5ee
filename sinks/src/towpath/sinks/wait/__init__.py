"""
Read-your-writes: wait until a sink has applied a commit.

``wait_for`` waits once; a ``Waiter`` keeps its connections for many waits. Pass an LSN
at or after the end of the commit, such as the one in a service's response header
``Towpath-Lsn``. Nothing here needs the engine that runs the sinks.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import orjson
from confluent_kafka import KafkaException, Message, TopicPartition

from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.position import parse_lsn
from towpath.schemas.topics import state_topic
from towpath.settings import Kafka, Settings, load
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka import client
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.state.declare import sink_named
from towpath.sinks.wait.errors import UnknownLsnError
from towpath.sinks.wait.rule import Applied, Wait
from towpath.sinks.wait.source import PostgresSlot

__all__ = ["Applied", "UnknownLsnError", "Waiter", "wait_for"]

# The largest lag budget except a warehouse's, for which callers pass their own timeout.
DEFAULT_TIMEOUT_S: Final = 60.0
_LINEAGE_KEY: Final = b"lineage"


class KafkaHistory:
    """
    Reads the start of the relay's current history from its state topic in Kafka.

    Earlier commits may be unpublished, because the slot may have been recreated after
    them. Only the newest record of the key ``lineage`` counts; each record is read
    once. Calls must not overlap.
    """

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self._topic = state_topic(prefix)
        self._consumer = client.consumer(
            kafka,
            f"{self._topic}.wait",
            {
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
            },
        )
        self._next_offsets: dict[int, int] = {}
        self._start_lsn: int | None = None

    def start_lsn(self) -> int | None:
        """
        Return the LSN from which every commit is published.

        Returns:
            The LSN; ``None`` if the relay has not begun, or is about to begin a new
            history.

        Raises:
            BrokerUnavailableError: The broker does not answer.
        """
        try:
            self._read_on()
        except KafkaException as error:
            message = f"Kafka: {error.args[0].str()}"
            raise BrokerUnavailableError(message) from error
        return self._start_lsn

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _read_on(self) -> None:
        if not self._next_offsets:
            topics = self._consumer.list_topics(timeout=client.REQUEST_TIMEOUT_S).topics
            if self._topic not in topics:
                return
        partition = TopicPartition(self._topic, 0)
        end = client.end_offset(self._consumer, partition)
        if end < self._next_offsets.get(0, 0):
            # The topic was recreated.
            self._next_offsets, self._start_lsn = {}, None
        reading = client.records_to(
            {0: end}, self._consumer, self._topic, self._next_offsets
        )
        for message in reading:
            self._take(message)

    def _take(self, message: Message) -> None:
        if message.key() == _LINEAGE_KEY and message.value() is not None:
            lineages = orjson.loads(message.value() or b"{}")["lineages"]
            self._start_lsn = lineages[-1]["start_lsn"] if lineages else None


class Waiter:
    """
    Waits for any of the sinks, any number of times; used by one thread at a time.

    The first wait connects, and so does the next one after a failure.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._cluster = Topics(settings.kafka)
        self._slot: PostgresSlot | None = None
        self._history: KafkaHistory | None = None
        self._progress = ProgressReader(settings, self._clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def wait_for(
        self, lsn: str, sink: str, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Applied:
        """
        Wait until the sink has applied every commit that ended at or before ``lsn``.

        Raises:
            NotAppliedError: The commits are not applied in time, or a topic was
                recreated; the message has the reason.
            UsageError: The sink does not exist, or the LSN is invalid or outside of the
                history.
            UnavailableError: The database or the broker does not answer.
            UnreadableProgressError: A driver of a different version runs the sink.
        """
        wanted = _parsed(lsn)
        settings = self._settings
        chosen = sink_named(settings, sink)
        wait = Wait(settings, chosen, self._progress, self._clock, timeout_s)
        try:
            slot, history = self._connected()
            return wait.until_applied(wanted, slot, history, self._cluster)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        slot, self._slot = self._slot, None
        history, self._history = self._history, None
        with suppress(Exception):
            if slot is not None:
                slot.close()
        if history is not None:
            history.close()
        self._progress.close()

    def _connected(self) -> tuple[PostgresSlot, KafkaHistory]:
        source, kafka = self._settings.database, self._settings.kafka
        if self._slot is None:
            self._slot = PostgresSlot(source.dsn, source.slot)
        if self._history is None:
            self._history = KafkaHistory(kafka, source.prefix)
        return self._slot, self._history


def wait_for(
    config: Path,
    lsn: str,
    sink: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
) -> Applied:
    """
    Wait until a sink has applied every commit that ended at or before ``lsn``.

    Args:
        config: The configuration file.
        lsn: The LSN as Postgres writes it, such as ``0/16B3748``.
        sink: The sink's name.
        timeout_s: The longest time to wait.
        environ: Overrides of the file; the environment by default.

    Raises:
        NotAppliedError: The commits are not applied in time, or a topic was recreated;
            the message has the reason.
        UsageError: The configuration has mistakes, the sink does not exist, or the LSN
            is invalid or outside of the history.
        UnavailableError: The database or the broker does not answer.
        UnreadableProgressError: A driver of a different version runs the sink.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251 - the caller's
    with Waiter(load(config, variables)) as waiter:
        return waiter.wait_for(lsn, sink, timeout_s)


def _parsed(lsn: str) -> int:
    try:
        return parse_lsn(lsn)
    except ValueError as error:
        message = f"{lsn!r} is not an LSN; an LSN looks like 0/16B3748"
        raise UsageError(message) from error

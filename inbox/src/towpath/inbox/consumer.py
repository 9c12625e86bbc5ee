"""
Consumers read topics in order, apply each event once, and commit offsets afterwards.

An event that fails is retried with backoff, while other partitions continue. After the
last attempt the event is parked with its reason, and later events of its key are parked
behind it; all other events continue. A replay is requested in the database
(``Inbox.request_replay``) and carried out by a running consumer.

Offsets are stored in the client after the effect's commit, and the client commits them
in the background and when partitions are revoked. Cooperative rebalances work because a
record is handled between two polls: a revoked partition has no record in progress. The
inbox's rules guard against a process that is presumed dead but is still running.
"""

import asyncio
import contextlib
import functools
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaException, Message, TopicPartition

from towpath.inbox.effects import (
    AsyncEffects,
    Begin,
    BeginAsync,
    Effects,
    HandlerError,
    Observer,
    Outcome,
    UnavailableEffectError,
    check_headers,
    reason_of,
)
from towpath.inbox.event import Decode, Event, event_of, is_control
from towpath.inbox.inbox import BEHIND, Inbox
from towpath.inbox.status import REFUSED, PartitionId, reading_offsets
from towpath.schemas.clock import Backoff, Clock, SystemClock
from towpath.schemas.failure import UsageError

# The longest wait of a poll: how late an idle loop can notice a stop or a due retry.
POLL_S: Final = 0.2
ATTEMPTS: Final = 5
# How often the consumer checks for requested replays.
REPLAY_INTERVAL_S: Final = 2.0
# How often an observer gets the lag and the number of parked events.
OBSERVE_INTERVAL_S: Final = 5.0
# The longest pause before an attempt; meanwhile the consumer polls other partitions.
LONGEST_PAUSE_S: Final = 30.0

_log = structlog.get_logger("towpath.inbox")


@dataclass(slots=True)
class _Retry:
    """
    A record that failed, and when the next attempt is due.

    Attributes:
        attempts: The number of attempts in which the handler failed.
        pauses: The number of all failed attempts, including those in which the database
            or a service failed.
        due_s: When the next attempt is due; infinite once the partition is resumed.
        offset: The offset of the record.
    """

    attempts: int
    pauses: int
    due_s: float
    offset: int


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a consumer; see ``Consumer``."""

    attempts: int
    takes_reads: bool
    types: Collection[str] | None
    clock: Clock
    observer: Observer | None
    decode: Decode | None

    def takes(self, event: Event) -> bool:
        """Return whether an event is to be applied rather than passed over."""
        if is_control(event) or (event.is_read and not self.takes_reads):
            return False
        return self.types is None or event.type in self.types

    def report(self, call: Callable[[Observer], None]) -> None:
        """Call the observer, if there is one; its errors are only logged."""
        if self.observer is None:
            return
        try:
            call(self.observer)
        except Exception as error:  # noqa: BLE001 - the application's own
            _log.warning("event observer failed", reason=reason_of(error))

    @contextlib.contextmanager
    def timing(self, event: Event) -> Iterator[None]:
        """Report how long the block takes, even if it fails."""
        began_s = self.clock.monotonic_s()
        try:
            yield
        finally:
            duration_s = self.clock.monotonic_s() - began_s
            self.report(lambda to: to.handled(event, duration_s))


def _timed(
    handle: Callable[[Event, Any], object], options: _Options
) -> Callable[[Event, Any], object]:
    """Report how long each call of a handler takes."""

    def timed(event: Event, session: Any) -> None:  # noqa: ANN401 - any driver
        with options.timing(event):
            handle(event, session)

    return timed


def _timed_async(
    handle: Callable[[Event, Any], Awaitable[object]], options: _Options
) -> Callable[[Event, Any], Awaitable[object]]:
    """Report how long each call of an asynchronous handler takes."""

    async def timed(event: Event, session: Any) -> None:  # noqa: ANN401 - any driver
        with options.timing(event):
            await handle(event, session)

    return timed


class _Loop:
    """The loop of a consumer, for both kinds of sessions."""

    def __init__(
        self,
        client: dict[str, Any],
        topics: Sequence[str],
        effects: Effects,
        options: _Options,
    ) -> None:
        self._kafka = client
        self._topics = list(topics)
        self._effects = effects
        self._options = options
        self._backoff = Backoff(ceiling_s=LONGEST_PAUSE_S)
        self._retries: dict[PartitionId, _Retry] = {}
        self._replay_due_s = self._warning_due_s = 0.0
        self._observe_due_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """
        Consume until ``stop`` is set; then commit the offsets and leave the group.

        If the database fails, the event is retried without limit.

        Raises:
            KafkaException: The client cannot continue, for example after a refused
                login.
            UsageError: ``begin`` yields a session that cannot be used.
        """
        client = Client(self._kafka)
        try:
            client.subscribe(self._topics, on_revoke=self._forget, on_lost=self._forget)
            while not stop.is_set():
                self._turn(client)
        finally:
            client.close()

    def prune(self) -> int:
        """
        Delete the ids of events that the topics no longer contain; return how many.

        Only ids below the first offset that retention has left in a partition are
        deleted: no reset of offsets can deliver their events again.
        """
        with reading_offsets(self._kafka) as offsets:
            below = offsets.first_offsets(self._is_consumed)
        return self._effects.prune(below)

    def _is_consumed(self, name: str) -> bool:
        return any(_is_named(name, topic) for topic in self._topics)

    def _turn(self, client: Client) -> None:
        """Handle one record, or wait for one; resume retries and replays."""
        self._resume_due(client)
        self._replay_if_due()
        now_s = self._options.clock.monotonic_s()
        if self._options.observer is not None and now_s >= self._observe_due_s:
            self._observe(client)
            self._observe_due_s = now_s + OBSERVE_INTERVAL_S
        message = client.poll(min(POLL_S, max(0, self._replay_due_s - now_s)))
        if message is None:
            return
        error = message.error()
        if error is not None:
            if error.fatal() or error.code() in REFUSED:
                raise KafkaException(error)
            _log.info("kafka consumer waits", reason=error.str())
            return
        self._handle(client, message)

    def _handle(self, client: Client, message: Message) -> None:
        event = event_of(message, self._options.decode)
        failed = self._retry_of(event)
        attempts = 0 if failed is None else failed.attempts
        try:
            check_headers(event)
            if self._options.takes(event):
                self._report_outcome(event, self._effects.apply(event))
        except HandlerError as error:
            attempts += 1
            is_last = attempts >= self._options.attempts
            if not (is_last and self._try_park(event, str(error))):
                self._retry_later(client, event, attempts, str(error))
                return
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - the driver's own
            # The database or a service failed, not the event: retry without limit.
            self._retry_later(client, event, attempts, reason_of(error))
            return
        self._retries.pop((event.topic, event.partition), None)
        try:
            client.store_offsets(message)
        except KafkaException as error:
            # The partition was lost while the handler ran; its new owner finds the id.
            _log.info("event offset not stored", event_id=event.id, reason=str(error))

    def _try_park(self, event: Event, reason: str) -> bool:
        """Park an event unless it was handled; return whether the database answered."""
        try:
            is_parked = self._effects.park(event, reason)
        except Exception as error:  # noqa: BLE001 - the driver's own
            _log.warning("event not parked", event_id=event.id, reason=reason_of(error))
            return False
        if is_parked:
            _log.warning(
                "event parked",
                event_id=event.id,
                trace_id=event.trace_id,
                reason=reason,
            )
            self._options.report(lambda to: to.parked(event, reason))
        return True

    def _replay_if_due(self) -> None:
        """
        Replay a requested event, if a lookup is due.

        The consumer polls between two events of a replay: without polls, it would lose
        its partitions during a long replay. After a failure of the database, it looks
        for requests again after the usual interval. If only a service is down, other
        replays may be possible: the next one is due after a pause as long as the failed
        attempt, but at most the usual interval, so that records are not held up.
        """
        clock, pause_s = self._options.clock, REPLAY_INTERVAL_S
        began_s = clock.monotonic_s()
        if began_s < self._replay_due_s:
            return
        try:
            if self._replay_next():
                return
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - the driver's own
            if began_s >= self._warning_due_s:
                _log.warning("event replay not possible", reason=reason_of(error))
                self._warning_due_s = began_s + REPLAY_INTERVAL_S
            if isinstance(error, UnavailableEffectError):
                pause_s = min(pause_s, clock.monotonic_s() - began_s)
        self._replay_due_s = clock.monotonic_s() + pause_s

    def _replay_next(self) -> bool:
        """Replay the first event of a requested key; return whether there was one."""
        try:
            admission = self._effects.replay_next()
        except HandlerError as failed:
            event, reason = failed.event, str(failed)
            self._effects.keep_parked(event, reason)
            _log.warning(
                "event replay failed",
                event_id=event.id,
                trace_id=event.trace_id,
                reason=reason,
            )
            self._options.report(lambda to: to.retried(event, reason))
            return True
        if admission is not None and admission.event is not None:
            self._report_outcome(admission.event, Outcome.APPLIED)
        return admission is not None

    def _report_outcome(self, event: Event, outcome: Outcome) -> None:
        """Report the outcome of an event."""
        match outcome:
            case Outcome.APPLIED:
                self._options.report(lambda to: to.applied(event))
            case Outcome.SKIPPED:
                self._options.report(lambda to: to.skipped(event))
            case Outcome.PARKED:
                self._options.report(lambda to: to.parked(event, BEHIND))

    def _observe(self, client: Client) -> None:
        """Report the lag of each partition, and the number of parked events."""
        try:
            lags = self._lags(client)
            parked = self._effects.count_parked()
        except Exception as error:  # noqa: BLE001 - brokers or driver
            _log.info("event lag not known", reason=reason_of(error))
            return
        self._options.report(lambda to: to.parked_events(parked))
        for (topic, partition), records in lags.items():
            self._report_lag(topic, partition, records)

    def _report_lag(self, topic: str, partition: int, records: int | None) -> None:
        self._options.report(lambda to: to.lag(topic, partition, records))

    def _lags(self, client: Client) -> dict[PartitionId, int]:
        """Return how many records of each partition have not been handled yet."""
        found = {}
        for place in client.position(client.assignment()):
            key = (place.topic, place.partition)
            retry = self._retries.get(key)
            first, end = client.get_watermark_offsets(place, cached=True)
            begin = place.offset if retry is None else retry.offset
            # Negative until a record has been read and the broker has answered.
            if begin >= 0 and end >= 0:
                found[key] = max(0, end - max(begin, first))
        return found

    def _retry_of(self, event: Event) -> _Retry | None:
        """Return the retry of an event, if it has failed before."""
        failed = self._retries.get((event.topic, event.partition))
        is_same = failed is not None and failed.offset == event.offset
        return failed if is_same else None

    def _retry_later(
        self, client: Client, event: Event, count: int, reason: str
    ) -> None:
        """Pause the event's partition; it resumes with the event after the delay."""
        failed = self._retry_of(event)
        pauses = 1 if failed is None else failed.pauses + 1
        delay_s = self._backoff.delay_s(pauses)
        due_s = self._options.clock.monotonic_s() + delay_s
        retry = _Retry(count, pauses, due_s, event.offset)
        self._retries[event.topic, event.partition] = retry
        place = TopicPartition(event.topic, event.partition, event.offset)
        try:
            client.pause([place])
            client.seek(place)
        except KafkaException:
            # The partition has since been lost: its new owner retries the event.
            self._retries.pop((event.topic, event.partition))
        self._options.report(lambda to: to.retried(event, reason))
        _log.info(
            "event retried later",
            event_id=event.id,
            trace_id=event.trace_id,
            attempts=count,
            reason=reason,
            delay_s=round(delay_s, 3),
        )

    def _resume_due(self, client: Client) -> None:
        now_s = self._options.clock.monotonic_s()
        for place, retry in self._retries.items():
            if retry.due_s <= now_s:
                retry.due_s = float("inf")
                client.resume([TopicPartition(*place)])

    def _forget(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        """Forget the retries of partitions that this process no longer reads."""
        # Otherwise the partition would still be paused if it were assigned again.
        client.resume([*partitions])
        for place in partitions:
            self._retries.pop((place.topic, place.partition), None)
            self._report_lag(place.topic, place.partition, None)


class Consumer(_Loop):
    """Reads topics and applies each event once; one instance per process or thread."""

    def __init__(  # noqa: PLR0913 - keyword options
        self,
        inbox: Inbox,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        *,
        begin: Begin,
        handle: Callable[[Event, Any], object],
        attempts: int = ATTEMPTS,
        takes_reads: bool = False,
        types: Collection[str] | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Create the consumer; no connection is opened.

        Args:
            inbox: The inbox; its name is the Kafka group.
            kafka: Settings of confluent-kafka: at least ``bootstrap.servers``. A
                ``group.id`` overrides the name of the group, whose offsets ``towpath
                inbox status`` then does not show. Isolation level, assignment strategy
                and commits are fixed.
            topics: The topics, or regular expressions that begin with ``^``.
            begin: Returns a context manager that yields a session with a transaction,
                commits at its end, and rolls back after an error.
            handle: Writes the effect of an event with the session. It must not commit.
            attempts: After this many failed attempts an event is parked.
            takes_reads: Whether events that a snapshot has read are applied too. They
                have their own ids, and repeat events that were applied before.
            types: The types of the events to apply; others are passed over, and their
                ids are not stored. None for all types.
            observer: Receives the outcomes; ``InboxMetrics.of`` returns an observer.
            clock: Provides the time for retries and replays.
        """
        options = _Options(
            attempts, takes_reads, types, clock or SystemClock(), observer, inbox.decode
        )
        effects = Effects(inbox, begin, _timed(handle, options))
        super().__init__(_client_settings(inbox, kafka), topics, effects, options)


class AsyncConsumer(_Loop):
    """A consumer whose handler and sessions are asynchronous."""

    def __init__(  # noqa: PLR0913 - keyword options
        self,
        inbox: Inbox,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        *,
        begin: BeginAsync,
        handle: Callable[[Event, Any], Awaitable[object]],
        attempts: int = ATTEMPTS,
        takes_reads: bool = False,
        types: Collection[str] | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the consumer; the arguments are those of ``Consumer``."""
        options = _Options(
            attempts, takes_reads, types, clock or SystemClock(), observer, inbox.decode
        )
        self._async_effects = AsyncEffects(inbox, begin, _timed_async(handle, options))
        super().__init__(
            _client_settings(inbox, kafka), topics, self._async_effects, options
        )

    async def run_async(self, stop: asyncio.Event) -> None:
        """
        Consume until ``stop`` is set; then commit the offsets and leave the group.

        The client polls in a thread; handlers and sessions run in this event loop.
        """
        ended = threading.Event()
        run = functools.partial(self.run, ended)
        work = asyncio.create_task(self._async_effects.in_thread(run))
        waits = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, waits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.set()
            waits.cancel()
            await work

    async def prune_async(self) -> int:
        """Prune like ``prune``, without blocking the event loop."""
        return await self._async_effects.in_thread(self.prune)


def _client_settings(inbox: Inbox, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's settings; those that the guarantees need are fixed."""
    group = kafka.get("group.id", inbox.consumer)
    if not group:  # Kafka's client would abort the process.
        message = "the Kafka group of a consumer must not be empty"
        raise UsageError(message)
    return {
        "auto.offset.reset": "earliest",
        "group.id": group,
        **kafka,
        "partition.assignment.strategy": "cooperative-sticky",
        "isolation.level": "read_committed",
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
    }


def _is_named(name: str, topic: str) -> bool:
    """Return whether a subscribed topic, or regular expression, matches this name."""
    is_pattern = topic.startswith("^")
    return re.match(topic, name) is not None if is_pattern else topic == name

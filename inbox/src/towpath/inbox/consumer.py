"""
Consumers: read topics in order, apply each event once, and commit offsets afterwards.

An event that fails is tried again after a growing pause, while other partitions go on.
After the last attempt it is parked with its reason, and later events of its key behind
it; all others go on. A replay is requested in the database (``Inbox.request_replay``)
and carried out by a running consumer.

Offsets are stored for the client after the effect's commit, and the client commits them
in the background and when partitions are revoked. Cooperative rebalances work because a
record is handled between two polls: a revoked partition has no record in progress. A
process that is thought dead and still works is held back by the inbox's rules.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from confluent_kafka import Consumer as Client
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from towpath.inbox.event import Event, event_of, is_control
from towpath.inbox.inbox import (
    Admission,
    Inbox,
    Result,
    Steps,
    drive,
    drive_async,
)
from towpath.schemas.clock import Backoff, Clock, SystemClock

# The longest wait of a poll: how late a stop or a due retry may be noticed.
POLL_S: Final = 0.2
ATTEMPTS: Final = 5
# How often requested replays are looked for.
REPLAY_INTERVAL_S: Final = 2.0
# The longest pause before an attempt; far below the client's max.poll.interval.ms.
LONGEST_PAUSE_S: Final = 30.0

_log = structlog.get_logger("towpath.inbox")

Begin = Callable[[], AbstractContextManager[Any]]
BeginAsync = Callable[[], AbstractAsyncContextManager[Any]]


class HandlerError(Exception):
    """The handler failed, or the commit of its effect; the cause is its own error."""

    def __init__(self, event: Event, cause: Exception) -> None:
        super().__init__(_reason(cause))
        self.event = event


@dataclass(slots=True)
class _Retry:
    """A record that failed: the number of attempts, and when the next one is due."""

    attempts: int
    due_s: float
    offset: int


class _Effects:
    """Applies and parks events, each in a transaction of its own."""

    def __init__(
        self, inbox: Inbox, begin: Begin, handle: Callable[[Event, Any], object]
    ) -> None:
        self._inbox = inbox
        self._begin = begin
        self._handle = handle

    def apply(self, event: Event) -> None:
        """
        Apply an event unless it was applied, or park it behind its key's first.

        Raises:
            HandlerError: The handler failed, or the commit.
            Exception: The database failed before the handler was called.
        """
        while self._carry_out(self._inbox.admit(event)) is None:
            if self._run(self._inbox.park_behind(event)):
                return
            # Its key was replayed in between: begin again.

    def park(self, event: Event, reason: str) -> bool:
        """Park an event; return whether it was not handled elsewhere."""
        return self._run(self._inbox.park(event, reason))

    def replay_next(self) -> bool:
        """
        Replay the first event of a requested key; return whether there was one.

        Raises:
            Exception: The database failed before the handler was called.
        """
        try:
            return self._carry_out(self._inbox.admit_requested()) is not None
        except HandlerError as error:
            self._run(self._inbox.fail(error.event, str(error)))
            _log.warning(
                "event replay failed", event_id=error.event.id, reason=str(error)
            )
            return True

    def prune(self, below: Mapping[tuple[str, int], int]) -> int:
        """Delete the ids below offsets; return how many."""
        return self._run(self._inbox.delete_below(below))

    def _run(self, steps: Steps[Result]) -> Result:
        """Run steps in a transaction, and return their result."""
        with self._begin() as session:
            return drive(session, steps)

    def _carry_out(self, steps: Steps[Admission | None]) -> Admission | None:
        """Run steps and, in the same transaction, the handler of what they admit."""
        admission = None
        try:
            with self._begin() as session:
                admission = drive(session, steps)
                if admission is not None and admission.event is not None:
                    self._handle(admission.event, session)
        except Exception as error:
            raise _cause(error, admission) from error
        return admission


class _AsyncEffects(_Effects):
    """The same for asynchronous sessions, whose work runs in the event loop."""

    def __init__(
        self,
        inbox: Inbox,
        begin: BeginAsync,
        handle: Callable[[Event, Any], Awaitable[object]],
    ) -> None:
        self._inbox = inbox
        self._begin_async = begin
        self._handle_async = handle
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Let the work run in the event loop of the caller."""
        self._loop = asyncio.get_running_loop()

    def _run(self, steps: Steps[Result]) -> Result:
        async def run() -> Result:
            async with self._begin_async() as session:
                return await drive_async(session, steps)

        return self._wait(run())

    def _carry_out(self, steps: Steps[Admission | None]) -> Admission | None:
        async def carry_out() -> Admission | None:
            admission = None
            try:
                async with self._begin_async() as session:
                    admission = await drive_async(session, steps)
                    if admission is not None and admission.event is not None:
                        await self._handle_async(admission.event, session)
            except Exception as error:
                raise _cause(error, admission) from error
            return admission

        return self._wait(carry_out())

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait, in a thread, for work in the event loop."""
        if self._loop is None:
            message = "an asynchronous consumer has no event loop before run_async"
            raise RuntimeError(message)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _cause(error: Exception, admission: Admission | None) -> Exception:
    """Return what an error counts as: the handler's own, or one of the database."""
    if admission is None or admission.event is None:
        return error
    return HandlerError(admission.event, error)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of a consumer; see ``Consumer``."""

    attempts: int
    takes_reads: bool
    clock: Clock


class _Loop:
    """The loop of a consumer, whatever its sessions."""

    def __init__(
        self,
        client: dict[str, Any],
        topics: Sequence[str],
        effects: _Effects,
        options: _Options,
    ) -> None:
        self._kafka = client
        self._topics = list(topics)
        self._effects = effects
        self._options = options
        self._backoff = Backoff(ceiling_s=LONGEST_PAUSE_S)
        self._retries: dict[tuple[str, int], _Retry] = {}
        self._replay_due_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """
        Consume until ``stop`` is set; then commit the offsets and leave the group.

        A database that fails is tried again for as long as it takes.

        Raises:
            KafkaException: The client cannot go on, as after a refused login.
        """
        client = Client(self._kafka)
        client.subscribe(self._topics, on_revoke=self._forget, on_lost=self._forget)
        try:
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
        client = Client(self._kafka)
        with contextlib.closing(client):
            places = [
                (name, number)
                for name, known in client.list_topics(timeout=10).topics.items()
                if any(_is_named(name, topic) for topic in self._topics)
                for number in known.partitions
            ]
            firsts = {
                place: client.get_watermark_offsets(TopicPartition(*place), timeout=10)
                for place in places
            }
        return self._effects.prune({place: low for place, (low, _) in firsts.items()})

    def _turn(self, client: Client) -> None:
        """Handle one record, or wait for one; resume retries and replays."""
        self._resume_due(client)
        now_s = self._options.clock.monotonic_s()
        if now_s >= self._replay_due_s:
            self._replay_requested()
            self._replay_due_s = now_s + REPLAY_INTERVAL_S
        message = client.poll(POLL_S)
        if message is None:
            return
        error = message.error()
        if error is not None:
            if error.fatal() or error.code() in _REFUSED:
                raise KafkaException(error)
            _log.info("kafka consumer waits", reason=error.str())
            return
        self._handle(client, message)

    def _handle(self, client: Client, message: Message) -> None:
        event = event_of(message)
        attempts = self._attempts_of(event)
        try:
            if not (
                is_control(event) or (event.is_read and not self._options.takes_reads)
            ):
                self._effects.apply(event)
        except HandlerError as error:
            attempts += 1
            if attempts < self._options.attempts or not self._parks(event, str(error)):
                self._retry_later(client, event, attempts, str(error))
                return
        except Exception as error:  # noqa: BLE001 - the driver's own
            # The database failed, not the event: it is tried for as long as it takes.
            self._retry_later(client, event, attempts, _reason(error))
            return
        self._retries.pop((event.topic, event.partition), None)
        try:
            client.store_offsets(message)
        except KafkaException as error:
            # The partition was lost while the handler ran; its new owner finds the id.
            _log.info("event offset not stored", event_id=event.id, reason=str(error))

    def _parks(self, event: Event, reason: str) -> bool:
        """Park an event unless it was handled; return whether the database answers."""
        try:
            is_parked = self._effects.park(event, reason)
        except Exception as error:  # noqa: BLE001 - the driver's own
            _log.warning("event not parked", event_id=event.id, reason=_reason(error))
            return False
        if is_parked:
            _log.warning("event parked", event_id=event.id, reason=reason)
        return True

    def _replay_requested(self) -> None:
        """Replay the requested events; a database that fails is asked again later."""
        try:
            while self._effects.replay_next():
                pass
        except Exception as error:  # noqa: BLE001 - the driver's own
            _log.warning("event replay not possible", reason=_reason(error))

    def _attempts_of(self, event: Event) -> int:
        """Return the number of attempts at an event that have failed."""
        failed = self._retries.get((event.topic, event.partition))
        is_same = failed is not None and failed.offset == event.offset
        return failed.attempts if failed is not None and is_same else 0

    def _retry_later(
        self, client: Client, event: Event, count: int, reason: str
    ) -> None:
        """Pause the event's partition; it begins with the event again when due."""
        delay_s = self._backoff.delay_s(count)
        due_s = self._options.clock.monotonic_s() + delay_s
        self._retries[event.topic, event.partition] = _Retry(count, due_s, event.offset)
        place = TopicPartition(event.topic, event.partition, event.offset)
        try:
            client.pause([place])
            client.seek(place)
        except KafkaException:
            # The partition was lost meanwhile: its new owner tries the event.
            self._retries.pop((event.topic, event.partition))
        _log.info(
            "event retried later",
            event_id=event.id,
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

    def _forget(self, _client: Client, partitions: Sequence[TopicPartition]) -> None:
        """Forget the retries of partitions that another process now reads."""
        for place in partitions:
            self._retries.pop((place.topic, place.partition), None)


class Consumer(_Loop):
    """Reads topics and applies each event once; one instance per process or thread."""

    def __init__(  # noqa: PLR0913 - options, by their names
        self,
        inbox: Inbox,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        *,
        begin: Begin,
        handle: Callable[[Event, Any], object],
        attempts: int = ATTEMPTS,
        takes_reads: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """
        Describe the consumer; nothing is connected.

        Args:
            inbox: The inbox, whose name is the Kafka group.
            kafka: Settings of confluent-kafka: at least ``bootstrap.servers``.
            topics: The topics, or regular expressions that begin with ``^``.
            begin: Returns a context manager that yields a session with a transaction,
                commits at its end, and rolls back after an error.
            handle: Writes the effect of an event by the session. It must not commit.
            attempts: After so many failed attempts an event is parked.
            takes_reads: Whether events that a snapshot has read are applied too. They
                have ids of their own, and repeat what was applied before.
            clock: The time of retries.
        """
        options = _Options(attempts, takes_reads, clock or SystemClock())
        effects = _Effects(inbox, begin, handle)
        super().__init__(_client_settings(inbox, kafka), topics, effects, options)


class AsyncConsumer(_Loop):
    """A consumer whose handler and sessions are asynchronous."""

    def __init__(  # noqa: PLR0913 - options, by their names
        self,
        inbox: Inbox,
        kafka: Mapping[str, Any],
        topics: Sequence[str],
        *,
        begin: BeginAsync,
        handle: Callable[[Event, Any], Awaitable[object]],
        attempts: int = ATTEMPTS,
        takes_reads: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Describe the consumer; the arguments are those of ``Consumer``."""
        options = _Options(attempts, takes_reads, clock or SystemClock())
        self._async_effects = _AsyncEffects(inbox, begin, handle)
        super().__init__(
            _client_settings(inbox, kafka), topics, self._async_effects, options
        )

    async def run_async(self, stop: asyncio.Event) -> None:
        """
        Consume until ``stop`` is set; then commit the offsets and leave the group.

        The client polls in a thread; handlers and sessions run in this event loop.
        """
        self._async_effects.attach()
        ended = threading.Event()
        work = asyncio.create_task(asyncio.to_thread(self.run, ended))
        waits = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, waits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.set()
            waits.cancel()
            await work

    async def prune_async(self) -> int:
        """Do as ``prune`` without blocking the event loop."""
        self._async_effects.attach()
        return await asyncio.to_thread(self.prune)


_REFUSED: Final = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - the client's name
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
)


def _client_settings(inbox: Inbox, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's settings; those that the guarantees need are fixed."""
    return {
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "group.id": inbox.consumer,
        **kafka,
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
    }


def _is_named(name: str, topic: str) -> bool:
    """Return whether a subscription's topic, or regular expression, has this name."""
    is_pattern = topic.startswith("^")
    return re.match(topic, name) is not None if is_pattern else topic == name


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

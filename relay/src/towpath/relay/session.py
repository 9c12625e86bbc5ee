"""
A session builds every part of the relay from the log and the state topic.

::

    claim -> recovered state -> initial snapshot -> lineage -> stream

Published positions are read only after the claim and, with transactions, after the
broker has fenced a dead process with the same id: nothing can be added to the topics
afterwards. ``SessionLoop`` starts another session after a retryable failure; any other
failure ends the process. Each session builds a new pipeline, so that none inherits
half-finished work.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Final

import structlog

from towpath.relay.context import ProcessContext
from towpath.relay.encode.captured_tables import check_topics
from towpath.relay.encode.record import Record
from towpath.relay.errors import SourceUnavailableError
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.kafka.reading import TopicReader
from towpath.relay.kafka.recovery import read_announced
from towpath.relay.kafka.state import StateTopic, publish_now
from towpath.relay.kafka.topic_monitor import TopicMonitor
from towpath.relay.ports import InterruptibleWait
from towpath.relay.postgres.capture_checks import GeneratedColumns
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.connect import Connection, connect
from towpath.relay.postgres.history import HistoryStore, LineageResolver
from towpath.relay.postgres.initial_snapshot import InitialSnapshot
from towpath.relay.postgres.key_changes import KeyChanges, require_same_keys
from towpath.relay.postgres.known_tables import KnownTables
from towpath.relay.postgres.new_tables import NewTables
from towpath.relay.postgres.relays import read_registration
from towpath.relay.postgres.replication import SlotStream
from towpath.relay.postgres.slot import ClaimWait, SlotOwnership, wait_for_slot
from towpath.relay.postgres.slot_monitor import SlotMonitor
from towpath.relay.postgres.source_checks import SourceChecks
from towpath.relay.postgres.source_facts import read_captured, read_streamed
from towpath.relay.postgres.worker import SnapshotWorker
from towpath.relay.recover import (
    RecoveredState,
    check_existing_topics,
    has_records,
    recover,
    store_first_marks,
    transactional_id,
)
from towpath.relay.recovery import lineage as lineages
from towpath.relay.recovery.lineage import Lineage, LineageDecision, StoredHistory
from towpath.relay.recovery.marks import Marks
from towpath.relay.recovery.state import (
    CONFIRMED_KEY,
    LINEAGE_KEY,
    SETTINGS_KEY,
    changed_settings,
    publishing_settings,
    with_stored,
)
from towpath.relay.snapshot.naming import Registration
from towpath.relay.wiring import PipelineBuilder
from towpath.schemas.clock import Backoff, Clock, Deadline
from towpath.schemas.failure import Disposition, TowpathError
from towpath.schemas.position import format_lsn
from towpath.settings import DeliveryMode, Settings

_LOG = structlog.get_logger("towpath.relay")

_PUBLICATIONS: Final = frozenset({"source.publication", "source.outbox_publication"})


class Session:
    """Runs sessions one at a time, each from its connection to its end."""

    def __init__(
        self, process: ProcessContext, is_stopping: Callable[[], bool]
    ) -> None:
        self._process = process
        self._is_stopping = is_stopping
        database = process.settings.database
        self._state = StateTopic(process.settings.kafka, database.prefix)
        self._relay = Registration(database.slot, 1)
        self._initial_snapshot = InitialSnapshot(
            process.settings,
            process.clock,
            process.wakeup,
            process.stats.run_id,
            is_stopping,
        )
        self._restart_reason: str | None = None
        self._topic_monitor: TopicMonitor | None = None
        # By lineage: the log LSN from which the file's publications apply.
        self._published_from: dict[int, int] = {}

    def run(self) -> None:
        """
        Follow the source until the process stops.

        Raises:
            TowpathError: A session failed; the disposition decides what follows.
        """
        while not (self._is_stopping() or self._initial_snapshot.is_over):
            self._restart_reason = None
            with ExitStack() as closing:
                self._run_session(closing)
        self._initial_snapshot.check()

    def _restart(self, reason: str) -> None:
        """End the current session, from any thread."""
        _LOG.warning("session restarts", reason=reason)
        self._restart_reason = reason
        self._process.wakeup.wake()

    def _run_session(self, closing: ExitStack) -> None:
        """Run until the process stops or the previous settings are no longer needed."""
        settings, process = self._process.settings, self._process
        source = settings.database
        ownership = self._claim(closing)
        connection = closing.enter_context(connect(source.dsn))
        self._relay = relay = read_registration(connection, source.slot)
        with TopicReader(settings.kafka) as reader:
            self._open_topics(connection, reader)
            producer = self._make_producer(closing)
            recovered = recover(process, reader, self._state, producer)
        stream = SlotStream(source.dsn, process.clock, process.wakeup)
        closing.callback(stream.close)
        decision = self._decide(closing, recovered, connection, stream)
        if decision is None:
            return
        known = KnownTables(settings, decision.lineage.number)
        require_same_keys(connection, settings, known)
        store_first_marks(process, self._state, recovered.marks)
        catalog = PostgresCatalog(connection)
        settings, until_log_lsn = self._choose_settings(recovered, decision, catalog)
        worker = self._make_worker(closing, settings, decision.lineage.offset)
        slot_snapshots = self._initial_snapshot.slot_snapshots
        builder = PipelineBuilder(
            process, settings, recovered, decision, relay, slot_snapshots
        )
        pipeline = builder.build(
            producer,
            stream,
            catalog,
            worker,
            lambda stored: self._is_ending() or 0 < until_log_lsn < stored,
        )
        self._monitor_slot(closing, ownership, decision)
        self._topic_monitor = self._monitor_topics(closing, recovered.marks)
        if not self._start(stream, settings, catalog):
            return
        _log_start(decision, recovered)
        with process.lineage.run():
            pipeline.run()

    def _open_topics(self, connection: Connection, reader: TopicReader) -> None:
        """
        Create the topics of captured tables.

        Raises:
            NameCollisionError: Tables would share a topic.
        """
        process, settings = self._process, self._process.settings
        captured, prefix = process.captured, settings.database.prefix
        captured.start(
            read_captured(connection, settings), read_announced(reader, prefix)
        )
        tables = read_streamed(connection, settings)
        check_topics(settings, tables, captured.announced)
        marked = check_existing_topics(reader, self._state)
        process.topics.open(prefix, captured.names, marked)

    def _decide(
        self,
        closing: ExitStack,
        recovered: RecoveredState,
        connection: Connection,
        stream: SlotStream,
    ) -> LineageDecision | None:
        """Return the lineage to follow; None if the stream is not needed."""
        settings, store = self._process.settings, self._history_store(recovered)
        clock, relay = self._process.clock, self._relay
        history = LineageResolver(settings, store, clock, connection, stream, relay)
        found, known = history.found(0), store.read()
        if not self._initial_snapshot.begin(closing, connection, relay, known, found):
            return None
        return history.follow()

    def _is_ending(self) -> bool:
        """
        Return whether the session must end.

        Raises:
            PartitionCountChangedError: A topic's partition count has changed.
            TopicTruncatedError: A topic was deleted.
            SourceUnavailableError: A monitor ends the session immediately: another
                process may own the slot by now.
        """
        if self._restart_reason is not None:
            raise SourceUnavailableError(self._restart_reason)
        if self._topic_monitor is not None:
            self._topic_monitor.check()
        return self._is_stopping() or self._initial_snapshot.is_over

    def _start(
        self, stream: SlotStream, settings: Settings, catalog: PostgresCatalog
    ) -> bool:
        """
        Start the stream; return False if another process held the slot until now.

        That process may have published records that were not recovered here.

        Raises:
            SlotHeldError: Another process did not release the slot in time.
        """
        process, names = self._process, settings.database
        publications = (names.publication, names.outbox_publication)
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            stream.start(names.slot, publications)
            return True

        claim_wait = ClaimWait(
            process.clock, process.wakeup, longest_wait_s(settings), self._is_stopping
        )
        wait_for_slot(
            names.slot, attempt, lambda: catalog.holder(names.slot), claim_wait
        )
        return attempts == 1

    def _monitor_slot(
        self, closing: ExitStack, ownership: SlotOwnership, decision: LineageDecision
    ) -> None:
        process, relay = self._process, self._relay
        known = KnownTables(process.settings, decision.lineage.number)
        keys = KeyChanges(process.settings, known, relay, self._restart)
        tables = NewTables(
            process.settings, process.captured, process.stats, known, relay
        )
        checks = SourceChecks(process.settings, process.stats)
        monitor = SlotMonitor(
            process.settings,
            process.stats,
            process.clock,
            ownership,
            self._restart,
            relay=relay,
            tasks=(
                self._initial_snapshot,
                tables,
                keys,
                checks,
                GeneratedColumns(process.settings),
            ),
        )
        closing.callback(monitor.close)
        monitor.start()

    def _monitor_topics(self, closing: ExitStack, marks: Marks) -> TopicMonitor:
        process = self._process
        monitor = TopicMonitor(
            process.settings.kafka,
            process.topics.counts,
            marks.knows,
            process.wakeup.wake,
        )
        closing.callback(monitor.close)
        monitor.start()
        return monitor

    def _claim(self, closing: ExitStack) -> SlotOwnership:
        """
        Claim the slot, before anything is read.

        A standby may wait for days, and anything read before the claim would be
        outdated.
        """
        settings, process = self._process.settings, self._process
        ownership = SlotOwnership(settings.database.dsn, settings.database.slot)
        closing.callback(ownership.close)
        ownership.acquire(
            process.clock,
            process.wakeup,
            longest_wait_s(settings),
            self._is_stopping,
        )
        return ownership

    def _make_producer(self, closing: ExitStack) -> KafkaProducer:
        settings, topics = self._process.settings, self._process.topics
        is_transactional = settings.relay.delivery is DeliveryMode.TRANSACTIONAL
        producer = KafkaProducer(
            settings.kafka,
            max_in_flight_bytes=settings.relay.max_in_flight_bytes,
            batch_bytes=topics.batch_bytes,
            record_bytes=topics.record_bytes,
            transactional_id=transactional_id(settings) if is_transactional else None,
        )
        closing.callback(self._close_producer, producer)
        return producer

    def _close_producer(self, producer: KafkaProducer) -> None:
        """
        Close the producer once its records are acknowledged, before a new session.

        If a monitor ends the session, or the process stops, the producer is closed
        immediately.
        """
        if self._restart_reason is None and not self._is_stopping():
            producer.settle(self._process.settings.relay.stop_timeout_s)
        producer.close()

    def _make_worker(
        self, closing: ExitStack, settings: Settings, offset: int
    ) -> SnapshotWorker:
        options = settings.relay.snapshot
        worker = SnapshotWorker(
            settings.database.dsn,
            self._process.wakeup.wake,
            publication=settings.database.publication,
            relay=settings.database.slot,
            offset=offset,
            readers=options.readers,
            watermarks=options.watermarks,
            max_chunk_bytes=options.chunk_bytes,
            views=settings.relay.outbox.view,
        )
        closing.callback(worker.close)
        self._initial_snapshot.share(worker)
        return worker

    def _history_store(self, recovered: RecoveredState) -> HistoryStore:
        state, topic = recovered.state, self._state
        confirmed = state.confirmed

        # Cached: two steps of a start call it, and looking for records takes a request
        # to Kafka.
        @cache
        def read() -> StoredHistory:
            return StoredHistory(
                lineages=lineages.parse_lineages(state.lineage),
                confirmed_lsn=None if confirmed is None else confirmed.lsn,
                confirmed_log_lsn=None if confirmed is None else confirmed.log_lsn,
                published_log_lsn=recovered.published_log_lsn,
                heartbeat=0 if confirmed is None else confirmed.heartbeat,
                has_records=bool(recovered.published.horizon)
                or has_records(self._process, self._state, recovered),
                following_heartbeat=None
                if confirmed is None
                else confirmed.heartbeat_after(recovered.published_log_lsn),
            )

        def write(known: Sequence[Lineage]) -> None:
            topic.write(LINEAGE_KEY, lineages.lineages_document(known))

        def confirm(lsn: int) -> None:
            if confirmed is not None:
                topic.write(CONFIRMED_KEY, confirmed.moved_back(lsn)._asdict())

        def publish(record: Record) -> None:
            publish_now(self._process.settings.kafka, record)

        return HistoryStore(read, write, publish, confirm)

    def _choose_settings(
        self,
        recovered: RecoveredState,
        decision: LineageDecision,
        catalog: PostgresCatalog,
    ) -> tuple[Settings, int]:
        """
        Return the settings to run with, and the last log LSN at which they apply.

        The LSN is 0 if they apply without a limit.

        The file's settings are stored before the first record that depends on them. New
        publications apply from the log's end at the first session that has them: they
        may not exist at earlier LSNs, whose changes must not be decoded with them.
        """
        settings, stored = self._process.settings, recovered.state.settings
        changed = () if stored is None else changed_settings(settings, stored)
        confirmed = decision.lineage.offset + decision.confirmed_lsn
        horizon = recovered.published.log_lsn
        if not _PUBLICATIONS.isdisjoint(changed):
            number, offset = decision.lineage.number, decision.lineage.offset
            if number not in self._published_from:
                self._published_from[number] = offset + catalog.log_end()
            horizon = max(horizon, self._published_from[number])
        if stored is not None and changed and horizon >= confirmed:
            _LOG.warning(
                "settings: keeping previous values until their records are confirmed",
                changed=list(changed),
                until_log_lsn=horizon,
            )
            return with_stored(settings, stored), horizon
        if stored is None or changed:
            self._state.write(SETTINGS_KEY, publishing_settings(settings))
        return settings, 0


def _log_start(decision: LineageDecision, recovered: RecoveredState) -> None:
    _LOG.info(
        "relay streaming",
        confirmed_lsn=format_lsn(decision.confirmed_lsn),
        lineage=decision.lineage.number,
        published_position=recovered.published.horizon.decode() or None,
    )


def longest_wait_s(settings: Settings) -> float:
    """Return how long to wait for the slot: a standby waits without a limit."""
    relay = settings.relay
    return math.inf if relay.standby else relay.takeover_timeout_s


# A session that lasted this long was healthy: its failure resets the count to zero.
_HEALTHY_S: Final = 10.0


class SessionLoop:
    """Runs sessions until one ends normally or fails with a permanent error."""

    def __init__(
        self,
        clock: Clock,
        sleeper: InterruptibleWait,
        is_stopping: Callable[[], bool],
        backoff: Backoff | None = None,
    ) -> None:
        self._clock = clock
        self._sleeper = sleeper
        self._is_stopping = is_stopping
        self._backoff = backoff or Backoff()

    def run(self, session: Callable[[], None]) -> None:
        """
        Run ``session`` until it returns, or the process stops.

        Raises:
            TowpathError: A failure that is not retryable.
        """
        failures = 0
        while not self._is_stopping():
            began_at_s = self._clock.monotonic_s()
            try:
                return session()
            except TowpathError as failure:
                if failure.disposition is not Disposition.RETRY:
                    raise
                was_healthy = self._clock.monotonic_s() - began_at_s > _HEALTHY_S
                failures = 0 if was_healthy else failures + 1
                self._wait(failure, failures)
        return None

    def _wait(self, failure: TowpathError, failures: int) -> None:
        delay_s = self._backoff.delay_s(failures)
        _LOG.warning(
            "session failed: retrying",
            reason=str(failure),
            remedy=failure.remedy,
            delay_s=round(delay_s, 2),
            failures=failures,
        )
        deadline = Deadline(self._clock, delay_s)
        while not self._is_stopping() and not deadline.passed():
            self._sleeper.wait(deadline.remaining_s())

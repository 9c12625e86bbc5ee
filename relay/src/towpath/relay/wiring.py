"""
Builds the loop of one session: publisher, routes, snapshots, checkpoints.

Parts are built from the inside out: each gets the parts that it uses, and none knows
its users. Parts that outlive a session come from ``ProcessContext``.
"""

import uuid
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog

from towpath.relay.context import ProcessContext
from towpath.relay.encode.aggregates import AggregateRoutes
from towpath.relay.encode.captured_tables import Collections, owners_of_topics
from towpath.relay.encode.codecs.factory import CodecFactory, Documents
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.logical import LogicalEvents, MessageRecords
from towpath.relay.encode.outbox import WRONGLY_UPDATED
from towpath.relay.encode.outbox_columns import ReservedTopics
from towpath.relay.encode.router import CountedEvents, Router
from towpath.relay.encode.table import RouteCallbacks, SourceNames
from towpath.relay.encode.transaction_metadata import TransactionMetadata
from towpath.relay.kafka.producer import KafkaProducer, find_partitioner
from towpath.relay.loop import LoopDuties, Pipeline, StopDeadline
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.replication import SlotStream
from towpath.relay.postgres.worker import SnapshotWorker
from towpath.relay.publish.checkpoints import CheckpointStart, CheckpointWriter
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.publish.sender import RecordSender
from towpath.relay.publish.spans import PublishSpans
from towpath.relay.recover import RecoveredState
from towpath.relay.recovery.lineage import LineageDecision
from towpath.relay.recovery.state import StateRecords
from towpath.relay.snapshot.driver import SnapshotDriver, SnapshotScope
from towpath.relay.snapshot.naming import Registration
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.run import SnapshotLimits
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stream.consumer import StreamConsumer, TransactionSkipper
from towpath.relay.stream.context import LoopContext, RelationAnnouncer, RowRequests
from towpath.relay.stream.logical_messages import (
    LogicalEventRoute,
    LogicalMessageHandler,
    LogicalMessageRoutes,
)
from towpath.relay.stream.snapshot_publisher import SnapshotPublisher
from towpath.relay.stream.snapshot_runner import ExternalSignals, SnapshotRunner
from towpath.relay.wal.transactions import Sequencer
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay")


class _DeliveryParts(NamedTuple):
    """The parts that move records to Kafka and checkpoints back to Postgres."""

    ledger: DeliveryLedger
    invisible: InvisibleTransactions
    sender: RecordSender
    checkpoints: CheckpointWriter
    duties: LoopDuties
    publisher: Publisher
    spans: PublishSpans | None


class PipelineBuilder:
    """Builds the loop of one session."""

    def __init__(
        self,
        process: ProcessContext,
        settings: Settings,
        recovered: RecoveredState,
        decision: LineageDecision,
        relay: Registration,
        slot_snapshots: Collection[str] = (),
    ) -> None:
        """
        Create the builder.

        Args:
            process: The parts that outlive the session.
            settings: The file's settings, or previous ones that still apply.
            recovered: The state recovered from Kafka.
            decision: The lineage to follow, and where it starts.
            relay: The relay's registration.
            slot_snapshots: The ids of snapshots that read the slot's exported snapshot.
        """
        self._relay = relay
        self._slot_snapshots = slot_snapshots
        self._process = process
        self._settings = settings
        self._recovered = recovered
        self._decision = decision
        self._records = StateRecords(settings.database.prefix)
        self._documents = Documents(settings.relay.rows.format, process.schema_ids)

    def build(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        catalog: PostgresCatalog,
        worker: SnapshotWorker,
        is_ending: Callable[[int], bool],
    ) -> Pipeline:
        """Return the loop, ready to run; ``is_ending`` takes the stored log LSN."""
        settings, process = self._settings, self._process
        prefix, parked = settings.database.prefix, self._recovered.parked
        metadata = None
        if settings.relay.transactions.metadata:
            metadata = TransactionMetadata(prefix, self._documents)
        dead = DeadLetters(prefix, process.stats.count_dead_letter, parked)
        delivery = self._delivery_parts(producer, stream, dead, is_ending)
        driver = self._driver(delivery.invisible)
        requests = RowRequests(driver, delivery.ledger)
        router = self._router(stream.database, dead, requests, metadata, delivery.spans)
        context = self._loop_context(delivery, router, requests, catalog)
        external = ExternalSignals(context, process.signal_store, process.refusals)
        aggregates = AggregateRoutes(
            settings.relay.outbox, dead, router.reserved, context.stats.skip
        )
        rows = SnapshotPublisher(context, aggregates.of)
        snapshots = SnapshotRunner(context, driver, worker, rows, external)
        logical_messages = self._logical_messages(
            context, snapshots, delivery.checkpoints, metadata
        )
        return Pipeline(
            context,
            stream,
            self._stream_consumer(context, snapshots, logical_messages, metadata),
            delivery.checkpoints,
            delivery.duties,
            settings.relay.max_in_flight_bytes,
        )

    def _delivery_parts(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        dead: DeadLetters,
        is_ending: Callable[[int], bool],
    ) -> _DeliveryParts:
        process, recovered = self._process, self._recovered
        ledger = DeliveryLedger(self._decision.confirmed_lsn)
        invisible = InvisibleTransactions(self._decision.confirmed_lsn)
        partitioner = find_partitioner()
        sender = RecordSender(producer, process.topics, ledger, dead, partitioner)
        known = CheckpointStart(
            marks=recovered.marks,
            published_log_lsn=recovered.published_log_lsn,
            offset=self._decision.lineage.offset,
            heartbeat=self._decision.heartbeat,
            following_heartbeat=self._decision.following_heartbeat,
        )
        checkpoints = CheckpointWriter(
            known, self._records, sender, ledger, invisible, process.clock
        )
        stop = StopDeadline(
            process.clock,
            lambda: is_ending(checkpoints.stored_log_lsn),
            self._settings.relay.stop_timeout_s,
        )
        stats, published = process.stats, recovered.published
        duties = LoopDuties(stop, stream, checkpoints, ledger, stats, recovered.parked)
        publisher = Publisher(sender, ledger, stats, published, checkpoints, duties.run)
        spans = None
        if process.tracer.is_on:
            spans = PublishSpans(process.tracer, ledger, process.clock)
        return _DeliveryParts(
            ledger, invisible, sender, checkpoints, duties, publisher, spans
        )

    def _driver(self, invisible: InvisibleTransactions) -> SnapshotDriver:
        settings, options = self._settings, self._settings.relay.snapshot
        views = {
            view.collection: view.aggregate_type for view in settings.relay.outbox.view
        }
        scope = SnapshotScope(
            captured=Collections(self._process.captured, views),
            sinks=self._process.sinks,
            views=views,
            slot_snapshots=self._slot_snapshots,
            start_log_lsn=self._decision.lineage.offset + self._decision.confirmed_lsn,
            relay=self._relay,
        )
        size = ChunkSize(
            options.chunk_rows, options.chunk_time_ms / 1000, options.chunk_bytes
        )
        return SnapshotDriver(
            invisible,
            scope=scope,
            run_id=uuid.uuid4().hex,
            limits=SnapshotLimits(size, options.readers),
            throttle=Throttle(options.max_lag_s, options.max_active_sessions),
        )

    def _router(
        self,
        database: str,
        dead: DeadLetters,
        requests: RowRequests,
        metadata: TransactionMetadata | None,
        spans: PublishSpans | None,
    ) -> Router:
        relay, prefix = self._settings.relay, self._settings.database.prefix
        captured = self._process.captured
        owners = owners_of_topics(prefix, captured.names, captured.announced)
        return Router(
            place=SourceNames(prefix, database),
            relay=relay,
            dead=dead,
            parked=self._recovered.parked,
            reserved=ReservedTopics(prefix, (*owners, self._settings.signal_topic)),
            rules=ColumnRules(relay, self._process.stats.alter),
            make_codec=CodecFactory(relay, self._process.schema_ids, owners).make,
            callbacks=RouteCallbacks(
                on_skipped=self._skip,
                on_incomplete=requests.request,
                enrich=None if metadata is None else metadata.place,
                on_traced=None if spans is None else spans.note,
            ),
        )

    def _loop_context(
        self,
        delivery: _DeliveryParts,
        router: Router,
        requests: RowRequests,
        catalog: PostgresCatalog,
    ) -> LoopContext:
        prefix, publisher, rules = router.place.prefix, delivery.publisher, router.rules
        relations = RelationAnnouncer(
            prefix, catalog, publisher, router.is_captured, rules
        )
        return LoopContext(
            ledger=delivery.ledger,
            invisible=delivery.invisible,
            sender=delivery.sender,
            publisher=delivery.publisher,
            router=router,
            relations=relations,
            row_requests=requests,
            stats=self._process.stats,
            clock=self._process.clock,
            spans=delivery.spans,
            on_snapshot=self._process.lineage.snapshots.take,
        )

    def _skip(self, reason: str) -> None:
        """Count a change without a record; log an outbox update that is an error."""
        self._process.stats.skip(reason)
        if reason == WRONGLY_UPDATED:
            _LOG.error(
                "outbox row not published",
                reason=reason,
                table=self._settings.relay.outbox.table,
            )

    def _logical_messages(
        self,
        context: LoopContext,
        snapshots: SnapshotRunner,
        checkpoints: CheckpointWriter,
        metadata: TransactionMetadata | None,
    ) -> LogicalMessageHandler:
        relay, place = self._settings.relay, context.router.place
        skip = context.stats.skip
        enrich = None if metadata is None else metadata.place
        events: LogicalEventRoute = LogicalEvents(
            relay.outbox,
            context.router.dead,
            self._recovered.parked,
            context.router.reserved,
            skip,
        )
        if enrich is not None:
            events = CountedEvents(events, relay.outbox.message_prefix, enrich)
        messages = None
        if relay.messages.publish:
            messages = MessageRecords(
                place.prefix, place.database, relay, self._documents, skip, enrich
            )
        routes = LogicalMessageRoutes(relay.outbox.message_prefix, events, messages)
        return LogicalMessageHandler(
            context, snapshots, checkpoints, routes, self._relay.name
        )

    def _skips(self) -> frozenset[int]:
        """
        Return the commit LSNs of transactions to skip.

        After a crash, a skipped transaction may be streamed again. Transactions that
        are already confirmed, or belong to another lineage, are left out.
        """
        state, decision = self._recovered.state, self._decision
        offset = decision.lineage.offset
        commit_lsns = {at - offset for at in state.skips | state.skipped_log_lsns}
        return frozenset(lsn for lsn in commit_lsns if lsn >= decision.confirmed_lsn)

    def _stream_consumer(
        self,
        context: LoopContext,
        snapshots: SnapshotRunner,
        logical_messages: LogicalMessageHandler,
        metadata: TransactionMetadata | None,
    ) -> StreamConsumer:
        sequencer = Sequencer(self._decision.lineage.offset)
        skipper = TransactionSkipper(
            context, self._skips(), context.router.dead.of_skipped, self._records
        )
        return StreamConsumer(
            context, sequencer, snapshots, logical_messages, metadata, skipper
        )

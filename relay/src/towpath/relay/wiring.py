"""
The loop of one connection, put together: outlet, routes, snapshots, marks.

Everything here is made anew for each connection; what outlives it comes in through
``ProcessContext`` and ``RecoveredState``.
"""

import uuid
from collections.abc import Callable, Collection

import structlog

from towpath.relay.captured_tables import Collections, owners_of_topics
from towpath.relay.context import ProcessContext
from towpath.relay.encode.aggregates import AggregateRoutes
from towpath.relay.encode.codecs.factory import CodecFactory, Documents
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.logical import LogicalEvents, MessageRecords
from towpath.relay.encode.outbox import WRONGLY_UPDATED
from towpath.relay.encode.outbox_columns import topics_of_relay
from towpath.relay.encode.router import CountedEvents, Router
from towpath.relay.encode.table import RouteCallbacks, SourceNames
from towpath.relay.encode.transaction_metadata import TransactionMetadata
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.loop import Pipeline
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.replication import SlotStream
from towpath.relay.postgres.worker import SnapshotWorker
from towpath.relay.publish.checkpoints import CheckpointStart, CheckpointWriter
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.recover import RecoveredState
from towpath.relay.recovery.lineage import LineageDecision
from towpath.relay.recovery.state import StateRecords
from towpath.relay.snapshot.driver import SnapshotDriver, SnapshotScope
from towpath.relay.snapshot.naming import Registration
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.run import SnapshotLimits
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stream.consumer import StreamConsumer, TransactionSkipper
from towpath.relay.stream.context import LoopContext
from towpath.relay.stream.logical_messages import (
    LogicalEventRoute,
    LogicalMessageHandler,
    LogicalMessageRoutes,
)
from towpath.relay.stream.relations import RelationAnnouncer
from towpath.relay.stream.snapshot_publisher import SnapshotPublisher
from towpath.relay.stream.snapshot_runner import ExternalSignals, SnapshotRunner
from towpath.relay.wal.messages import Relation
from towpath.relay.wal.transactions import Sequencer
from towpath.schemas.position import Position
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay")


class PipelineBuilder:
    """Puts the loop of one connection together."""

    def __init__(
        self,
        process: ProcessContext,
        settings: Settings,
        recovered: RecoveredState,
        decision: LineageDecision,
        relay: Registration,
        lent: Collection[str] = (),
    ) -> None:
        """
        Prepare; nothing is made yet.

        Args:
            process: The parts that outlive one session.
            settings: To run with: those of the file, or those of before.
            recovered: The history stored in Kafka.
            decision: Which lineage is followed, and from where.
            relay: How this relay is registered.
            lent: The snapshots whose one view of the database was made with the slot.
        """
        self._relay = relay
        self._lent = lent
        self._process = process
        self._settings = settings
        self._recovered = recovered
        self._decision = decision
        self._records = StateRecords(settings.database.prefix)
        self._documents = Documents(settings.relay.rows.format, process.schema_ids)
        self._snapshots: SnapshotRunner | None = None

    def build(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        catalog: PostgresCatalog,
        worker: SnapshotWorker,
        is_ending: Callable[[int], bool],
    ) -> Pipeline:
        """Return the loop, ready to run."""
        settings, process = self._settings, self._process
        relay, prefix = settings.relay, settings.database.prefix
        metadata = None
        if relay.transactions.metadata:
            metadata = TransactionMetadata(prefix, self._documents)
        context = self._loop_context(producer, stream, catalog, metadata)
        checkpoints = self._checkpoint_writer(context)
        driver = self._driver(context)
        external = ExternalSignals(context, process.inbox, process.refusals)
        outbox, dead = relay.outbox, context.router.dead
        aggregates = AggregateRoutes(outbox, dead, context.stats.skip)
        emission = SnapshotPublisher(context, aggregates.of)
        snapshots = SnapshotRunner(context, driver, worker, emission, external)
        self._snapshots = snapshots
        logical_messages = self._logical_messages(
            context, snapshots, checkpoints, metadata
        )
        consumer = self._stream_consumer(context, snapshots, logical_messages, metadata)
        return Pipeline(
            context,
            stream,
            consumer,
            checkpoints,
            settings.relay.max_in_flight_bytes,
            lambda: is_ending(checkpoints.stored_log_lsn),
        )

    def _loop_context(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        catalog: PostgresCatalog,
        metadata: TransactionMetadata | None,
    ) -> LoopContext:
        database, stats = self._settings.database, self._process.stats
        relay, parked = self._settings.relay, self._recovered.parked
        start_lsn = self._decision.confirmed_lsn
        ledger = DeliveryLedger(start_lsn)
        dead = DeadLetters(database.prefix, stats.count_dead_letter, parked)
        published = self._recovered.published
        topics = self._process.topics
        publisher = Publisher(producer, topics, ledger, dead, stats, published)
        rules = ColumnRules(relay, stats.alter)
        captured = self._process.captured
        owners = owners_of_topics(database.prefix, captured.names, captured.announced)
        router = Router(
            place=SourceNames(database.prefix, stream.database),
            relay=relay,
            dead=dead,
            parked=parked,
            # An event among a table's rows would be taken for one of them.
            reserved=topics_of_relay(database.prefix).union(owners),
            rules=rules,
            make_codec=CodecFactory(relay, self._process.schema_ids, owners).make,
            callbacks=self._route_callbacks(metadata),
        )
        is_captured, prefix = router.is_captured, database.prefix
        relations = RelationAnnouncer(prefix, catalog, publisher, is_captured, rules)
        return LoopContext(
            ledger=ledger,
            invisible=InvisibleTransactions(start_lsn),
            publisher=publisher,
            router=router,
            relations=relations,
            stats=stats,
            clock=self._process.clock,
        )

    def _route_callbacks(self, metadata: TransactionMetadata | None) -> RouteCallbacks:
        return RouteCallbacks(
            on_skipped=self._skip,
            on_incomplete=self._complete,
            enrich=None if metadata is None else metadata.place,
        )

    def _driver(self, context: LoopContext) -> SnapshotDriver:
        settings, wanted = self._settings, self._settings.relay.snapshot
        views = {
            view.collection: view.aggregate_type for view in settings.relay.outbox.view
        }
        scope = SnapshotScope(
            captured=Collections(self._process.captured, views),
            sinks=self._process.sinks,
            views=views,
            lent=self._lent,
            start_log_lsn=self._decision.lineage.offset + self._decision.confirmed_lsn,
            relay=self._relay,
        )
        size = ChunkSize(
            wanted.chunk_rows, wanted.chunk_time_ms / 1000, wanted.chunk_bytes
        )
        return SnapshotDriver(
            context.invisible,
            scope=scope,
            run_id=uuid.uuid4().hex,
            limits=SnapshotLimits(size, wanted.readers),
            throttle=Throttle(wanted.max_lag_s, wanted.max_active_sessions),
        )

    def _checkpoint_writer(self, context: LoopContext) -> CheckpointWriter:
        known = CheckpointStart(
            marks=self._recovered.marks,
            published_log_lsn=self._recovered.published_log_lsn,
            offset=self._decision.lineage.offset,
            heartbeat=self._decision.heartbeat,
        )
        return CheckpointWriter(
            known,
            self._records,
            context.publisher,
            context.ledger,
            context.invisible,
            context.clock,
        )

    def _skip(self, reason: str) -> None:
        """Count a change that gives no record; some are errors each time."""
        self._process.stats.skip(reason)
        if reason == WRONGLY_UPDATED:
            _LOG.error(reason, table=self._settings.relay.outbox.table)

    def _complete(
        self, relation: Relation, key: tuple[bytes, ...], position: Position
    ) -> None:
        """Request the row of a key whose change left columns out."""
        if self._snapshots is not None:
            self._snapshots.complete_key(relation, key, position)

    def _logical_messages(
        self,
        context: LoopContext,
        snapshots: SnapshotRunner,
        checkpoints: CheckpointWriter,
        metadata: TransactionMetadata | None,
    ) -> LogicalMessageHandler:
        relay, place, skip = (
            self._settings.relay,
            context.router.place,
            context.stats.skip,
        )
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
        Return the commit LSNs to set aside: asked for, or again after a crash.

        What is confirmed, or was asked for in another lineage, is past.
        """
        state, decision = self._recovered.state, self._decision
        offset = decision.lineage.offset
        asked = {at - offset for at in state.skips | state.skipped_log_lsns}
        return frozenset(lsn for lsn in asked if lsn >= decision.confirmed_lsn)

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

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
        world: ProcessContext,
        settings: Settings,
        past: RecoveredState,
        decision: LineageDecision,
        relay: Registration,
        lent: Collection[str] = (),
    ) -> None:
        """
        Prepare; nothing is made yet.

        Args:
            world: What outlives attempts.
            settings: To run with: those of the file, or those of before.
            past: What Kafka tells.
            decision: Which lineage is followed, and from where.
            relay: How this relay is registered.
            lent: The snapshots whose one view of the database was made with the slot.
        """
        self._relay = relay
        self._lent = lent
        self._world = world
        self._settings = settings
        self._past = past
        self._decision = decision
        self._records = StateRecords(settings.database.prefix)
        self._documents = Documents(settings.relay.rows.format, world.schema_ids)
        self._snapshots: SnapshotRunner | None = None

    def assemble(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        catalog: PostgresCatalog,
        worker: SnapshotWorker,
        is_ending: Callable[[int], bool],
    ) -> Pipeline:
        """Return the loop, ready to run."""
        settings, world = self._settings, self._world
        relay, prefix = settings.relay, settings.database.prefix
        metadata = None
        if relay.transactions.metadata:
            metadata = TransactionMetadata(prefix, self._documents)
        core = self._core(producer, stream, catalog, metadata)
        marking = self._marking(core)
        driver = self._driver(core)
        left = ExternalSignals(core, world.inbox, world.refusals)
        outbox, dead = relay.outbox, core.router.dead
        aggregates = AggregateRoutes(outbox, dead, core.tally.skip)
        emission = SnapshotPublisher(core, aggregates.of)
        snapshots = SnapshotRunner(core, driver, worker, emission, left)
        self._snapshots = snapshots
        listener = self._listener(core, snapshots, marking, metadata)
        follower = self._follower(core, snapshots, listener, metadata)
        return Pipeline(
            core,
            stream,
            follower,
            marking,
            settings.relay.max_in_flight_bytes,
            lambda: is_ending(marking.stored_log_lsn),
        )

    def _core(
        self,
        producer: KafkaProducer,
        stream: SlotStream,
        catalog: PostgresCatalog,
        metadata: TransactionMetadata | None,
    ) -> LoopContext:
        database, tally = self._settings.database, self._world.tally
        relay, parked = self._settings.relay, self._past.parked
        start_lsn = self._decision.confirmed_lsn
        ledger = DeliveryLedger(start_lsn)
        dead = DeadLetters(database.prefix, tally.bury, parked)
        published = self._past.published
        outlet = Publisher(producer, self._world.topics, ledger, dead, tally, published)
        rules = ColumnRules(relay, tally.alter)
        captured = self._world.captured
        owners = owners_of_topics(database.prefix, captured.names, captured.announced)
        router = Router(
            place=SourceNames(database.prefix, stream.database),
            relay=relay,
            dead=dead,
            parked=parked,
            # An event among a table's rows would be taken for one of them.
            reserved=topics_of_relay(database.prefix).union(owners),
            rules=rules,
            make_codec=CodecFactory(relay, self._world.schema_ids, owners).make,
            ears=self._ears(metadata),
        )
        return LoopContext(
            ledger=ledger,
            invisible=InvisibleTransactions(start_lsn),
            outlet=outlet,
            router=router,
            shapes=RelationAnnouncer(
                database.prefix, catalog, outlet, router.is_captured, rules
            ),
            tally=tally,
            clock=self._world.clock,
        )

    def _ears(self, metadata: TransactionMetadata | None) -> RouteCallbacks:
        return RouteCallbacks(
            on_skipped=self._skip,
            on_incomplete=self._complete,
            enrich=None if metadata is None else metadata.place,
        )

    def _driver(self, core: LoopContext) -> SnapshotDriver:
        settings, wanted = self._settings, self._settings.relay.snapshot
        views = {
            view.collection: view.aggregate_type for view in settings.relay.outbox.view
        }
        scope = SnapshotScope(
            captured=Collections(self._world.captured, views),
            sinks=self._world.sinks,
            views=views,
            lent=self._lent,
            start_log_lsn=self._decision.lineage.offset + self._decision.confirmed_lsn,
            relay=self._relay,
        )
        size = ChunkSize(
            wanted.chunk_rows, wanted.chunk_time_ms / 1000, wanted.chunk_bytes
        )
        return SnapshotDriver(
            core.invisible,
            scope=scope,
            run_id=uuid.uuid4().hex,
            limits=SnapshotLimits(size, wanted.readers),
            throttle=Throttle(wanted.max_lag_s, wanted.max_active_sessions),
        )

    def _marking(self, core: LoopContext) -> CheckpointWriter:
        known = CheckpointStart(
            marks=self._past.marks,
            published_log_lsn=self._past.published_log_lsn,
            offset=self._decision.lineage.offset,
            heartbeat=self._decision.heartbeat,
        )
        return CheckpointWriter(
            known, self._records, core.outlet, core.ledger, core.invisible, core.clock
        )

    def _skip(self, reason: str) -> None:
        """Count a change that gives no record; some are errors each time."""
        self._world.tally.skip(reason)
        if reason == WRONGLY_UPDATED:
            _LOG.error(reason, table=self._settings.relay.outbox.table)

    def _complete(
        self, relation: Relation, key: tuple[bytes, ...], position: Position
    ) -> None:
        """Have a row read whose new key came without all of it."""
        if self._snapshots is not None:
            self._snapshots.complete_key(relation, key, position)

    def _listener(
        self,
        core: LoopContext,
        snapshots: SnapshotRunner,
        marking: CheckpointWriter,
        metadata: TransactionMetadata | None,
    ) -> LogicalMessageHandler:
        relay, place, skip = self._settings.relay, core.router.place, core.tally.skip
        enrich = None if metadata is None else metadata.place
        events: LogicalEventRoute = LogicalEvents(
            relay.outbox,
            core.router.dead,
            self._past.parked,
            core.router.reserved,
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
        return LogicalMessageHandler(core, snapshots, marking, routes, self._relay.name)

    def _skips(self) -> frozenset[int]:
        """
        Return the commit LSNs to set aside: asked for, or again after a crash.

        What is confirmed, or was asked for in another lineage, is past.
        """
        state, decision = self._past.state, self._decision
        offset = decision.lineage.offset
        asked = {at - offset for at in state.skips | state.skipped_log_lsns}
        return frozenset(lsn for lsn in asked if lsn >= decision.confirmed_lsn)

    def _follower(
        self,
        core: LoopContext,
        snapshots: SnapshotRunner,
        listener: LogicalMessageHandler,
        metadata: TransactionMetadata | None,
    ) -> StreamConsumer:
        sequencer = Sequencer(self._decision.lineage.offset)
        aside = TransactionSkipper(
            core, self._skips(), core.router.dead.of_skipped, self._records
        )
        return StreamConsumer(core, sequencer, snapshots, listener, metadata, aside)

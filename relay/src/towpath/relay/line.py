"""
The loop of one connection, put together: outlet, routes, snapshots, marks.

Everything here is made anew for each connection; what outlives it comes in through
``World`` and ``Past``.
"""

import uuid
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog

from towpath.relay.addressing import Registration
from towpath.relay.captured import CapturedTables, Collections
from towpath.relay.declared_sinks import DeclaredSinks
from towpath.relay.delivery import DeliveryLedger
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.lineage import Decision
from towpath.relay.marks import Marks, Published
from towpath.relay.pipeline.aside import SetAside
from towpath.relay.pipeline.core import Core
from towpath.relay.pipeline.emission import Emission
from towpath.relay.pipeline.follower import Follower
from towpath.relay.pipeline.left_signals import LeftSignals
from towpath.relay.pipeline.loop import Pipeline
from towpath.relay.pipeline.marking import Marked, Marking
from towpath.relay.pipeline.outlet import Outlet
from towpath.relay.pipeline.shapes import Shapes
from towpath.relay.pipeline.snapshots import Snapshots
from towpath.relay.pipeline.spoken import EventRoute, Listener, MessageRoutes
from towpath.relay.ports import Inbox
from towpath.relay.postgres.catalog import PostgresCatalog
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.relay.postgres.snapshots import SnapshotWorker
from towpath.relay.registry.client import SchemaIds
from towpath.relay.routing.aggregate import AggregateRoutes
from towpath.relay.routing.codecs import CodecFactory
from towpath.relay.routing.columns import ColumnRules
from towpath.relay.routing.counted import CountedEvents
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.documents import Documents
from towpath.relay.routing.message import MessageRecords
from towpath.relay.routing.outbox import WRONGLY_UPDATED
from towpath.relay.routing.parked import Parked
from towpath.relay.routing.router import Router
from towpath.relay.routing.table import Ears, Place
from towpath.relay.routing.tableless import TablelessEvents
from towpath.relay.routing.topic_rule import topics_of_relay
from towpath.relay.routing.transactions import TransactionMetadata
from towpath.relay.snapshot.driver import Scope, SnapshotDriver
from towpath.relay.snapshot.left import Refusal
from towpath.relay.snapshot.limits import Limits
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.state import State, StateRecords
from towpath.relay.tally import Tally
from towpath.relay.topic_owners import owners_of_topics
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Sequencer
from towpath.schemas.clock import Clock
from towpath.schemas.position import Position
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay")


class World(NamedTuple):
    """
    What outlives attempts.

    Attributes:
        settings: Of the file.
        sinks: The declared sinks, as of each call.
        topics: Knows and makes topics.
        schema_ids: Knows and registers schemas.
        tally: What is counted.
        clock: The time.
        wakeup: Ends the loop's waits.
        captured: The captured tables, as of each look.
        inbox: Takes signals that are left in a bare table.
        refusals: What every channel of signals has refused.
    """

    settings: Settings
    sinks: DeclaredSinks
    topics: KafkaTopics
    schema_ids: SchemaIds
    tally: Tally
    clock: Clock
    wakeup: Wakeup
    captured: CapturedTables
    inbox: Inbox
    refusals: deque[Refusal]


class Past(NamedTuple):
    """
    What Kafka tells of what was before.

    Attributes:
        state: What the state topic holds.
        marks: Exact, as the topics themselves tell them.
        published: Which records are there.
        published_log_lsn: The highest log LSN of any record, READ rows included.
        parked: Which aggregates are parked.
    """

    state: State
    marks: Marks
    published: Published
    published_log_lsn: int
    parked: Parked


class Line:
    """Puts the loop of one connection together."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        past: Past,
        decision: Decision,
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
        self._snapshots: Snapshots | None = None

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
        left = LeftSignals(core, world.inbox, world.refusals)
        outbox, dead = relay.outbox, core.router.dead
        aggregates = AggregateRoutes(outbox, dead, core.tally.skip)
        emission = Emission(core, aggregates.of)
        snapshots = Snapshots(core, driver, worker, emission, left)
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
    ) -> Core:
        database, tally = self._settings.database, self._world.tally
        relay, parked = self._settings.relay, self._past.parked
        start_lsn = self._decision.confirmed_lsn
        ledger = DeliveryLedger(start_lsn)
        dead = DeadLetters(database.prefix, tally.bury, parked)
        published = self._past.published
        outlet = Outlet(producer, self._world.topics, ledger, dead, tally, published)
        rules = ColumnRules(relay, tally.alter)
        captured = self._world.captured
        owners = owners_of_topics(database.prefix, captured.names, captured.announced)
        router = Router(
            place=Place(database.prefix, stream.database),
            relay=relay,
            dead=dead,
            parked=parked,
            # An event among a table's rows would be taken for one of them.
            reserved=topics_of_relay(database.prefix).union(owners),
            rules=rules,
            make_codec=CodecFactory(relay, self._world.schema_ids, owners).make,
            ears=self._ears(metadata),
        )
        return Core(
            ledger=ledger,
            invisible=InvisibleTransactions(start_lsn),
            outlet=outlet,
            router=router,
            shapes=Shapes(database.prefix, catalog, outlet, router.is_captured, rules),
            tally=tally,
            clock=self._world.clock,
        )

    def _ears(self, metadata: TransactionMetadata | None) -> Ears:
        return Ears(
            on_skipped=self._skip,
            on_incomplete=self._complete,
            enrich=None if metadata is None else metadata.place,
        )

    def _driver(self, core: Core) -> SnapshotDriver:
        settings, wanted = self._settings, self._settings.relay.snapshot
        views = {
            view.collection: view.aggregate_type for view in settings.relay.outbox.view
        }
        scope = Scope(
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
            limits=Limits(size, wanted.readers),
            throttle=Throttle(wanted.max_lag_s, wanted.max_active_sessions),
        )

    def _marking(self, core: Core) -> Marking:
        known = Marked(
            marks=self._past.marks,
            published_log_lsn=self._past.published_log_lsn,
            offset=self._decision.lineage.offset,
            heartbeat=self._decision.heartbeat,
        )
        return Marking(
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
        core: Core,
        snapshots: Snapshots,
        marking: Marking,
        metadata: TransactionMetadata | None,
    ) -> Listener:
        relay, place, skip = self._settings.relay, core.router.place, core.tally.skip
        enrich = None if metadata is None else metadata.place
        events: EventRoute = TablelessEvents(
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
        routes = MessageRoutes(relay.outbox.message_prefix, events, messages)
        return Listener(core, snapshots, marking, routes, self._relay.name)

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
        core: Core,
        snapshots: Snapshots,
        listener: Listener,
        metadata: TransactionMetadata | None,
    ) -> Follower:
        sequencer = Sequencer(self._decision.lineage.offset)
        aside = SetAside(
            core, self._skips(), core.router.dead.of_skipped, self._records
        )
        return Follower(core, sequencer, snapshots, listener, metadata, aside)

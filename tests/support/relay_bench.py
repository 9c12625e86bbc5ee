"""A relay's loop, built by its wiring over fakes of its ports, and run by a test."""

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from towpath.relay.context import ProcessContext
from towpath.relay.encode.captured_tables import CapturedTables
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.kafka.lineage import RelayDatasets, RelayLineage
from towpath.relay.loop import Pipeline
from towpath.relay.ports import (
    Outgoing,
    RecordProducer,
    ReplicationStream,
    TopicCatalog,
    TopicFacts,
)
from towpath.relay.recover import RecoveredState
from towpath.relay.recovery.lineage import Lineage, LineageDecision
from towpath.relay.recovery.marks import (
    NO_FORMER_COUNTS,
    FormerCounts,
    Marks,
    Published,
)
from towpath.relay.recovery.state import State
from towpath.relay.snapshot.naming import Registration
from towpath.relay.snapshot.protocol import (
    KeysStored,
    ProbeVisibility,
    StoreKeys,
    UnfinishedRead,
    VisibilityRead,
    WorkerFact,
)
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.stats import Stats
from towpath.relay.wal.messages import UNCHANGED, Row, Value
from towpath.relay.wiring import PipelineBuilder
from towpath.schemas import topics
from towpath.schemas.lineage import NO_REPORTER
from towpath.settings import Kafka, Relay, Settings, Source

RECORDED = Path(__file__).parents[1] / "data" / "pgoutput.hex"
START = 36_827_000
FAR = 2_000_000_000
STATE = topics.state_topic("towpath")
EVERYTHING_VISIBLE = XidSnapshot(10**9, 10**9, frozenset())
_RELAY: Final = Registration("towpath", 1)
_LINEAGE: Final = Lineage(1, "1", 1, 0, "towpath", start_lsn=START)
DECISION: Final = LineageDecision(
    lineages=(_LINEAGE,),
    gap=None,
    is_new=False,
    needs_slot=False,
    is_changed=False,
    confirmed_lsn=START,
    heartbeat=0,
)


def frames() -> list[bytes]:
    """Wrap the recorded messages into frames of WAL data."""
    lines = RECORDED.read_text(encoding="ascii").splitlines()
    return [b"w" + bytes(24) + bytes.fromhex(x) for x in lines if x[0] != "#"]


def keepalive(wal_end: int = FAR, *, reply: bool = False) -> bytes:
    """Make a keepalive."""
    return b"k" + wal_end.to_bytes(8, "big") + bytes(8) + bytes([reply])


class Column(NamedTuple):
    """A column of a relation message; ``is_key``: part of the replica identity."""

    name: bytes
    type_oid: int
    is_key: bool = False
    typmod: int = -1


OUTBOX_COLUMNS = (
    Column(b"id", 2950, is_key=True),
    Column(b"aggregate_type", 25),
    Column(b"aggregate_id", 25),
    Column(b"type", 25),
    Column(b"payload", 114),
    Column(b"headers", 114),
    Column(b"traceparent", 25),
    Column(b"occurred_at", 1184),
)


def relation(
    oid: int,
    namespace: bytes,
    name: bytes,
    columns: Sequence[Column],
    identity: bytes = b"d",
) -> bytes:
    """Make a relation message."""
    head = struct.pack(">I", oid) + namespace + b"\0" + name + b"\0" + identity
    cells = (
        bytes([column.is_key])
        + column.name
        + struct.pack(">xIi", column.type_oid, column.typmod)
        for column in columns
    )
    return b"R" + head + struct.pack(">H", len(columns)) + b"".join(cells)


def _cell(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    return b"t" + struct.pack(">I", len(value)) + value


def inserted(oid: int, values: Row) -> bytes:
    """Make an insert message; ``None`` is null."""
    cells = map(_cell, values)
    head = struct.pack(">IcH", oid, b"N", len(values))
    return b"I" + head + b"".join(cells)


def transaction(lsn: int, *messages: bytes) -> list[bytes]:
    """Make the frames of a transaction that commits at an LSN."""
    # Below the horizon of EVERYTHING_VISIBLE.
    begin = b"B" + struct.pack(">QqI", lsn, 0, lsn % 10**6)
    commit = b"C\0" + struct.pack(">QQq", lsn, lsn + 8, 0)
    return [b"w" + bytes(24) + message for message in (begin, *messages, commit)]


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.until_s = float("inf")

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)

    def monotonic_s(self) -> float:
        assert self.now_s < self.until_s
        return self.now_s

    def wait(self, delay_s: float) -> None:
        self.now_s += delay_s


class Stream:
    """Returns the test's frames; records confirmed LSNs."""

    database = "db"

    def __init__(self, clock: Clock) -> None:
        self.reads: deque[list[bytes]] = deque()
        self.confirmed: list[int] = []
        self._clock = clock

    def read(self, timeout_s: float) -> Sequence[bytes]:
        if self.reads:
            return self.reads.popleft()
        self._clock.now_s += timeout_s
        return ()

    def confirm(self, lsn: int) -> None:
        self.confirmed.append(lsn)

    def close(self) -> None:
        pass


class Acknowledged(NamedTuple):
    """The client's acknowledgement of a record."""

    record_offset: int = 0

    def offset(self) -> int:
        return self.record_offset


class PresentCounts(dict[str, int]):
    """The partition count of every topic, as a function currently returns it."""

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__()
        self._count = count

    def __missing__(self, topic: str) -> int:
        return self._count(topic)


class Producer:
    """Keeps records; acknowledges them when the test requests it."""

    def __init__(self, clock: Clock) -> None:
        self.records: list[Record] = []
        self.pending: deque[Outgoing] = deque()
        self.is_answering = True
        self.error: str | None = None
        self.room = 10**9
        self._clock = clock

    needs_commit = False

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        taken = outgoing[: max(0, self.room - len(self.pending))]
        self.records += [record for record, _, _ in taken if record.topic != STATE]
        self.pending += taken
        return len(taken)

    def poll(self, timeout_s: float) -> None:
        if not (self.is_answering and self.pending):
            self._clock.now_s += timeout_s
            return
        while self.pending:
            _, _, on_delivery = self.pending.popleft()
            if on_delivery is not None:
                on_delivery(self.error, Acknowledged())

    def flush(self, timeout_s: float) -> None:
        if self.pending:
            self.poll(timeout_s)

    def commit(self) -> None:
        pass


class Topics:
    """Every topic exists; some have a small size limit."""

    def __init__(self, partitions: int = 2) -> None:
        self.limits: dict[str, int] = {}
        self.counts: Mapping[str, int] = defaultdict(lambda: partitions)

    def ensure(self, topic: str) -> TopicFacts:
        return TopicFacts(self.limits.get(topic, 1_000_000), self.counts[topic])

    def ends(self, _topic: str, partition_count: int) -> dict[int, int]:
        return dict.fromkeys(range(partition_count), 0)


class Catalog:
    """Describes every table with the key ``id``, or with the given facts."""

    def __init__(self, facts: CatalogFacts | None = None) -> None:
        self._facts = facts

    def describe(
        self, _table_oid: int, _name: str, type_oids: Sequence[int]
    ) -> CatalogFacts:
        if self._facts is not None:
            return self._facts
        names = dict.fromkeys(type_oids, "text")
        return CatalogFacts(("id",), names, frozenset({"id"}))


class Reader:
    """
    Stores key requests immediately, and answers probes as if everything were visible.

    A test may disable the answers to probes.
    """

    def __init__(self) -> None:
        self.is_answering = True
        self.submitted: list[object] = []
        self.waiting: list[WorkerFact] = []

    def read_stored(self) -> UnfinishedRead:
        return UnfinishedRead(())

    def submit(self, effect: object) -> None:
        self.submitted.append(effect)
        if isinstance(effect, ProbeVisibility) and self.is_answering:
            self.waiting.append(VisibilityRead(EVERYTHING_VISIBLE))
        elif isinstance(effect, StoreKeys):
            self.waiting.append(KeysStored(effect.snapshot_id))

    def facts(self) -> list[WorkerFact]:
        facts, self.waiting = self.waiting, []
        return facts


class AllKnown(Marks):
    """Every topic already has its first mark."""

    def knows(self, topic: str) -> bool:
        return bool(topic)


class NoSignals:
    """An inbox without signals."""

    def put(self, *_signal: str | None) -> str | None:
        return None

    def durable(self) -> Sequence[str]:
        return ()


def bench_settings(max_in_flight_bytes: int, **relay: object) -> Settings:
    """Return settings with sections of ``[relay]`` and a short stop timeout."""
    section = Relay.model_validate(relay)
    # Below the minimum that a file may set.
    bounds = {"max_in_flight_bytes": max_in_flight_bytes, "stop_timeout_s": 5.0}
    return Settings(
        version=1,
        source=(Source(dsn="postgresql://unused"),),
        kafka=Kafka(bootstrap_servers="unused"),
        relay=section.model_copy(update=bounds),
    )


def build_pipeline(  # noqa: PLR0913 - the ports
    settings: Settings,
    recovered: RecoveredState,
    decision: LineageDecision,
    *,
    clock: Clock,
    stats: Stats,
    catalog_of_topics: TopicCatalog,
    producer: RecordProducer,
    stream: ReplicationStream,
    catalog: Catalog,
    reader: Reader,
    is_ending: Callable[[int], bool],
) -> Pipeline:
    """Build a pipeline with the relay's own wiring, over fakes of its ports."""
    process = ProcessContext(
        settings=settings,
        sinks=frozenset,
        topics=catalog_of_topics,
        schema_ids=lambda _subject, _schema: 1,
        stats=stats,
        clock=clock,
        wakeup=None,
        captured=CapturedTables(["rec.item"]),
        signal_store=NoSignals(),
        refusals=deque(),
        lineage=RelayLineage(NO_REPORTER, RelayDatasets(settings, {}, ())),
    )
    builder = PipelineBuilder(process, settings, recovered, decision, _RELAY)
    return builder.build(producer, stream, catalog, reader, is_ending)


class Bench:
    """A pipeline over fakes, whose loop the test runs."""

    def __init__(
        self,
        max_in_flight_bytes: int = 10**9,
        producer: Producer | None = None,
        *,
        facts: CatalogFacts | None = None,
        preset: str = "towpath",
        partitions: int = 2,
        former: FormerCounts = NO_FORMER_COUNTS,
        **rows: object,
    ) -> None:
        self.clock = Clock()
        self.stream = Stream(self.clock)
        self.producer = producer or Producer(self.clock)
        self.topics = Topics(partitions)
        self.reader = Reader()
        self.stats = Stats()
        self.turns_left: int | None = None
        self.pipeline = build_pipeline(
            bench_settings(max_in_flight_bytes, preset=preset, rows=rows),
            _nothing_recovered(former),
            DECISION,
            clock=self.clock,
            stats=self.stats,
            catalog_of_topics=self.topics,
            producer=self.producer,
            stream=self.stream,
            catalog=Catalog(facts),
            reader=self.reader,
            is_ending=self._is_ending,
        )

    def turn(self, times: int = 1) -> None:
        """Run turns of the loop."""
        for _ in range(times):
            self.pipeline._turn()

    def run(self, turns: int) -> None:
        """Run the loop and stop it after some turns."""
        self.turns_left = turns
        self.pipeline.run()

    @property
    def confirmed(self) -> int:
        """Return the last confirmed LSN; 0 if there is none."""
        return self.stream.confirmed[-1] if self.stream.confirmed else 0

    def _is_ending(self, _stored_log_lsn: int) -> bool:
        if self.turns_left is None:
            return False
        self.turns_left -= 1
        return self.turns_left < 0


def _nothing_recovered(former: FormerCounts) -> RecoveredState:
    """Return the state of topics that all have their first marks."""
    published = Published({}, former)
    return RecoveredState(State(), AllKnown({}), published, 0, ParkedAggregates(10))

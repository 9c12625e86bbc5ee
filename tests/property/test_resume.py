"""
The real publisher, marks and ledger resume without duplicates after any crash.

The broker takes records into queues, appends them in order per partition at any time,
and acknowledges them at any time. At a crash each partition appends some more of its
queue and loses the rest. The stream starts again at the confirmed LSN. Between two
processes, partitions may be added; the operator then repairs the state.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.copying import replace
from support.relay_bench import Acknowledged, PresentCounts
from towpath.relay.encode.record import Acknowledgement, Record
from towpath.relay.kafka.producer import find_partitioner
from towpath.relay.ports import Outgoing, TopicFacts
from towpath.relay.publish.checkpoints import CheckpointStart, CheckpointWriter
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.publish.sender import RecordSender
from towpath.relay.recovery.lineage import SourceHistory
from towpath.relay.recovery.marks import (
    FormerCount,
    Mark,
    Marks,
    Published,
    parse_former,
    parse_marks,
)
from towpath.relay.recovery.rebuild import MarkMismatch, MismatchFacts, plan_marks
from towpath.relay.recovery.state import StateRecords
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot
from towpath.relay.stats import Stats
from towpath.schemas import topics
from towpath.schemas.clock import Deadline, SystemClock

PARTITIONS = 3
STATE = topics.state_topic("p")
EVERYTHING = XidSnapshot(10**6, 10**6, frozenset())


@dataclass
class Broker:
    """Partitions, their queues, and the records without an acknowledgement."""

    logs: dict[tuple[str, int], list[Record]] = field(
        default_factory=lambda: defaultdict(list)
    )
    queued: dict[tuple[str, int], deque[tuple[Record, Callable[..., None]]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    unacknowledged: dict[tuple[str, int], deque[Callable[[], None]]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    partition_count: int = PARTITIONS
    needs_commit = False

    @property
    def counts(self) -> Mapping[str, int]:
        return PresentCounts(
            lambda topic: 1 if topic == STATE else self.partition_count
        )

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        for record, partition, on_delivery in outgoing:
            self.queued[record.topic, partition].append((record, on_delivery))
        return len(outgoing)

    def append(self, key: tuple[str, int], *, is_acknowledged: bool = True) -> None:
        record, on_delivery = self.queued[key].popleft()
        log = self.logs[key]
        log.append(record)
        acknowledgement = Acknowledged(len(log) - 1)
        if is_acknowledged and on_delivery is not None:
            self.unacknowledged[key].append(lambda: on_delivery(None, acknowledgement))

    def finish(self, key: tuple[str, int]) -> None:
        """Append a partition's queue, and acknowledge it."""
        while self.queued[key]:
            self.append(key)
        while self.unacknowledged[key]:
            self.unacknowledged[key].popleft()()

    def finish_all(self) -> None:
        for key in list(self.queued):
            self.finish(key)

    def poll(self, _timeout_s: float) -> None:
        """Append and acknowledge all records, because the caller waits for them."""
        self.finish_all()

    def flush(self, timeout_s: float) -> None:
        self.poll(timeout_s)

    def commit(self) -> None:
        pass

    def ensure(self, topic: str) -> TopicFacts:
        return TopicFacts(1_000_000, self.counts[topic])

    def ends(self, topic: str, partition_count: int) -> Mapping[int, int]:
        return {at: len(self.logs[topic, at]) for at in range(partition_count)}

    def crash(self, choose: Callable[[int], int]) -> None:
        """Append some of the queued records without acknowledgement; lose the rest."""
        for key in sorted(self.queued):
            for _ in range(choose(len(self.queued[key]))):
                self.append(key, is_acknowledged=False)
        self.queued.clear()
        self.unacknowledged.clear()

    def documents(self) -> dict[str, Any]:
        """Return the newest documents of the state topic."""
        return {
            (r.key or b"").decode(): orjson.loads(r.value or b"")
            for r in self.logs[STATE, 0]
        }


def former_counts(documents: Mapping[str, Any]) -> dict[str, tuple[FormerCount, ...]]:
    """Read the former partition counts, as the relay does at startup."""
    return {
        key.removeprefix("marks:"): former
        for key, document in documents.items()
        if key.startswith("marks:") and (former := parse_former(document))
    }


def add_partitions(broker: Broker) -> None:
    """Add partitions to every topic, and repair the state as the operator does."""
    documents = broker.documents()
    had = tails(broker, documents)
    broker.partition_count += 2
    has = {
        topic: {n: marks.get(n, Mark(0, None)) for n in range(broker.partition_count)}
        for topic, marks in had.items()
    }
    mismatch = MarkMismatch(
        "partitions were added", broker.partition_count, has_lost=False
    )
    topics = MismatchFacts(
        dict.fromkeys(had, mismatch), had, former_counts(documents), has, {}, "now"
    )
    source = SourceHistory("77", 1, (), 0, None, 0, "towpath")
    for key, document in plan_marks(topics, source).documents.items():
        value = orjson.dumps(document)
        broker.logs[STATE, 0].append(Record(STATE, key.encode(), value, [], b"", 0, 9))


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, delay_s: float) -> None:
        self.now_s += delay_s


def tails(broker: Broker, documents: Mapping[str, Any]) -> dict[str, Any]:
    """Read the topics from their marks to their ends, as the relay does at startup."""
    found = {}
    for key, document in documents.items():
        if not key.startswith("marks:"):
            continue
        topic = key.removeprefix("marks:")
        marks = dict(parse_marks(document))
        for at, mark in marks.items():
            log = broker.logs[topic, at]
            assert mark.next_offset <= len(log)
            later = [r.position for r in log[mark.next_offset :] if r.position]
            highest = max([*later, mark.position or b""])
            marks[at] = replace(mark, next_offset=len(log), position=highest or None)
        found[topic] = marks
    return found


@dataclass
class Process:
    """One relay process, reduced to its publishing."""

    broker: Broker
    clock: Clock
    start_lsn: int
    may_flush: Callable[[], bool]

    def __post_init__(self) -> None:
        documents = self.broker.documents()
        found, former = tails(self.broker, documents), former_counts(documents)
        published = Published(found, former)
        self.ledger = DeliveryLedger(self.start_lsn)
        self.invisible = InvisibleTransactions(self.start_lsn)
        self.stats = Stats()
        sender = RecordSender(
            *(self.broker, self.broker, self.ledger, _DeadLettersStub()),
            find_partitioner(),
        )
        self.checkpoints = CheckpointWriter(
            CheckpointStart(Marks(found, former), published.log_lsn, 0, 0),
            StateRecords("p"),
            sender,
            self.ledger,
            self.invisible,
            self.clock,
        )
        self.publisher = Publisher(
            sender,
            self.ledger,
            self.stats,
            published,
            self.checkpoints,
            lambda: None,
        )
        self._delivery: Delivery | None = None

    def handle(self, number: int, step: Record | int | None) -> None:
        """Process the stream's next step: a begin, a record, or an end."""
        if isinstance(step, Record):
            self.publisher.publish_change(step, self._delivery)
            if self.may_flush():
                self.publisher.flush()
        elif step is None:
            self._delivery = self.ledger.begin()
        else:
            self.ledger.commit(step)
            self.invisible.add(number, step)


class _DeadLettersStub:
    """A stub for dead letters, because no record is too large here."""

    topic = "p.dead.relay"


Transactions = list[list[tuple[str, bytes | None]]]


def records_of(number: int, rows: list[tuple[str, bytes | None]]) -> list[Record]:
    """Return the records of a transaction, which are the same in every replay."""
    return [
        Record(
            topic,
            key,
            b"%d" % at,
            [],
            b"%016x.%010d" % (lsn_of(number), at),
            0,
            100,
        )
        for at, (topic, key) in enumerate(rows)
    ]


def lsn_of(number: int) -> int:
    """Return the commit LSN of a transaction; its end is four bytes after it."""
    return (number + 1) * 8


def some_history(random: Random) -> Transactions:
    """Make up transactions of a few records each, on two topics."""
    return [
        [
            (random.choice("tu"), random.choice([b"a", b"b", b"c", b"d", None]))
            for _ in range(random.randrange(4))
        ]
        for _ in range(random.randrange(1, 9))
    ]


@dataclass
class ProcessHistory:
    """A history that is streamed by one process after another."""

    history: Transactions
    random: Random
    broker: Broker = field(default_factory=Broker)
    clock: Clock = field(default_factory=Clock)
    confirmed: int = 0
    steps: int = 120

    def run(self) -> Broker:
        """Stream the history to its end despite crashes; return the broker."""
        while self._run_until_crash():
            self.broker.crash(lambda n: self.random.randint(0, n))
            if self.random.random() < 0.3:
                add_partitions(self.broker)
        return self.broker

    def _run_until_crash(self) -> bool:
        process = Process(
            self.broker, self.clock, self.confirmed, lambda: self.random.random() < 0.7
        )
        queued = deque(self._stream())
        actions = {
            4: self._append,
            5: self._acknowledge,
            6: lambda: process.invisible.observe(EVERYTHING),
            7: lambda: self._turn(process),
            8: lambda: self._store(process),
        }
        while self.steps > 0:
            self.steps -= 1
            choice = self.random.randrange(10)
            if choice <= 3 and queued:
                process.handle(*queued.popleft())
            elif choice == 9 and self.random.random() < 0.4:
                return True
            elif choice in actions:
                actions[choice]()
        for step in queued:
            process.handle(*step)
        process.publisher.drain(Deadline(SystemClock(), 1.0))
        return False

    def _stream(self) -> list[tuple[int, Record | int | None]]:
        """List begins (None), records and ends, starting at the confirmed LSN."""
        return [
            (number, step)
            for number, rows in enumerate(self.history)
            if lsn_of(number) + 4 > self.confirmed
            for step in (None, *records_of(number, rows), lsn_of(number) + 4)
        ]

    def _append(self) -> None:
        keys = sorted(at for at, queued in self.broker.queued.items() if queued)
        if keys:
            self.broker.append(self.random.choice(keys))

    def _acknowledge(self) -> None:
        keys = sorted(at for at, each in self.broker.unacknowledged.items() if each)
        if keys:
            self.broker.unacknowledged[self.random.choice(keys)].popleft()()

    def _turn(self, process: Process) -> None:
        self.clock.now_s += 0.2
        process.checkpoints.turn(self.clock.now_s, process.stats)
        self.confirmed = max(self.confirmed, process.checkpoints.stored_lsn)

    def _store(self, process: Process) -> None:
        self.broker.finish((STATE, 0))
        self._turn(process)


def check(history: Transactions, broker: Broker) -> None:
    """Assert that every record occurs exactly once, in the order of positions."""
    expected = defaultdict(list)
    for number, rows in enumerate(history):
        for record in records_of(number, rows):
            expected[record.topic].append(record.position)
    found = defaultdict(list)
    for (topic, _), log in sorted(broker.logs.items()):
        if topic != STATE:
            positions = [record.position for record in log if record.position]
            assert sorted(positions) == positions
            found[topic] += positions

    assert {t: sorted(p) for t, p in expected.items()} == {
        t: sorted(p) for t, p in found.items() if p
    }


def run_history(seed: int) -> None:
    """Make up a history, stream it through crashes, and check the topics."""
    random = Random(seed)  # noqa: S311 - not a secret
    history = some_history(random)
    check(history, ProcessHistory(history, random).run())


@given(st.integers(0, 2**32))
def test_no_crash_loses_or_repeats_a_record(seed: int):
    """
    However often the relay is killed, each record is published once and in order.
    """
    run_history(seed)


def assert_refuted() -> None:
    """Assert that at least one of a thousand histories fails."""

    def run_a_thousand() -> None:
        for seed in range(1000):
            run_history(seed)

    with pytest.raises(AssertionError):
        run_a_thousand()


def test_histories_refute_keyless_records_in_any_partition(monkeypatch):
    """
    A keyless record's position selects its partition; otherwise a replay repeats it.
    """
    original = Publisher.publish_change
    numbers = iter(range(10**9))

    def anywhere(self: Publisher, record: Record, delivery: Any) -> None:
        if record.key is None:
            record = replace(record, partition=next(numbers) % PARTITIONS)
        original(self, record, delivery)

    monkeypatch.setattr(Publisher, "publish_change", anywhere)

    assert_refuted()


def test_histories_refute_marks_without_acknowledgements(monkeypatch):
    """
    Confirmed records must have been acknowledged.
    """
    monkeypatch.setattr(DeliveryLedger, "acknowledged", _last_committed)

    assert_refuted()


def _last_committed(ledger: DeliveryLedger) -> int:
    if ledger._unsettled:
        return ledger._unsettled[-1].end_lsn
    return ledger._acknowledged_lsn


def test_histories_refute_a_topic_without_its_first_mark(monkeypatch):
    """
    A topic's first mark must precede its first record.
    """

    def unmarked(self: CheckpointWriter, topic: str, _count: int) -> None:
        if not self._marks.knows(topic):
            self._marks.begin(topic, self._sender.end_offsets(topic))

    monkeypatch.setattr(CheckpointWriter, "admit", unmarked)

    assert_refuted()


def test_histories_refute_a_comparison_by_the_highest_position(monkeypatch):
    """
    The position in one partition says nothing about another partition.
    """

    def has(self: Published, _topic: str, _partition: int, position: bytes) -> bool:
        return position <= self.horizon

    monkeypatch.setattr(Published, "has", has)

    assert_refuted()


def test_histories_refute_one_partition_count_for_all_records(monkeypatch):
    """
    Records published under a former partition count are looked up with that count.
    """
    original = Published.__init__

    def without(self: Published, marks: Mapping[str, Any], _former: Any) -> None:
        original(self, marks)

    monkeypatch.setattr(Published, "__init__", without)

    assert_refuted()


def test_histories_refute_forgetting_published_tails(monkeypatch):
    """
    If the tails are not read, records after the last marks are repeated.
    """
    monkeypatch.setattr(Published, "has", lambda *_: False)

    assert_refuted()


def test_an_acknowledgement_fits_the_ledgers_protocol():
    """
    The fake implements the protocol that the ledger reads.
    """
    acknowledgement: Acknowledgement = Acknowledged(7)

    assert 7 == acknowledgement.offset()

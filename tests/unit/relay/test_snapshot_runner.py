"""The snapshot runner: slices, deliveries, and commits that are held back."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest

from towpath.relay.encode.rows import ReadSlice
from towpath.relay.publish.in_flight import DeliveryLedger
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.changed_keys import ChangedKeyFeeds
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.shape import RowValues
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stats import Stats
from towpath.relay.stream.context import RowRequests
from towpath.relay.stream.snapshot_publisher import SnapshotPublisher
from towpath.relay.stream.snapshot_runner import (
    MAX_AHEAD_ALONE_BYTES,
    MAX_AHEAD_BYTES,
    MAX_PAUSE_S,
    MAX_REQUESTED_BYTES,
    QUIET_AFTER_S,
    SLICE_ROWS,
    SnapshotRunner,
)
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.position import Position

RELATION = Relation(1, "s", "a", (Column("id", 20),), (0,))
ROWS = ((b"1",), (b"2",), (b"3",))


class Clock:
    """A clock that the driver advances."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)


class Driver:
    """A driver that emits rows one by one, and takes a millisecond for each."""

    def __init__(self, clock: Clock, rows: Sequence[RowValues] = ()) -> None:
        self.changed_keys = ChangedKeyFeeds({})
        self.blocks_stream = False
        self.requests = KeyRequests()
        self.is_busy = False
        self.is_active = True
        self.yield_reason = ""
        self.rows = list(rows)
        self.received: list[protocol.Fact] = []
        self._clock = clock

    @property
    def has_ready(self) -> bool:
        return bool(self.rows)

    def request_key(self, *request) -> str | None:
        return self.requests.add(*request)

    def on(self, fact: protocol.Fact) -> list[protocol.Effect]:
        self.received.append(fact)
        if isinstance(fact, protocol.EmitAllowed):
            assert fact.max_rows == SLICE_ROWS
            self._clock.now_s += 0.001
            row = self.rows.pop(0)
            return [self.emission(rows=(row,), is_last=not self.rows)]
        if isinstance(fact, protocol.Tick) and (batch := self.requests.next_batch(0.0)):
            return [batch]
        return []

    def emission(self, **fields) -> protocol.EmitRows:
        defaults = {"rows": (), "log_lsn": 8, "snapshot_id": "s1", "target": None}
        return protocol.EmitRows(chunk_id=5, relation=RELATION, **defaults | fields)


class Route:
    """A table route that makes a record from each row."""

    relation = RELATION
    topic = "t.s.a"

    def reads(
        self, rows: Sequence[RowValues], read_slice: ReadSlice
    ) -> Sequence[object]:
        return [("read", row, read_slice.topic) for row in rows]


class RunnerBench:
    """The snapshot runner over fakes."""

    def __init__(self, rows: Sequence[RowValues] = ()) -> None:
        self.clock = Clock()
        self.driver = Driver(self.clock, rows)
        self.facts: list[protocol.WorkerFact] = []
        self.submitted: list[protocol.Effect] = []
        self.sent: list[object] = []
        self.stats = Stats()
        self.ledger = DeliveryLedger(100)
        self.core = SimpleNamespace(
            ledger=self.ledger,
            invisible=InvisibleTransactions(0),
            on_snapshot=lambda _: None,
            sender=SimpleNamespace(poll=lambda _: None, needs_commit=False, commits=0),
            publisher=SimpleNamespace(publish_reads=self._send, flush=lambda: None),
            router=SimpleNamespace(table=lambda *_: Route()),
            relations=SimpleNamespace(
                announce=lambda *_: None, facts_of=lambda _: None
            ),
            stats=self.stats,
            clock=self.clock,
            now_us=lambda: 7,
        )
        reader = SimpleNamespace(facts=self._facts, submit=self.submitted.append)
        self.runner = SnapshotRunner(
            self.core, self.driver, reader, SnapshotPublisher(self.core)
        )

    def _send(self, records: Sequence[object], _delivery: object) -> Sequence[int]:
        self.sent += records
        return ()

    def _facts(self) -> list[protocol.WorkerFact]:
        facts, self.facts = self.facts, []
        return facts

    def turn(self) -> None:
        self.runner.turn(self.clock.now_s)


def test_slices_are_emitted_until_the_time_has_elapsed():
    """
    A turn emits slices for three milliseconds; the rest waits for the next turn.
    """
    bench = RunnerBench([(b"%d" % n,) for n in range(5)])
    bench.turn()
    first = len(bench.sent)
    has_more = bench.runner.has_ready
    bench.turn()

    assert (3, True, 5, False) == (
        first,
        has_more,
        len(bench.sent),
        bench.runner.has_ready,
    )


def test_few_slices_are_emitted_while_many_bytes_are_in_flight():
    """
    Live changes share the queue; a snapshot neither fills it nor stops.
    """
    bench = RunnerBench(ROWS)
    bench.stats.changes = 1
    bench.ledger.in_flight_bytes = MAX_AHEAD_BYTES
    sent = []
    for pause_s in (0.0, MAX_PAUSE_S / 2, MAX_PAUSE_S):
        bench.clock.now_s += pause_s
        bench.turn()
        sent.append(len(bench.sent))

    assert [1, 1, 2] == sent


def test_on_an_idle_stream_more_slices_may_be_in_flight():
    """
    One change marks the stream as busy for a second.
    """
    bench = RunnerBench([(b"%d" % n,) for n in range(9)])
    bench.ledger.in_flight_bytes = MAX_AHEAD_BYTES
    sent = []
    for changes, pause_s in ((0, 0.0), (1, 0.0), (1, QUIET_AFTER_S * 1.1)):
        bench.stats.changes = changes
        bench.clock.now_s += pause_s
        bench.turn()
        sent.append(len(bench.sent))
    bench.ledger.in_flight_bytes = MAX_AHEAD_ALONE_BYTES
    bench.turn()
    sent.append(len(bench.sent))

    assert [True, False, True, False] == [b > a for a, b in pairwise([0, *sent])]


def test_a_chunk_is_delivered_after_its_last_slice():
    """
    The driver is informed only after Kafka has acknowledged the whole chunk.
    """
    bench = RunnerBench([(b"%d" % n,) for n in range(4)])
    bench.turn()
    bench.turn()
    early = [
        fact for fact in bench.driver.received if isinstance(fact, protocol.Delivered)
    ]
    bench.turn()

    assert [] == early
    assert protocol.Delivered(5) in bench.driver.received


def test_a_chunk_is_delivered_only_once_it_is_committed():
    """
    Rows that Kafka may still abort are not stored as read, even on a busy stream (I5).
    """
    bench = RunnerBench(ROWS[:1])
    sender = bench.core.sender
    sender.needs_commit = True
    bench.turn()
    bench.turn()
    early = protocol.Delivered(5) in bench.driver.received
    sender.commits += 1
    bench.turn()

    assert (False, True) == (early, protocol.Delivered(5) in bench.driver.received)


def test_a_transaction_is_held_until_its_key_request_is_stored():
    """
    Although its records are acknowledged, its position is not confirmed before then.
    """
    bench = RunnerBench()
    bench.driver.is_busy = True
    bench.ledger.begin()
    requests = RowRequests(bench.driver, bench.ledger)
    for ordinal in range(2):
        requests.request(RELATION, (b"1",), Position(8, ordinal))
    bench.ledger.commit(200)
    bench.turn()
    [store] = bench.submitted
    held = bench.ledger.acknowledged()
    bench.facts = [protocol.KeysStored(store.snapshot_id)]
    bench.turn()

    assert (100, 200) == (held, bench.ledger.acknowledged())


@pytest.mark.parametrize(
    ("size_bytes", "is_full"), [(1, False), (MAX_REQUESTED_BYTES, True)]
)
def test_the_stream_waits_while_too_many_key_requests_are_unstored(size_bytes, is_full):
    """
    A mass update is read no faster than its key requests are stored.
    """
    bench = RunnerBench()
    effect = protocol.StoreKeys("towpath-keys-8", (), size_bytes)
    bench.driver.on = lambda fact: [effect] if isinstance(fact, protocol.Tick) else []
    bench.runner.handle(protocol.Tick(0.0))
    before = bench.runner.is_full
    bench.facts = [protocol.KeysStored("towpath-keys-8")]
    bench.turn()

    assert (is_full, False) == (before, bench.runner.is_full)


def test_an_idle_driver_gets_no_ticks():
    """
    The loop only asks an inactive driver whether it is active.
    """
    bench = RunnerBench()
    bench.driver.is_active = False
    bench.driver.is_busy = True
    bench.turn()
    idle = list(bench.driver.received)
    bench.driver.is_active = True
    bench.turn()

    assert ([], [protocol.Tick]) == (
        idle,
        [type(fact) for fact in bench.driver.received],
    )


def test_the_reason_to_yield_ends_with_the_last_snapshot():
    """
    Once the driver is idle, the yielding metric is reset.
    """
    bench = RunnerBench()
    bench.driver.yield_reason = "the stream is behind"
    bench.turn()
    yielding = bench.stats.yielding
    bench.driver.is_active = False
    bench.driver.yield_reason = ""
    bench.turn()

    assert ("the stream is behind", "") == (yielding, bench.stats.yielding)

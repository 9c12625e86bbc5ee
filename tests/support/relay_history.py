"""
Random histories of a relay that crashes, stops and restarts, over fakes.

The broker keeps the records of a killed session, or loses those that it had not
acknowledged; records of aborted Kafka transactions are not visible. Each session
recovers from the state topic, as a real one does, and again streams everything beyond
the confirmed LSN. Every history ends with a session that is stopped normally.

While a history runs, it checks that no LSN is confirmed before it is stored and before
all records up to it are delivered (I3), that Postgres receives feedback before its
timeout, and that no record precedes the first mark of its topic. At the end, every row
exists once and each partition is in order (I4); records of a former partition count
keep its partitions, and barriers separate them from later records.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from support.copying import replace
from support.relay_bench import (
    DECISION,
    START,
    STATE,
    Acknowledged,
    Catalog,
    Clock,
    Column,
    PresentCounts,
    Reader,
    Stream,
    Topics,
    bench_settings,
    build_pipeline,
    inserted,
    keepalive,
    relation,
    transaction,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.ports import OnDelivery, Outgoing, TopicFacts
from towpath.relay.recover import RecoveredState
from towpath.relay.recovery.marks import (
    FormerCount,
    Mark,
    Marks,
    Published,
    TopicMarks,
    marks_document,
)
from towpath.relay.recovery.state import MARKS_KEY, State, StateRecords, parse_state
from towpath.relay.stats import Stats
from towpath.schemas import headers

_COUNT: Final = 2
# The session that finds more partitions than the one before it.
_PARTITIONS_ADDED_IN: Final = 2
_ROOM: Final = (1, 2, 3, 5, 50, 10**6)
_EVENTS: Final = "outbox."
_MAX_SESSIONS: Final = 60
# By the histories' clock; a session that takes longer hangs.
_LONGEST_SESSION_S: Final = 1000.0
# Less than wal_sender_timeout allows; the relay confirms every ten seconds.
_LONGEST_SILENCE_S: Final = 16.5
_COLUMNS: Final = tuple(
    Column(name, 25, name == b"id")
    for name in (
        b"id",
        b"aggregate_type",
        b"aggregate_id",
        b"type",
        b"payload",
        b"headers",
        b"traceparent",
        b"occurred_at",
    )
)

PartitionId = tuple[str, int]


class CrashError(Exception):
    """The process ends here."""


class Sent(NamedTuple):
    """A record that the broker has, and whose acknowledgement the client lacks."""

    record: Record
    on_delivery: OnDelivery | None
    partition: int
    offset: int


class Broker:
    """
    The records of every partition; ``None`` stands for one that no reader sees.

    Attributes:
        log: The records by topic and partition.
        event_partitions: The partition count of the events' topics.
    """

    def __init__(self) -> None:
        self.log: dict[PartitionId, list[Record | None]] = defaultdict(list)
        self.event_partitions = _COUNT

    def count(self, topic: str) -> int:
        """Return a topic's partition count."""
        return self.event_partitions if topic.startswith(_EVENTS) else _COUNT

    def state(self, hidden: frozenset[tuple[PartitionId, int]] = frozenset()) -> State:
        """Return the state topic's content, without hidden records."""
        records = self.log[STATE, 0]
        seen = (r for at, r in enumerate(records) if ((STATE, 0), at) not in hidden)
        return parse_state({r.key.decode(): r.value for r in seen if r is not None})

    def events(self) -> Iterator[tuple[PartitionId, list[Record | None]]]:
        """Yield the partitions of events."""
        for partition_id, records in self.log.items():
            if partition_id[0].startswith(_EVENTS):
                yield partition_id, records


class KnownTopics(Topics):
    """The broker's topics."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker
        self.counts = PresentCounts(broker.count)

    def ensure(self, topic: str) -> TopicFacts:
        return TopicFacts(1_000_000, self.counts[topic])

    def ends(self, topic: str, partition_count: int) -> dict[int, int]:
        return {at: len(self._broker.log[topic, at]) for at in range(partition_count)}


class Producer:
    """
    Appends records immediately; acknowledges each partition in order, with a delay.

    Attributes:
        pending: Records without an acknowledgement.
        uncommitted: Records of the open transaction, in transactional mode.
        crashes_at: The number of the call that ends the process; None if none does.
        marked: Topics whose first mark is acknowledged.
    """

    def __init__(
        self, broker: Broker, clock: Clock, random: Random, *, is_transactional: bool
    ) -> None:
        self.pending: list[Sent] = []
        self.uncommitted: set[tuple[PartitionId, int]] = set()
        self.crashes_at: int | None = None
        self.needs_commit = False
        self.marked = set(broker.state().marks)
        self._broker = broker
        self._clock = clock
        self._random = random
        self._is_transactional = is_transactional
        self._room = random.choice(_ROOM)
        self._silent_until_s = 0.0
        self._calls = 0

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        self._call()
        self.needs_commit = self._is_transactional
        taken = outgoing[: max(0, self._room - len(self.pending))]
        for record, partition, on_delivery in taken:
            self._append(record, partition, on_delivery)
        return len(taken)

    def poll(self, timeout_s: float) -> None:
        self._call()
        if self._random.random() < 0.2:
            self._room = self._random.choice(_ROOM)
        if self._random.random() < 0.02:
            self._silent_until_s = self._clock.now_s + self._random.choice((0.2, 1, 20))
        is_silent = self._clock.now_s < self._silent_until_s
        if is_silent or not self.pending or self._random.random() < 0.3:
            self._clock.now_s += timeout_s
            return
        self._acknowledge(self._random.choice((1, 2, 5, 1000)))

    def flush(self, timeout_s: float) -> None:
        left_s = self._silent_until_s - self._clock.now_s
        if left_s > 0:
            self._clock.now_s += min(timeout_s, left_s)
        if self._clock.now_s >= self._silent_until_s:
            self._acknowledge(len(self.pending))

    def commit(self) -> None:
        if self._is_transactional:
            self._call()
            self._acknowledge(len(self.pending))
            self._call()
            self.uncommitted.clear()
            self.needs_commit = False

    def invisible(self) -> frozenset[tuple[PartitionId, int]]:
        """Return the records that a crash at this moment may lose."""
        pending = {((s.record.topic, s.partition), s.offset) for s in self.pending}
        return frozenset(pending | self.uncommitted)

    def lose(self) -> None:
        """End the process: abort the transaction, or lose the ends of partitions."""
        if self._is_transactional:
            for partition_id, offset in self.uncommitted:
                self._broker.log[partition_id][offset] = None
        elif self._random.random() < 0.5:
            self._lose_ends()

    def _lose_ends(self) -> None:
        unacknowledged: dict[PartitionId, list[int]] = defaultdict(list)
        for sent in self.pending:
            unacknowledged[sent.record.topic, sent.partition].append(sent.offset)
        for partition_id, offsets in unacknowledged.items():
            kept = self._random.randint(0, len(offsets))
            for offset in reversed(offsets[kept:]):
                del self._broker.log[partition_id][offset]

    def _call(self) -> None:
        self._calls += 1
        if self._calls == self.crashes_at:
            raise CrashError

    def _append(
        self, record: Record, partition: int, on_delivery: OnDelivery | None
    ) -> None:
        topic = record.topic
        is_event = bool(topic.startswith(_EVENTS) and record.position)
        assert not is_event or topic in self.marked, f"{topic} has no first mark"
        records = self._broker.log[topic, partition]
        records.append(record)
        offset = len(records) - 1
        self.pending.append(Sent(record, on_delivery, partition, offset))
        if self._is_transactional:
            self.uncommitted.add(((topic, partition), offset))

    def _acknowledge(self, limit: int) -> None:
        """Acknowledge the first records of random partitions."""
        for _ in range(min(limit, len(self.pending))):
            first_pending: dict[PartitionId, int] = {}
            for at, sent in enumerate(self.pending):
                first_pending.setdefault((sent.record.topic, sent.partition), at)
            sent = self.pending.pop(self._random.choice(list(first_pending.values())))
            record = sent.record
            if record.topic == STATE:
                self.marked.add(record.key.decode().removeprefix(MARKS_KEY))
            if sent.on_delivery is not None:
                sent.on_delivery(None, Acknowledged(sent.offset))


class SourceTransaction(NamedTuple):
    """A transaction of outbox rows: its end, its frames, and the number of its rows."""

    end_lsn: int
    frames: list[bytes]
    rows: int


class CheckedStream(Stream):
    """Checks each confirmed LSN against the broker's records."""

    def __init__(
        self,
        clock: Clock,
        broker: Broker,
        producer: Producer,
        source: Sequence[SourceTransaction],
    ) -> None:
        super().__init__(clock)
        self._moving_clock = clock
        self._broker = broker
        self._producer = producer
        self._source = source
        self._last_s = clock.now_s

    def confirm(self, lsn: int) -> None:
        """Check and keep a confirmed LSN."""
        hidden = self._producer.invisible()
        stored = self._broker.state(hidden).confirmed
        assert lsn <= (START if stored is None else stored.lsn), "not stored yet"
        wanted = sum(each.rows for each in self._source if each.end_lsn <= lsn)
        delivered = {
            record.position
            for partition_id, records in self._broker.events()
            for at, record in enumerate(records)
            if record is not None
            and record.position
            and (partition_id, at) not in hidden
        }
        below = [p for p in delivered if int(p[:16], 16) <= lsn]
        assert len(below) >= wanted, "confirmed before it was delivered"
        self.check_silence()
        self._last_s = self._moving_clock.now_s
        super().confirm(lsn)

    def check_silence(self) -> None:
        """Check that the last feedback was not too long ago."""
        silence_s = self._moving_clock.now_s - self._last_s
        assert silence_s < _LONGEST_SILENCE_S, f"no feedback for {silence_s} s"


class History:
    """
    One history: a source, a broker, and sessions of the relay.

    Attributes:
        sessions: The number of its sessions.
        losses: The number of sessions that ended with unconfirmed records.
    """

    def __init__(
        self, random: Random, *, is_transactional: bool, has_former_count: bool
    ) -> None:
        self.sessions = 0
        self.losses = 0
        self._random = random
        self._broker = Broker()
        self._is_transactional = is_transactional
        self._has_former_count = has_former_count
        self._source = _random_source(random)
        # By topic, the highest position of its former partition count.
        self._former: dict[str, bytes] = {}

    def run(self) -> None:
        """Run sessions until one stops normally, then check every record."""
        is_over = False
        while not is_over:
            self.sessions += 1
            assert self.sessions < _MAX_SESSIONS
            is_last = self.sessions >= self._random.randint(3, 8)
            if self._has_former_count:
                self._add_partitions()
            is_over = self._run_session(is_last=is_last) and is_last
        self._check_records()
        self._check_former_count()

    def _add_partitions(self) -> None:
        """Start events' topics with one partition; later declare that count former."""
        self._broker.event_partitions = 1 if self.sessions == 1 else _COUNT
        if self.sessions != _PARTITIONS_ADDED_IN:
            return
        state = self._broker.state()
        positions = [
            record.position
            for _, records in self._broker.events()
            for record in records
            if record is not None and record.position
        ]
        for topic in [name for name in state.marks if name.startswith(_EVENTS)]:
            marks = {**state.marks[topic], 1: Mark(0, None)}
            former = (FormerCount(1, max(positions)),) if positions else ()
            if former:
                self._former[topic] = former[0].until
            document = marks_document(marks, former)
            record = StateRecords("towpath").marks(topic, document, 0)
            self._broker.log[STATE, 0].append(record)

    def _run_session(self, *, is_last: bool) -> bool:
        """Run one session; return whether it left nothing unacknowledged."""
        recovered = self._recovered()
        confirmed = recovered.state.confirmed
        confirmed_lsn = START if confirmed is None else confirmed.lsn
        clock, stats = Clock(), Stats()
        clock.until_s = clock.now_s + _LONGEST_SESSION_S
        producer = Producer(
            self._broker,
            clock,
            self._random,
            is_transactional=self._is_transactional,
        )
        if not is_last:
            producer.crashes_at = self._random.randint(1, 120)
        stream = CheckedStream(clock, self._broker, producer, self._source)
        stream.reads = self._reads(confirmed_lsn)
        pipeline = build_pipeline(
            bench_settings(4_000, outbox={"topic": _EVENTS + "{aggregate_type}"}),
            recovered,
            replace(DECISION, confirmed_lsn=confirmed_lsn),
            clock=clock,
            stats=stats,
            catalog_of_topics=KnownTopics(self._broker),
            producer=producer,
            stream=stream,
            catalog=Catalog(),
            reader=Reader(),
            is_ending=_Ending(stream, self._turns(is_last=is_last), is_last=is_last),
        )
        try:
            pipeline.run()
            is_clean = stats.unacknowledged_bytes == 0
        except CrashError:
            is_clean = False
        stream.check_silence()
        assert not (is_clean and is_last and producer.pending)
        self.losses += bool(producer.invisible())
        producer.lose()
        return is_clean

    def _turns(self, *, is_last: bool) -> int | None:
        """Return after how many turns to stop; None to stop after the last frame."""
        is_early = not is_last and self._random.random() < 0.5
        return self._random.randint(1, 40) if is_early else None

    def _recovered(self) -> RecoveredState:
        """Recover as a start does, with exact marks from the ends of the topics."""
        state = self._broker.state()
        exact = {topic: self._exact(topic, m) for topic, m in state.marks.items()}
        for (topic, _), records in self._broker.events():
            has_records = any(r is not None and r.position for r in records)
            assert topic in exact or not has_records, f"{topic} has no stored mark"
        return RecoveredState(
            state,
            Marks(exact, state.former),
            Published(exact, state.former),
            0,
            ParkedAggregates(10),
        )

    def _exact(self, topic: str, marks: TopicMarks) -> TopicMarks:
        exact = {}
        for at, mark in marks.items():
            records = self._broker.log[topic, at]
            assert len(records) >= mark.next_offset, f"{topic} ends below its mark"
            later = [
                record.position
                for record in records[mark.next_offset :]
                if record is not None and record.position
            ]
            exact[at] = Mark(len(records), [mark.position, *later][-1])
        return exact

    def _reads(self, confirmed_lsn: int) -> deque[list[bytes]]:
        """Return the stream's frames beyond an LSN, cut at random."""
        frames: list[bytes] = []
        for each in self._source:
            if each.end_lsn > confirmed_lsn:
                begin, *others = each.frames
                frames += [begin, *([] if frames else [_relation()]), *others]
        reads: deque[list[bytes]] = deque()
        beyond = self._source[-1].end_lsn + 10**6
        while frames:
            size = self._random.choice((1, 3, 10, 100, 1000))
            reads.append(frames[:size])
            del frames[:size]
            if self._random.random() < 0.3:
                reads.append([keepalive(START if frames else beyond)])
        return reads

    def _check_records(self) -> None:
        """Check that every row exists once, and that positions rise per partition."""
        found: list[bytes] = []
        for partition_id, records in self._broker.events():
            positions = [
                record.position
                for record in records
                if record is not None and record.position
            ]
            assert positions == sorted(set(positions)), (
                f"{partition_id} is not in order"
            )
            found += positions
        assert len(found) == len(set(found)), "a row was published twice"
        assert len(found) == sum(each.rows for each in self._source), "a row is missing"

    def _check_former_count(self) -> None:
        """Check the partition of records of the former count, and the barriers."""
        for (topic, partition), records in self._broker.events():
            until = self._former.get(topic)
            has_barrier = False
            for record in records if until is not None else ():
                if record is None:
                    continue
                has_barrier |= headers.BARRIER in dict(record.headers)
                if record.position and record.position <= until:
                    assert partition == 0
                    assert not has_barrier, "a former record is behind a barrier"
                elif record.position:
                    assert has_barrier, "no barrier divides the partition counts"


class _Ending:
    """Stops the loop after some turns, or some turns after the last frame."""

    def __init__(self, stream: Stream, turns: int | None, *, is_last: bool) -> None:
        self._stream = stream
        self._turns = turns
        self._idle_turns = 400 if is_last else 20

    def __call__(self, _stored_log_lsn: int) -> bool:
        if self._turns is not None:
            self._turns -= 1
            return self._turns < 0
        if not self._stream.reads:
            self._idle_turns -= 1
        return self._idle_turns < 0


def _relation() -> bytes:
    return b"w" + bytes(24) + relation(7, b"towpath", b"outbox", _COLUMNS)


def _random_source(random: Random) -> list[SourceTransaction]:
    """Return transactions of outbox rows of a few aggregates."""
    source: list[SourceTransaction] = []
    lsn, number = START + 1000, 0
    for _ in range(random.randint(3, 25)):
        rows = []
        for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
            number += 1
            rows.append(
                inserted(
                    7,
                    [
                        b"%d" % number,
                        random.choice((b"a", b"b", b"c")),
                        b"%d" % random.randint(0, 5),
                        b"T",
                        b'{"n":%d}' % number,
                        None,
                        None,
                        b"2026-01-01 00:00:00+00",
                    ],
                )
            )
        frames = transaction(lsn, *rows)
        source.append(SourceTransaction(lsn + 8, frames, len(rows)))
        lsn += random.choice((16, 160, 1600))
    return source

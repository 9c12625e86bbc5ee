"""How rows and sweeps of a snapshot are published: route, topic and chunk."""

import json
from base64 import b64encode
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from support.copying import replace
from towpath.relay.encode.codecs.codec import TableNames
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import DeadLetters, RefusedRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import NOTHING_KNOWN, ColumnPlan
from towpath.relay.encode.rows import ReadRoute, ReadRow, ReadSlice
from towpath.relay.encode.table import RouteCallbacks, SourceNames, TableRoute
from towpath.relay.errors import MalformedMessageError
from towpath.relay.ports import TopicFacts
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.snapshot.protocol import EmitRows, EmitSweep
from towpath.relay.snapshot.shape import Key
from towpath.relay.stats import Stats
from towpath.relay.stream.snapshot_publisher import (
    MAX_PARTITIONS,
    UNREPORTED_DELETE,
    UNSWEPT,
    SnapshotPublisher,
)
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas import headers
from towpath.settings.relay import Relay

RELATION = Relation(1, "s", "a", (Column("id", 20), Column("note", 25)), (0,))
VIEW = Relation(2, "outbox", "order", (Column("aggregate_id", 25),), (0,))
ROWS = ((b"1", b"a"), (b"2", None))
RELAY = Relay()
CHUNK = 5


def table_route(relation: Relation) -> TableRoute:
    """Make the route of a table."""
    plan = ColumnRules(RELAY).plan(relation, NOTHING_KNOWN)
    names = TableNames("t", "db", relation.schema, relation.table, "t.s.a")
    codec = json_maker(RELAY)(names, plan.key, plan.columns)
    return TableRoute("t", relation, plan, codec, RELAY.rows, RouteCallbacks())


class AggregateRoute:
    """Makes bare records from a view's rows; knows no key except 9."""

    relation = VIEW
    topic = "event.order"

    def reads(self, rows: Sequence[ReadRow], read_slice: ReadSlice) -> Sequence[Record]:
        return [Record(read_slice.topic, row[0], b"v", [], b"", 0, 9) for row in rows]

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        if key != (b"9",):
            raise MalformedMessageError
        return [Record(read_slice.topic, key[0], None, [], b"", 0, 9)]


class EmissionBench:
    """Emission over fakes, with topics of two partitions."""

    def __init__(
        self,
        *,
        is_compacted: bool = False,
        is_refused: bool = False,
        dead_keys: Sequence[bytes] = (),
    ) -> None:
        self.sent: list[Record] = []
        self.notices: list[Record] = []
        self.announced: list[str] = []
        self.announced_with: list[Delivery] = []
        self.stats = Stats()
        self.ledger = DeliveryLedger(0)
        self._is_refused = is_refused
        self._dead_keys = dead_keys
        facts = TopicFacts(1000, 2, is_compacted=is_compacted)
        self.known = {"t.s.a": facts}
        core = SimpleNamespace(
            ledger=self.ledger,
            sender=SimpleNamespace(
                facts=lambda _: facts,
                known_facts=self.known.get,
                partitions_of=lambda keys, count: [(count, key) for key in keys],
            ),
            publisher=SimpleNamespace(
                publish_reads=self._send,
                publish_unordered=lambda record, _: self.notices.append(record),
            ),
            router=SimpleNamespace(
                table=self._table, place=SourceNames("t", "db"), relay=RELAY
            ),
            relations=SimpleNamespace(
                announce=self._announce,
                facts_of=lambda _: None,
            ),
            stats=self.stats,
            now_us=lambda: 7_000,
        )
        self.emission = SnapshotPublisher(
            core,
            lambda relation: AggregateRoute() if relation.schema == "outbox" else None,
        )

    def _table(self, relation: Relation, _facts: object) -> ReadRoute:
        if self._is_refused:
            dead = DeadLetters("t", self.stats.count_dead_letter, ParkedAggregates(1))
            return RefusedRoute(relation, ColumnPlan((), ()), "t.s.a", dead, "no")
        return table_route(relation)

    def _announce(
        self, shape: Relation, _log_lsn: int, _at_ms: int, delivery: Delivery
    ) -> None:
        self.announced.append(shape.name)
        self.announced_with.append(delivery)

    def _send(self, records: Sequence[Record], delivery: Delivery) -> Sequence[int]:
        self.sent += records
        delivery.pending += len(records)
        for _ in records:
            delivery.pending -= 1
        return [at for at, one in enumerate(records) if one.key in self._dead_keys]

    def emit(self, relation: Relation, **fields) -> Sequence[Key]:
        """Emit rows of a chunk; return the keys of the dead letters."""
        defaults = {"rows": (), "log_lsn": 8, "snapshot_id": "s1", "target": None}
        return self.emission.rows(EmitRows(CHUNK, relation, **defaults | fields))

    def sweep(self, relation: Relation, target: str | None = None) -> None:
        """Emit a sweep."""
        self.emission.sweep(EmitSweep(CHUNK, relation, 8, 6, "s1", target))


def test_read_rows_go_to_their_tables_topic_after_its_schema():
    """
    Each is a READ; the chunk counts as delivered with its last slice, not before.
    """
    bench = EmissionBench()
    bench.emit(RELATION, rows=ROWS[:1], is_last=False)
    early = bench.ledger.take_delivered()
    bench.emit(RELATION, rows=ROWS[1:])

    assert (
        [("t.s.a", b'{"id":1}', "r"), ("t.s.a", b'{"id":2}', "r")],
        {"s.a"},
        (),
        (CHUNK,),
        2,
    ) == (
        [(r.topic, r.key, json.loads(r.value or b"")["op"]) for r in bench.sent],
        set(bench.announced),
        early,
        bench.ledger.take_delivered(),
        bench.stats.snapshot_rows,
    )


def test_the_partitions_of_rows_are_known_once_their_table_is():
    """
    They are those of the records' keys, in the topic that receives the rows.
    """
    bench = EmissionBench()
    partitions_of = bench.emission.partitions_of
    before = partitions_of(None, RELATION, ROWS)
    bench.emit(RELATION, rows=ROWS)
    bench.known["t.s.a.backfill.new"] = TopicFacts(1000, 3, is_compacted=False)
    keys = [record.key for record in bench.sent]

    assert ((), [(2, key) for key in keys], [(3, key) for key in keys]) == (
        before,
        partitions_of(None, RELATION, ROWS),
        partitions_of("new", RELATION, ROWS),
    )


@pytest.mark.parametrize("count", [1, MAX_PARTITIONS + 1])
def test_rows_of_one_partition_or_of_very_many_need_no_grouping(count: int):
    """
    Their keys are not even encoded.
    """
    bench = EmissionBench()
    bench.emit(RELATION, rows=ROWS)
    bench.known["t.s.a"] = TopicFacts(1000, count, is_compacted=False)

    assert () == bench.emission.partitions_of(None, RELATION, ROWS)


def test_rows_that_cannot_be_grouped_are_emitted_in_the_order_read():
    """
    Their relation differs from the route's, or they have a key that cannot be written.
    """
    bench = EmissionBench()
    bench.emit(RELATION, rows=ROWS)
    partitions_of = bench.emission.partitions_of
    altered = replace(RELATION, columns=RELATION.columns[:1])

    assert ((), ()) == (
        partitions_of(None, altered, [row[:1] for row in ROWS]),
        partitions_of(None, RELATION, [(None, *ROWS[0][1:])]),
    )


def test_a_chunk_is_delivered_only_with_the_schema_of_its_table():
    """
    Otherwise a table read completely before a kill might lack its schema.
    """
    bench = EmissionBench()
    bench.emit(RELATION, rows=ROWS[:1], is_last=False)
    (delivery,) = bench.announced_with
    delivery.pending += 1
    bench.emit(RELATION, rows=ROWS[1:])
    early = bench.ledger.take_delivered()
    delivery.pending -= 1

    assert ((), (CHUNK,)) == (early, bench.ledger.take_delivered())


def test_rows_of_a_changed_table_have_a_new_route():
    """
    Rows are written with their own relation, whatever relation the previous ones had.
    """
    bench = EmissionBench()
    wider = Relation(1, "s", "a", (*RELATION.columns, Column("x", 23)), (0,))
    bench.emit(RELATION, rows=ROWS[:1], is_last=False)
    bench.emit(wider, rows=((b"2", b"b", b"3"),))

    assert [{"id": 1, "note": "a"}, {"id": 2, "note": "b", "x": 3}] == [
        json.loads(record.value or b"")["after"] for record in bench.sent
    ]


def test_rows_of_a_view_are_events_of_the_aggregate():
    """
    They have the aggregate's topic, and no schema is published for them.
    """
    bench = EmissionBench()
    bench.emit(VIEW, rows=((b"7",),))

    assert ([("event.order", b"7")], []) == (
        [(record.topic, record.key) for record in bench.sent],
        bench.announced,
    )


def test_deletes_of_absent_keys_use_the_chunks_topic():
    """
    Deletes of requested keys are published with the chunk, even for a single sink.
    """
    bench = EmissionBench()
    bench.emit(RELATION, rows=ROWS[:1], absent=((b"9",),), target="search2")
    topic = "t.s.a.backfill.search2"

    assert (
        [(topic, b'{"id":1}'), (topic, b'{"id":9}'), (topic, b'{"id":9}')],
        2,
    ) == (
        [(record.topic, record.key) for record in bench.sent],
        bench.stats.snapshot_rows,
    )


@pytest.mark.parametrize(("target", "notices"), [("search2", 2), (None, 0)])
def test_a_target_is_notified_of_each_dead_letter(target: str | None, notices: int):
    """
    A delete and its tombstone give one notice; without it the refetch would never end.
    """
    keys = [b'{"id":2}', b'{"id":9}']
    bench = EmissionBench(dead_keys=keys)
    dead = bench.emit(RELATION, rows=ROWS, absent=((b"9",), (b"8",)), target=target)

    expected = [("t.s.a.backfill.search2", key) for key in keys[:notices]]
    assert ([(b"2",), (b"9",)], expected) == (
        dead,
        [(notice.topic, notice.key) for notice in bench.notices],
    )
    assert all(headers.UNDELIVERED in dict(n.headers) for n in bench.notices)


def test_a_delete_with_an_unknown_record_key_is_counted():
    """
    If records have a key of their own, that of a missing row may be unknown.
    """
    bench = EmissionBench()
    bench.emit(VIEW, absent=((b"unknown",), (b"9",)))

    assert ([b"9"], {UNREPORTED_DELETE: 1}) == (
        [record.key for record in bench.sent],
        bench.stats.skipped,
    )


@pytest.mark.parametrize(
    ("is_compacted", "keys"),
    [(False, [None, None]), (True, [b'{"sweep":0}', b'{"sweep":1}'])],
)
def test_a_sweep_reaches_every_partition(
    is_compacted: bool,
    keys: list[bytes | None],
):
    """
    Each record has its position and the floor, and a key if the topic needs one.
    """
    bench = EmissionBench(is_compacted=is_compacted)
    bench.sweep(RELATION, target="search2")
    headers = [
        ("position", b"0000000000000008.-"),
        ("sweep", b"0000000000000006.-"),
        ("snapshot", b"s1"),
        ("sweep_partitions", b"2"),
    ]
    topic = "t.s.a.backfill.search2"

    assert (
        [(topic, keys[0], headers, 0), (topic, keys[1], headers, 1)],
        (CHUNK,),
    ) == (
        [(r.topic, r.key, r.headers, r.partition) for r in bench.sent],
        bench.ledger.take_delivered(),
    )


@pytest.mark.parametrize("relation", [RELATION, VIEW])
def test_a_sweeps_envelope_has_neither_row(relation: Relation):
    """
    Sweeps of tables and of aggregates both contain the floor as their message.
    """
    bench = EmissionBench()
    bench.sweep(relation)
    content = b64encode(b"0000000000000006.-").decode()
    value = json.loads(bench.sent[0].value or b"")

    assert (
        ("m", None, None, {"prefix": "towpath.sweep", "content": content}),
        (relation.schema, relation.table),
    ) == (
        (value["op"], value["before"], value["after"], value["message"]),
        (value["source"]["schema"], value["source"]["table"]),
    )


def test_a_table_whose_rows_are_dead_letters_is_not_swept():
    """
    Otherwise sinks would delete rows that still exist.
    """
    bench = EmissionBench(is_refused=True)
    bench.sweep(RELATION)

    assert ([], {UNSWEPT: 1}, (CHUNK,)) == (
        bench.sent,
        bench.stats.skipped,
        bench.ledger.take_delivered(),
    )

"""The snapshot driver: facts in, effects out."""

import json

import pytest

from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.driver import SnapshotDriver, SnapshotScope
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.run import SnapshotLimits
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot
from towpath.relay.snapshot.window import Window
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.position import Position

OID = 4711
RELATION = Relation(OID, "s", "a", (Column("id", 20), Column("v", 25)), (0,))
SHAPE = TableShape(RELATION, ("bigint",))
VIEWS = {"outbox.order": "order"}
SEES_ALL = XidSnapshot(1000, 1000, frozenset())
PLAN = ScanPlan(SHAPE, (b"3",), 4)


class Loop:
    """Gives facts to the driver and keeps the resulting effects."""

    def __init__(self, max_changed_keys: int = 1000, readers: int = 1) -> None:
        self.invisible = InvisibleTransactions(0)
        self.driver = SnapshotDriver(
            self.invisible,
            scope=SnapshotScope(
                ["s.a", "s.b", "outbox.order"], lambda: ["search2"], VIEWS
            ),
            run_id="run",
            limits=SnapshotLimits(ChunkSize(2), readers, max_changed_keys),
            throttle=Throttle(10.0, max_active_sessions=3),
        )
        self.now_s = 0.0
        self.sequence = 0
        self.rows_per_turn = 1000
        self.effects: list[protocol.Effect] = []

    def give(self, *facts: protocol.Fact) -> list[protocol.Effect]:
        """Give facts to the driver, then turn the loop once."""
        turn = protocol.EmitAllowed(self.rows_per_turn)
        self.effects = [e for fact in (*facts, turn) for e in self.driver.on(fact)]
        return self.effects

    def tick(self, now_s: float | None = None) -> list[protocol.Effect]:
        """Advance the clock to a later time, or keep it."""
        self.now_s = self.now_s if now_s is None else now_s
        return self.give(protocol.Tick(self.now_s))

    def one(self, kind: type) -> protocol.Effect:
        """Return the only effect of a type among the last ones."""
        [effect] = [effect for effect in self.effects if isinstance(effect, kind)]
        return effect

    def types(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]

    def see(self, token: str) -> list[protocol.Effect]:
        self.sequence += 1
        lsn = 100 * self.sequence
        return self.give(protocol.WatermarkSeen(token, lsn, self.sequence))

    def signal(self, signal_id: str = "s1", kind="execute-snapshot", **data) -> None:
        """Process a signal up to its answer."""
        seen = protocol.SignalSeen(signal_id, kind, json.dumps(data), 7)
        self.give(seen, protocol.VisibilityRead(SEES_ALL))

    def accept(self, signal_id: str = "s1", **data) -> None:
        """Process a signal for table s.a until it is accepted."""
        self.signal(signal_id, **{"data-collections": ["s.a"]} | data)
        self.give(protocol.TablesInspected(signal_id, {"s.a": SHAPE}, {}))
        self.give(protocol.SignalStored(signal_id, is_new=True))

    def begin_reading(self) -> protocol.ReadChunk:
        """Process the running table up to its first chunk."""
        self.see(self.one(protocol.WriteWatermark).token)
        self.give(protocol.VisibilityRead(SEES_ALL))
        plan = self.one(protocol.ReadPlan)
        self.give(protocol.PlanRead(plan.request_id, PLAN))
        return self.one(protocol.ReadChunk)

    def read(
        self, request: protocol.ReadChunk, *ids: int, snapshot=SEES_ALL
    ) -> list[protocol.Effect]:
        """Answer a chunk with rows of these ids."""
        rows = [(b"%d" % number, b"x") for number in ids]
        is_last = len(ids) < request.max_rows or bool(request.keys)
        chunk = Chunk(SHAPE, rows, snapshot, is_last)
        return self.give(protocol.ChunkRead(request.chunk_id, chunk))


@pytest.fixture
def loop() -> Loop:
    """Provide a driver without any state."""
    return Loop()


def test_a_signal_is_answered_only_once_it_is_visible(loop: Loop):
    """
    The answer is written to the signal's row, so its transaction must be visible first.
    """
    data = '{"data-collections": ["s.a"]}'
    effects = loop.give(protocol.SignalSeen("s1", "execute-snapshot", data, 7))
    blind = loop.give(protocol.VisibilityRead(XidSnapshot(7, 9, frozenset({7}))))
    seeing = loop.give(protocol.VisibilityRead(SEES_ALL))

    assert (
        [protocol.ProbeVisibility()],
        [],
        [protocol.InspectTables("s1", ("s.a",))],
    ) == (
        effects,
        blind,
        seeing,
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"data-collections": ["s.x"]}, "s.x: not a captured table"),
        (
            {"data-collections": ["s.a"], "target": "nowhere"},
            "target 'nowhere' is not a sink of the configuration",
        ),
    ],
)
def test_an_unknown_table_or_sink_is_rejected(loop: Loop, data: dict, reason: str):
    """
    Unknown tables and sinks are refused in the signal's answer.
    """
    loop.signal(**data)
    answer = loop.one(protocol.StoreSignal)

    assert ("rejected", reason) == (answer.status, answer.detail["reason"])


def test_an_expression_without_a_match_is_refused_at_once(loop: Loop):
    """
    Such an expression is answered with its reason, and nothing is read.
    """
    loop.signal(**{"data-collections": ["none.*"]})
    answer = loop.one(protocol.StoreSignal)

    assert "rejected" == answer.status
    assert "no captured table has this name" in answer.detail["reason"]


def test_refused_tables_fail_while_others_are_read(loop: Loop):
    """
    The known tables of a signal are read, and the unknown ones are reported (A9).
    """
    loop.signal(**{"data-collections": ["invalid1", "s.a", "s.b"]})
    loop.give(protocol.TablesInspected("s1", {"s.a": SHAPE}, {"s.b": "no primary key"}))
    answer = loop.one(protocol.StoreSignal)
    states = {table.collection: table.state for table in answer.tables}

    assert ("accepted", {"s.a": "queued", "invalid1": "failed", "s.b": "failed"}) == (
        answer.status,
        states,
    )


def test_a_signal_that_is_not_new_starts_nothing(loop: Loop):
    """
    A signal streamed again after a crash is not run twice.
    """
    loop.signal(**{"data-collections": ["s.a"]})
    loop.give(protocol.TablesInspected("s1", {"s.a": SHAPE}, {}))
    effects = loop.give(protocol.SignalStored("s1", is_new=False))

    assert ([], False) == (effects, loop.driver.is_busy)


def test_key_recording_begins_before_any_chunk(loop: Loop):
    """
    The plan waits until a start mark is streamed and everything before it is visible.
    """
    loop.accept()
    start = loop.one(protocol.WriteWatermark)
    recorded = loop.driver.changed_keys.tables.keys()
    loop.invisible.add(42, 1000)
    marked = loop.see(start.token)
    blind = loop.give(protocol.VisibilityRead(XidSnapshot(42, 50, frozenset({42}))))
    loop.give(protocol.VisibilityRead(SEES_ALL))

    assert ({OID}, [protocol.ProbeVisibility()], []) == (set(recorded), marked, blind)
    assert ["ReadPlan"] == loop.types()


def test_a_chunk_is_emitted_after_both_watermarks(loop: Loop):
    """
    Rows wait for both watermarks, and are published with the low one's position.
    """
    loop.accept(target="search2")
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    early = loop.see(first.low_token)
    loop.see(first.high_token)
    emission = loop.one(protocol.EmitRows)

    assert [] == early
    assert (None, (b"2",)) == (second.low_token, second.after_key)
    assert (
        protocol.EmitRows(
            chunk_id=first.chunk_id,
            relation=RELATION,
            rows=[(b"1", b"x"), (b"2", b"x")],
            log_lsn=200,
            snapshot_id="s1",
            target="search2",
        )
        == emission
    )


def test_progress_is_stored_after_kafka_has_the_chunk(loop: Loop):
    """
    The last key advances only with Kafka's acknowledgement, and in order.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    loop.read(second, 3)
    for token in (first.low_token, first.high_token, second.high_token):
        loop.see(token)
    out_of_order = loop.give(protocol.Delivered(second.chunk_id))
    loop.give(protocol.Delivered(first.chunk_id))
    saves = [e.table for e in loop.effects if isinstance(e, protocol.SaveProgress)]

    assert [] == out_of_order
    assert [("running", (b"3",), 3), ("completed", (b"3",), 3)] == [
        (table.state, table.last_key, table.rows) for table in saves
    ]


def test_a_completed_signal_has_its_counts(loop: Loop):
    """
    The answer has the counts of rows, dropped rows and chunks.

    The progress and the end are also notified.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.see(first.low_token)
    loop.driver.changed_keys.tables[OID].record((b"1",), 500, loop.sequence + 1)
    loop.sequence += 1
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    loop.read(second)
    loop.see(first.high_token)
    loop.see(second.high_token)
    loop.give(protocol.Delivered(first.chunk_id))
    answer = loop.one(protocol.AnswerSignal)
    *notices, last = [e for e in loop.effects if isinstance(e, protocol.Notify)]

    assert ("completed", 1, 1, 2) == (
        answer.status,
        *(answer.detail[name] for name in ("rows", "dropped", "chunks")),
    )
    assert ["IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"] == [
        notice.type for notice in notices
    ]
    assert ("Signal", "COMPLETED") == (last.aggregate_type, last.type)
    assert ({}, False) == (loop.driver.changed_keys.tables, loop.driver.is_busy)


def test_a_row_dropped_for_a_partial_change_is_read_again(loop: Loop):
    """
    A key whose row is incomplete in the stream is read again before the end.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.see(first.low_token)
    feed = loop.driver.changed_keys.tables[OID]
    feed.record((b"1",), 500, loop.sequence + 1, partial=True)
    loop.sequence += 1
    loop.read(first, 1)
    loop.see(first.high_token)
    again = loop.one(protocol.ReadChunk)
    saved = loop.one(protocol.SaveProgress).table
    loop.see(again.low_token)
    loop.read(again, 1)
    loop.see(again.high_token)
    emission = loop.one(protocol.EmitRows)
    loop.give(protocol.Delivered(again.chunk_id))

    assert (((b"1",),), ((b"1",),)) == (again.keys, saved.pending_keys)
    assert [(b"1", b"x")] == emission.rows
    assert "completed" == loop.one(protocol.AnswerSignal).status


def test_a_failed_chunk_is_retried_after_a_pause(loop: Loop):
    """
    A canceled chunk is read again from the same key, with a new low watermark (A32).
    """
    loop.accept()
    first = loop.begin_reading()
    loop.tick(1.0)
    failed = loop.give(
        protocol.ReadFailed(first.chunk_id, "canceled", may_recover=True)
    )
    early = loop.tick(1.0)
    loop.tick(60.0)
    again = loop.one(protocol.ReadChunk)

    assert ["SaveProgress"] == [type(effect).__name__ for effect in failed]
    assert ("canceled", []) == (failed[0].table.error, early)
    assert (None, True, False) == (
        again.after_key,
        again.low_token is not None,
        again.low_token == first.low_token,
    )


def test_a_fatal_failure_is_reported_with_table_key_and_reason(loop: Loop):
    """
    A changed table is never completed: it fails with its last key (A31).
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    loop.see(first.low_token)
    loop.see(first.high_token)
    loop.give(protocol.Delivered(first.chunk_id))
    loop.give(
        protocol.ReadFailed(second.chunk_id, "its key changed", may_recover=False)
    )
    answer = loop.one(protocol.AnswerSignal)
    account = answer.detail["tables"]["s.a"]

    assert ("failed", "failed", ["2"], "its key changed") == (
        answer.status,
        account["state"],
        account["last_key"],
        account["reason"],
    )
    assert "ABORTED" in [e.type for e in loop.effects if isinstance(e, protocol.Notify)]


def test_lost_changed_keys_restart_the_recording():
    """
    Beyond the limit, chunks not yet deduplicated are dropped and read again.
    """
    loop = Loop(max_changed_keys=1)
    loop.accept()
    first = loop.begin_reading()
    feed = loop.driver.changed_keys.tables[OID]
    for number in range(2):
        feed.record((b"%d" % number,), 500 + number, 50)
    loop.read(first, 1, 2)
    after_overflow = loop.types()
    loop.see(loop.one(protocol.WriteWatermark).token)
    loop.give(protocol.VisibilityRead(SEES_ALL))
    again = loop.one(protocol.ReadChunk)

    assert ["WriteWatermark"] == after_overflow
    assert (None, True) == (again.after_key, again.chunk_id != first.chunk_id)


def test_resumed_tables_continue_after_their_last_key(loop: Loop):
    """
    Keys are recorded again, and reading continues after the last key in Kafka (A14).
    """
    done = StoredTable("s1", "s.b", 0, "completed", 4712, rows=9)
    rest = StoredTable(
        "s1", "s.a", 1, "running", OID, last_key=(b"2",), maximum_key=(b"9",), rows=2
    )
    loop.give(protocol.UnfinishedRead((done, rest)))
    recorded = set(loop.driver.changed_keys.tables)
    request = loop.begin_reading()

    assert ({OID}, (b"2",), (b"9",)) == (
        recorded,
        request.after_key,
        request.maximum_key,
    )


def test_a_resumed_snapshot_without_remaining_tables_is_answered(loop: Loop):
    """
    A crash between the last table and the answer does not lose the answer.
    """
    done = StoredTable("s1", "s.a", 0, "completed", OID, rows=9)
    loop.give(protocol.UnfinishedRead((done,)))

    assert "completed" == loop.one(protocol.AnswerSignal).status


def test_signals_run_one_after_another(loop: Loop):
    """
    A second signal waits until the first has ended.
    """
    loop.accept("s1")
    start = loop.one(protocol.WriteWatermark)
    loop.accept("s2")
    second = [kind for kind in loop.types() if kind != "Notify"]
    loop.effects = [start]
    first = loop.begin_reading()
    loop.read(first)
    loop.see(first.low_token)
    loop.see(first.high_token)
    answers = [
        (effect.signal_id, effect.status)
        for effect in loop.effects
        if isinstance(effect, protocol.AnswerSignal)
    ]

    assert ([], [("s1", "completed"), ("s2", "running")]) == (second, answers)


def test_a_stopped_snapshot_reads_no_more(loop: Loop):
    """
    Stopping ends running and queued tables, and their signals report it (A13).
    """
    loop.accept("s1")
    loop.accept("s2")
    loop.signal("s3", "stop-snapshot")
    answer = loop.one(protocol.StoreSignal)
    loop.give(protocol.SignalStored("s3", is_new=True))
    stopped = [e.table for e in loop.effects if isinstance(e, protocol.SaveProgress)]
    found = [
        (effect.signal_id, effect.status)
        for effect in loop.effects
        if isinstance(effect, protocol.AnswerSignal)
    ]

    assert ("completed", ["s.a", "s.a"]) == (answer.status, answer.detail["stopped"])
    assert ["stopped", "stopped"] == [table.state for table in stopped]
    assert [("s1", "failed"), ("s2", "failed")] == found
    assert ({}, False) == (loop.driver.changed_keys.tables, loop.driver.is_busy)


def test_watermarks_of_a_different_process_are_ignored(loop: Loop):
    """
    A mark that an earlier run wrote to the log opens no window.
    """
    loop.accept()
    token = loop.one(protocol.WriteWatermark).token.replace(
        '"run":"run"', '"run":"old"'
    )

    assert [] == loop.see(token)


def test_an_empty_table_is_completed(loop: Loop):
    """
    A table without rows needs no chunk.
    """
    loop.accept()
    loop.see(loop.one(protocol.WriteWatermark).token)
    loop.give(protocol.VisibilityRead(SEES_ALL))
    plan = loop.one(protocol.ReadPlan)
    loop.give(protocol.PlanRead(plan.request_id, ScanPlan(SHAPE, None, 0)))

    assert ("completed", 0) == (
        loop.one(protocol.AnswerSignal).status,
        loop.one(protocol.AnswerSignal).detail["rows"],
    )


def test_visibility_is_probed_repeatedly_while_a_transaction_is_invisible(loop: Loop):
    """
    One probe runs at a time, at a limited rate.
    """
    loop.accept()
    loop.invisible.add(42, 1000)
    loop.see(loop.one(protocol.WriteWatermark).token)
    hides = protocol.VisibilityRead(XidSnapshot(42, 50, frozenset({42})))
    facts = (protocol.Tick(1.0), hides, protocol.Tick(1.005), hides, protocol.Tick(2.0))
    probes = [protocol.ProbeVisibility() in loop.give(fact) for fact in facts]

    assert [False, True, False, False, True] == probes


def test_changed_keys_lost_before_the_plan_restart_the_recording():
    """
    Changed keys may also overflow while a scan waits; then it waits again.
    """
    loop = Loop(max_changed_keys=1)
    loop.accept()
    loop.invisible.add(42, 1000)
    loop.see(loop.one(protocol.WriteWatermark).token)
    for number in range(2):
        loop.driver.changed_keys.tables[OID].record((b"%d" % number,), 500 + number, 50)
    loop.tick(1.0)

    assert "WriteWatermark" in loop.types()


def test_a_start_mark_that_cannot_be_written_is_retried(loop: Loop):
    """
    The first step is retried like any other.
    """
    loop.accept()
    start = loop.one(protocol.WriteWatermark)
    loop.give(protocol.ReadFailed(start.request_id, "down", may_recover=True))
    loop.tick(60.0)
    again = loop.one(protocol.WriteWatermark)

    assert ([], True) == (loop.see(start.token), again.token != start.token)


def test_a_table_that_ends_before_it_is_stopped_is_unchanged(loop: Loop):
    """
    Stopping a table that has already ended changes nothing.
    """
    loop.accept("s1")
    first = loop.begin_reading()
    loop.signal("s2", "stop-snapshot")
    loop.give(protocol.ReadFailed(first.chunk_id, "dropped", may_recover=False))

    loop.give(protocol.SignalStored("s2", is_new=True))

    # Only the answer to the signal itself.
    assert ["Notify"] == loop.types()


def test_a_failed_table_has_the_count_of_acknowledged_rows(loop: Loop):
    """
    Rows in flight are waited for and counted, and the last key is stored.

    Issue ``rows 0``: a schema was renamed while the first chunk's rows were being sent.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    loop.see(first.low_token)
    loop.see(first.high_token)
    reason = 'schema "s" does not exist'
    loop.give(protocol.ReadFailed(second.chunk_id, reason, may_recover=False))
    early = loop.types()
    loop.give(protocol.Delivered(first.chunk_id))
    account = loop.one(protocol.AnswerSignal).detail["tables"]["s.a"]

    assert [] == early
    assert {
        "state": "failed",
        "rows": 2,
        "dropped": 0,
        "chunks": 1,
        "last_key": ["2"],
        "reason": reason,
    } == account


def test_facts_of_unknown_requests_change_nothing(loop: Loop):
    """
    Facts without an open request are ignored.
    """
    facts = (
        protocol.TablesInspected("x", {"s.a": SHAPE}, {}),
        protocol.SignalStored("x", is_new=True),
        protocol.PlanRead(7, PLAN),
        protocol.ReadFailed(7, "x", may_recover=False),
        protocol.WatermarkWritten(7),
        protocol.Delivered(7),
        protocol.ProgressSaved(7),
        protocol.WatermarkSeen("x", 1, 1),
        protocol.Tick(1.0),
    )

    assert [] == loop.give(*facts)


@pytest.mark.parametrize(
    ("fields", "percent"),
    [
        ({"state": "completed"}, 100.0),
        ({"state": "running", "rows": 5}, None),
        ({"state": "running", "rows": 3, "dropped": 2, "estimated_rows": 20}, 25.0),
        ({"state": "running", "rows": 30, "estimated_rows": 20}, 99.9),
    ],
)
def test_progress_in_percent_reaches_100_only_at_the_end(fields: dict, percent: float):
    """
    The server's estimate may be too low: only a completed table is at 100.
    """
    table = StoredTable("s1", "s.a", 0, table_oid=OID, **fields)

    assert percent == table.percent


@pytest.mark.parametrize(
    ("oid", "key", "key_types", "same"),
    [
        (OID, (0,), ("bigint",), True),
        (OID + 1, (0,), ("bigint",), False),
        (OID, (1,), ("bigint",), False),
        (OID, (0,), ("integer",), False),
    ],
)
def test_a_table_is_identified_by_oid_and_key(oid, key, key_types, same):
    """
    A different oid, key column or key type makes it a different table.
    """
    other = TableShape(Relation(oid, "s", "a", RELATION.columns, key), key_types)

    assert same == SHAPE.has_same_key(other)


def test_a_window_is_not_deduplicated_early():
    """
    Deduplicating a chunk before its high watermark is a defect of the relay.
    """
    window = Window(1, "low", "high")

    reason = "chunk 1 is not ready: its watermarks or its rows have not arrived"
    with pytest.raises(RuntimeError, match=reason):
        window.deduplicate(ChangedKeys(), 10)


def test_a_signal_whose_tables_are_all_refused_is_rejected(loop: Loop):
    """
    Tables that the catalog refuses are answered with their reasons at once.
    """
    loop.signal(**{"data-collections": ["s.a"]})
    loop.give(protocol.TablesInspected("s1", {}, {"s.a": "it has no primary key"}))
    answer = loop.one(protocol.StoreSignal)

    assert ("rejected", "s.a: it has no primary key", ()) == (
        answer.status,
        answer.detail["reason"],
        answer.tables,
    )


def test_a_log_signal_is_answered_with_its_message(loop: Loop):
    """
    The answer contains the message, which the worker also logs (A40).
    """
    loop.signal("s1", "log", message="hello")

    assert protocol.StoreSignal("s1", "completed", {"message": "hello"}) in loop.effects


# Keys ---------------------------------------------------------------------------------


KEYS = ((b"1",), (b"2",), (b"3",))


def listed_keys_signal(loop: Loop) -> protocol.ReadChunk:
    """Process a signal that lists keys up to its first chunk."""
    loop.signal(**{"data-collections": ["s.a"], "keys": [["01"], [2], [3]]})
    loop.give(protocol.TablesInspected("s1", {"s.a": SHAPE}, {}, KEYS))
    loop.give(protocol.SignalStored("s1", is_new=True))
    return begin_keys(loop, KEYS)


def begin_keys(loop: Loop, keys: tuple[Key, ...]) -> protocol.ReadChunk:
    """Process listed keys up to their first chunk."""
    loop.see(loop.one(protocol.WriteWatermark).token)
    loop.give(protocol.VisibilityRead(SEES_ALL))
    plan = ScanPlan(SHAPE, None, len(keys), keys)
    loop.give(protocol.PlanRead(loop.one(protocol.ReadPlan).request_id, plan))
    return loop.one(protocol.ReadChunk)


def test_listed_keys_are_stored_as_the_server_spells_them(loop: Loop):
    """
    The signal's spelling is looked up, and the stream's spelling is stored.
    """
    loop.signal(**{"data-collections": ["s.a"], "keys": [["01"], [2]]})
    inspection = loop.one(protocol.InspectTables)
    loop.give(protocol.TablesInspected("s1", {"s.a": SHAPE}, {}, KEYS[:2]))
    [table] = loop.one(protocol.StoreSignal).tables

    assert ((b"01",), (b"2",)) == inspection.keys
    assert (KEYS[:2], 2) == (table.pending_keys, table.asked_keys)


def test_listed_keys_must_belong_to_one_table(loop: Loop):
    """
    A list of keys for several tables is rejected.
    """
    loop.signal(**{"data-collections": ["s.a", "s.b"], "keys": [[1]]})

    assert "name that table only" in loop.one(protocol.StoreSignal).detail["reason"]


def test_signal_ids_of_the_relays_own_requests_are_reserved(loop: Loop):
    """
    A user's signal cannot use an id of the relay's own requests.
    """
    loop.signal("towpath-keys-1", **{"data-collections": ["s.a"]})

    assert "the relay's own" in loop.one(protocol.StoreSignal).detail["reason"]


def test_a_listed_key_that_is_absent_is_deleted(loop: Loop):
    """
    Listed keys yield their rows, or deletes if there are none.
    """
    first = listed_keys_signal(loop)
    loop.read(first, 2)
    second = loop.one(protocol.ReadChunk)
    loop.see(first.low_token)
    loop.see(first.high_token)
    emission = loop.one(protocol.EmitRows)
    loop.read(second, 3)
    loop.see(second.high_token)
    loop.give(protocol.Delivered(first.chunk_id), protocol.Delivered(second.chunk_id))
    answer = loop.one(protocol.AnswerSignal)

    assert (KEYS[:2], KEYS[2:]) == (first.keys, second.keys)
    assert ([(b"2", b"x")], (KEYS[0],)) == (emission.rows, emission.absent)
    assert ("completed", 3) == (answer.status, answer.detail["rows"])


@pytest.mark.parametrize(
    ("xid", "sequence", "partial"),
    [(500, 9, False), (42, 0, False), (500, 9, True), (42, 0, True)],
)
def test_a_listed_key_changed_in_the_stream_is_not_deleted(
    loop: Loop, xid: int, sequence: int, partial: bool
):
    """
    A key changed after the low watermark, or invisibly, is left to the stream.

    If the stream left columns out, the key is read again.
    """
    first = listed_keys_signal(loop)
    feed = loop.driver.changed_keys.tables[OID]
    feed.record(KEYS[0], xid, sequence, partial=partial)
    loop.read(first, 2, snapshot=XidSnapshot(42, 1000, frozenset({42})))
    loop.see(first.low_token)
    loop.see(first.high_token)
    emission = loop.one(protocol.EmitRows)
    loop.give(protocol.Delivered(first.chunk_id))
    pending = loop.one(protocol.SaveProgress).table.pending_keys

    assert ((), partial) == (emission.absent, KEYS[0] in pending)


def test_a_listed_key_in_a_different_spelling_is_not_deleted(loop: Loop):
    """
    If a row has an unexpected spelling, it is unknown which other keys are absent.
    """
    first = listed_keys_signal(loop)
    loop.read(first, 7)
    loop.see(first.low_token)
    loop.see(first.high_token)

    assert () == loop.one(protocol.EmitRows).absent


def test_progress_before_the_keys_are_loaded_does_not_overwrite_them(loop: Loop):
    """
    A failed first step does not replace the stored list with nothing.
    """
    loop.signal(**{"data-collections": ["s.a"], "keys": [[1]]})
    loop.give(protocol.TablesInspected("s1", {"s.a": SHAPE}, {}, KEYS))
    loop.give(protocol.SignalStored("s1", is_new=True))
    start = loop.one(protocol.WriteWatermark)
    loop.give(protocol.ReadFailed(start.request_id, "down", may_recover=True))

    assert loop.one(protocol.SaveProgress).table.pending_keys is None


# Key requests of the relay itself -----------------------------------------------------


def request_key(loop: Loop, log_lsn: int, key: Key) -> protocol.StoreKeys:
    """Make the relay request a key."""
    loop.driver.requests.add(RELATION, key, Position(log_lsn, 0))
    loop.tick()
    return loop.one(protocol.StoreKeys)


def test_a_key_request_is_read_once_it_is_stored(loop: Loop):
    """
    The request is stored, then read by its key like any snapshot.

    No signal is answered.
    """
    store = request_key(loop, 8, KEYS[0])
    stored = loop.give(protocol.KeysStored(store.snapshot_id))
    chunk = begin_keys(loop, KEYS[:1])
    loop.read(chunk, 1)
    loop.see(chunk.low_token)
    loop.see(chunk.high_token)
    emission = loop.one(protocol.EmitRows)
    ended = loop.give(protocol.Delivered(chunk.chunk_id))

    assert ["Notify", "WriteWatermark"] == [type(e).__name__ for e in stored]
    assert ("towpath-keys-0000000000000008", [(b"1", b"x")]) == (
        emission.snapshot_id,
        emission.rows,
    )
    assert {"SaveProgress", "Notify"} == {type(effect).__name__ for effect in ended}
    assert ({}, False) == (loop.driver.changed_keys.tables, loop.driver.is_busy)


def test_the_driver_is_active_from_a_request_until_its_row_is_delivered(loop: Loop):
    """
    It remains active while the request is being stored, although it can only wait.
    """
    idle = loop.driver.is_active
    loop.driver.request_key(RELATION, KEYS[0], Position(8, 0))
    requested = loop.driver.is_active
    loop.tick()
    store = loop.one(protocol.StoreKeys)
    storing = (loop.driver.is_busy, loop.driver.is_active)
    loop.give(protocol.KeysStored(store.snapshot_id))
    chunk = begin_keys(loop, KEYS[:1])
    loop.read(chunk, 1)
    loop.see(chunk.low_token)
    loop.see(chunk.high_token)
    reading = loop.driver.is_active
    loop.give(protocol.Delivered(chunk.chunk_id))

    assert (False, True, (False, True), True, False) == (
        idle,
        requested,
        storing,
        reading,
        loop.driver.is_active,
    )


def test_a_table_ends_after_its_earlier_key_requests(loop: Loop):
    """
    A row that moved out of the unread range is delivered before the table completes.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first)
    store = request_key(loop, 8, KEYS[0])
    loop.see(first.low_token)
    loop.see(first.high_token)
    waiting = loop.types()
    loop.give(protocol.KeysStored(store.snapshot_id))
    later = loop.driver.requests.add(RELATION, KEYS[1], Position(16, 0))
    chunk = begin_keys(loop, KEYS[:1])
    loop.read(chunk)
    loop.see(chunk.low_token)
    loop.see(chunk.high_token)
    loop.give(protocol.Delivered(chunk.chunk_id))
    answer = loop.one(protocol.AnswerSignal)

    assert "AnswerSignal" not in waiting
    assert ("s1", "completed", True) == (
        answer.signal_id,
        answer.status,
        later is not None,
    )


def test_a_failed_key_request_fails_the_table_that_waits_for_it(loop: Loop):
    """
    A row that cannot be read by its new key is missing, so the table does not complete.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first)
    store = request_key(loop, 800, KEYS[0])
    loop.see(first.low_token)
    loop.see(first.high_token)
    loop.give(protocol.KeysStored(store.snapshot_id))
    start = loop.one(protocol.WriteWatermark)
    loop.give(protocol.ReadFailed(start.request_id, "gone", may_recover=False))
    account = loop.one(protocol.AnswerSignal).detail["tables"]["s.a"]

    assert "could not be refetched by their new key" in account["reason"]


@pytest.mark.parametrize(
    ("failed_at", "after_key"), [(0x64, None), (0x63, (b"2",))], ids=["since", "before"]
)
def test_a_table_is_read_again_if_a_key_request_failed_since_it_began(
    loop: Loop, failed_at: int, after_key: tuple[bytes, ...] | None
):
    """
    The missing row may precede the progress of a resumed or restarted scan (I5).
    """
    rest = StoredTable(
        "s1", "s.a", 0, "queued", OID, last_key=(b"2",), rows=2, floor=0x64
    )
    failed = ((OID, str(Position(failed_at, 3))),)
    loop.give(protocol.UnfinishedRead((rest,), failed_requests=failed))

    assert after_key == loop.begin_reading().after_key


def test_a_key_request_does_not_wait_for_a_table(loop: Loop):
    """
    While a large table is being read, requested rows are read concurrently.
    """
    loop.accept()
    loop.begin_reading()
    store = request_key(loop, 8, KEYS[0])
    loop.give(protocol.KeysStored(store.snapshot_id))
    chunk = begin_keys(loop, KEYS[:1])

    assert KEYS[:1] == chunk.keys


def test_a_stop_signal_does_not_stop_key_requests(loop: Loop):
    """
    Rows that the stream left incomplete are completed even if snapshots are stopped.
    """
    store = request_key(loop, 8, KEYS[0])
    loop.give(protocol.KeysStored(store.snapshot_id))
    loop.signal("s2", "stop-snapshot")

    assert [] == loop.one(protocol.StoreSignal).detail["stopped"]


def test_a_stored_key_request_is_resumed_after_a_restart(loop: Loop):
    """
    The request continues, and is not made twice.
    """
    table = StoredTable(
        "towpath-keys-1",
        "s.a",
        0,
        "running",
        OID,
        pending_keys=None,
        asked_keys=1,
        asked_until="0000000000000008.0000000000",
    )
    loop.give(protocol.UnfinishedRead((table,), table.asked_until))
    resumed = loop.types()
    again = loop.driver.requests.add(RELATION, KEYS[0], Position(8, 0))

    assert (["WriteWatermark"], None) == (resumed, again)


# Slices -------------------------------------------------------------------------------


def begin_slices(loop: Loop) -> protocol.ReadChunk:
    """Process a chunk of two rows up to its first slice of one row."""
    loop.rows_per_turn = 1
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    loop.see(first.low_token)
    loop.see(first.high_token)
    return first


def test_a_chunk_is_emitted_in_slices(loop: Loop):
    """
    Each turn emits at most the given number of rows, and the last slice is marked.
    """
    begin_slices(loop)
    first = loop.one(protocol.EmitRows)
    has_more = loop.driver.has_ready
    loop.give()
    second = loop.one(protocol.EmitRows)

    assert ([(b"1", b"x")], False, True) == (first.rows, first.is_last, has_more)
    assert ([(b"2", b"x")], True, first.chunk_id) == (
        second.rows,
        second.is_last,
        second.chunk_id,
    )
    assert not loop.driver.has_ready


def test_a_change_between_two_slices_drops_its_row_from_the_rest(loop: Loop):
    """
    A waiting row must not be published after its newer change.
    """
    begin_slices(loop)
    loop.driver.changed_keys.tables[OID].record((b"2",), 500, 99)
    loop.give()
    rest = loop.one(protocol.EmitRows)

    assert ([], True) == (list(rest.rows), rest.is_last)


def test_an_aborted_chunk_continues_after_its_last_processed_row(loop: Loop):
    """
    If changed keys are lost between two slices, only unprocessed rows are read again.
    """
    loop = Loop(max_changed_keys=1)
    chunk = begin_slices(loop)
    for number in range(2):
        loop.driver.changed_keys.tables[OID].record((b"%d" % number,), 500 + number, 50)
    loop.give()
    end = loop.one(protocol.EmitRows)
    loop.see(loop.one(protocol.WriteWatermark).token)
    loop.give(protocol.VisibilityRead(SEES_ALL))
    again = loop.one(protocol.ReadChunk)

    assert ([], True, chunk.chunk_id) == (list(end.rows), end.is_last, end.chunk_id)
    assert (b"1",) == again.after_key


def test_a_chunk_aborted_before_its_first_row_has_no_delivery():
    """
    If every row was evicted, there is no delivery to end.
    """
    loop = Loop(max_changed_keys=2)
    loop.rows_per_turn = 1
    loop.accept()
    first = loop.begin_reading()
    loop.driver.changed_keys.tables[OID].record((b"1",), 500, 98)
    loop.read(first, 1, 2)
    loop.see(first.low_token)
    loop.see(first.high_token)
    for number in range(2):
        loop.driver.changed_keys.tables[OID].record((b"%d" % number,), 501 + number, 99)
    loop.give()
    after_overflow = loop.types()
    loop.see(loop.one(protocol.WriteWatermark).token)
    loop.give(protocol.VisibilityRead(SEES_ALL))

    assert "EmitRows" not in after_overflow
    assert (b"1",) == loop.one(protocol.ReadChunk).after_key


def test_a_high_watermark_may_be_seen_before_its_rows_arrive(loop: Loop):
    """
    The stream may be ahead of the reader: the next chunk's low watermark is known.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.see(first.low_token)
    loop.see(first.high_token)
    loop.read(first, 1, 2)
    second = loop.one(protocol.ReadChunk)
    loop.read(second, 3)
    loop.see(second.high_token)

    assert (None, 300) == (second.low_token, loop.one(protocol.EmitRows).log_lsn)

"""The snapshot driver: facts in, effects out."""

import json

import pytest

from towpath.relay.snapshot import effects as do
from towpath.relay.snapshot import facts as told
from towpath.relay.snapshot.driver import Limits, SnapshotDriver
from towpath.relay.snapshot.touches import Touches
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot
from towpath.relay.snapshot.window import Window
from towpath.relay.wal.relation import Column, Relation

OID = 4711
RELATION = Relation(OID, "s", "a", (Column("id", 20), Column("v", 25)), (0,))
SHAPE = told.TableShape(RELATION, ("bigint",))
SEES_ALL = XidSnapshot(1000, 1000, frozenset())
PLAN = told.Plan(SHAPE, (b"3",), 4)


class Loop:
    """Tells the driver facts and keeps what it wants done, by type."""

    def __init__(self) -> None:
        self.invisible = InvisibleTransactions(0)
        self.driver = SnapshotDriver(
            self.invisible,
            captured=["s.a", "s.b"],
            sinks=lambda: ["search2"],
            run_id="run",
            limits=Limits(chunk_rows=2),
        )
        self.sequence = 0
        self.effects: list[do.Effect] = []

    def tell(self, *facts: told.Fact) -> list[do.Effect]:
        self.effects = [effect for fact in facts for effect in self.driver.on(fact)]
        return self.effects

    def tick(self, now_s: float) -> list[do.Effect]:
        return self.tell(told.Tick(now_s))

    def one(self, kind: type) -> do.Effect:
        """Return the only effect of a type among the last ones."""
        [effect] = [effect for effect in self.effects if isinstance(effect, kind)]
        return effect

    def types(self) -> list[str]:
        return [type(effect).__name__ for effect in self.effects]

    def see(self, token: str) -> list[do.Effect]:
        self.sequence += 1
        lsn = 100 * self.sequence
        return self.tell(told.WatermarkSeen(token, lsn, self.sequence))

    def signal(self, signal_id: str = "s1", kind="execute-snapshot", **data) -> None:
        """Bring a signal to its answer."""
        seen = told.SignalSeen(signal_id, kind, json.dumps(data), 7)
        self.tell(seen, told.VisibilityRead(SEES_ALL))

    def accept(self, signal_id: str = "s1", **data) -> None:
        """Bring a signal for table s.a to its run."""
        self.signal(signal_id, **{"data-collections": ["s.a"]} | data)
        self.tell(told.TablesInspected(signal_id, {"s.a": SHAPE}, {}))
        self.tell(told.SignalStored(signal_id, is_new=True))

    def begin_reading(self) -> do.ReadChunk:
        """Bring the running table to its first chunk."""
        self.see(self.one(do.WriteWatermark).token)
        self.tell(told.VisibilityRead(SEES_ALL))
        plan = self.one(do.ReadPlan)
        self.tell(told.PlanRead(plan.request_id, PLAN))
        return self.one(do.ReadChunk)

    def read(self, ask: do.ReadChunk, *ids: int, snapshot=SEES_ALL) -> list[do.Effect]:
        """Answer a chunk with rows of these ids."""
        rows = [(b"%d" % number, b"x") for number in ids]
        is_last = len(ids) < ask.max_rows or bool(ask.keys)
        chunk = told.Chunk(SHAPE, rows, snapshot, is_last)
        return self.tell(told.ChunkRead(ask.chunk_id, chunk))


@pytest.fixture
def loop() -> Loop:
    """A driver that knows nothing yet."""
    return Loop()


def test_a_signal_is_looked_up_only_once_it_is_visible(loop: Loop):
    """
    The answer goes into the signal's row, so its transaction must be visible first.
    """
    data = '{"data-collections": ["s.a"]}'
    asked = loop.tell(told.SignalSeen("s1", "execute-snapshot", data, 7))
    blind = loop.tell(told.VisibilityRead(XidSnapshot(7, 9, frozenset({7}))))
    seeing = loop.tell(told.VisibilityRead(SEES_ALL))

    assert ([do.ProbeVisibility()], [], [do.InspectTables("s1", ("s.a",))]) == (
        asked,
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
def test_what_is_not_known_is_rejected(loop: Loop, data: dict, reason: str):
    """
    Unknown tables and sinks are refused in the signal's answer.
    """
    loop.signal(**data)
    answer = loop.one(do.StoreSignal)

    assert ("rejected", reason) == (answer.status, answer.detail["reason"])


def test_a_pattern_that_finds_nothing_is_done_at_once(loop: Loop):
    """
    A regular expression without a match is a clean no-op (A10).
    """
    loop.signal(**{"data-collections": ["none.*"]})

    assert "completed" == loop.one(do.StoreSignal).status


def test_refused_tables_fail_while_others_are_read(loop: Loop):
    """
    Known and unknown tables in one signal: the known are read, the rest reported (A9).
    """
    loop.signal(**{"data-collections": ["invalid1", "s.a", "s.b"]})
    loop.tell(told.TablesInspected("s1", {"s.a": SHAPE}, {"s.b": "no primary key"}))
    answer = loop.one(do.StoreSignal)
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
    loop.tell(told.TablesInspected("s1", {"s.a": SHAPE}, {}))
    effects = loop.tell(told.SignalStored("s1", is_new=False))

    assert ([], False) == (effects, loop.driver.is_busy)


def test_recording_begins_before_anything_is_read(loop: Loop):
    """
    A start mark is written and seen, and all before it visible, before the plan.
    """
    loop.accept()
    start = loop.one(do.WriteWatermark)
    recorded = loop.driver.recorders.keys()
    loop.invisible.add(42, 1000)
    marked = loop.see(start.token)
    blind = loop.tell(told.VisibilityRead(XidSnapshot(42, 50, frozenset({42}))))
    loop.tell(told.VisibilityRead(SEES_ALL))

    assert ({OID}, [do.ProbeVisibility()], []) == (set(recorded), marked, blind)
    assert ["ReadPlan"] == loop.types()


def test_a_chunk_is_emitted_when_the_stream_has_passed_it(loop: Loop):
    """
    Rows wait for both watermarks, and go out at the low one.
    """
    loop.accept(target="search2")
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(do.ReadChunk)
    early = loop.see(first.low_token)
    loop.see(first.high_token)
    emission = loop.one(do.EmitRows)

    assert [] == early
    assert (None, (b"2",)) == (second.low_token, second.after_key)
    assert (
        do.EmitRows(
            chunk_id=first.chunk_id,
            relation=RELATION,
            rows=[(b"1", b"x"), (b"2", b"x")],
            log_lsn=200,
            snapshot_id="s1",
            target="search2",
        )
        == emission
    )


def test_progress_is_stored_after_the_broker_has_it(loop: Loop):
    """
    The last key moves with Kafka's acknowledgement, in order, and no sooner.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(do.ReadChunk)
    loop.read(second, 3)
    for token in (first.low_token, first.high_token, second.high_token):
        loop.see(token)
    out_of_order = loop.tell(told.Delivered(second.chunk_id))
    loop.tell(told.Delivered(first.chunk_id))
    saves = [e.table for e in loop.effects if isinstance(e, do.SaveProgress)]

    assert [] == out_of_order
    assert [("running", (b"3",), 3), ("completed", (b"3",), 3)] == [
        (table.state, table.last_key, table.rows) for table in saves
    ]


def test_a_completed_signal_says_what_was_done(loop: Loop):
    """
    The answer and the notifications tell rows, dropped rows and chunks.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.see(first.low_token)
    loop.driver.recorders[OID].touch((b"1",), 500, loop.sequence + 1)
    loop.sequence += 1
    loop.read(first, 1, 2)
    second = loop.one(do.ReadChunk)
    loop.read(second)
    loop.see(first.high_token)
    loop.see(second.high_token)
    loop.tell(told.Delivered(first.chunk_id))
    answer = loop.one(do.AnswerSignal)
    notices = [e.type for e in loop.effects if isinstance(e, do.Notify)]

    assert ("completed", 1, 1, 2) == (
        answer.status,
        *(answer.detail[name] for name in ("rows", "dropped", "chunks")),
    )
    assert ["IN_PROGRESS", "TABLE_SCAN_COMPLETED", "COMPLETED"] == notices
    assert ({}, False) == (loop.driver.recorders, loop.driver.is_busy)


def test_a_row_dropped_for_a_partial_change_is_read_again(loop: Loop):
    """
    What the stream does not carry whole is read by key before the end.
    """
    loop.accept()
    first = loop.begin_reading()
    loop.see(first.low_token)
    touches = loop.driver.recorders[OID]
    touches.touch((b"1",), 500, loop.sequence + 1, partial=True)
    loop.sequence += 1
    loop.read(first, 1)
    loop.see(first.high_token)
    again = loop.one(do.ReadChunk)
    saved = loop.one(do.SaveProgress).table
    loop.see(again.low_token)
    loop.read(again, 1)
    loop.see(again.high_token)
    emission = loop.one(do.EmitRows)
    loop.tell(told.Delivered(again.chunk_id))

    assert (((b"1",),), ((b"1",),)) == (again.keys, saved.pending_keys)
    assert [(b"1", b"x")] == emission.rows
    assert "completed" == loop.one(do.AnswerSignal).status


def test_a_moved_key_holds_the_log_until_it_is_on_the_stored_list(loop: Loop):
    """
    A row that moved with columns left out survives a crash at any moment.
    """
    loop.accept()
    loop.begin_reading()
    touches = loop.driver.recorders[OID]
    touches.move((b"3",), (b"0",), 500, 9, partial=True)
    loop.invisible.add(500, 900)
    loop.tell(told.VisibilityRead(SEES_ALL))
    save = loop.one(do.SaveProgress)
    held = loop.invisible.confirmable(900)
    loop.tell(told.ProgressSaved(save.request_id))

    assert (((b"0",),), 0, 900) == (
        save.table.pending_keys,
        held,
        loop.invisible.confirmable(900),
    )


def test_a_moved_key_after_the_last_save_goes_on_holding(loop: Loop):
    """
    A list that was stored before a key moved says nothing of that key.
    """
    loop.accept()
    loop.begin_reading()
    touches = loop.driver.recorders[OID]
    touches.move((b"3",), (b"0",), 500, 9, partial=True)
    loop.tick(1.0)
    save = loop.one(do.SaveProgress)
    touches.move((b"2",), (b"-1",), 501, 10, partial=True)
    loop.invisible.add(500, 900)
    loop.tell(told.VisibilityRead(SEES_ALL), told.ProgressSaved(save.request_id))

    assert 0 == loop.invisible.confirmable(900)


def test_a_failed_attempt_is_repeated_after_a_pause(loop: Loop):
    """
    A cancelled chunk is read again from the same key, with a fresh low watermark (A32).
    """
    loop.accept()
    first = loop.begin_reading()
    loop.tick(1.0)
    failed = loop.tell(told.ReadFailed(first.chunk_id, "cancelled", may_recover=True))
    early = loop.tick(1.0)
    loop.tick(60.0)
    again = loop.one(do.ReadChunk)

    assert ["SaveProgress"] == [type(effect).__name__ for effect in failed]
    assert ("cancelled", []) == (failed[0].table.error, early)
    assert (None, True, False) == (
        again.after_key,
        again.low_token is not None,
        again.low_token == first.low_token,
    )


def test_what_cannot_recover_fails_with_table_key_and_reason(loop: Loop):
    """
    A changed table never says completed: it fails with its last key (A31).
    """
    loop.accept()
    first = loop.begin_reading()
    loop.read(first, 1, 2)
    second = loop.one(do.ReadChunk)
    loop.see(first.low_token)
    loop.see(first.high_token)
    loop.tell(told.Delivered(first.chunk_id))
    loop.tell(told.ReadFailed(second.chunk_id, "its key changed", may_recover=False))
    answer = loop.one(do.AnswerSignal)
    account = answer.detail["tables"]["s.a"]

    assert ("failed", "failed", ["2"], "its key changed") == (
        answer.status,
        account["state"],
        account["last_key"],
        account["reason"],
    )
    assert "ABORTED" in [e.type for e in loop.effects if isinstance(e, do.Notify)]


def test_lost_touches_begin_the_recording_anew(loop: Loop):
    """
    Above the bound, chunks that are not judged are thrown away and read again.
    """
    loop.driver._limits = Limits(chunk_rows=2, max_touches=1)
    loop.accept()
    first = loop.begin_reading()
    touches = loop.driver.recorders[OID]
    for number in range(2):
        touches.touch((b"%d" % number,), 500 + number, 50)
    loop.read(first, 1, 2)
    thrown_away = loop.types()
    loop.see(loop.one(do.WriteWatermark).token)
    loop.tell(told.VisibilityRead(SEES_ALL))
    again = loop.one(do.ReadChunk)

    assert ["WriteWatermark"] == thrown_away
    assert (None, True) == (again.after_key, again.chunk_id != first.chunk_id)


def test_resumed_tables_go_on_after_their_last_key(loop: Loop):
    """
    A restart records anew, waits anew, and reads on where Kafka had it (A14).
    """
    done = told.StoredTable("s1", "s.b", 0, "completed", 4712, rows=9)
    rest = told.StoredTable(
        "s1", "s.a", 1, "running", OID, last_key=(b"2",), maximum_key=(b"9",), rows=2
    )
    loop.tell(told.Resumed((done, rest)))
    recorded = set(loop.driver.recorders)
    ask = loop.begin_reading()

    assert ({OID}, (b"2",), (b"9",)) == (recorded, ask.after_key, ask.maximum_key)


def test_a_resumed_snapshot_without_anything_left_is_answered(loop: Loop):
    """
    A crash between the last table and the answer does not lose the answer.
    """
    done = told.StoredTable("s1", "s.a", 0, "completed", OID, rows=9)
    loop.tell(told.Resumed((done,)))

    assert "completed" == loop.one(do.AnswerSignal).status


def test_signals_run_one_after_another(loop: Loop):
    """
    A second signal waits until the first has ended.
    """
    loop.accept("s1")
    start = loop.one(do.WriteWatermark)
    loop.accept("s2")
    second = loop.types()
    loop.effects = [start]
    first = loop.begin_reading()
    loop.read(first)
    loop.see(first.low_token)
    loop.see(first.high_token)
    answers = [
        (effect.signal_id, effect.status)
        for effect in loop.effects
        if isinstance(effect, do.AnswerSignal)
    ]

    assert ([], [("s1", "completed"), ("s2", "running")]) == (second, answers)


def test_a_stopped_snapshot_reads_no_more(loop: Loop):
    """
    Stopping ends running and queued tables, and their signals say so (A13).
    """
    loop.accept("s1")
    loop.accept("s2")
    loop.signal("s3", "stop-snapshot")
    answer = loop.one(do.StoreSignal)
    loop.tell(told.SignalStored("s3", is_new=True))
    stopped = [e.table for e in loop.effects if isinstance(e, do.SaveProgress)]
    told_so = [
        (effect.signal_id, effect.status)
        for effect in loop.effects
        if isinstance(effect, do.AnswerSignal)
    ]

    assert ("completed", ["s.a", "s.a"]) == (answer.status, answer.detail["stopped"])
    assert ["stopped", "stopped"] == [table.state for table in stopped]
    assert [("s1", "failed"), ("s2", "failed")] == told_so
    assert ({}, False) == (loop.driver.recorders, loop.driver.is_busy)


def test_watermarks_of_a_dead_process_are_nobodys(loop: Loop):
    """
    A mark that another run left in the log opens no window.
    """
    loop.accept()
    token = loop.one(do.WriteWatermark).token.replace('"run":"run"', '"run":"old"')

    assert [] == loop.see(token)


def test_an_empty_table_is_completed(loop: Loop):
    """
    A table without rows needs no chunk.
    """
    loop.accept()
    loop.see(loop.one(do.WriteWatermark).token)
    loop.tell(told.VisibilityRead(SEES_ALL))
    plan = loop.one(do.ReadPlan)
    loop.tell(told.PlanRead(plan.request_id, told.Plan(SHAPE, None, 0)))

    assert ("completed", 0) == (
        loop.one(do.AnswerSignal).status,
        loop.one(do.AnswerSignal).detail["rows"],
    )


def test_visibility_is_asked_for_again_while_something_waits(loop: Loop):
    """
    One question at a time, and not more often than it is worth.
    """
    loop.accept()
    loop.invisible.add(42, 1000)
    loop.see(loop.one(do.WriteWatermark).token)
    hides = told.VisibilityRead(XidSnapshot(42, 50, frozenset({42})))
    facts = (told.Tick(1.0), hides, told.Tick(1.005), hides, told.Tick(2.0))
    asked = [do.ProbeVisibility() in loop.tell(fact) for fact in facts]

    assert [False, True, False, False, True] == asked


def test_lost_moved_keys_fail_the_table(loop: Loop):
    """
    What cannot be read again exactly is not called completed.
    """
    loop.accept()
    loop.begin_reading()
    touches = loop.driver.recorders[OID]
    touches._max_moved_keys = 1
    for number in range(2):
        touches.move((b"3",), (b"%d" % number,), 500, 9, partial=True)
    loop.tick(1.0)
    account = loop.one(do.AnswerSignal).detail["tables"]["s.a"]

    assert "failed" == account["state"]
    assert "had their key changed meanwhile" in account["reason"]


def test_touches_lost_before_the_plan_begin_the_recording_anew(loop: Loop):
    """
    While a scan waits, its touches may overflow too; then it waits again.
    """
    loop.driver._limits = Limits(chunk_rows=2, max_touches=1)
    loop.accept()
    loop.invisible.add(42, 1000)
    loop.see(loop.one(do.WriteWatermark).token)
    for number in range(2):
        loop.driver.recorders[OID].touch((b"%d" % number,), 500 + number, 50)
    loop.tick(1.0)

    assert "WriteWatermark" in loop.types()


def test_a_start_mark_that_cannot_be_written_is_written_again(loop: Loop):
    """
    The first step is tried again like any other.
    """
    loop.accept()
    start = loop.one(do.WriteWatermark)
    loop.tell(told.ReadFailed(start.request_id, "away", may_recover=True))
    loop.tick(60.0)
    again = loop.one(do.WriteWatermark)

    assert ([], True) == (loop.see(start.token), again.token != start.token)


def test_a_table_that_ends_before_it_is_stopped_is_left(loop: Loop):
    """
    Stopping what has ended meanwhile changes nothing.
    """
    loop.accept("s1")
    first = loop.begin_reading()
    loop.signal("s2", "stop-snapshot")
    loop.tell(told.ReadFailed(first.chunk_id, "dropped", may_recover=False))

    assert [] == loop.tell(told.SignalStored("s2", is_new=True))


def test_facts_of_unknown_requests_change_nothing(loop: Loop):
    """
    Answers that nobody waits for are heard and left.
    """
    facts = (
        told.TablesInspected("x", {"s.a": SHAPE}, {}),
        told.SignalStored("x", is_new=True),
        told.PlanRead(7, PLAN),
        told.ReadFailed(7, "x", may_recover=False),
        told.WatermarkWritten(7),
        told.Delivered(7),
        told.ProgressSaved(7),
        told.WatermarkSeen("x", 1, 1),
        told.Tick(1.0),
    )

    assert [] == loop.tell(*facts)


@pytest.mark.parametrize(
    ("fields", "percent"),
    [
        ({"state": "completed"}, 100.0),
        ({"state": "running", "rows": 5}, None),
        ({"state": "running", "rows": 3, "dropped": 2, "estimated_rows": 20}, 25.0),
        ({"state": "running", "rows": 30, "estimated_rows": 20}, 99.9),
    ],
)
def test_progress_in_percent_never_says_done_too_early(fields: dict, percent: float):
    """
    The server's estimate may be too low: only completed is all of it.
    """
    table = told.StoredTable("s1", "s.a", 0, table_oid=OID, **fields)

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
def test_a_table_is_the_same_by_oid_and_key(oid, key, key_types, same):
    """
    Another oid, key column or key type makes another table of it.
    """
    other = told.TableShape(Relation(oid, "s", "a", RELATION.columns, key), key_types)

    assert same == SHAPE.has_same_key(other)


def test_a_window_is_not_judged_early():
    """
    Judging a chunk that the stream has not passed is a mistake of ours.
    """
    window = Window(1, "low", "high")
    touches = Touches(InvisibleTransactions(0))

    with pytest.raises(RuntimeError, match="not between its watermarks"):
        window.close(touches)


def test_a_signal_whose_tables_are_all_refused_is_rejected(loop: Loop):
    """
    Tables that the catalog refuses are answered with their reasons, up front.
    """
    loop.signal(**{"data-collections": ["s.a"]})
    loop.tell(told.TablesInspected("s1", {}, {"s.a": "it has no primary key"}))
    answer = loop.one(do.StoreSignal)

    assert ("rejected", "s.a: it has no primary key", ()) == (
        answer.status,
        answer.detail["reason"],
        answer.tables,
    )


def test_a_log_signal_is_answered_with_its_message(loop: Loop):
    """
    The message goes into the answer, which the worker also logs (A40).
    """
    loop.signal("s1", "log", message="hello")

    assert do.StoreSignal("s1", "completed", {"message": "hello"}) in loop.effects

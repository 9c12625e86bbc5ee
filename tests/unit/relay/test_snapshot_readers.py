"""The snapshot driver with several readers, tables, one view, pauses and sweeps."""

import pytest

from support.copying import replace
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.driver import SnapshotDriver, SnapshotScope
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.run import SnapshotLimits
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    KeyRange,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import BLOCKING, INITIAL, StoredTable
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.position import Position

SEES_ALL = XidSnapshot(1000, 1000, frozenset())
START_LOG_LSN = 4096


def shape(name: str) -> TableShape:
    """Return the shape of a table of two columns; its oid is its name's letter."""
    columns = (Column("id", 20), Column("v", 25))
    return TableShape(Relation(ord(name), "s", name, columns, (0,)), ("bigint",))


def table(name: str, **fields: object) -> StoredTable:
    """Return a table of the snapshot s1 that waits to be read."""
    return StoredTable("s1", f"s.{name}", ord(name), "queued", ord(name), **fields)


def key(number: int) -> Key:
    """Return the key of a row."""
    return (b"%d" % number,)


class Loop:
    """The driver, its effects, and the facts given in answer."""

    def __init__(
        self,
        *tables: StoredTable,
        readers: int = 2,
        slot_snapshots: tuple[str, ...] = (),
    ) -> None:
        self.driver = SnapshotDriver(
            InvisibleTransactions(0),
            scope=SnapshotScope(
                ["s.a", "s.b"],
                lambda: ["new"],
                {"outbox.order": "order"},
                slot_snapshots,
                START_LOG_LSN,
            ),
            run_id="run",
            limits=SnapshotLimits(ChunkSize(2), readers),
            throttle=Throttle(10.0, max_active_sessions=3),
        )
        self.sequence = 0
        self.effects: list[protocol.Effect] = []
        self.tell(protocol.UnfinishedRead(tables))

    def tell(self, fact: protocol.Fact) -> list[protocol.Effect]:
        """Give a fact to the driver, then turn the loop."""
        self.effects = self.driver.on(fact) + self.driver.on(protocol.EmitAllowed(1000))
        return self.effects

    def all(self, kind: type) -> list:
        """Return the effects of a type among the last ones."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def observe(self, token: str) -> None:
        self.sequence += 1
        self.tell(protocol.WatermarkSeen(token, 100 * self.sequence, self.sequence))

    def begin(self) -> list[protocol.ReadPlan]:
        """Bring every table to its plan."""
        for mark in self.all(protocol.WriteWatermark):
            self.observe(mark.token)
        self.tell(protocol.VisibilityRead(SEES_ALL))
        return self.all(protocol.ReadPlan)

    def plan(self, ask: protocol.ReadPlan, last: int, *boundaries: int) -> None:
        name = ask.collection.removeprefix("s.")
        cuts = tuple(map(key, boundaries))
        plan = ScanPlan(shape(name), key(last), 9, boundaries=cuts)
        self.tell(protocol.PlanRead(ask.request_id, plan))

    def read(self, ask: protocol.ReadChunk, *ids: int) -> None:
        """Answer a chunk; fewer rows than were asked for are the last."""
        rows = [(b"%d" % number, b"x") for number in ids]
        is_last = len(ids) < ask.max_rows or bool(ask.keys)
        chunk = Chunk(ask.shape, rows, SEES_ALL, is_last)
        self.tell(protocol.ChunkRead(ask.chunk_id, chunk))

    def finish(self, ask: protocol.ReadPlan) -> None:
        """Read a table of one row to its end."""
        self.plan(ask, 9)
        [chunk] = self.all(protocol.ReadChunk)
        self.read(chunk, 1)
        self.observe(chunk.low_token)
        self.observe(chunk.high_token)
        self.tell(protocol.Delivered(chunk.chunk_id))


def test_a_table_is_read_in_ranges_at_the_same_time():
    """
    Each range has a reader, and no range overlaps another.
    """
    loop = Loop(table("a"))
    [ask] = loop.begin()
    loop.plan(ask, 9, 5)
    chunks = [
        (chunk.after_key, chunk.maximum_key) for chunk in loop.all(protocol.ReadChunk)
    ]

    assert (2, [(None, key(5)), (key(5), key(9))]) == (ask.parts, chunks)


def test_stored_ranges_are_resumed():
    """
    A completed range is not read again; another continues after its last key.
    """
    done, half = KeyRange(key(5), key(5), True), KeyRange(key(7), key(9))
    loop = Loop(table("a", ranges=(done, half), maximum_key=key(9), last_key=key(7)))
    [ask] = loop.begin()
    loop.plan(ask, 12, 3)
    chunks = [
        (chunk.after_key, chunk.maximum_key) for chunk in loop.all(protocol.ReadChunk)
    ]

    assert (1, [(key(7), key(9))]) == (ask.parts, chunks)


def test_the_last_key_covers_only_delivered_rows():
    """
    A later range that is further ahead does not move it past an earlier one.
    """
    loop = Loop(table("a"))
    [ask] = loop.begin()
    loop.plan(ask, 9, 5)
    early, late = loop.all(protocol.ReadChunk)
    for chunk, ids in ((late, (6, 7)), (early, (1, 2))):
        loop.read(chunk, *ids)
        loop.observe(chunk.low_token)
        loop.observe(chunk.high_token)
        if chunk is late:
            loop.tell(protocol.Delivered(late.chunk_id))
            [first] = loop.all(protocol.SaveProgress)
    loop.tell(protocol.Delivered(early.chunk_id))
    [second] = loop.all(protocol.SaveProgress)

    assert (None, key(2), [key(2), key(7)]) == (
        first.table.last_key,
        second.table.last_key,
        [one.after_key for one in second.table.ranges],
    )


def test_two_tables_are_read_at_the_same_time():
    """
    The number of readers is the number of tables read; the rest wait.
    """
    loop = Loop(table("a"), table("b"), table("c"))
    plans = loop.begin()

    assert ["s.a", "s.b"] == [plan.collection for plan in plans]


def test_chunks_in_progress_are_bounded():
    """
    Two readers have at most four chunks between query and Kafka.
    """
    loop = Loop(table("a"), table("b"))
    plans = loop.begin()
    chunks = []
    for ask in plans:
        loop.plan(ask, 90, 50)
        chunks += loop.all(protocol.ReadChunk)
    for chunk in chunks:
        loop.read(chunk, 1, 2)
        chunks += loop.all(protocol.ReadChunk)

    assert 4 == len(chunks)


def test_tables_of_one_view_share_a_mark_and_hold_the_stream():
    """
    One mark is written, and from there the stream waits until all are read.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "abc"))
    marks = loop.all(protocol.WriteWatermark)
    blocked = [loop.driver.blocks_stream]
    plans = loop.begin()
    blocked.append(loop.driver.blocks_stream)
    lows = set()
    for ask in plans:
        loop.plan(ask, 1)
        [chunk] = loop.all(protocol.ReadChunk)
        lows.add((chunk.low_token, chunk.view))
        loop.read(chunk, 1)
        [emitted] = loop.all(protocol.EmitRows)
        lows.add(emitted.log_lsn)
        loop.tell(protocol.Delivered(chunk.chunk_id))
    blocked.append(loop.driver.blocks_stream)
    released = [effect.view for effect in loop.all(protocol.ReleaseSnapshot)]

    assert (
        1,
        [False, True, False],
        {(None, marks[0].token), 100},
        [marks[0].token],
    ) == (
        len(marks),
        blocked,
        lows,
        released,
    )


def test_rows_of_the_slots_own_view_stand_at_the_streams_start():
    """
    No mark is needed: nothing was streamed before.
    """
    loop = Loop(table("a", kind=INITIAL), slot_snapshots=("s1",))
    marks = loop.all(protocol.WriteWatermark)
    loop.tell(protocol.VisibilityRead(SEES_ALL))
    [ask] = loop.all(protocol.ReadPlan)
    loop.plan(ask, 1)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1)
    [emitted] = loop.all(protocol.EmitRows)

    assert ([], "s1", START_LOG_LSN) == (marks, ask.view, emitted.log_lsn)


def test_an_initial_snapshot_whose_view_is_gone_continues_in_chunks():
    """
    It does not begin again: its stored progress holds.
    """
    stored = table("a", kind=INITIAL, last_key=key(4), maximum_key=key(9))
    loop = Loop(stored)
    [ask] = loop.begin()
    loop.plan(ask, 12)
    [chunk] = loop.all(protocol.ReadChunk)

    assert (None, key(4), key(9), False) == (
        ask.view,
        chunk.after_key,
        chunk.maximum_key,
        loop.driver.blocks_stream,
    )


def test_a_lost_view_resumes_the_stream():
    """
    The rest is read between watermarks, by the same SELECT.
    """
    loop = Loop(table("a", kind=BLOCKING, condition="select * from s.a"))
    [ask] = loop.begin()
    loop.plan(ask, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    lost = protocol.ReadFailed(
        chunk.chunk_id, "gone", may_recover=True, has_lost_view=True
    )
    loop.tell(lost)
    blocked = loop.driver.blocks_stream
    [again] = loop.begin()

    assert (False, None, "select * from s.a") == (blocked, again.view, again.select)


def test_a_silent_view_does_not_hold_the_stream_for_ever():
    """
    After a minute the rest is read chunk by chunk, and the reason is logged.
    """
    loop = Loop(table("a", kind=BLOCKING))
    loop.begin()
    blocked = []
    for now_s in (1.0, 50.0, 62.0):
        loop.tell(protocol.Tick(now_s))
        blocked.append(loop.driver.blocks_stream)
    [saved] = loop.all(protocol.SaveProgress)

    assert ([True, True, False], True) == (blocked, "for a minute" in saved.table.error)


def test_a_view_is_kept_while_any_of_its_tables_is_read():
    """
    A table that waits until others are read does not give up their view.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"), readers=1)
    first, last = loop.begin()
    loop.plan(first, 99)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.plan(last, 99)
    left = []
    for now_s in (1.0, 50.0, 62.0, 100.0, 123.0):
        loop.tell(protocol.Tick(now_s))
        left += [save.table[:2] for save in loop.all(protocol.SaveProgress)]
        if now_s == 50.0:
            loop.read(chunk, 1, 2)
            loop.tell(protocol.Delivered(chunk.chunk_id))

    assert [("s1", "s.a"), ("s1", "s.b")] == left


def test_a_view_is_released_once_all_tables_have_left_it():
    """
    It does not wait for the end of a table that is read on without it.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    first, last = loop.begin()
    lost = protocol.ReadFailed(
        last.request_id, "altered", may_recover=True, has_lost_view=True
    )
    loop.tell(lost)
    early = loop.all(protocol.ReleaseSnapshot)
    loop.plan(first, 1)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1)
    loop.tell(protocol.Delivered(chunk.chunk_id))
    released = [effect.view for effect in loop.all(protocol.ReleaseSnapshot)]

    assert ([], [first.view], True) == (early, released, loop.driver.is_busy)


def answered(loop: Loop, kind: str, data: str = "{}") -> protocol.StoreSignal:
    """Bring a signal to its answer and apply its effects."""
    loop.tell(protocol.SignalSeen("s2", kind, data, 7))
    loop.tell(protocol.VisibilityRead(SEES_ALL))
    [answer] = loop.all(protocol.StoreSignal)
    loop.tell(protocol.SignalStored("s2", is_new=True))
    return answer


def test_a_paused_table_reads_nothing_until_it_is_resumed():
    """
    A paused table keeps its progress and lets others pass (A15).

    It records keys again when it continues.
    """
    loop = Loop(table("a"), readers=1)
    [ask] = loop.begin()
    loop.plan(ask, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1, 2)
    loop.observe(chunk.low_token)
    loop.observe(chunk.high_token)
    loop.tell(protocol.Delivered(chunk.chunk_id))
    answer = answered(loop, "pause-snapshot")
    [saved] = loop.all(protocol.SaveProgress)
    is_busy, recorded = loop.driver.is_busy, dict(loop.driver.changed_keys.tables)
    answered(loop, "resume-snapshot")
    [again] = loop.begin()
    loop.plan(again, 9)
    [chunk] = loop.all(protocol.ReadChunk)

    assert (["paused"], "paused", key(2), False, {}, key(2)) == (
        [one.state for one in answer.changed],
        saved.table.state,
        saved.table.last_key,
        is_busy,
        recorded,
        chunk.after_key,
    )


def test_a_table_that_was_paused_before_a_restart_stays_so():
    """
    Only a signal resumes it.
    """
    loop = Loop(replace(table("a"), state="paused"))

    assert ([], False) == (loop.effects, loop.driver.is_busy)


@pytest.mark.parametrize(
    ("fields", "statuses"),
    [
        ({}, ["running"]),
        ({"is_announced": True}, []),
        ({"key_columns": ("id bigint 0",)}, []),
    ],
    ids=["paused in the queue", "paused before its plan", "paused while it was read"],
)
def test_the_start_of_a_snapshot_is_announced_once(
    fields: dict[str, object], statuses: list[str]
):
    """
    A table that was paused before its turn begins its snapshot after a restart.
    """
    loop = Loop(replace(table("a", **fields), state="paused"))
    answered(loop, "resume-snapshot")
    found = [
        answer.status
        for answer in loop.all(protocol.AnswerSignal)
        if answer.signal_id == "s1"
    ]

    assert statuses == found


def test_a_sweep_ends_the_snapshot_once_kafka_has_it():
    """
    Its floor is the first mark of all, also after a restart.
    """
    loop = Loop(table("a", sweeps=True, floor=50, maximum_key=key(9)))
    [ask] = loop.begin()
    loop.plan(ask, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk)
    loop.observe(chunk.low_token)
    loop.observe(chunk.high_token)
    [sweep] = loop.all(protocol.EmitSweep)
    before = [save.table.state for save in loop.all(protocol.SaveProgress)]
    loop.tell(protocol.Delivered(sweep.chunk_id))
    after = [save.table.state for save in loop.all(protocol.SaveProgress)]

    assert (50, False, ["completed"]) == (sweep.floor, "completed" in before, after)


def test_a_table_too_slow_to_read_fails_with_the_reason():
    """
    Time-outs at the smallest chunk are not retried for ever.
    """
    loop = Loop(table("a"))
    [ask] = loop.begin()
    loop.plan(ask, 9)
    states: list[str] = []
    now_s = 0.0
    while "failed" not in states and now_s < 1000:
        for chunk in loop.all(protocol.ReadChunk):
            slow = protocol.ReadFailed(
                chunk.chunk_id, "timeout", may_recover=True, has_timed_out=True
            )
            loop.tell(slow)
            states += [save.table.state for save in loop.all(protocol.SaveProgress)]
        now_s += 20
        loop.tell(protocol.Tick(now_s))

    assert "failed" == states[-1]


@pytest.mark.parametrize(
    ("hindrance", "end", "reason"),
    [
        (protocol.Tick(1.0, lag_s=11.0), protocol.Tick(2.0, lag_s=0.1), "max_lag_s"),
        (protocol.LoadRead(4), protocol.LoadRead(2), "max_active_sessions"),
    ],
)
def test_reading_yields_to_the_stream_and_to_the_source(
    hindrance: protocol.Fact, end: protocol.Fact, reason: str
):
    """
    While the stream is behind, or the source is busy, nothing is read.

    The reason is shown.
    """
    loop = Loop(table("a"))
    [ask] = loop.begin()
    loop.tell(hindrance)
    loop.plan(ask, 9)
    while_hindered = loop.all(protocol.ReadChunk)
    reported = loop.driver.yield_reason
    loop.tell(end)

    assert (0, 1) == (len(while_hindered), len(loop.all(protocol.ReadChunk)))
    assert (True, "") == (reason in reported, loop.driver.yield_reason)


def test_the_sources_load_is_probed_while_a_table_is_read():
    """
    The probe runs once a second, and not at all without an open table.
    """
    loop = Loop(table("a"))
    probes = [bool(loop.all(protocol.ProbeLoad))]
    for now_s in (0.0, 0.5, 1.5):
        loop.tell(protocol.Tick(now_s))
        probes.append(bool(loop.all(protocol.ProbeLoad)))
    idle = Loop()
    idle.tell(protocol.Tick(9.0))

    assert ([True, False, False, True], []) == (probes, idle.all(protocol.ProbeLoad))


def test_an_aggregate_view_has_the_recorder_of_its_events():
    """
    Its recorder is found by the aggregate type.
    """
    view = StoredTable("s1", "outbox.order", 0, "queued", 7)
    loop = Loop(view)

    assert (["order"], []) == (
        list(loop.driver.changed_keys.aggregates),
        list(loop.driver.changed_keys.tables),
    )


def test_chunks_that_wait_for_the_stream_use_no_reader_slot():
    """
    Otherwise the one waits for the stream and the other for a slot, for ever.
    """
    slow = table("a")
    frozen = replace(table("b", kind=BLOCKING), snapshot_id="s3")
    loop = Loop(slow, frozen, readers=1)
    first, last = loop.begin()
    loop.plan(first, 99)
    while chunks := loop.all(protocol.ReadChunk):
        loop.read(chunks[0], *range(chunks[0].max_rows))
    loop.plan(last, 9)
    chunks = [chunk.shape.relation.table for chunk in loop.all(protocol.ReadChunk)]

    assert loop.driver.blocks_stream
    assert ["b"] == chunks


def test_a_table_resumed_beside_others_has_a_mark_of_its_own():
    """
    The stream has passed the others' mark, and its keys were not recorded since.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    first, last = loop.begin()
    lost = protocol.ReadFailed(
        first.request_id, "gone", may_recover=True, has_lost_view=True
    )
    loop.tell(lost)
    loop.tell(protocol.ReadFailed(last.request_id, "no", may_recover=False))
    [failed] = [saved.table for saved in loop.all(protocol.SaveProgress)]
    loop.tell(protocol.SignalSeen("s2", "resume-snapshot", '{"snapshot-id": "s1"}', 7))
    loop.tell(protocol.VisibilityRead(SEES_ALL))
    loop.tell(protocol.SnapshotTablesRead("s2", (failed,)))
    loop.tell(protocol.SignalStored("s2", is_new=True))
    [mark] = loop.all(protocol.WriteWatermark)
    [again] = loop.begin()

    assert ("failed", "s.b", mark.token) == (
        failed.state,
        again.collection,
        again.view,
    )
    assert mark.token != first.view


def test_a_mark_of_a_stopped_table_is_written_for_another():
    """
    Otherwise a failure to write it would go unnoticed.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    loop.tell(
        protocol.SignalSeen("s2", "stop-snapshot", '{"data-collections":["s.a"]}', 7)
    )
    loop.tell(protocol.VisibilityRead(SEES_ALL))
    loop.tell(protocol.SignalStored("s2", is_new=True))
    [mark] = loop.all(protocol.WriteWatermark)
    [ask] = loop.begin()

    assert ("s.b", mark.token) == (ask.collection, ask.view)


def with_other_key(name: str) -> ScanPlan:
    """Return the plan of a table whose key is another column by now."""
    relation = shape(name).relation
    other = Relation(relation.oid, "s", name, relation.columns, (1,))
    return ScanPlan(TableShape(other, ("text",)), (b"z",), 9)


@pytest.mark.parametrize("kind", ["incremental", BLOCKING])
def test_stored_progress_in_another_key_fails_the_table(kind: str):
    """
    The rows after that key are others: the table fails, and a resume reads all of them.

    It may have been altered while nothing was read: after a restart, or a lost view.
    """
    loop = Loop(table("a", kind=kind))
    [ask] = loop.begin()
    loop.plan(ask, 9)
    [begun] = loop.all(protocol.SaveProgress)
    stored = replace(begun.table, last_key=key(4), ranges=(KeyRange(key(4), key(9)),))
    again = Loop(stored)
    [ask] = again.begin()
    again.tell(protocol.PlanRead(ask.request_id, with_other_key("a")))
    [ended] = [saved.table for saved in again.all(protocol.SaveProgress)]
    resumed = Loop(ended.queued_again())
    [ask] = resumed.begin()
    resumed.tell(protocol.PlanRead(ask.request_id, with_other_key("a")))
    [chunk] = resumed.all(protocol.ReadChunk)

    assert ("failed", True) == (ended.state, "key has changed" in (ended.error or ""))
    assert ("text", None) == (*chunk.shape.key_types, chunk.after_key)


def test_listed_keys_are_not_read_by_another_key():
    """
    They stay stored: read by another key, they would be other rows.
    """
    listed = table("a", asked_keys=2, key_columns=("id",), pending_keys=None)
    for _ in range(2):
        loop = Loop(listed)
        [ask] = loop.begin()
        loop.tell(protocol.PlanRead(ask.request_id, with_other_key("a")))
        [saved] = loop.all(protocol.SaveProgress)
        listed = saved.table.queued_again()

        assert ("failed", None) == (saved.table.state, saved.table.pending_keys)


def test_the_first_row_of_another_key_is_where_a_reset_table_begins():
    """
    A reset table has no progress, so it is read by whichever key its table has.
    """
    stored = table("a", order_by=("v",), last_key=key(4), key_columns=("id",))
    loop = Loop(stored.from_the_first_row())
    [ask] = loop.begin()
    loop.tell(protocol.PlanRead(ask.request_id, with_other_key("a")))

    assert ["running"] == [save.table.state for save in loop.all(protocol.SaveProgress)]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_failed_table_fails_the_run_of_a_resumed_one(
    has_ended: bool,
):
    """
    A failure beside it fails the whole run, whether the others are still read or not.
    """
    failed = [
        replace(table(name), state="failed", error="no", last_key=key(1))
        for name in "bc"
    ]
    loop = Loop(table("a"), *failed)
    [ask] = loop.begin()
    names = '{"snapshot-id": "s1", "data-collections": ["s.b"]}'
    loop.tell(protocol.SignalSeen("s2", "resume-snapshot", names, 7))
    loop.tell(protocol.VisibilityRead(SEES_ALL))
    loop.tell(protocol.SnapshotTablesRead("s2", (table("a"), *failed)))
    if has_ended:
        loop.tell(protocol.ReadFailed(ask.request_id, "no", may_recover=False))
    loop.tell(protocol.SignalStored("s2", is_new=True))
    for left in [*([] if has_ended else [ask]), *loop.begin()]:
        loop.finish(left)
    [answer] = loop.all(protocol.AnswerSignal)

    assert ("s1", "failed") == (answer.signal_id, answer.status)
    assert {"s.a": "completed", "s.b": "completed", "s.c": "failed"} == {
        name: facts["state"] for name, facts in answer.detail["tables"].items()
    }


def test_a_key_request_leaves_the_rows_of_a_reordered_table_requested():
    """
    Each queue has reordered tables of its own: one must not forget another's.
    """
    loop = Loop(table("a", order_by=("v",)))
    before = set(loop.driver.changed_keys.reordered)
    relation = shape("a").relation
    batch_id = loop.driver.request_key(relation, key(1), Position(8, 0))
    loop.tell(protocol.Tick(1.0))
    loop.tell(protocol.KeysStored(batch_id or ""))

    assert {ord("a")} == before == loop.driver.changed_keys.reordered


@pytest.mark.parametrize(
    ("floor", "expected"), [(8, (2, None)), (9, (1, key(5)))], ids=["since", "before"]
)
def test_a_table_is_read_again_if_a_key_request_failed_during_its_pause(
    floor: int, expected: tuple[int, Key | None]
):
    """
    A row that moved into the part already read would be missing otherwise (I5).
    """
    ranges = (KeyRange(key(5), key(9)),)
    loop = Loop(table("a", last_key=key(5), ranges=ranges, floor=floor))
    relation = shape("a").relation
    batch_id = loop.driver.request_key(relation, key(1), Position(8, 0))
    loop.tell(protocol.Tick(1.0))
    loop.tell(protocol.KeysStored(batch_id or ""))
    [mark] = loop.all(protocol.WriteWatermark)
    answered(loop, "pause-snapshot")
    loop.tell(protocol.ReadFailed(mark.request_id, "no", may_recover=False))
    answered(loop, "resume-snapshot")
    [ask] = loop.begin()
    loop.plan(ask, 9)
    [chunk] = loop.all(protocol.ReadChunk)

    assert expected == (ask.parts, chunk.after_key)

"""The driver with several readers, a shared exported snapshot, pauses and sweeps."""

from collections.abc import Sequence

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
    """Return the shape of a table with two columns; its oid is its name's letter."""
    columns = (Column("id", 20), Column("v", 25))
    return TableShape(Relation(ord(name), "s", name, columns, (0,)), ("bigint",))


def table(name: str, **fields: object) -> StoredTable:
    """Return a table of the snapshot s1 that is waiting to be read."""
    return StoredTable("s1", f"s.{name}", ord(name), "queued", ord(name), **fields)


def key(number: int) -> Key:
    """Return the key of a row."""
    return (b"%d" % number,)


class Loop:
    """The driver, its effects, and the facts that are given to it in reply."""

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
        self.give(protocol.UnfinishedRead(tables))

    def give(self, fact: protocol.Fact) -> list[protocol.Effect]:
        """Give a fact to the driver, then run one turn of the loop."""
        self.effects = self.driver.on(fact) + self.driver.on(protocol.EmitAllowed(1000))
        return self.effects

    def all(self, kind: type) -> list:
        """Return the effects of a type that the last fact caused."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def observe(self, token: str) -> None:
        self.sequence += 1
        self.give(protocol.WatermarkSeen(token, 100 * self.sequence, self.sequence))

    def begin(self) -> list[protocol.ReadPlan]:
        """Process every table up to the request for its plan."""
        for mark in self.all(protocol.WriteWatermark):
            self.observe(mark.token)
        self.give(protocol.VisibilityRead(SEES_ALL))
        return self.all(protocol.ReadPlan)

    def plan(self, request: protocol.ReadPlan, last: int, *boundaries: int) -> None:
        name = request.collection.removeprefix("s.")
        cuts = tuple(map(key, boundaries))
        plan = ScanPlan(shape(name), key(last), 9, boundaries=cuts)
        self.give(protocol.PlanRead(request.request_id, plan))

    def read(self, request: protocol.ReadChunk, *ids: int) -> None:
        """Answer a chunk request; a chunk of fewer rows than requested is the last."""
        rows = [(b"%d" % number, b"x") for number in ids]
        is_last = len(ids) < request.max_rows or bool(request.keys)
        chunk = Chunk(request.shape, rows, SEES_ALL, is_last)
        self.give(protocol.ChunkRead(request.chunk_id, chunk))

    def finish(self, request: protocol.ReadPlan) -> None:
        """Read a table of one row to its end."""
        self.plan(request, 9)
        [chunk] = self.all(protocol.ReadChunk)
        self.read(chunk, 1)
        self.observe(chunk.low_token)
        self.observe(chunk.high_token)
        self.give(protocol.Delivered(chunk.chunk_id))


def test_the_ranges_of_a_table_are_read_at_the_same_time():
    """
    Each range has a reader, and ranges do not overlap.
    """
    loop = Loop(table("a"))
    [request] = loop.begin()
    loop.plan(request, 9, 5)
    chunks = [
        (chunk.after_key, chunk.maximum_key) for chunk in loop.all(protocol.ReadChunk)
    ]

    assert (2, [(None, key(5)), (key(5), key(9))]) == (request.parts, chunks)


def test_stored_ranges_are_resumed():
    """
    A completed range is not read again; an incomplete one continues after its last key.
    """
    done, half = KeyRange(key(5), key(5), True), KeyRange(key(7), key(9))
    loop = Loop(table("a", ranges=(done, half), maximum_key=key(9), last_key=key(7)))
    [request] = loop.begin()
    loop.plan(request, 12, 3)
    chunks = [
        (chunk.after_key, chunk.maximum_key) for chunk in loop.all(protocol.ReadChunk)
    ]

    assert (1, [(key(7), key(9))]) == (request.parts, chunks)


def test_the_last_key_covers_only_delivered_rows():
    """
    A later range that is further ahead does not move the key past an earlier range.
    """
    loop = Loop(table("a"))
    [request] = loop.begin()
    loop.plan(request, 9, 5)
    early, late = loop.all(protocol.ReadChunk)
    for chunk, ids in ((late, (6, 7)), (early, (1, 2))):
        loop.read(chunk, *ids)
        loop.observe(chunk.low_token)
        loop.observe(chunk.high_token)
        if chunk is late:
            loop.give(protocol.Delivered(late.chunk_id))
            [first] = loop.all(protocol.SaveProgress)
    loop.give(protocol.Delivered(early.chunk_id))
    [second] = loop.all(protocol.SaveProgress)

    assert (None, key(2), [key(2), key(7)]) == (
        first.table.last_key,
        second.table.last_key,
        [one.after_key for one in second.table.ranges],
    )


def test_two_tables_are_read_at_the_same_time():
    """
    As many tables as there are readers are read; the rest wait.
    """
    loop = Loop(table("a"), table("b"), table("c"))
    plans = loop.begin()

    assert ["s.a", "s.b"] == [plan.collection for plan in plans]


def test_chunks_in_progress_are_limited():
    """
    Two readers have at most four chunks between their query and Kafka.
    """
    loop = Loop(table("a"), table("b"))
    plans = loop.begin()
    chunks = []
    for request in plans:
        loop.plan(request, 90, 50)
        chunks += loop.all(protocol.ReadChunk)
    for chunk in chunks:
        loop.read(chunk, 1, 2)
        chunks += loop.all(protocol.ReadChunk)

    assert 4 == len(chunks)


def test_tables_of_one_exported_snapshot_share_a_mark_and_hold_the_stream():
    """
    One mark is written, at which the stream waits until all tables are read.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "abc"))
    marks = loop.all(protocol.WriteWatermark)
    blocked = [loop.driver.blocks_stream]
    plans = loop.begin()
    blocked.append(loop.driver.blocks_stream)
    lows = set()
    for request in plans:
        loop.plan(request, 1)
        [chunk] = loop.all(protocol.ReadChunk)
        lows.add((chunk.low_token, chunk.view))
        loop.read(chunk, 1)
        [emitted] = loop.all(protocol.EmitRows)
        lows.add(emitted.log_lsn)
        loop.give(protocol.Delivered(chunk.chunk_id))
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


def test_rows_of_the_slots_own_snapshot_have_the_streams_start_position():
    """
    No mark is needed, because nothing was streamed before.
    """
    loop = Loop(table("a", kind=INITIAL), slot_snapshots=("s1",))
    marks = loop.all(protocol.WriteWatermark)
    loop.give(protocol.VisibilityRead(SEES_ALL))
    [request] = loop.all(protocol.ReadPlan)
    loop.plan(request, 1)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1)
    [emitted] = loop.all(protocol.EmitRows)

    assert ([], "s1", START_LOG_LSN) == (marks, request.view, emitted.log_lsn)


def test_an_initial_snapshot_without_its_exported_snapshot_continues_in_chunks():
    """
    The snapshot does not begin again: its stored progress remains valid.
    """
    stored = table("a", kind=INITIAL, last_key=key(4), maximum_key=key(9))
    loop = Loop(stored)
    [request] = loop.begin()
    loop.plan(request, 12)
    [chunk] = loop.all(protocol.ReadChunk)

    assert (None, key(4), key(9), False) == (
        request.view,
        chunk.after_key,
        chunk.maximum_key,
        loop.driver.blocks_stream,
    )


def test_a_lost_exported_snapshot_resumes_the_stream():
    """
    The rest is read between watermarks, with the same SELECT.
    """
    loop = Loop(table("a", kind=BLOCKING, condition="select * from s.a"))
    [request] = loop.begin()
    loop.plan(request, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    lost = protocol.ReadFailed(
        chunk.chunk_id, "gone", may_recover=True, has_lost_view=True
    )
    loop.give(lost)
    blocked = loop.driver.blocks_stream
    [again] = loop.begin()

    assert (False, None, "select * from s.a") == (blocked, again.view, again.select)


def test_a_silent_exported_snapshot_does_not_hold_the_stream_forever():
    """
    After a minute, the rest is read chunk by chunk, and the reason is logged.
    """
    loop = Loop(table("a", kind=BLOCKING))
    loop.begin()
    blocked = []
    for now_s in (1.0, 50.0, 62.0):
        loop.give(protocol.Tick(now_s))
        blocked.append(loop.driver.blocks_stream)
    [saved] = loop.all(protocol.SaveProgress)

    assert ([True, True, False], True) == (blocked, "for a minute" in saved.table.error)


def test_an_exported_snapshot_is_kept_while_any_of_its_tables_is_read():
    """
    A table that waits while another one is being read keeps the exported snapshot.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"), readers=1)
    first, last = loop.begin()
    loop.plan(first, 99)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.plan(last, 99)
    fallen_back = []
    for now_s in (1.0, 50.0, 62.0, 100.0, 123.0):
        loop.give(protocol.Tick(now_s))
        fallen_back += [save.table[:2] for save in loop.all(protocol.SaveProgress)]
        if now_s == 50.0:
            loop.read(chunk, 1, 2)
            loop.give(protocol.Delivered(chunk.chunk_id))

    assert [("s1", "s.a"), ("s1", "s.b")] == fallen_back


def test_an_exported_snapshot_is_released_once_all_tables_have_left_it():
    """
    The release does not wait for a table that is still being read without it.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    first, last = loop.begin()
    lost = protocol.ReadFailed(
        last.request_id, "altered", may_recover=True, has_lost_view=True
    )
    loop.give(lost)
    early = loop.all(protocol.ReleaseSnapshot)
    loop.plan(first, 1)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1)
    loop.give(protocol.Delivered(chunk.chunk_id))
    released = [effect.view for effect in loop.all(protocol.ReleaseSnapshot)]

    assert ([], [first.view], True) == (early, released, loop.driver.is_busy)


def answered(loop: Loop, kind: str, data: str = "{}") -> protocol.StoreSignal:
    """Process a signal up to its answer, and confirm that the answer is stored."""
    loop.give(protocol.SignalSeen("s2", kind, data, 7))
    loop.give(protocol.VisibilityRead(SEES_ALL))
    [answer] = loop.all(protocol.StoreSignal)
    loop.give(protocol.SignalStored("s2", is_new=True))
    return answer


def test_a_paused_table_reads_nothing_until_it_is_resumed():
    """
    A paused table keeps its progress and lets other tables be read (A15).

    When it continues, its changed keys are recorded again.
    """
    loop = Loop(table("a"), readers=1)
    [request] = loop.begin()
    loop.plan(request, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk, 1, 2)
    loop.observe(chunk.low_token)
    loop.observe(chunk.high_token)
    loop.give(protocol.Delivered(chunk.chunk_id))
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


def test_a_table_that_was_paused_before_a_restart_remains_paused():
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
    ids=["paused in the queue", "paused before its plan", "paused while being read"],
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


def test_a_sweep_ends_the_snapshot_once_kafka_has_acknowledged_it():
    """
    The sweep's floor is the very first mark, even after a restart.
    """
    loop = Loop(table("a", sweeps=True, floor=50, maximum_key=key(9)))
    [request] = loop.begin()
    loop.plan(request, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    loop.read(chunk)
    loop.observe(chunk.low_token)
    loop.observe(chunk.high_token)
    [sweep] = loop.all(protocol.EmitSweep)
    before = [save.table.state for save in loop.all(protocol.SaveProgress)]
    loop.give(protocol.Delivered(sweep.chunk_id))
    after = [save.table.state for save in loop.all(protocol.SaveProgress)]

    assert (50, False, ["completed"]) == (sweep.floor, "completed" in before, after)


def test_a_table_too_slow_to_read_fails_with_the_reason():
    """
    Timeouts at the smallest chunk are not retried forever.
    """
    loop = Loop(table("a"))
    [request] = loop.begin()
    loop.plan(request, 9)
    states: list[str] = []
    now_s = 0.0
    while "failed" not in states and now_s < 1000:
        for chunk in loop.all(protocol.ReadChunk):
            slow = protocol.ReadFailed(
                chunk.chunk_id, "timeout", may_recover=True, has_timed_out=True
            )
            loop.give(slow)
            states += [save.table.state for save in loop.all(protocol.SaveProgress)]
        now_s += 20
        loop.give(protocol.Tick(now_s))

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

    The reason is reported.
    """
    loop = Loop(table("a"))
    [request] = loop.begin()
    loop.give(hindrance)
    loop.plan(request, 9)
    while_hindered = loop.all(protocol.ReadChunk)
    reported = loop.driver.yield_reason
    loop.give(end)

    assert (0, 1) == (len(while_hindered), len(loop.all(protocol.ReadChunk)))
    assert (True, "") == (reason in reported, loop.driver.yield_reason)


def test_the_sources_load_is_probed_while_a_table_is_read():
    """
    The probe runs once per second, and not at all without an open table.
    """
    loop = Loop(table("a"))
    probes = [bool(loop.all(protocol.ProbeLoad))]
    for now_s in (0.0, 0.5, 1.5):
        loop.give(protocol.Tick(now_s))
        probes.append(bool(loop.all(protocol.ProbeLoad)))
    idle = Loop()
    idle.give(protocol.Tick(9.0))

    assert ([True, False, False, True], []) == (probes, idle.all(protocol.ProbeLoad))


def test_an_aggregate_view_has_the_recorder_of_its_events():
    """
    The recorder is found by the aggregate type.
    """
    view = StoredTable("s1", "outbox.order", 0, "queued", 7)
    loop = Loop(view)

    assert (["order"], []) == (
        list(loop.driver.changed_keys.aggregates),
        list(loop.driver.changed_keys.tables),
    )


def test_chunks_that_wait_for_the_stream_occupy_no_reader():
    """
    Otherwise one table would wait for the stream and the other for a reader, forever.
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


def test_a_table_resumed_alone_has_a_mark_of_its_own():
    """
    The stream has passed the earlier mark, and no keys have been recorded since.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    first, last = loop.begin()
    lost = protocol.ReadFailed(
        first.request_id, "gone", may_recover=True, has_lost_view=True
    )
    loop.give(lost)
    loop.give(protocol.ReadFailed(last.request_id, "no", may_recover=False))
    [failed] = [saved.table for saved in loop.all(protocol.SaveProgress)]
    loop.give(protocol.SignalSeen("s2", "resume-snapshot", '{"snapshot-id": "s1"}', 7))
    loop.give(protocol.VisibilityRead(SEES_ALL))
    loop.give(protocol.SnapshotTablesRead("s2", (failed,)))
    loop.give(protocol.SignalStored("s2", is_new=True))
    [mark] = loop.all(protocol.WriteWatermark)
    [again] = loop.begin()

    assert ("failed", "s.b", mark.token) == (
        failed.state,
        again.collection,
        again.view,
    )
    assert mark.token != first.view


def test_the_shared_mark_of_a_stopped_table_is_written_for_the_other():
    """
    Otherwise a failure to write the mark would go unnoticed.
    """
    loop = Loop(*(table(name, kind=BLOCKING) for name in "ab"))
    loop.give(
        protocol.SignalSeen("s2", "stop-snapshot", '{"data-collections":["s.a"]}', 7)
    )
    loop.give(protocol.VisibilityRead(SEES_ALL))
    loop.give(protocol.SignalStored("s2", is_new=True))
    [mark] = loop.all(protocol.WriteWatermark)
    [request] = loop.begin()

    assert ("s.b", mark.token) == (request.collection, request.view)


def with_other_key(name: str) -> ScanPlan:
    """Return the plan of a table whose key is now a different column."""
    relation = shape(name).relation
    other = Relation(relation.oid, "s", name, relation.columns, (1,))
    return ScanPlan(TableShape(other, ("text",)), (b"z",), 9)


@pytest.mark.parametrize("kind", ["incremental", BLOCKING])
def test_stored_progress_in_a_different_key_fails_the_table(kind: str):
    """
    Other rows follow in the new key's order: the table fails; a resume reads all rows.

    The table may have been altered after a restart or a lost exported snapshot.
    """
    loop = Loop(table("a", kind=kind))
    [request] = loop.begin()
    loop.plan(request, 9)
    [begun] = loop.all(protocol.SaveProgress)
    stored = replace(begun.table, last_key=key(4), ranges=(KeyRange(key(4), key(9)),))
    again = Loop(stored)
    [request] = again.begin()
    again.give(protocol.PlanRead(request.request_id, with_other_key("a")))
    [ended] = [saved.table for saved in again.all(protocol.SaveProgress)]
    resumed = Loop(ended.queued_again())
    [request] = resumed.begin()
    resumed.give(protocol.PlanRead(request.request_id, with_other_key("a")))
    [chunk] = resumed.all(protocol.ReadChunk)

    assert ("failed", True) == (ended.state, "key has changed" in (ended.error or ""))
    assert ("text", None) == (*chunk.shape.key_types, chunk.after_key)


def test_listed_keys_are_not_read_by_a_different_key():
    """
    They remain stored, because a different key would select different rows.
    """
    listed = table("a", asked_keys=2, key_columns=("id",), pending_keys=None)
    for _ in range(2):
        loop = Loop(listed)
        [request] = loop.begin()
        loop.give(protocol.PlanRead(request.request_id, with_other_key("a")))
        [saved] = loop.all(protocol.SaveProgress)
        listed = saved.table.queued_again()

        assert ("failed", None) == (saved.table.state, saved.table.pending_keys)


def test_a_reset_table_begins_at_the_first_row_of_its_current_key():
    """
    A reset table has no progress, so it is read by its current key, whichever that is.
    """
    stored = table("a", order_by=("v",), last_key=key(4), key_columns=("id",))
    loop = Loop(stored.from_the_first_row())
    [request] = loop.begin()
    loop.give(protocol.PlanRead(request.request_id, with_other_key("a")))

    assert ["running"] == [save.table.state for save in loop.all(protocol.SaveProgress)]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_failed_table_fails_the_run_of_a_resumed_one(
    has_ended: bool,
):
    """
    The failure of a different table fails the run, even if others are still being read.
    """
    failed = [
        replace(table(name), state="failed", error="no", last_key=key(1))
        for name in "bc"
    ]
    loop = Loop(table("a"), *failed)
    [request] = loop.begin()
    names = '{"snapshot-id": "s1", "data-collections": ["s.b"]}'
    loop.give(protocol.SignalSeen("s2", "resume-snapshot", names, 7))
    loop.give(protocol.VisibilityRead(SEES_ALL))
    loop.give(protocol.SnapshotTablesRead("s2", (table("a"), *failed)))
    if has_ended:
        loop.give(protocol.ReadFailed(request.request_id, "no", may_recover=False))
    loop.give(protocol.SignalStored("s2", is_new=True))
    for remaining in [*([] if has_ended else [request]), *loop.begin()]:
        loop.finish(remaining)
    [answer] = loop.all(protocol.AnswerSignal)

    assert ("s1", "failed") == (answer.signal_id, answer.status)
    assert {"s.a": "completed", "s.b": "completed", "s.c": "failed"} == {
        name: facts["state"] for name, facts in answer.detail["tables"].items()
    }


def test_a_key_request_keeps_a_table_marked_as_reordered():
    """
    Each queue has its own reordered tables, and must not remove those of the other one.
    """
    loop = Loop(table("a", order_by=("v",)))
    before = set(loop.driver.changed_keys.reordered)
    relation = shape("a").relation
    batch_id = loop.driver.request_key(relation, key(1), Position(8, 0))
    loop.give(protocol.Tick(1.0))
    loop.give(protocol.KeysStored(batch_id or ""))

    assert {ord("a")} == before == loop.driver.changed_keys.reordered


@pytest.mark.parametrize(
    ("floor", "expected"), [(8, (2, None)), (9, (1, key(5)))], ids=["since", "before"]
)
def test_a_table_is_read_again_if_a_key_request_failed_during_its_pause(
    floor: int, expected: tuple[int, Key | None]
):
    """
    Otherwise a row that moved into the range already read would be missing (I5).
    """
    ranges = (KeyRange(key(5), key(9)),)
    loop = Loop(table("a", last_key=key(5), ranges=ranges, floor=floor))
    relation = shape("a").relation
    batch_id = loop.driver.request_key(relation, key(1), Position(8, 0))
    loop.give(protocol.Tick(1.0))
    loop.give(protocol.KeysStored(batch_id or ""))
    [mark] = loop.all(protocol.WriteWatermark)
    answered(loop, "pause-snapshot")
    loop.give(protocol.ReadFailed(mark.request_id, "no", may_recover=False))
    answered(loop, "resume-snapshot")
    [request] = loop.begin()
    loop.plan(request, 9)
    [chunk] = loop.all(protocol.ReadChunk)

    assert expected == (request.parts, chunk.after_key)


def test_rows_are_grouped_by_the_relation_with_which_they_were_read():
    """
    Otherwise a column added after the plan was made would make every row invalid.
    """
    loop = Loop(table("a", target="new"), readers=1)
    [request] = loop.begin()
    loop.plan(request, 9)
    [chunk] = loop.all(protocol.ReadChunk)
    planned = shape("a")
    columns = (*planned.relation.columns, Column("w", 25))
    altered = replace(planned, relation=replace(planned.relation, columns=columns))
    rows = [(b"1", b"x", b"y")]
    loop.driver.on(
        protocol.ChunkRead(chunk.chunk_id, Chunk(altered, rows, SEES_ALL, True))
    )
    for sequence, token in enumerate((chunk.low_token, chunk.high_token), 7):
        loop.driver.on(protocol.WatermarkSeen(token, 900, sequence))
    given = []

    def partitions_of(*facts: object) -> Sequence[int]:
        given.append(facts)
        return [0]

    effects = loop.driver.on(protocol.EmitAllowed(10, partitions_of))

    assert [("new", altered.relation, rows)] == given
    assert [rows] == [e.rows for e in effects if isinstance(e, protocol.EmitRows)]

"""Writes to the warehouse: appends and merges, in parts, and after any failure."""

from contextlib import suppress

import pytest

from support.copying import replace
from support.warehouse_tables import Stepping, write
from towpath.sinks.changes.relations import Column
from towpath.sinks.errors import BatchRefusedError, TargetUnavailableError
from towpath.sinks.ports import Batch

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


class RecordingSteps(Stepping):
    """Records whether each write was an append or a merge."""

    def __init__(self, lake):
        super().__init__(lake)
        self.writes = []

    def step(self, text, run):
        done = run()
        if text.startswith(("append", "MERGE")) and done is not None:
            self.writes.append(text.partition(" ")[0].lower())
        return done


def test_new_keys_are_appended_and_known_ones_merged(warehouse):
    """
    This holds while the sink knows all keys; a new process must query the table.
    """
    session = RecordingSteps(warehouse)
    sink = warehouse.sink(session)
    write(sink, [warehouse.change(8, n, {"note": "a"}) for n in range(4)])
    write(sink, [warehouse.change(8, n, {"note": "a"}) for n in range(4, 8)])
    write(sink, [warehouse.change(16, n, {"note": "b"}) for n in range(7, 10)])
    write(sink, [warehouse.change(16, n, {"note": "c"}) for n in range(10, 12)])
    restarted = write(
        warehouse.sink(session),
        [warehouse.change(8, n, {"note": "z"}) for n in (11, 12)],
    )

    assert ["append", "append", "merge", "append", "merge"] == session.writes
    assert (1, 1) == (restarted.applied, restarted.stale)
    assert "aaaaaaabbbccz" == "".join(warehouse.notes()[str(n)] for n in range(13))


def test_new_keys_are_still_appended_after_upkeep(warehouse):
    """
    The sink's own upkeep adds no key, and is not mistaken for another writer's commit.
    """
    warehouse.set(compact_after_files=2)
    session = RecordingSteps(warehouse)
    sink = warehouse.sink(session)
    rows = [warehouse.change(8, n, {"note": "x"}) for n in range(100, 120)]
    write(sink, [*rows, warehouse.change(8, 99, None)])
    for number in range(7):
        # The sink purges twice; the second time, there is no tombstone.
        row = warehouse.change(8, number, {"note": "x"})
        write(sink, [row], safe=str(1 + number))
    operations = warehouse.sql("SELECT operation FROM {t}.snapshots")

    assert (["append"] * 8, 27) == (session.writes, len(warehouse.rows()))
    assert {"append", "delete", "overwrite", "replace"} == {
        row["operation"] for row in operations
    }


class Interleaved(RecordingSteps):
    """Has another writer write once, just before a statement of the sink's upkeep."""

    def __init__(self, lake, statement, theirs):
        super().__init__(lake)
        self._statement = statement
        self._theirs = theirs

    def step(self, text, run):
        if self._statement and self._statement in text:
            self._statement = ""
            self._theirs()
        return super().step(text, run)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM",
        "rewrite_data_files",
        pytest.param("expire_snapshots", marks=pytest.mark.soak),
    ],
)
def test_keys_written_by_others_during_upkeep_are_looked_up(warehouse, statement):
    """
    The sink does not know them, whether they are committed before or after its upkeep.
    """
    warehouse.set(compact_after_files=3)
    theirs = Batch(0, (warehouse.change(32, 9, {"note": "theirs"}),))
    session = Interleaved(warehouse, statement, lambda: warehouse.sink().apply(theirs))
    sink = warehouse.sink(session)
    write(sink, [warehouse.change(8, 1, {"note": "a"})])
    write(sink, [warehouse.change(8, n, None) for n in (2, 3)])
    write(sink, [warehouse.change(16, 4, {"note": "b"})], safe="1")
    outcome = write(sink, [warehouse.change(24, n, {"note": "ours"}) for n in (9, 10)])
    found = [(r.key, r.fields["note"]) for r in warehouse.reader.rows(warehouse.orders)]

    assert (["append"] * 3 + ["merge"], 1) == (session.writes, outcome.stale)
    assert [("1", "a"), ("10", "ours"), ("4", "b"), ("9", "theirs")] == sorted(found)


def test_a_table_with_another_writer_is_queried(warehouse):
    """
    Keys that another writer has added are not mistaken for new keys.
    """
    session = RecordingSteps(warehouse)
    sink = warehouse.sink(session)
    write(sink, [warehouse.change(8, 1, {"note": "a"})])
    write(warehouse.sink(), [warehouse.change(16, 2, {"note": "theirs"})])
    outcome = write(sink, [warehouse.change(8, 2, {"note": "ours"})])

    assert (1, ["append", "merge"]) == (outcome.stale, session.writes)
    assert ["1", "2"] == sorted(r.key for r in warehouse.reader.rows(warehouse.orders))


def test_keys_beyond_the_limit_of_known_keys_are_looked_up(warehouse):
    """The memory for keys is bounded; beyond the limit, the table is queried."""
    warehouse.set(known_keys=5)
    session = RecordingSteps(warehouse)
    sink = warehouse.sink(session)
    for low in (0, 4, 8):
        write(sink, [warehouse.change(8, low + n, {"note": "a"}) for n in range(4)])

    assert ["append", "append", "merge"] == session.writes


def test_a_large_batch_is_written_in_parts(warehouse):
    """Each part is counted, and the whole batch is safe to repeat with a new sink."""
    warehouse.set(statement_bytes=2048)
    session = RecordingSteps(warehouse)
    changes = [warehouse.change(8, n, {"note": "x" * 100}) for n in range(40)]
    write(warehouse.sink(), [replace(c, position="0") for c in changes])
    first = write(warehouse.sink(session), changes)
    again = write(warehouse.sink(), [replace(c, position="0") for c in changes])

    assert (40, 40, True) == (first.applied, again.stale, len(session.writes) > 2)
    assert 40 == len(list(warehouse.reader.rows(warehouse.orders)))


def test_a_row_that_the_engine_refuses_is_not_an_engine_failure(warehouse):
    """A batch with one key in two forms is refused, so that it can be bisected."""
    numeric = Column("id", "numeric", (12 << 16 | 2) + 4)
    warehouse.relations.columns = (numeric, *warehouse.relations.columns[1:])
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, "1.00", {"note": "a"})])
    one = warehouse.change(16, "1.0", {"note": "b"})
    other = warehouse.change(24, "1.00", {"note": "c"})
    with pytest.raises(BatchRefusedError, match="refused a row"):
        write(sink, [one, other])
    write(sink, [one])
    write(sink, [other])

    assert {"1.00": "c"} == warehouse.notes()


class Failing(Stepping):
    """
    Fails at the first step of the first attempt, and one step later at each retry.
    """

    def __init__(self, lake, *, after):
        super().__init__(lake)
        self._after = after
        self._allowed = 0
        self._count = -1000

    def attempt(self):
        """Begin an attempt that completes one more step than the previous one."""
        self._allowed += 1
        self._count = 0

    def step(self, _text, run):
        self._count += 1
        if self._count < self._allowed:
            return run()
        if self._after:
            run()
        message = "killed"
        raise TargetUnavailableError(message)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_before_or_after_any_step_changes_nothing(warehouse, after):
    """The batch is repeated after each crash; the result is the same as without one."""
    warehouse.set(compact_after_files=2)
    first = [warehouse.change(8, n, {"note": "a", "body": "{}"}) for n in range(3)]
    events = [warehouse.event(n) for n in range(3)]
    second = [
        warehouse.change(16, 0, None),
        warehouse.change(16, 1, {"note": "b"}, unchanged=["body"]),
        warehouse.change(16, 3, {"note": "d"}),
    ]
    for changes in (first, second):
        session = Failing(warehouse, after=after)
        sink = warehouse.sink(session)
        outcome = None
        while outcome is None:
            session.attempt()
            with suppress(TargetUnavailableError):
                outcome = write(sink, changes, events)
        assert () == outcome.refused
    rows = sorted(warehouse.reader.rows(warehouse.orders))

    assert [("0", True), ("1", False), ("2", False), ("3", False)] == [
        (row.key, row.is_deleted) for row in rows
    ]
    assert [("b", "{}"), ("a", "{}"), ("d", None)] == [
        (row.fields["note"], row.fields["body"]) for row in rows[1:]
    ]
    assert 3 == len(list(warehouse.reader.rows(warehouse.events)))

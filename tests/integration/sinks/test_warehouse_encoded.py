"""A warehouse to which the engine writes rows that its tasks have encoded."""

import random

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support import kafka_rows
from support.dead_letters import Letters, RecordedRepairs, context_of
from support.warehouse_tables import Lake, Stepping
from towpath.schemas import headers as names
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.changes.decode import RECORDS
from towpath.sinks.changes.relations import Column
from towpath.sinks.changes.routing import Routes
from towpath.sinks.engine.executors import EncodingExecutors
from towpath.sinks.engine.session import SparkSql, tune_worker
from towpath.sinks.engine.writer import SinkWriter

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

KEYS = range(1, 25)
MANY_KEYS = range(1, 400)


def record(number, operation, key=None, *, topic="t", unchanged=None, **after):
    """Make a record as a row of Spark's Kafka source; each key has one partition."""
    headers = [("position", f"{number * 8:016x}.0000000000".encode())]
    if unchanged:
        headers.append(("unchanged", orjson.dumps(unchanged)))
    image = None if operation in "dt" else {"id": key, **after}
    value = orjson.dumps({"op": operation, "after": image})
    partition = 0 if key is None else int(key) % 2
    key_bytes = None if key is None else orjson.dumps({"id": key})
    return (topic, partition, number, key_bytes, value, headers)


def event(number):
    """Make an event of a topic that the log reads."""
    texts = {
        names.EVENT_ID: f"00000000-0000-0000-0000-{number:012}",
        names.EVENT_TYPE: "OrderPlaced",
        names.AGGREGATE_TYPE: "order",
        names.OCCURRED_AT: f"2026-01-01T00:{number % 60:02}:00.000000Z",
        names.POSITION: f"{number * 8:016x}.0000000000",
    }
    headers = [(name, text.encode()) for name, text in texts.items()]
    return ("e.order", number % 2, number, b"%d" % number, b'{"n":1}', headers)


class FrameTasks:
    """The tasks of a batch that is already in the engine."""

    def __init__(self, frame):
        self._frame = frame

    def run(self, function, schema):
        """Run a task for each partition."""

        def task(batches):
            tables = [pa.Table.from_batches([one]).cast(RECORDS) for one in batches]
            yield from function(lambda: iter(tables))
            tune_worker()

        return self._frame.mapInArrow(task, schema)


class Recorded(Stepping):
    """Both engines of a lake's writer, with a record of the steps that write rows."""

    def __init__(self, lake):
        super().__init__(lake)
        self.steps = []
        self.can_write_files = True

    def step(self, text, run):
        if text == "append files" and not self.can_write_files:
            return None
        if text.startswith(("append", "MERGE", "INSERT", "DELETE")):
            self.steps.append(text.partition(" INTO")[0])
        return run()

    def new_steps(self):
        """Return the steps since the last call."""
        steps, self.steps = self.steps, []
        return steps


class Warehouse:
    """A table and a log, written by the driver or by the engine."""

    def __init__(self, lake, *, by_engine, key="bigint", **options):
        self.lake = Lake(*lake)
        if options:
            self.lake.set(partition={self.lake.orders: options.pop("split")})
        self.lake.relations.columns = (Column("id", key), Column("note", "text"))
        self.engines = Recorded(self.lake)
        self.letters, self.repairs = Letters(), RecordedRepairs(accepts=True)
        self._by_engine = by_engine
        self._context = context_of(self.letters, repairs=self.repairs)
        self.begin()

    def begin(self):
        """Open the sink, as a driver does."""
        sink_settings = self.lake.sink_settings.model_copy(
            update={"spread_from_records": 1}
        )
        sink = self.lake.sink(self.engines)
        self._writer = RecordWriter(Routes(sink_settings), sink, self._context)
        executors = EncodingExecutors(sink_settings, sink)
        self._slices = SinkWriter(self._writer, sink, self._context, executors)

    def write(self, records):
        """Write a batch; return its result."""
        rows = kafka_rows.table(*records)
        if not self._by_engine:
            return self._writer.write_rest(rows, 1)
        spark = SparkSession.getActiveSession()
        frame = (
            spark.createDataFrame(rows)
            .repartition(3, "topic", "partition")
            .sortWithinPartitions("topic", "partition", "offset")
        )
        batch = kafka_rows.batch_of(lambda: iter([rows]), len(rows), FrameTasks(frame))
        return self._slices.write(batch, 1)

    def contents(self):
        """Return the position and the row of each key, and each event."""
        stored = {
            key: (row.position, None if row.is_deleted else dict(row.fields))
            for key, row in self.lake.rows().items()
        }
        events = self.lake.sql("SELECT id, position FROM {e}")
        return stored, sorted((e["id"], e["position"]) for e in events)

    def commits(self):
        """Count the commits of the table that readers can see."""
        return len(self.lake.sql("SELECT * FROM {t}.history"))


@pytest.fixture
def make(lake):
    """Provide a function that makes warehouses."""
    made = []

    def make_one(*, by_engine=True, **options):
        made.append(Warehouse(lake, by_engine=by_engine, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.lake.reader.close()


def history(rng, numbers, known, keys):
    """Make a batch with whole and partial rows, deletes, truncations and events."""
    records = []
    for number in numbers:
        key = rng.choice(keys)
        kind = rng.choice("cudp" if key in known else "cc")
        known.add(key)
        if rng.random() < 0.05:
            known.clear()
            records.append(record(number, "t"))
        elif kind == "p":
            records.append(record(number, "u", key, unchanged=["note"]))
        elif kind == "d":
            known.discard(key)
            records.append(record(number, "d", key))
        else:
            records.append(record(number, kind, key, note=f"note {number}"))
        if rng.random() < 0.3:
            records.append(event(number))
    return records


@pytest.mark.parametrize(
    ("seed", "keys"),
    [
        pytest.param(0, KEYS, marks=pytest.mark.soak),
        pytest.param(1, KEYS, marks=pytest.mark.soak),
        (2, MANY_KEYS),
    ],
)
def test_rows_that_the_engine_writes_equal_those_of_the_driver(make, seed, keys):
    """
    Partial changes, deletes and truncations occur, and batches overlap.
    """
    rng, known = random.Random(seed), set()  # noqa: S311 - a history
    by_driver, by_engine = (make(by_engine=is_engine) for is_engine in (False, True))
    again = []
    for number in range(3):
        first = 1 + 100 * number
        numbers = range(first, first + rng.randint(10, 60))
        batch = again + history(rng, numbers, known, keys)
        again = batch[-5:]
        for one in (by_driver, by_engine):
            one.write(batch)

    assert by_driver.contents() == by_engine.contents()
    assert by_driver.repairs.keys == by_engine.repairs.keys


def test_a_fill_is_one_commit_without_the_driver(make):
    """
    Rows come from three tasks, and each key from two partitions.
    """
    filled = make()
    rows = [record(n, "c", n, note="new") for n in range(1, 400)]
    older = [record(0, "r", n, topic="t", note="old") for n in range(1, 400)]
    moved = [(r[0], 5, *r[2:]) for r in older]
    before = filled.commits()
    result = filled.write([*rows, *moved])
    stored, _ = filled.contents()

    assert (399, 399, 0, 798) == (
        *(result.rows, result.stale, result.left, result.records),
    )
    assert {"new"} == {row["note"] for _, row in stored.values()}
    # The empty commit with which the branch begins, and the commit of the rows.
    assert before + 2 == filled.commits()


NEW, MIXED = ["append files"], ["append files", "MERGE"]
BATCHES = ((1, 300), (290, 600), (600, 700), (1, 700))


@pytest.mark.parametrize(
    ("key", "split"),
    [("bigint", ()), ("text", ("bucket(3, id)",))],
    ids=["integers", "texts in partitions"],
)
def test_rows_of_new_keys_are_appended_and_only_others_are_merged(make, key, split):
    """
    Rows change while the table is being filled; readers see each batch as one commit.
    """
    filled = make(key=key, split=split)
    found, expected = [], {}
    for number, (begin, end) in enumerate(BATCHES):
        keys = [str(n) if key == "text" else n for n in range(begin, end)]
        before = filled.commits()
        note = f"from {number}"
        result = filled.write([record(number, "r", one, note=note) for one in keys])
        expected |= {str(one): note for one in keys}
        steps = filled.engines.new_steps()
        found.append((steps, filled.commits() - before, result.rows, result.left))
    (total,) = filled.lake.sql("SELECT count(*) AS n FROM {t}")

    assert expected == filled.lake.notes()
    assert [(NEW, 1, 299, 0), (MIXED, 1, 310, 0), (NEW, 1, 100, 0)] == found[:3]
    # All keys are known: a search for most keys costs as much as a search for all.
    assert (["MERGE"], 1, 699, 0) == found[3]
    assert {"n": 699} == total


def test_a_key_in_two_tasks_is_stored_once(make):
    """
    A key is in two partitions, as with two topics: neither task sees the other's row.
    """
    filled = make()
    rows = [record(n, "c", n, note="new") for n in range(1, 200)]
    twice = [record(0, "r", n, note="old") for n in (5, 6)]
    result = filled.write([*rows, *((r[0], 5, *r[2:]) for r in twice)])
    events = [event(number) for number in range(300)]
    filled.write(events)
    filled.write([*events, event(300)])
    (total,) = filled.lake.sql("SELECT count(*) AS n FROM {e}")

    assert (199, 2, {"new"}, {"n": 301}) == (
        *(result.rows, result.stale, set(filled.lake.notes().values()), total),
    )
    assert len(filled.lake.notes()) == len(filled.lake.sql("SELECT id FROM {t}"))


def test_rows_whose_files_tasks_cannot_write_are_merged(make):
    """
    This holds for whole batches, and for batches with some known keys.
    """
    filled = make()
    filled.engines.can_write_files = False
    for begin, end in ((1, 100), (95, 200)):
        keys = range(begin, end)
        filled.write([record(begin, "r", n, note=f"from {begin}") for n in keys])
    expected = {str(n): f"from {1 if n < 95 else 95}" for n in range(1, 200)}

    assert expected == filled.lake.notes()
    assert 199 == len(filled.lake.sql("SELECT id FROM {t}"))


def test_keys_are_looked_up_after_another_writers_commit(make):
    """
    After another writer's commit during a fill, any key may already be in the table.
    """
    filled, batch = make(), [record(n, "c", n, note="ours") for n in range(1, 100)]
    filled.write(batch)
    filled.lake.sql(
        "INSERT INTO {t} VALUES (150, 'theirs', 'ffffffffffffffff.0000000000', false)"
    )
    filled.engines.new_steps()
    filled.write([record(n, "c", n, note="ours") for n in range(100, 200)])

    assert "theirs" == filled.lake.notes()["150"]
    assert "MERGE" in filled.engines.new_steps()
    assert 199 == len(filled.lake.sql("SELECT id FROM {t}"))


def test_rows_keep_a_dropped_column(make):
    """
    Older records still have the column; newer ones leave its stored value unchanged.
    """
    filled = make()
    filled.write([record(n, "c", n, note=f"note {n}") for n in (1, 2)])
    filled.lake.relations.columns = (Column("id", "bigint"), Column("paid", "boolean"))
    old = record(3, "c", 3, note="note 3")
    new = [record(n + 3, "u", n, paid=True) for n in (1, 4)]
    result = filled.write([old, *new])
    found = filled.lake.sql("SELECT id, note, paid FROM {t} ORDER BY id")

    assert (3, 0) == (result.rows, result.left)
    assert [
        {"id": 1, "note": "note 1", "paid": True},
        {"id": 2, "note": "note 2", "paid": None},
        {"id": 3, "note": "note 3", "paid": None},
        {"id": 4, "note": None, "paid": True},
    ] == found


def test_a_partial_change_keeps_the_columns_that_it_leaves_out(make):
    """
    The driver writes it, because only the target knows whether the row exists.
    """
    filled = make()
    filled.write([record(n, "c", n, note=f"note {n}") for n in (1, 2)])
    changed = record(3, "u", 1, unchanged=["note"])
    result = filled.write([changed, record(4, "u", 2, note="new")])
    notes = {key: row["note"] for key, (_, row) in filled.contents()[0].items()}

    assert (1, {"1": "note 1", "2": "new"}) == (result.left, notes)


def test_rows_below_a_floor_do_not_return(make):
    """
    A replay delivers them again after a truncation has deleted them.
    """
    filled = make()
    rows = [record(n, "c", n, note="old") for n in range(1, 5)]
    filled.write(rows)
    filled.write([record(10, "t")])
    result = filled.write([*rows, record(11, "c", 2, note="new")])
    stored, _ = filled.contents()

    assert (["2"], 1, 3) == ([*stored], result.rows, result.stale)


def test_a_value_that_does_not_fit_is_left_to_the_driver(make):
    """
    Its record becomes a dead letter, and its key is parked; all others are written.
    """
    filled = make()
    filled.lake.relations.columns = (Column("id", "bigint"), Column("n", "bigint"))
    filled.begin()
    rows = [record(n, "c", n, n=n) for n in range(1, 50)]
    result = filled.write([*rows, record(50, "u", 7, n="seven")])
    stored, _ = filled.contents()

    assert (1, 1, 2) == (result.dead_letters, result.parked, result.left)
    assert {str(n) for n in range(1, 50)} - {"7"} == stored.keys()


@pytest.mark.usefixtures("lake")
def test_two_warehouses_in_a_driver_do_not_share_views():
    """
    They write concurrently, from batches with the same name.
    """
    spark = SparkSession.getActiveSession()
    sessions = [SparkSql.for_sink(spark) for _ in range(2)]
    for number, session in enumerate(sessions):
        session.register("batch", pa.table({"number": [number]}))
    found = [session.sql("SELECT number FROM batch") for session in sessions]

    assert [[0], [1]] == [table.column("number").to_pylist() for table in found]

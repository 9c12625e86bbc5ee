"""The order of the warehouse's statements, as a simulated engine records them."""

import json
import re

import pyarrow as pa
import pytest
import structlog

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UnavailableError
from towpath.settings import Route, Sink, SinkKind, WarehouseOptions
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.changes.columns import Columns
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.ports import Batch, Commit
from towpath.sinks.targets.warehouse.ddl import FLOOR_PROPERTY
from towpath.sinks.targets.warehouse.schema import current_state
from towpath.sinks.targets.warehouse.sink import WarehouseSink
from towpath.sinks.targets.warehouse.upkeep import TableUpkeep
from towpath.sinks.targets.warehouse.write import Engines, TableRows, TableWriter

COLUMNS = (Column("id", "bigint"), Column("note", "text"))
OWN = {"_position": "string", "_is_deleted": "boolean"}


class Engine:
    """Answers queries about the table, and records the rest.

    ``commits`` counts commits, ``writes`` those with rows, and ``commit_queries`` the
    queries for the newest commit; ``before_first`` runs before an empty commit;
    ``fails`` is the start of a statement that fails.
    """

    def __init__(self):
        self.columns = {"id": "bigint", "note": "string", **OWN}
        self.statements = []
        self.commits = self.writes = self.commit_queries = self.describes = 0
        self.fails = None
        self.can_append = True
        self.before_first = lambda: None
        self.exists = False
        self.properties = {"towpath.key": json.dumps(["id"])}

    def drop(self):
        """Drop the table, as another program would."""
        self.commits = self.writes = 0
        self.exists = False

    def sql(self, text):
        self._fail_at(text)
        if text.startswith("DESCRIBE"):
            self.describes += 1
            return pa.table(
                {"col_name": [*self.columns], "data_type": [*self.columns.values()]}
            )
        if text.startswith("SHOW TBLPROPERTIES"):
            keys, values = zip(*self.properties.items(), strict=True)
            return pa.table({"key": keys, "value": values})
        given = re.search("'towpath.id' = '(.+?)'", text)
        if given and not (self.exists and text.startswith("CREATE")):
            self.properties["towpath.id"] = given[1]
            self.exists = True
        if text.startswith("SELECT snapshot_id"):
            return self._history()
        if text.startswith("INSERT"):
            self.before_first()
            self.commits += 1
        if text.startswith("MERGE"):
            self.write()
        if not text.endswith("WHERE false"):
            self.statements.append(text)
        return pa.table({})

    def register(self, _name, table):
        self.statements.append(f"batch of {table.num_rows}")

    def newest_commit(self, _table, _branch):
        self._fail_at("newest_commit")
        self.commit_queries += 1
        return Commit(self.commits, self._summary()) if self.commits else None

    def start_branch(self, _table, branch, snapshot_id):
        self.statements.append(f"branch {branch} at {snapshot_id}")

    def fast_forward(self, _table, branch):
        self.statements.append(f"main at {branch}")

    def append(self, _table, rows, on):
        self._fail_at("INSERT")
        known = 0 if on is None else on.snapshot_id
        if not self.can_append or known != self.commits:
            return None
        self.write()
        self.statements.append(f"INSERT of {rows.num_rows}")
        return Commit(self.commits, self._summary())

    def write(self):
        """Commit rows."""
        self.commits += 1
        self.writes += 1

    def begun(self):
        """Return the first word of each statement that writes rows."""
        return [
            t.split()[0] for t in self.statements if t.startswith(("INSERT", "MERGE"))
        ]

    def _fail_at(self, text):
        if self.fails and text.startswith(self.fails):
            self.fails = None
            message = "lost"
            raise UnavailableError(message)

    def _summary(self):
        return {"added-records": "1", "total-records": str(self.writes)}

    def _history(self):
        summary = {"added-data-files": "1"}
        rows = [
            {
                "snapshot_id": n,
                "parent_id": n - 1 or None,
                "operation": "append",
                "summary": list(summary.items()),
            }
            for n in range(1, self.commits + 1)
        ]
        kind = pa.map_(pa.string(), pa.string())
        names = {"snapshot_id": pa.int64(), "parent_id": pa.int64()}
        names |= {"operation": pa.string(), "summary": kind}
        return pa.Table.from_pylist(rows, pa.schema(list(names.items())))


class Relations:
    """The shape of the only table."""

    columns = COLUMNS

    def shape(self, _topic):
        return RelationShape("shop", "orders", self.columns, ("id",), "0")

    def refresh(self):
        """Do nothing."""


class Repairs:
    """Records its requests among the engine's statements."""

    def __init__(self, given):
        self._calls = given
        self.is_down = False
        self.can_request = True

    def request_all(self, route, _why):
        if self.is_down:
            message = "no broker"
            raise UnavailableError(message)
        self._calls.append(f"request {route}")
        return self.can_request


def row_of(key, **row):
    """Return the change of a whole row."""
    image = {"id": key, **row}
    origin = Origin("t", 0, 0)
    return Change(
        *("shop.orders", (key,), ("id",), "8", image, ALL_PRESENT, False, origin)
    )


class WarehouseBench:
    """A warehouse sink on the simulated engine, with a file of its own."""

    def __init__(self, known, **options):
        self.known = known
        self.engine = Engine()
        self.relations = Relations()
        self.repairs = Repairs(self.engine.statements)
        route = Route(topic="t", name="shop.orders")
        self._described = Sink(
            name="w",
            kind=SinkKind.WAREHOUSE,
            url="postgresql://db/w",
            folder="/data",
            route=(route,),
            warehouse=WarehouseOptions(**options),
        )
        self.sink = self._new()

    def start_again(self):
        """Open a new sink, as after a failure."""
        self.sink = self._new()
        self.sink.open()

    def request_count(self):
        """Count the requests for all rows."""
        return self.engine.statements.count("request shop.orders")

    def _new(self):
        return WarehouseSink(
            *(self._described, self.relations),
            *(Engines(self.engine, self.engine), self.repairs),
            clock=SystemClock(),
            known=self.known,
        )

    def write(self, *keys, **row):
        """Write rows with the given keys."""
        self.sink.apply(Batch(0, tuple(row_of(key, **row) for key in keys)))
        return self.sink.flush()


@pytest.fixture
def rig(tmp_path):
    """Return a sink that is open."""
    made = WarehouseBench(tmp_path / "warehouse.json")
    made.sink.open()
    return made


def test_a_route_that_is_held_back_writes_nothing(rig):
    """
    Each of its changes is refused; once the table fits, changes are accepted again.
    """
    rig.engine.columns["note"] = "int"
    rig.relations.columns = (COLUMNS[0], Column("note", "date"))
    outcome = rig.write(1, 2, note="2026-01-01")
    assert ([], 2, 0) == (rig.engine.begun(), len(outcome.refused), outcome.applied)
    rig.engine.columns["note"] = "date"

    assert ((), ["INSERT"]) == (
        rig.write(1, 2, note="2026-01-01").refused,
        rig.engine.begun(),
    )


def test_keys_are_new_only_while_all_are_known(rig):
    """
    New keys are appended; after a failure, no key is known, and all rows are merged.
    """
    rig.write(1, 2)
    rig.write(3)
    rig.write(3, 4)
    rig.engine.fails = "INSERT"
    with pytest.raises(UnavailableError):
        rig.write(5)
    rig.write(5)
    rig.write(6)

    assert ["INSERT", "INSERT", "MERGE", "MERGE", "MERGE"] == rig.engine.begun()


def test_a_batch_that_cannot_be_appended_is_merged(rig):
    """
    Its keys are known afterwards, like all others.
    """
    rig.engine.can_append = False
    rig.write(1)
    rig.engine.can_append = True
    rig.write(2)
    rig.write(1, 3)

    assert ["MERGE", "INSERT", "MERGE"] == rig.engine.begun()


def test_another_writers_commit_makes_all_keys_unknown(rig):
    """
    The next batch may have keys that the other writer wrote.
    """
    rig.write(1)
    rig.engine.write()
    rig.write(2)
    rig.write(3)

    assert ["INSERT", "MERGE", "MERGE"] == rig.engine.begun()


def test_keys_of_a_table_emptied_by_another_writer_are_unknown(rig):
    """
    Later changes may have keys that were known before.
    """
    rig.write(1)
    rig.engine.commits += 1
    rig.engine.writes = 0
    rig.write(1, 2)
    rig.write(1)

    assert ["INSERT", "MERGE", "MERGE"] == rig.engine.begun()


def test_a_new_table_is_not_queried_for_its_commit(rig):
    """
    A new table has no commit, and an append itself detects another writer.
    """
    for key in (1, 2, 3):
        rig.write(key)
    rig.start_again()
    known = rig.engine.commit_queries
    rig.write(4)

    assert (["INSERT"] * 3 + ["MERGE"], 0) == (rig.engine.begun(), known)
    assert rig.engine.commit_queries > 0


@pytest.mark.parametrize(("other_commits", "last"), [(0, "INSERT"), (1, "MERGE")])
def test_a_first_commit_may_follow_another_writers_commit(rig, other_commits, last):
    """
    The table then has rows of the other writer, whose keys are unknown.
    """
    rig.engine.can_append = False
    rig.engine.before_first = lambda: [rig.engine.write() for _ in range(other_commits)]
    rig.write(1)
    rig.engine.can_append = True
    rig.write(2)

    assert ["MERGE", last] == rig.engine.begun()


def test_a_new_table_filled_by_another_writer_is_queried(rig):
    """
    The sink created it, but it is no longer empty.
    """
    rig.engine.write()
    rig.write(1)
    rig.write(1)

    assert ["MERGE", "MERGE"] == rig.engine.begun()


def columns_of(*rows):
    """Return pairs of key and position as the columns of plain records."""
    return Columns(
        "shop.orders",
        pa.array(range(len(rows)), pa.uint64()),
        pa.array([position for _, position in rows]),
        pa.chunked_array([[b'{"id":%d}' % key for key, _ in rows]]),
        pa.chunked_array(
            [
                [
                    b'{"op":"c","after":{"id":%d,"note":"n"},"source":{}}' % key
                    for key, _ in rows
                ]
            ]
        ),
    )


def test_rows_taken_as_columns_are_committed_together(rig):
    """
    The flush commits them, or an earlier call with changes that may depend on them.
    """
    for key in (1, 2):
        rig.sink.apply_columns(columns_of((key, "4")))
    before = rig.engine.begun()
    rig.sink.flush()
    rig.sink.apply_columns(columns_of((3, "5")))
    rig.write(4)

    assert ([], ["INSERT of 2", "INSERT of 1", "INSERT of 1"]) == (
        before,
        [t for t in rig.engine.statements if t.startswith("INSERT of")],
    )


def test_a_failure_drops_the_rows_taken_as_columns(rig):
    """
    Their batch is retried, so the next flush does not write them.
    """
    rig.sink.apply_columns(columns_of((1, "4")))
    rig.engine.fails = "INSERT"
    with pytest.raises(UnavailableError):
        rig.sink.flush()
    counted = rig.sink.flush()

    assert (0, 0) == (counted.applied, rig.engine.writes)


def test_a_failure_drops_counts_and_rows_of_earlier_calls_of_its_batch(rig):
    """
    The whole batch is retried: nothing in it is counted twice.
    """
    other, refresh = Batch(0, (row_of(9),)), rig.relations.refresh

    def fail():
        message = "no broker"
        raise UnavailableError(message)

    rig.sink.apply_columns(columns_of((1, "4")))
    rig.relations.refresh = fail
    with pytest.raises(UnavailableError):
        rig.sink.apply(other)
    with pytest.raises(UnavailableError):
        rig.sink.apply_columns(columns_of((1, "4")))
    rig.relations.refresh = refresh
    rig.sink.apply_columns(columns_of((1, "4")))
    rig.sink.apply(other)
    counted = rig.sink.flush()

    assert (2, 0) == (counted.applied, counted.stale)


def encoded(*rows):
    """Lay out pairs of key and position as the table's columns."""
    table = {
        "id": [key for key, _ in rows],
        "note": ["n"] * len(rows),
        "_position": [position for _, position in rows],
        "_is_deleted": [False] * len(rows),
    }
    return pa.table(table, schema=lake_table().schema)


def lake_table():
    """Describe the only table as the sink does."""
    shape = RelationShape("shop", "orders", COLUMNS, ("id",), "0")
    return current_state("shop.orders", shape)


def test_a_batch_tries_once_to_fit_a_table_that_is_held_back(rig):
    """
    The same holds with a floor, for which the table's owner is looked up once more.
    """
    rig.engine.columns["note"] = "int"
    rig.relations.columns = (COLUMNS[0], Column("note", "date"))
    floor = Floor("shop.orders", "9", needs_all=False, origin=Origin("t", 0, 1))
    rig.sink.apply(Batch(0, (row_of(1),)))
    rig.engine.describes = 0
    rig.sink.apply(Batch(0, (row_of(2),)))
    without_floor = rig.engine.describes
    rig.sink.apply(Batch(0, (row_of(3),), (), (floor,)))

    assert (1, 1 + 2) == (without_floor, rig.engine.describes)


def test_columns_below_the_floor_of_their_table_are_not_written(tmp_path):
    """
    The table remembers the floor; a row at it is written, one below it is stale.
    """
    rig = WarehouseBench(tmp_path / "warehouse.json")
    rig.engine.properties[FLOOR_PROPERTY] = "5"
    rig.sink.open()
    rig.sink.apply_columns(columns_of((1, "4"), (2, "5"), (3, "6")))
    outcome = rig.sink.flush()

    assert ["INSERT of 2"] == [
        t for t in rig.engine.statements if t.startswith("INSERT")
    ]
    assert (2, 1) == (outcome.applied, outcome.stale)


def test_known_keys_are_forgotten_when_a_later_commit_has_added_others(rig):
    """
    An upkeep commit follows another program's append, whose keys are not known.
    """
    upkeep = TableUpkeep(WarehouseOptions(), SystemClock())
    engines = Engines(rig.engine, rig.engine)
    writer = TableWriter(engines, WarehouseOptions(), upkeep, "branch")
    table = lake_table()
    upkeep.register(table.name, has_tombstones=True)
    writer.open_table(table.name, is_new=True)

    def write(key):
        rows = encoded((key, "8"))
        writer.write(TableRows(table, rows, lambda _: "MERGE"))

    write(1)
    rig.engine.write()
    writer.advance(table.name, Commit(rig.engine.commits, {}))
    write(2)

    assert ["INSERT", "MERGE"] == rig.engine.begun()


def test_more_keys_than_may_be_known_are_searched_for(tmp_path):
    """
    A key beyond the limit could otherwise be appended a second time.
    """
    rig = WarehouseBench(tmp_path / "warehouse.json", known_keys=2)
    rig.sink.open()
    rig.write(1, 2)
    rig.write(3)
    rig.write(3)

    assert ["INSERT", "INSERT", "MERGE"] == rig.engine.begun()


def test_a_merge_moves_the_table_to_its_branch(rig):
    """
    Until then, no reader sees the merged rows.
    """
    rig.write(1)
    rig.write(1)

    start, batch, merge, end = rig.engine.statements[-4:]
    branch = end.removeprefix("main at ")

    assert (f"branch {branch} at 1", "batch of 1") == (start, batch)
    assert f".`branch_{branch}` t USING" in merge


def test_rows_of_a_dropped_table_are_requested(rig):
    """
    The next start recreates it empty; its rows are requested only once.
    """
    rig.write(1)
    rig.start_again()
    before = rig.request_count()
    rig.engine.drop()
    rig.start_again()
    rig.start_again()

    assert (0, 1) == (before, rig.request_count())


def test_a_dropped_table_is_unknown_until_its_rows_are_requested(rig):
    """
    A failed or interrupted request is repeated at the next start.
    """
    rig.engine.drop()
    rig.repairs.is_down = True
    with pytest.raises(UnavailableError, match="no broker"):
        rig.start_again()
    rig.repairs.is_down = False
    rig.start_again()

    assert 1 == rig.request_count()


def test_rows_that_cannot_be_requested_are_logged_once(rig):
    """
    An event log cannot be read again: one error is logged, and the sink continues.
    """
    rig.engine.drop()
    rig.repairs.can_request = False
    with structlog.testing.capture_logs() as logs:
        rig.start_again()
        rig.start_again()

    assert ["warehouse table lost rows: no snapshot can be requested"] == [
        line["event"] for line in logs if line["log_level"] == "error"
    ]


def test_a_table_without_an_id_is_given_one(rig):
    """
    An unknown table is accepted as it is; from then on it is known like any other.
    """
    rig.known.unlink()
    rig.engine.properties.pop("towpath.id")
    rig.start_again()
    before = rig.request_count()
    rig.engine.drop()
    rig.start_again()

    assert (0, 1) == (before, rig.request_count())


@pytest.mark.parametrize(
    ("unfit", "applied", "refused", "nulled", "expected"),
    [("reject", 0, 2, 0, 0), ("null", 2, 0, 2, 1)],
)
def test_an_unrepresentable_value_follows_the_sinks_policy(
    tmp_path, unfit, applied, refused, nulled, expected
):
    """
    The row is refused, or the value is made null: counted each time, logged once (B63).
    """
    rig = WarehouseBench(tmp_path / "warehouse.json", unfit=unfit)
    rig.relations.columns = (COLUMNS[0], Column("day", "date"))
    rig.engine.columns |= {"day": "date"}
    rig.sink.open()
    with structlog.testing.capture_logs() as logs:
        found = [rig.write(key, day="infinity") for key in (1, 2)]

    assert (applied, refused, nulled, expected) == (
        sum(each.applied for each in found),
        sum(len(each.refused) for each in found),
        sum(each.nulled for each in found),
        sum(
            line["event"].startswith("warehouse values unrepresentable")
            for line in logs
        ),
    )

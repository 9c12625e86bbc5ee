"""The order of the warehouse's statements, told by an engine that only listens."""

import json

import pyarrow as pa
import pytest

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UnavailableError
from towpath.settings import Route, Sink, SinkKind
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.ports import Batch
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.warehouse.sink import WarehouseSink

COLUMNS = (Column("id", "bigint"), Column("note", "text"))
OWN = {"_position": "string", "_is_deleted": "boolean"}


class Engine:
    """
    Answers what is asked about the table, and takes down the rest.

    ``commits`` counts what was written; ``fails`` is how a statement begins that fails.
    """

    def __init__(self):
        self.columns = {"id": "bigint", "note": "string", **OWN}
        self.told = []
        self.commits = 0
        self.fails = None

    def sql(self, text):
        if self.fails and text.startswith(self.fails):
            self.fails = None
            message = "lost"
            raise UnavailableError(message)
        if text.startswith("DESCRIBE"):
            return pa.table(
                {"col_name": [*self.columns], "data_type": [*self.columns.values()]}
            )
        if text.startswith("SHOW TBLPROPERTIES"):
            return pa.table({"key": ["towpath.key"], "value": [json.dumps(["id"])]})
        if text.startswith("SELECT snapshot_id"):
            return self._newest()
        if text.startswith(("INSERT", "MERGE")):
            self.commits += 1
        if not text.endswith("WHERE false"):
            self.told.append(text)
        return pa.table({})

    def register(self, _name, table):
        self.told.append(f"batch of {table.num_rows}")

    def begun(self):
        """Return how each statement that writes rows begins."""
        return [t.split()[0] for t in self.told if t.startswith(("INSERT", "MERGE"))]

    def _newest(self):
        if not self.commits:
            return pa.table({"snapshot_id": [], "summary": []})
        summary = pa.array(
            [[("added-records", "1"), ("total-records", str(self.commits - 1))]],
            pa.map_(pa.string(), pa.string()),
        )
        return pa.table({"snapshot_id": [self.commits], "summary": summary})


class Relations:
    """The shape of the one table."""

    columns = COLUMNS

    def shape(self, _topic):
        return RelationShape("shop", "orders", self.columns, ("id",), "0")

    def refresh(self):
        """All is known."""


class Repairs:
    """Takes down, among the engine's statements, what it is asked for."""

    def __init__(self, told):
        self._told = told

    def ask_all(self, route, _why):
        self._told.append(f"ask {route}")
        return True


class Rig:
    """A warehouse sink on the engine."""

    def __init__(self):
        self.engine = Engine()
        self.relations = Relations()
        self.repairs = Repairs(self.engine.told)
        route = Route(topic="t", name="shop.orders")
        described = Sink(
            name="w",
            kind=SinkKind.WAREHOUSE,
            url="postgresql://db/w",
            folder="/data",
            route=(route,),
        )
        self.sink = WarehouseSink(
            described, self.relations, self.engine, self.repairs, SystemClock()
        )

    def write(self, *keys, **row):
        """Write rows of these keys."""
        changes = [
            Change(
                "shop.orders",
                (key,),
                ("id",),
                "8",
                {"id": key, **row},
                ALL_PRESENT,
                False,
                Origin("t", 0, 0),
            )
            for key in keys
        ]
        self.sink.apply(Batch(0, tuple(changes)))
        return self.sink.flush()


@pytest.fixture
def rig():
    """Lend a sink that is open."""
    made = Rig()
    made.sink.open()
    return made


def test_rows_are_asked_for_before_their_table_gains_a_column(rig):
    """Who is interrupted in between finds the column missing, and asks again."""
    rig.relations.columns = (*COLUMNS, Column("channel", "text"))
    rig.write(1, note="x", channel="web")
    told = rig.engine.told
    added = "ALTER TABLE lake.`shop`.`orders` ADD COLUMN `channel` string"

    assert told.index("ask shop.orders") < told.index(added)


def test_a_route_that_is_held_back_writes_nothing(rig):
    """Each of its changes is refused; when the table fits, they are taken again."""
    rig.engine.columns["note"] = "int"
    rig.relations.columns = (COLUMNS[0], Column("note", "date"))
    told = rig.write(1, 2, note="2026-01-01")
    assert ([], 2, 0) == (rig.engine.begun(), len(told.refused), told.applied)
    rig.engine.columns["note"] = "date"

    assert ((), ["INSERT"]) == (
        rig.write(1, 2, note="2026-01-01").refused,
        rig.engine.begun(),
    )


def test_keys_are_new_only_while_all_are_known(rig):
    """New ones are appended; after a failure nothing is known, and all are merged."""
    rig.write(1, 2)
    rig.write(3)
    rig.write(3, 4)
    rig.engine.fails = "INSERT"
    with pytest.raises(UnavailableError):
        rig.write(5)
    rig.write(5)
    rig.write(6)

    assert ["INSERT", "INSERT", "MERGE", "MERGE", "MERGE"] == rig.engine.begun()


def test_a_commit_of_somebody_else_makes_all_keys_unknown(rig):
    """What they wrote may be what comes next."""
    rig.write(1)
    rig.engine.commits += 1
    rig.write(2)

    assert ["INSERT", "MERGE"] == rig.engine.begun()

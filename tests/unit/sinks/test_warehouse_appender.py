"""Appends, on a catalog of one file: their order, and the batches that are left."""

from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pytest
import structlog
from pyiceberg.catalog.sql import SqlCatalog

from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.warehouse import write
from towpath.sinks.targets.warehouse.opening import Commit
from towpath.sinks.targets.warehouse.schema import current_state
from towpath.sinks.targets.warehouse.write import LakeAppender

SHAPE = RelationShape(
    "shop", "orders", (Column("id", "bigint"), Column("note", "text")), ("id",), "0"
)
TABLE = current_state("shop.orders", SHAPE)


def rows(*keys):
    """Make rows, with a column of the batch beside the table's own."""
    laid = pa.table(
        [list(keys), ["x"] * len(keys), ["1"] * len(keys), [False] * len(keys)],
        schema=TABLE.schema,
    )
    return laid.append_column(
        "_kept", pa.array([[]] * len(keys), pa.list_(pa.string()))
    )


class Lake:
    """A catalog of SQLite, opened as often as the appender likes."""

    def __init__(self, folder):
        self.place = {"uri": f"sqlite:///{folder}/list", "warehouse": str(folder)}
        with closing(self.open()) as catalog:
            catalog.create_namespace("shop")
            table = catalog.create_table("shop.orders", TABLE.schema)
            table.append(rows(0).select(TABLE.schema.names))
            self.first = Commit(table.metadata.current_snapshot_id, {})

    def open(self, _sink=None):
        return SqlCatalog("lake", **self.place)

    def recreate(self):
        """Create the table without a commit."""
        with closing(self.open()) as catalog:
            catalog.drop_table("shop.orders")
            catalog.create_table("shop.orders", TABLE.schema)

    def keys(self):
        with closing(self.open()) as catalog:
            scanned = catalog.load_table("shop.orders").scan().to_arrow()
        return sorted(scanned.column("id").to_pylist())


@pytest.fixture
def lake(tmp_path, monkeypatch):
    """Return a warehouse with one row; the appender opens it."""
    made = Lake(tmp_path)
    monkeypatch.setattr(write, "open_catalog", made.open)
    return made


@pytest.fixture
def appender():
    """Return an appender."""
    return LakeAppender(SimpleNamespace())


def test_appends_build_on_each_other(lake, appender):
    """
    Each returns the number of added and of all rows.
    """
    second = appender.append(TABLE, rows(1, 2), lake.first)
    third = appender.append(TABLE, rows(3), second)

    assert ([0, 1, 2, 3], 2, 1, "4") == (
        lake.keys(),
        second.added_rows,
        third.added_rows,
        third.summary["total-records"],
    )


def test_a_stale_appender_appends_nothing(lake, appender):
    """
    One of two appenders with the same commit is refused; it needs no warning.
    """
    appender.append(TABLE, rows(1), lake.first)
    with structlog.testing.capture_logs() as told:
        answers = [appender.append(TABLE, rows(1, 2), on) for on in (lake.first, None)]

    assert ([None, None], [], [0, 1]) == (answers, told, lake.keys())


def test_a_table_without_a_commit_takes_its_first(lake, appender):
    """
    No empty commit is made for it.
    """
    lake.recreate()
    first = appender.append(TABLE, rows(1), None)
    second = appender.append(TABLE, rows(2), first)

    assert (None, "1", "2", [1, 2]) == (
        appender.append(TABLE, rows(3), None),
        first.summary["total-records"],
        second.summary["total-records"],
        lake.keys(),
    )


class Shared(SqlCatalog):
    """Another writer commits as well, once."""

    def theirs(self):
        """Let the other writer commit; return the table then, or nothing if it has."""
        if self.properties.get("overtaken"):
            return None
        self.properties["overtaken"] = "yes"
        table = self.load_table("shop.orders")
        table.append(rows(9).select(TABLE.schema.names))
        return table


class Overtaken(Shared):
    """Lets the other writer commit between our look and our commit."""

    def commit_table(self, table, requirements, updates):
        self.theirs()
        return super().commit_table(table, requirements, updates)


def test_a_first_commit_is_not_made_after_another_writers(lake, appender, monkeypatch):
    """
    A table without a commit at the look must still have none.
    """
    lake.recreate()
    monkeypatch.setattr(
        write, "open_catalog", lambda _: Overtaken("lake", **lake.place)
    )
    with pytest.raises(TargetUnavailableError, match="another writer"):
        appender.append(TABLE, rows(1), None)

    assert [9] == lake.keys()


class Answering(Shared):
    """Answers a commit as a server may: with the commits made since."""

    def commit_table(self, table, requirements, updates):
        done = super().commit_table(table, requirements, updates)
        theirs = self.theirs()
        if theirs is None:
            return done
        return done.model_copy(update={"metadata": theirs.metadata})


def test_another_writers_commit_is_not_taken_for_ours(lake, appender, monkeypatch):
    """
    Its keys are not known, although no commit came between: no append builds on it.
    """
    monkeypatch.setattr(
        write, "open_catalog", lambda _: Answering("lake", **lake.place)
    )
    second = appender.append(TABLE, rows(1), lake.first)
    third = appender.append(TABLE, rows(9), second)

    assert (1, None, [0, 1, 9]) == (second.added_rows, third, lake.keys())


@pytest.mark.parametrize(
    "error",
    [ModuleNotFoundError("adlfs"), OSError("no way there"), ValueError("unfit")],
    ids=lambda error: type(error).__name__,
)
def test_an_append_that_is_impossible_is_left_to_the_engine(
    lake, appender, monkeypatch, error
):
    """
    It is logged once, however often it comes.
    """

    def fail(_sink):
        raise error

    monkeypatch.setattr(write, "open_catalog", fail)
    with structlog.testing.capture_logs() as told:
        answers = [appender.append(TABLE, rows(1), lake.first) for _ in range(2)]

    assert ([None, None], 1) == (answers, len(told))
    assert told[0]["why"].startswith(type(error).__name__)

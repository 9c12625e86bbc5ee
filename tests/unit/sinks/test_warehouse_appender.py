"""Appends with a catalog in one file: their order, and those left to the engine."""

import pickle
from contextlib import closing
from types import SimpleNamespace

import pyarrow as pa
import pytest
import structlog
from pyiceberg.catalog.sql import SqlCatalog

from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import ExecutorsFailedError, TargetUnavailableError
from towpath.sinks.ports import Commit
from towpath.sinks.targets.warehouse import append
from towpath.sinks.targets.warehouse.append import LakeAppender
from towpath.sinks.targets.warehouse.schema import current_state

SHAPE = RelationShape(
    "shop", "orders", (Column("id", "bigint"), Column("note", "text")), ("id",), "0"
)
TABLE = current_state("shop.orders", SHAPE)


def rows(*keys):
    """Make rows with the table's columns and one column of the batch."""
    columns = pa.table(
        [list(keys), ["x"] * len(keys), ["1"] * len(keys), [False] * len(keys)],
        schema=TABLE.schema,
    )
    return columns.append_column(
        "_kept", pa.array([[]] * len(keys), pa.list_(pa.string()))
    )


class Lake:
    """A SQLite catalog that can be opened any number of times."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = {"uri": f"sqlite:///{folder}/list", "warehouse": str(folder)}
        with closing(self.open()) as catalog:
            catalog.create_namespace("shop")
            table = catalog.create_table("shop.orders", TABLE.schema)
            table.append(rows(0).select(TABLE.schema.names))
            self.first = Commit(table.metadata.current_snapshot_id, {})

    def open(self, _sink=None):
        return SqlCatalog("lake", **self.settings)

    def recreate(self):
        """Recreate the table without a commit."""
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
    monkeypatch.setattr(append, "open_catalog", made.open)
    return made


@pytest.fixture
def appender():
    """Return an appender."""
    return LakeAppender(SimpleNamespace())


def test_appends_build_on_each_other(lake, appender):
    """
    Each append returns the numbers of added rows and of all rows.
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
    The second of two appends on the same commit is refused without a warning.
    """
    appender.append(TABLE, rows(1), lake.first)
    with structlog.testing.capture_logs() as logs:
        answers = [appender.append(TABLE, rows(1, 2), on) for on in (lake.first, None)]

    assert ([None, None], [], [0, 1]) == (answers, logs, lake.keys())


def test_a_table_without_a_commit_takes_its_first(lake, appender):
    """
    No empty commit is made before the first append.
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


class SharedCatalog(SqlCatalog):
    """A catalog in which another writer commits once."""

    def commit_as_other(self):
        """Commit as the other writer, but only once; return the table or nothing."""
        if self.properties.get("overtaken"):
            return None
        self.properties["overtaken"] = "yes"
        table = self.load_table("shop.orders")
        table.append(rows(9).select(TABLE.schema.names))
        return table


class OvertakenCatalog(SharedCatalog):
    """A catalog in which the other writer commits between our read and our commit."""

    def commit_table(self, table, requirements, updates):
        self.commit_as_other()
        return super().commit_table(table, requirements, updates)


def test_a_first_commit_is_not_made_after_that_of_another_writer(
    lake, appender, monkeypatch
):
    """
    A table that had no commit when it was read must still have none.
    """
    lake.recreate()
    monkeypatch.setattr(
        append, "open_catalog", lambda _: OvertakenCatalog("lake", **lake.settings)
    )
    with pytest.raises(TargetUnavailableError, match="another writer"):
        appender.append(TABLE, rows(1), None)

    assert [9] == lake.keys()


class AnsweringCatalog(SharedCatalog):
    """A catalog that may return another writer's later commit, as a server may."""

    def commit_table(self, table, requirements, updates):
        done = super().commit_table(table, requirements, updates)
        other_table = self.commit_as_other()
        if other_table is None:
            return done
        return done.model_copy(update={"metadata": other_table.metadata})


def test_another_writers_commit_is_not_taken_for_ours(lake, appender, monkeypatch):
    """
    Its keys are not known, so no append builds on it.
    """
    monkeypatch.setattr(
        append, "open_catalog", lambda _: AnsweringCatalog("lake", **lake.settings)
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
    The reason is logged once, however often it occurs.
    """

    def fail(_sink):
        raise error

    monkeypatch.setattr(append, "open_catalog", fail)
    with structlog.testing.capture_logs() as logs:
        answers = [appender.append(TABLE, rows(1), lake.first) for _ in range(2)]

    assert ([None, None], 1) == (answers, len(logs))
    assert logs[0]["why"].startswith(type(error).__name__)


def written(writer, *batches):
    """Write rows for each batch as a task does; return all results."""
    return [writer(batch) for batch in batches]


def test_only_the_files_of_returned_results_are_committed(lake, appender):
    """
    A first attempt at a task has written the same rows, but its result is lost.
    """

    def write(writer):
        written(writer, rows(1, 2))
        return written(writer, rows(1, 2), rows(3), rows())

    second = appender.append_files(TABLE, write, lake.first)
    third = appender.append_files(TABLE, lambda w: written(w, rows(4)), second)
    lists = [path.name for path in lake.folder.rglob("*-m0.avro")]

    assert ([0, 1, 2, 3, 4], 3, 1) == (
        lake.keys(),
        second.added_rows,
        third.added_rows,
    )
    # The tasks have left no lists of their files.
    assert 3 == len(lists)
    # The first attempt's file is left to upkeep.
    assert 5 == len(list(lake.folder.rglob("*.parquet")))


def test_a_task_is_not_sent_the_address_of_the_catalogs_database(lake, appender):
    """
    The address contains a password, and a task needs only the files.
    """
    sent = []
    appender.append_files(TABLE, lambda w: sent.append(w) or [], lake.first)

    assert b"sqlite" not in pickle.dumps(sent)
    assert str(lake.folder).encode() in pickle.dumps(sent)


def test_files_on_a_branch_are_hidden_and_its_maximum_age_is_kept(lake, appender):
    """
    Readers of the main branch see them once it moves to that commit.
    """
    with closing(lake.open()) as catalog:
        table = catalog.load_table("shop.orders")
        table.manage_snapshots().create_branch(
            lake.first.snapshot_id, "side", max_ref_age_ms=5000
        ).commit()
    made = appender.append_files(
        TABLE, lambda w: written(w, rows(1)), lake.first, "side"
    )
    with closing(lake.open()) as catalog:
        refs = catalog.load_table("shop.orders").metadata.refs

    assert ([0], made.snapshot_id, 5000) == (
        lake.keys(),
        refs["side"].snapshot_id,
        refs["side"].max_ref_age_ms,
    )


def test_files_of_a_stale_appender_are_not_even_written(lake, appender):
    """
    Another writer has committed, so the engine must search the table for the keys.
    """
    calls = []
    appender.append(TABLE, rows(1), lake.first)

    assert None is appender.append_files(TABLE, calls.append, lake.first)
    assert ([0, 1], []) == (lake.keys(), calls)


def test_files_are_not_committed_after_a_commit_of_another_writer(
    lake, appender, monkeypatch
):
    """
    The other writer commits while tasks write.
    """
    monkeypatch.setattr(
        append, "open_catalog", lambda _: OvertakenCatalog("lake", **lake.settings)
    )
    with pytest.raises(TargetUnavailableError, match="another writer"):
        appender.append_files(TABLE, lambda w: written(w, rows(1)), lake.first)

    assert [0, 9] == lake.keys()


def test_files_that_a_task_cannot_write_are_left_to_the_engine(lake, appender):
    """
    No other task's files are committed without them.
    """

    def write(writer):
        return written(writer, rows(1), rows(2).drop_columns("note"))

    with structlog.testing.capture_logs() as logs:
        answers = [appender.append_files(TABLE, write, lake.first) for _ in range(2)]

    assert ([None, None], [0], 1) == (answers, lake.keys(), len(logs))


def test_a_batch_is_written_again_if_an_executor_does_not_answer(lake, appender):
    """
    A silent executor is not a reason to merge the rows.
    """

    def write(_writer):
        message = "lost"
        raise ExecutorsFailedError(message)

    with pytest.raises(ExecutorsFailedError):
        appender.append_files(TABLE, write, lake.first)

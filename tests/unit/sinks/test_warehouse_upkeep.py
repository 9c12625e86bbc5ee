"""The tables that are due for upkeep, and the statements that carry it out."""

from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from towpath.settings import Route, RouteKind, Sink, SinkKind, WarehouseOptions
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.warehouse import upkeep as module
from towpath.sinks.targets.warehouse.ddl import KEY_PROPERTY
from towpath.sinks.targets.warehouse.schema import LakeName
from towpath.sinks.targets.warehouse.upkeep import (
    TableUpkeep,
    UpkeepTask,
    erase,
)
from towpath.sinks.targets.warehouse.write import run_upkeep

ORDERS = LakeName("shop", "orders")
LOG = LakeName("shop", "events")
OPTIONS = WarehouseOptions(compact_after_files=48, compact_after_s=600)
DAY_S = 86_400


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.s = 1000.0

    def now(self):
        return datetime.fromtimestamp(self.s, tz=UTC)

    def monotonic_s(self):
        return self.s


def summary(data, deletes=0):
    """Make the file counts of a commit's summary."""
    return {"total-data-files": str(data), "total-delete-files": str(deletes)}


def upkeep():
    """Make the upkeep of a table and a log."""
    clock = Clock()
    made = TableUpkeep(OPTIONS, clock)
    made.register(ORDERS, has_tombstones=True)
    made.register(LOG, has_tombstones=False)
    return made, clock


def due(made):
    """Return the table that is due, if one is."""
    task = made.due()
    return task and task.name


def test_upkeep_is_due_after_growth():
    """A table is due when it has grown; the one that grew most is first."""
    made, _ = upkeep()
    assert due(made) is None
    made.record_commit(ORDERS, summary(47))
    assert due(made) is None
    made.record_commit(ORDERS, summary(47, 1))
    made.record_commit(LOG, summary(96))

    assert due(made) == LOG


def test_files_left_by_upkeep_do_not_make_it_due_again():
    """
    Files that are large enough to be kept do not count as growth.
    """
    made, _ = upkeep()
    made.record_commit(LOG, summary(500))
    made.done(made.due(), summary(500))
    made.record_commit(LOG, summary(547))
    assert due(made) is None
    made.record_commit(LOG, summary(548))

    assert due(made) == LOG


def test_a_table_that_grew_little_is_due_after_some_time():
    """
    Once the time has passed, one new file is enough; without any, the table is not due.
    """
    made, clock = upkeep()
    made.record_commit(LOG, summary(1))
    clock.s += 599
    assert due(made) is None
    clock.s += 1
    assert due(made) == LOG
    made.done(made.due(), summary(1))
    clock.s += 601

    assert due(made) is None


def test_only_tombstones_below_the_safe_position_are_purged():
    """
    A table with tombstones is due once the safe position has risen; a log never is.
    """
    made, clock = upkeep()
    clock.s += 601
    assert due(made) is None
    made.raise_safe_position("8")
    made.raise_safe_position("7")
    task = made.due()
    assert (ORDERS, "8") == (task.name, task.safe)
    made.done(task, summary(0))
    clock.s += 601

    assert due(made) is None


def test_failed_upkeep_waits_for_growth():
    """
    It is not retried with each batch, and does not count as done.
    """
    made, clock = upkeep()
    made.raise_safe_position("8")
    made.record_commit(ORDERS, summary(48))
    task = made.due()
    made.postpone(task)
    assert due(made) is None
    made.record_commit(ORDERS, summary(95))
    assert due(made) is None
    clock.s += 601

    assert (ORDERS, "8") == (made.due().name, made.due().safe)


def test_orphan_files_are_removed_at_intervals():
    """
    They are removed after the start, and again once later ones are old enough.
    """
    made, clock = upkeep()
    made.record_commit(LOG, summary(48))
    first = made.due()
    age_s = OPTIONS.orphans_after_s
    assert clock.s - first.orphans_before.timestamp() == age_s
    made.done(first, summary(0))
    made.record_commit(LOG, summary(48))
    assert made.due().orphans_before is None
    clock.s += age_s

    assert made.due().orphans_before == datetime.fromtimestamp(1000, tz=UTC)


class Steps:
    """An engine, a schedule with one task, and a writer; records the engine's steps."""

    branch = "ours"

    def __init__(self, task):
        self._task = task
        self.taken = []
        self.left = [task]

    def due(self):
        return self._task

    def sql(self, text):
        self.taken.append(text)

    def expire_snapshots(self, table):
        self.taken.append(f"expire {table}")

    def newest_commit(self, _table, _branch):
        """Return no commit."""

    def done(self, task, _summary):
        self.left.remove(task)


def steps(task):
    """Return the steps of a task that succeeds."""
    taken = Steps(task)
    run_upkeep(taken, taken, taken)
    assert [] == taken.left
    return taken.taken


def test_upkeep_statements_name_the_table_as_procedures_expect():
    """
    The order is branch, tombstones, data files, replaced rows, versions and orphans.
    """
    options = "'delete-ratio-threshold', '0.1', 'remove-dangling-deletes', 'true'"
    name, table = "lake.`shop`.`o'dd`", "table => '`shop`.`o\\'dd`'"
    before = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)

    assert steps(UpkeepTask(LakeName("shop", "o'dd"), "9", before)) == [
        f"ALTER TABLE {name} DROP BRANCH IF EXISTS `ours`",
        f"DELETE FROM {name} WHERE `_is_deleted` AND `_position` < '9'",  # noqa: S608 - expected
        f"CALL lake.system.rewrite_data_files({table}, options => map({options}))",
        f"CALL lake.system.rewrite_position_delete_files({table})",
        f"expire {name}",
        (
            f"CALL lake.system.remove_orphan_files({table},"
            " older_than => timestamp '2026-01-02 03:04:05', prefix_listing => true)"
        ),
    ]


def test_an_event_log_is_only_compacted():
    """
    Without a safe position, nothing is deleted, and orphans have their own interval.
    """
    found = steps(UpkeepTask(LOG, None, None))

    assert (4, []) == (len(found), [s for s in found if "DELETE" in s or "orphan" in s])


class DeathError(Exception):
    """The process ends before a file is deleted."""


@pytest.mark.parametrize("error", [DeathError, PermissionError])
def test_an_interrupted_deletion_of_a_table_is_completed(tmp_path, monkeypatch, error):
    """
    No file of the table is left behind: the catalog lists it until all are deleted.
    """
    config = {"uri": f"sqlite:///{tmp_path}/list", "warehouse": f"{tmp_path}/lake"}
    monkeypatch.setattr(module, "open_catalog", lambda _: SqlCatalog("lake", **config))
    rows = pa.table({"id": [1, 2]})
    catalog = SqlCatalog("lake", **config)
    catalog.create_namespace("shop")
    table = catalog.create_table(
        "shop.events", rows.schema, properties={KEY_PROPERTY: '["id"]'}
    )
    for _ in range(3):
        table.append(rows)
    route = Route(topic="t", name="shop.events", kind=RouteKind.EVENT_LOG)
    sink = Sink(name="w", kind=SinkKind.WAREHOUSE, url="x", folder="x", route=(route,))
    deleted, after = [], 1

    def delete(self, file):
        if len(deleted) == after:
            deleted.clear()
            raise error
        deleted.append(file)
        real_delete(self, file)

    real_delete = PyArrowFileIO.delete
    monkeypatch.setattr(PyArrowFileIO, "delete", delete)
    while catalog.table_exists("shop.events"):
        with suppress(DeathError, TargetUnavailableError):
            erase(sink, "towpath")
        after += 1

    assert 3 < after
    assert 1 >= len([one for one in (tmp_path / "lake").rglob("*") if one.is_file()])

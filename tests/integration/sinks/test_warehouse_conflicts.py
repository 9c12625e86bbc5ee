"""Another writer commits to the warehouse between the sink's read and its commit."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from support.waiting import until
from support.warehouse_tables import Lake, write
from towpath.sinks.errors import TargetUnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

_WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class Catalog:
    """The row of the catalog that names the newest commit of a table."""

    def __init__(self, connection, name):
        self.connection = connection
        self._name = name.split(".")

    def newest(self):
        """Return the file of the newest commit."""
        query = "SELECT metadata_location FROM iceberg_tables"
        return self._run(query).fetchone()[0]

    def set_newest(self, location):
        """Make a different commit the newest."""
        self._run("UPDATE iceberg_tables SET metadata_location = %s", location)

    def _run(self, statement, *values):
        where = " WHERE table_namespace = %s AND table_name = %s"
        return self.connection.execute(statement + where, [*values, *self._name])


@contextmanager
def overtaken(lake: Lake, name: str, theirs: Callable[[], object]) -> Iterator[None]:
    """
    Make another writer commit between the sink's read and its commit.

    The other commit is made and undone; then it is repeated in a transaction that ends
    once the sink's commit is waiting. So the code in the block reads before the other
    commit, and commits after it.
    """
    with psycopg.connect(lake.sink_settings.url) as connection:
        catalog = Catalog(connection, name)
        before = catalog.newest()
        connection.commit()
        theirs()
        after = catalog.newest()
        catalog.set_newest(before)
        connection.commit()
        catalog.set_newest(after)
        with (
            psycopg.connect(lake.sink_settings.url, autocommit=True) as watching,
            ThreadPoolExecutor(1) as pool,
        ):
            done = pool.submit(
                lambda: (
                    until(
                        lambda: watching.execute(_WAITING).fetchone()[0] > 0,
                        "our commit waits",
                    ),
                    connection.commit(),
                )
            )
            yield
            done.result()


def write_with_retries(sink, changes=(), events=()):
    """Try a batch up to three times, as its query would retry it."""
    for _ in range(3):
        try:
            return write(sink, changes, events)
        except TargetUnavailableError:
            continue
    return None


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(1, id="a known key"),
        pytest.param(9, id="a new key", marks=pytest.mark.soak),
    ],
)
def test_a_batch_is_retried_after_another_writers_commit(warehouse, key):
    """Whichever commits first, the newer row is kept, and each key occurs once."""
    write(warehouse.sink(), [warehouse.change(8, 1, {"note": "old"})])
    sink = warehouse.sink()
    write(sink, [warehouse.change(9, 2, {"note": "old"})])
    newer = warehouse.change(32, key, {"note": "theirs"})
    with overtaken(
        warehouse, warehouse.orders, lambda: write(warehouse.sink(), [newer])
    ):
        outcome = write_with_retries(
            sink,
            [
                warehouse.change(24, key, {"note": "ours"}),
                warehouse.change(24, 2, {"note": "ours"}),
            ],
        )
    notes = [
        (row.key, row.fields["note"]) for row in warehouse.reader.rows(warehouse.orders)
    ]
    expected = {"1": "old", "2": "ours", str(key): "theirs"}

    assert (1, sorted(expected.items())) == (outcome.stale, sorted(notes))


def test_an_append_does_not_build_on_another_writers_commit(warehouse):
    """
    After losing the race, the appender knows the keys of both writers.
    """
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "old"})], [warehouse.event(1)])
    newer = warehouse.change(32, 9, {"note": "theirs"})
    ours = [warehouse.change(24, key, {"note": "ours"}) for key in (9, 10)]
    with overtaken(
        warehouse, warehouse.orders, lambda: write(warehouse.sink(), [newer])
    ):
        outcome = write_with_retries(sink, ours)
    theirs = [warehouse.event(n) for n in (2, 3)]
    with overtaken(
        warehouse, warehouse.events, lambda: write(warehouse.sink(), events=theirs)
    ):
        write_with_retries(sink, events=[warehouse.event(n) for n in (3, 4)])
    notes = [
        (row.key, row.fields["note"]) for row in warehouse.reader.rows(warehouse.orders)
    ]
    ids = [row.key for row in warehouse.reader.rows(warehouse.events)]

    assert (1, [("1", "old"), ("10", "ours"), ("9", "theirs")]) == (
        outcome.stale,
        sorted(notes),
    )
    assert sorted(warehouse.event(n).id for n in range(1, 5)) == sorted(ids)


def test_another_writers_compaction_loses_nothing(warehouse):
    """
    The retried batch finds the rewritten rows.
    """
    sink = warehouse.sink()
    for log_lsn in (8, 16, 24):
        changes = [warehouse.change(log_lsn, n, {"note": "a"}) for n in range(4)]
        write(sink, changes)
    table = f"table => '{warehouse.orders}'"
    compact = (
        f"CALL lake.system.rewrite_data_files({table}, "
        "options => map('delete-file-threshold', '1'))"
    )
    with overtaken(warehouse, warehouse.orders, lambda: warehouse.sql(compact)):
        outcome = write_with_retries(sink, [warehouse.change(32, 2, {"note": "b"})])
    rows = sorted(
        (r.key, r.fields["note"]) for r in warehouse.reader.rows(warehouse.orders)
    )

    assert (1, [("0", "a"), ("1", "a"), ("2", "b"), ("3", "a")]) == (
        outcome.applied,
        rows,
    )


def test_an_event_that_two_writers_append_is_stored_once(warehouse):
    """Two writers append overlapping events, and each event is stored once."""
    sink = warehouse.sink()
    write(warehouse.sink(), events=[warehouse.event(1)])
    write(sink, events=[warehouse.event(2)])
    theirs = [warehouse.event(n) for n in (3, 4)]
    with overtaken(
        warehouse,
        warehouse.events,
        lambda: write(warehouse.sink(), events=theirs),
    ):
        write_with_retries(sink, events=[warehouse.event(n) for n in (4, 5)])
    keys = [row.key for row in warehouse.reader.rows(warehouse.events)]

    assert sorted(warehouse.event(n).id for n in range(1, 6)) == sorted(keys)

"""
Behavior of the warehouse sink that is specific to Iceberg, beyond the contract.
"""

import uuid
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from support.copying import replace
from support.warehouse_tables import ROW, Faulty, write
from towpath.schemas.failure import UnavailableError
from towpath.sinks.errors import StatementRefusedError, TargetUnavailableError
from towpath.sinks.targets.warehouse.client import (
    CATALOG,
    ForeignTableError,
    catalog_properties,
)
from towpath.sinks.targets.warehouse.read import WarehouseReader
from towpath.sinks.targets.warehouse.schema import lake_name
from towpath.sinks.targets.warehouse.upkeep import erase

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


def test_every_type_is_read_back_equal_by_a_second_engine(warehouse):
    """Values have types in the table, and are read back exactly as in the records."""
    nothing = dict.fromkeys(ROW)
    write(
        warehouse.sink(), [warehouse.change(8, 1, ROW), warehouse.change(8, 2, nothing)]
    )
    catalog = SqlCatalog(CATALOG, **catalog_properties(warehouse.sink_settings))
    table = catalog.load_table(tuple(lake_name(warehouse.orders)))
    types = {field.name: str(field.field_type) for field in table.schema().fields}
    catalog.close()

    assert types == {
        "id": "int",
        "total": "decimal(12, 2)",
        "weight": "string",
        "paid": "boolean",
        "body": "string",
        "note": "string",
        "placed_at": "timestamptz",
        "local_at": "timestamp",
        "day": "date",
        "ratio": "double",
        "raw": "binary",
        "_position": "string",
        "_is_deleted": "boolean",
    }
    assert {"1": {"id": 1, **ROW}, "2": {"id": 2, **nothing}} == {
        key: dict(row.fields) for key, row in warehouse.rows().items()
    }


def test_rows_are_found_by_their_keys(warehouse):
    """Only the rows of the requested keys are returned; missing keys are left out."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": str(n)}) for n in range(3)])
    write(sink, [warehouse.change(16, 2, None)])
    found = warehouse.reader.at(
        warehouse.orders, ("1", "2", "3", "not a number", "1:2")
    )

    assert [("1", "1", False), ("2", None, True)] == sorted(
        (row.key, row.fields["note"], row.is_deleted) for row in found
    )


def test_a_table_that_does_not_exist_has_no_rows(warehouse):
    """A route has no table before its first record, and this is not a failure."""
    assert [] == list(warehouse.reader.rows("shop.never"))


def test_a_catalog_that_refuses_connections_is_unavailable(warehouse, unused_port):
    """A reader that cannot read raises an error instead of returning no rows."""
    url = f"postgresql://nobody@127.0.0.1:{unused_port}/warehouse"
    reader = WarehouseReader(warehouse.sink_settings.model_copy(update={"url": url}))

    with pytest.raises(TargetUnavailableError, match="catalog"):
        list(reader.rows(warehouse.orders))


def test_the_view_shows_live_rows_only(warehouse):
    """A tombstone remains in the table, but the view hides it."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": "x"}) for n in (1, 2)])
    write(sink, [warehouse.change(16, 1, None)])
    live = f"SELECT id FROM lake.{warehouse.orders}_live"  # noqa: S608 - our own name
    view = warehouse.session.sql(live)

    assert ([2], True) == (
        view.column("id").to_pylist(),
        warehouse.rows()["1"].is_deleted,
    )


def test_the_log_has_each_event_once(warehouse):
    """A replayed batch, or a part of it, adds nothing; new events are appended."""
    sink = warehouse.sink()
    first = write(sink, events=[warehouse.event(n) for n in range(100)])
    replay = write(
        warehouse.sink(), events=[warehouse.event(n) for n in range(50, 120)]
    )
    ids = [row.key for row in warehouse.reader.rows(warehouse.events)]

    assert (100, 20, 50) == (first.applied, replay.applied, replay.stale)
    assert sorted(ids) == [str(uuid.UUID(int=n)) for n in range(120)]


def test_all_fields_of_an_event_are_kept(warehouse):
    """The payload and the headers remain text, and the time remains a timestamp."""
    write(warehouse.sink(), events=[warehouse.event(7)])
    (row,) = warehouse.reader.rows(warehouse.events)

    assert dict(row.fields) == {
        "id": str(uuid.UUID(int=7)),
        "aggregate_type": "order",
        "aggregate_id": "7",
        "type": "OrderPlaced",
        "payload": '{"number": 7}',
        "headers": '{"schema": "a:1"}',
        "position": "0000000000000007.0000000000",
        "occurred_at": "2026-01-01T00:07:00.000000Z",
    }


def test_an_event_whose_time_cannot_be_represented_keeps_its_other_fields(warehouse):
    """The time is stored as null, and counted."""
    outcome = write(
        warehouse.sink(),
        events=[replace(warehouse.event(7), occurred_at="infinity")],
    )
    (row,) = warehouse.reader.rows(warehouse.events)

    assert (1, 1, None, "7") == (
        outcome.applied,
        outcome.nulled,
        row.fields["occurred_at"],
        row.fields["aggregate_id"],
    )


class WithoutAppends(Faulty):
    """Appends nothing, so the engine must write everything."""

    def append(self, _table, _rows, _on):
        """Append nothing."""


@pytest.mark.parametrize(
    ("engines", "begins"),
    [
        pytest.param(Faulty, "newest_commit", marks=pytest.mark.soak),
        (Faulty, "append"),
        pytest.param(WithoutAppends, "INSERT INTO", marks=pytest.mark.soak),
        (WithoutAppends, "MERGE"),
    ],
)
def test_a_first_write_whose_outcome_is_unknown_is_not_repeated(
    warehouse, engines, begins
):
    """The repeated batch finds a table with rows, and writes no second copy."""
    changes = [warehouse.change(8, n, {"note": "x"}) for n in range(3)]
    events = [warehouse.event(n) for n in range(3)]
    # This creates the tables, so that the next sink queries them for their commits.
    warehouse.sink()
    sink = warehouse.sink(engines(warehouse, begins))
    with pytest.raises(UnavailableError, match="lost"):
        write(sink, changes, events)
    write(sink, changes, events)
    read = [*warehouse.reader.rows(warehouse.orders)]
    read += warehouse.reader.rows(warehouse.events)

    assert 6 == len(read)


def test_a_table_that_was_dropped_is_refilled(warehouse, tmp_path):
    """
    The open sink fails; the next one requests all rows before it writes.
    """
    warehouse.known = tmp_path / "warehouse.json"
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": "x"}) for n in (1, 2)])
    write(warehouse.sink(), [warehouse.change(16, 2, {"note": "y"})])
    requests = len(warehouse.repairs.requested)
    warehouse.sql("DROP TABLE {t} PURGE")
    with pytest.raises(StatementRefusedError):
        write(sink, [warehouse.change(24, 1, {"note": "y"})])
    write(warehouse.sink(), [warehouse.change(24, 1, {"note": "y"})])
    warehouse.sink()
    ((route, why),) = warehouse.repairs.requested

    assert (0, {"1": "y"}, warehouse.orders, "not the one that was written") == (
        requests,
        warehouse.notes(),
        route,
        why.rpartition("is ")[2],
    )


def test_a_foreign_table_is_neither_read_nor_erased(warehouse):
    """Reading it raises an error with the reason; erasing the sink leaves it alone."""
    warehouse.sql("CREATE TABLE {t} (id INT)")
    warehouse.sql("INSERT INTO {t} VALUES (1)")
    with pytest.raises(ForeignTableError, match="no sink has created it"):
        warehouse.rows()
    erase(warehouse.sink_settings, "")

    assert [1] == [row["id"] for row in warehouse.sql("SELECT id FROM {t}")]


def test_an_erased_sink_is_empty_and_can_be_refilled(warehouse):
    """
    Tables, view and files are deleted; a repeat is harmless; older rows are accepted.
    """
    sink = warehouse.sink()
    write(sink, [warehouse.change(16, 1, {"note": "x"})], [warehouse.event(1)])
    (file,) = warehouse.sql("SELECT file_path FROM {t}.files")
    erase(warehouse.sink_settings, "")
    erase(warehouse.sink_settings, "")
    names = warehouse.orders.replace("shop.", "")
    left = warehouse.sql(f"SHOW TABLES IN lake.shop LIKE '{names}*'")
    left += warehouse.sql(f"SHOW VIEWS IN lake.shop LIKE '{names}*'")
    assert ([], {}) == (left, warehouse.rows())
    assert not Path(file["file_path"].removeprefix("file:")).exists()
    write(warehouse.sink(), [warehouse.change(8, 1, {"note": "y"})])

    assert {"1": "y"} == warehouse.notes()

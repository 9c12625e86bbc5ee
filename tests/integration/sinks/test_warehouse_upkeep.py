"""Upkeep of the warehouse between batches: compaction, purges and time travel."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.warehouse_tables import Faulty, write
from towpath.sinks.targets.warehouse.client import open_catalog
from towpath.sinks.targets.warehouse.schema import lake_name

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


def test_compaction_keeps_the_contents(warehouse):
    """
    Few files are left, every row and tombstone is kept, and the guard still holds.
    """
    warehouse.set(compact_after_files=4)
    sink = warehouse.sink()
    for number in range(1, 5):
        values = {"note": str(number)}
        write(
            sink, [warehouse.change(number * 8, key, values) for key in range(number)]
        )
    write(sink, [warehouse.change(80, 0, None)])
    files = len(warehouse.sql("SELECT content FROM {t}.files"))
    write(sink, [warehouse.change(8, key, {"note": "stale"}) for key in range(4)])

    assert files < 4
    assert {"1": "4", "2": "4", "3": "4"} == warehouse.notes()
    assert warehouse.rows()["0"].is_deleted


def test_tombstones_are_removed_below_the_safe_position(warehouse):
    """Newer tombstones and all live rows are kept."""
    warehouse.set(compact_after_s=60)
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, key, {"note": "x"}) for key in range(4)])
    write(sink, [warehouse.change(16, 0, None), warehouse.change(32, 1, None)])
    safe = warehouse.change(24, 0, None).position
    write(sink, [], safe=safe)
    assert 4 == len(warehouse.rows())
    warehouse.clock.ahead_s += 61
    write(sink)

    assert {"1": True, "2": False, "3": False} == {
        key: row.is_deleted for key, row in warehouse.rows().items()
    }


@pytest.mark.parametrize("begins", ["CALL lake.system.rewrite", "DELETE"])
def test_failing_upkeep_does_not_fail_a_batch(warehouse, begins):
    """Every batch counts as written, and the rows are all there."""
    warehouse.set(compact_after_files=2)
    sink = warehouse.sink(Faulty(warehouse, begins, after=False))
    applied = []
    for number in range(3):
        change = warehouse.change(8 + number * 8, 1, {"note": str(number)})
        applied.append(write(sink, [change], safe="1").applied)

    assert ([1, 1, 1], {"1": "2"}) == (applied, warehouse.notes())


def test_an_earlier_version_of_a_table_can_be_read(warehouse):
    """The table is read by version and by time, with rows that were deleted later."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, n, {"note": "then"}) for n in (1, 2)])
    seen = "SELECT snapshot_id, made_current_at FROM {t}.history"
    then = warehouse.sql(f"{seen} ORDER BY made_current_at")[-1]
    write(
        sink, [warehouse.change(16, 1, None), warehouse.change(16, 2, {"note": "now"})]
    )
    version, at = then["snapshot_id"], then["made_current_at"].isoformat()
    query = "SELECT id, note FROM {t} %s WHERE NOT _is_deleted ORDER BY id"
    by_version = warehouse.sql(query % f"VERSION AS OF {version}")
    by_time = warehouse.sql(query % f"TIMESTAMP AS OF '{at}'")

    assert {"2": "now"} == warehouse.notes()
    assert [(1, "then"), (2, "then")] == [(r["id"], r["note"]) for r in by_version]
    assert by_version == by_time


def test_files_and_versions_remain_few_after_many_batches(warehouse):
    """The numbers of files, versions and metadata files are bounded."""
    warehouse.set(
        compact_after_files=6, history_s=1, history_versions=2, metadata_versions=3
    )
    sink = warehouse.sink()
    catalog = open_catalog(warehouse.sink_settings)
    files, versions, metadata = [], [], []
    for number in range(12):
        write(sink, [warehouse.change(8 + 8 * number, 1, {"note": str(number)})])
        warehouse.clock.ahead_s += 1
        table = catalog.load_table(tuple(lake_name(warehouse.orders)))
        files.append(len(table.inspect.files()))
        versions.append(len(table.metadata.snapshots))
        metadata.append(1 + len(table.metadata.metadata_log))
    catalog.close()

    assert ({"1": "11"}, True) == (warehouse.notes(), max(metadata) <= 4)
    assert (True, True) == (max(files) <= 8, min(files[-8:]) <= 2)
    # It takes three batches to reach six files, and the next upkeep removes versions
    # that are over a second old.
    assert max(versions) <= 12


def test_orphan_files_are_removed_once_they_are_old(warehouse):
    """
    Old files of a killed driver are removed; new and known files are kept.
    """
    warehouse.set(compact_after_s=60)
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "kept"})])
    (file,) = warehouse.sql("SELECT file_path FROM {t}.files")
    folder = Path(urlsplit(file["file_path"]).path).parent
    old, new = folder / "old.parquet", folder / "new.parquet"
    for stray in (old, new):
        stray.write_bytes(b"left behind")
    os.utime(old, (0, 0))
    warehouse.clock.ahead_s += 61
    write(sink, [warehouse.change(16, 2, {"note": "too"})])

    assert {"1": "kept", "2": "too"} == warehouse.notes()
    assert (False, True) == (old.exists(), new.exists())

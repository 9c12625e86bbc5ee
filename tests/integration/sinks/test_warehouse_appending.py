"""Rows appended without the engine equal the rows that the engine writes."""

import pytest

from support.warehouse_tables import ROW, write
from towpath.sinks.errors import BatchRefusedError

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

# For times before 1970, the engine assigns the last microsecond before a full second to
# the previous hour, day or year.
ROWS = {
    1: ROW | {"local_at": "1066-10-14T09:00:00.999998", "total": "-9999999949.99"},
    2: dict.fromkeys(ROW),
    -3: {
        "total": "0.01",
        "weight": "-1",
        "paid": False,
        "body": "[]",
        "note": "été 😀 " * 5,
        "placed_at": "1969-12-31T23:59:59.999999Z",
        "local_at": "9999-12-31T23:59:59.999999",
        "day": "0001-01-01",
        "ratio": -1e300,
        "raw": "",
    },
}
SPLITS = {
    "not at all": (),
    "by whole values, buckets and truncation": (
        *("id", "day", "note"),
        *("bucket(4, id)", "bucket(8, total)", "bucket(8, note)"),
        *("bucket(5, placed_at)", "bucket(5, day)"),
        *("truncate(5, note)", "truncate(10, id)", "truncate(5, total)"),
    ),
    "by year": ("years(placed_at)", "years(local_at)", "years(day)"),
    "by month": ("months(placed_at)", "months(local_at)", "months(day)"),
    "by day": ("days(placed_at)", "days(local_at)", "days(day)"),
    "by hour": ("hours(placed_at)", "hours(local_at)"),
}


def changes(warehouse, log_lsn):
    """Make a change to every row."""
    return [warehouse.change(log_lsn, key, row) for key, row in ROWS.items()]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_rows_are_appended_to_the_partitions_that_the_engine_would_use(
    warehouse, split
):
    """A merge by the engine leaves each row in the partition it was appended to."""
    warehouse.set(partition={warehouse.orders: split} if split else {})
    sink = warehouse.sink()
    write(sink, changes(warehouse, 8))
    query = "SELECT DISTINCT partition FROM {t}.files" if split else "SELECT 1"
    appended = warehouse.sql(query)
    write(sink, changes(warehouse, 16))
    operations = [
        row["operation"]
        for row in warehouse.sql("SELECT * FROM {t}.snapshots ORDER BY committed_at")
    ]

    assert ["append", "overwrite"] == operations[-2:]
    assert sorted(map(str, appended)) == sorted(map(str, warehouse.sql(query)))
    assert {str(key): {"id": key, **row} for key, row in ROWS.items()} == {
        key: dict(row.fields) for key, row in warehouse.rows().items()
    }


def test_the_engine_reads_and_finds_appended_rows(warehouse):
    """Values and their bounds equal those of rows that the engine itself has merged."""
    sink = warehouse.sink()
    own = f"SELECT {', '.join(('id', *ROW, '_is_deleted'))} FROM {{t}} ORDER BY id"  # noqa: S608 - of names
    write(sink, changes(warehouse, 8))
    appended = warehouse.sql(own)
    found = [
        warehouse.sql(f"SELECT id FROM {{t}} WHERE {condition}")  # noqa: S608 - ours
        for condition in (
            "id = -3",
            "total = 0.01",
            "weight = '-1'",
            "NOT paid",
            "body = '[]'",
            "note LIKE 'été%'",
            "placed_at < timestamp '1970-01-01 00:00:00'",
            "local_at > timestamp_ntz '9999-01-01 00:00:00'",
            "day < date '0001-01-02'",
            "ratio < -1e299",
            "raw = X''",
        )
    ]
    metrics = "SELECT readable_metrics FROM {t}.files WHERE content = 0"
    ours = warehouse.sql(metrics)
    write(warehouse.sink(), changes(warehouse, 8))
    theirs = [row for row in warehouse.sql(metrics) if row not in ours]

    assert [[{"id": -3}]] * 11 == found
    assert appended == warehouse.sql(own)
    assert bounds(ours) == bounds(theirs)


def bounds(files):
    """Return the lowest and highest values, counts and nulls of files, by column."""
    found = [file["readable_metrics"] for file in files]
    return {
        name: (
            min(
                f[name]["lower_bound"]
                for f in found
                if f[name]["lower_bound"] is not None
            ),
            max(
                f[name]["upper_bound"]
                for f in found
                if f[name]["upper_bound"] is not None
            ),
            sum(f[name]["value_count"] for f in found),
            sum(f[name]["null_value_count"] for f in found),
        )
        for name in found[0]
    }


def test_a_batch_with_a_value_that_no_partition_can_represent_is_refused(warehouse):
    """
    The truncated value has more digits than its type allows; no writer accepts it.
    """
    warehouse.set(partition={warehouse.orders: ("truncate(50, total)",)})
    sink = warehouse.sink()
    fitting = warehouse.change(8, 1, ROW | {"total": "1.00"})
    with pytest.raises(BatchRefusedError, match="too large"):
        write(sink, [fitting, warehouse.change(8, 2, ROW)])
    outcome = write(sink, [fitting])

    assert (1, ["1"]) == (outcome.applied, list(warehouse.rows()))

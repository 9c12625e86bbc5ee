"""
The warehouse follows schema changes of its source without losing or blocking rows.
"""

import pytest

from support.warehouse_tables import COLUMNS, ROW, Faulty, engines, write
from towpath.schemas.failure import UnavailableError
from towpath.settings import Route
from towpath.sinks.change import Floor, Origin
from towpath.sinks.changes.relations import Column
from towpath.sinks.ports import Batch
from towpath.sinks.targets.warehouse.client import PartitionFieldError
from towpath.sinks.targets.warehouse.sink import WarehouseSink

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]

ID, *OTHERS = COLUMNS


def without(name):
    """Return the columns except one."""
    return tuple(c for c in COLUMNS if c.name != name)


def test_an_added_column_is_adopted(warehouse):
    """Old rows have null in it until they are read again."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, key, {"note": "x"}) for key in (1, 2)])
    warehouse.relations.columns = (*COLUMNS, Column("channel", "text"))
    write(sink, [warehouse.change(16, 2, {"note": "x", "channel": "web"})])

    assert {"1": None, "2": "web"} == {
        key: row.fields["channel"] for key, row in warehouse.rows().items()
    }


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.soak), True])
def test_an_interrupted_addition_is_repeated(warehouse, after):
    """An addition is safe to repeat."""
    write(warehouse.sink(), [warehouse.change(8, 1, {"note": "x"})])
    warehouse.relations.columns = (*COLUMNS, Column("channel", "text"))
    with pytest.raises(UnavailableError, match="lost"):
        warehouse.sink(
            Faulty(
                warehouse,
                f"ALTER TABLE lake.{_quoted(warehouse.orders)} ADD",
                after=after,
            )
        )
    write(warehouse.sink(), [warehouse.change(16, 1, {"channel": "web"})])

    assert "web" == warehouse.rows()["1"].fields["channel"]


def _quoted(name):
    return ".".join(f"`{part}`" for part in name.split("."))


def test_a_column_that_is_dropped_remains_readable(warehouse):
    """Its values are kept, older records still set it, and new rows have null in it."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, key, {"note": "x"}) for key in (1, 2)])
    warehouse.relations.columns = without("note")
    write(
        sink,
        [
            warehouse.change(16, 1, {"paid": True}),
            warehouse.change(12, 2, {"note": "late", "paid": True}),
            warehouse.change(16, 3, {"paid": True}),
        ],
    )

    assert {"1": ("x", True), "2": ("late", True), "3": (None, True)} == {
        key: (row.fields["note"], row.fields["paid"])
        for key, row in warehouse.rows().items()
    }


def test_a_renamed_column_is_a_new_column(warehouse):
    """The new column is filled by arriving rows; the old column is kept."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x"})])
    warehouse.relations.columns = (*without("note"), Column("remark", "text"))
    write(sink, [warehouse.change(16, 2, {"remark": "y"})])
    write(sink, [warehouse.change(16, 1, {"remark": "x"})])
    live = warehouse.sql("SELECT * FROM {t}_live ORDER BY id")

    assert ["x", "y"] == [row["remark"] for row in live]
    assert (False, "x") == (
        "note" in live[0],
        warehouse.rows()["1"].fields["note"],
    )


def test_a_column_is_widened_with_its_source(warehouse):
    """A change from integer to bigint is announced, and no row is refused."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x"})])
    warehouse.relations.columns = (Column("id", "bigint"), *OTHERS)
    checkpoint = write(sink, [warehouse.change(16, 2**40, {"note": "y"})])

    assert ((), {"1", str(2**40)}) == (checkpoint.refused, set(warehouse.rows()))


def test_a_column_that_the_table_never_had_is_left_out(warehouse):
    """A column of an older record is left out if the current shape lacks it."""
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x", "gone": "y"})])

    assert "gone" not in warehouse.rows()["1"].fields


def test_an_impossible_schema_change_holds_back_only_its_route(warehouse):
    """
    The refusal has a remedy, after which the changes are applied; events continue.
    """
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x"})])
    warehouse.relations.columns = (*without("note"), Column("note", "integer"))
    outcome = write(
        sink,
        [warehouse.change(16, 1, {"note": 5})],
        [warehouse.event(n) for n in (1, 2)],
    )
    (refusal,) = outcome.refused
    assert (2, (1,), False) == (
        outcome.applied,
        refusal.change.key,
        refusal.needs_refetch,
    )
    assert "column note is string" in refusal.reason
    assert "Drop the warehouse's table" in refusal.reason
    assert {"1": "x"} == warehouse.notes()
    warehouse.sql("DROP TABLE {t}")
    assert () == write(sink, [warehouse.change(16, 1, {"note": 5})]).refused

    assert {"1": 5} == warehouse.notes()


def test_a_foreign_table_in_place_of_a_log_holds_back_only_the_log(warehouse):
    """The refusal has a remedy, after which the events are appended; rows continue."""
    warehouse.sql("CREATE NAMESPACE IF NOT EXISTS lake.shop")
    warehouse.sql("CREATE TABLE {e} (id int, name string) USING iceberg")
    sink = warehouse.sink()
    event = warehouse.event(1)
    outcome = write(sink, [warehouse.change(8, 1, {"note": "x"})], [event])
    assert (1, [event.origin]) == (outcome.applied, [*outcome.refused_events])
    assert "Drop the warehouse's table" in outcome.refused_events[event.origin]
    warehouse.sql("DROP TABLE {e}")
    outcome = write(sink, events=[event])

    assert (1, {}) == (outcome.applied, outcome.refused_events)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Column("total", "numeric", (4 << 16 | 2) + 4), "-9999999999.99"),
        pytest.param(Column("ratio", "real"), 0.1, marks=pytest.mark.soak),
    ],
)
def test_a_narrowed_column_keeps_its_width(warehouse, column, value):
    """
    The column remains wide, so a late record with a wide value is written unchanged.
    """
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {column.name: value})])
    columns = [column if c.name == column.name else c for c in COLUMNS]
    warehouse.relations.columns = tuple(columns)
    changes = [
        warehouse.change(9, 2, {column.name: value}),
        warehouse.change(16, 3, {column.name: "1.50"}),
    ]
    outcome = write(sink, changes)
    found = {key: row.fields[column.name] for key, row in warehouse.rows().items()}

    assert () == outcome.refused
    assert {"1": value, "2": value, "3": type(value)("1.50")} == found


def test_a_different_key_holds_back_the_route(warehouse):
    """Rows that were written with one key cannot be guarded by a different key."""
    warehouse.sink()
    warehouse.relations.columns = (Column("other", "integer"), *COLUMNS)
    warehouse.relations.key = ("id", "other")
    outcome = write(warehouse.sink(), [warehouse.change(8, 1, {"other": 2})])

    assert "its key is" in outcome.refused[0].reason


def test_a_floor_applies_to_a_route_that_is_held_back(warehouse):
    """
    Truncated rows are removed, and are stale once the route continues.
    """
    sink = warehouse.sink()
    write(sink, [warehouse.change(8, 1, {"note": "x"})])
    good = warehouse.relations.columns
    warehouse.relations.columns = (*without("note"), Column("note", "integer"))
    floor = Floor(warehouse.orders, "0000000000000010", False, Origin("t", 0, 0))
    sink.apply(Batch(0, (warehouse.change(24, 2, {"note": 5}),), (), (floor,)))
    sink.flush()
    assert {} == warehouse.rows()
    warehouse.relations.columns = good
    outcome = write(warehouse.sink(), [warehouse.change(8, 1, {"note": "x"})])

    assert (1, {}) == (outcome.stale, warehouse.rows())


def test_a_floor_for_a_foreign_table_changes_nothing(warehouse):
    """
    The route is held back, and the table and its properties are left alone.
    """
    warehouse.sql("CREATE TABLE {t} (id INT, note STRING, _position STRING)")
    warehouse.sql("INSERT INTO {t} VALUES (1, 'x', '')")
    sink = warehouse.sink()
    floor = Floor(warehouse.orders, "0000000000000010", False, Origin("t", 0, 0))
    sink.apply(Batch(0, (warehouse.change(24, 2, {"note": "y"}),), (), (floor,)))

    assert 1 == len(sink.flush().refused)
    assert [1] == [each["id"] for each in warehouse.sql("SELECT id FROM {t}")]
    assert not [
        each["key"]
        for each in warehouse.sql("SHOW TBLPROPERTIES {t}")
        if each["key"].startswith("towpath")
    ]


def test_a_table_is_partitioned_as_configured_even_after_a_change(warehouse):
    """
    Changing the partitioning keeps all rows, and new files use the new partitioning.
    """
    changes = [warehouse.change(8, n, ROW | {"day": "2026-02-28"}) for n in range(20)]
    warehouse.set(partition={warehouse.orders: ("bucket(4, id)",)})
    write(warehouse.sink(), changes[:10])
    before = warehouse.sql("SELECT DISTINCT partition.id_bucket b FROM {t}.files")
    warehouse.set(partition={warehouse.orders: ("day", "bucket(2, id)")})
    sink = warehouse.sink()
    write(sink, changes)
    write(warehouse.sink(), [warehouse.change(16, 3, None)])
    days = warehouse.sql("SELECT DISTINCT partition.day d FROM {t}.files")

    assert (True, 2, 20) == (len(before) > 1, len(days), len(warehouse.rows()))
    assert {str(n) for n in range(20) if n != 3} == set(warehouse.notes())


def test_partitions_of_an_unknown_route_or_column_are_rejected(warehouse):
    """The sink does not open, and its error names the route or the column."""
    warehouse.set(partition={"shop.nowhere": ("id",)})
    with pytest.raises(PartitionFieldError, match=r"no route is named shop\.nowhere"):
        warehouse.sink()
    route = Route(topic="t", name=f"{warehouse.orders}_2")
    warehouse.set(partition={route.name: ("gone",)})
    sink = warehouse.sink_settings.model_copy(update={"route": (route,)})

    with pytest.raises(PartitionFieldError, match="no column gone"):
        WarehouseSink(
            *(sink, warehouse.relations), engines(sink, warehouse.session)
        ).open()

"""The partitioning of tables: its configuration, and the statements."""

import pytest

from towpath.settings import PartitionField
from towpath.settings.sink import parse_partition
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.targets.warehouse.client import PartitionFieldError
from towpath.sinks.targets.warehouse.schema import (
    current_state,
    partitioned_by,
    repartition,
)

SHAPE = RelationShape(
    "shop",
    "orders",
    (
        Column("id", "bigint"),
        Column("name", "text"),
        Column("at", "timestamp with time zone"),
        Column("day", "date"),
        Column("ratio", "real"),
        Column("paid", "boolean"),
        Column("total", "numeric", (12 << 16 | 2) + 4),
    ),
    ("id",),
    "0",
)


def partitioned(*texts):
    """Describe a table that is partitioned by the given fields."""
    return current_state("shop.orders", SHAPE, [parse_partition(t) for t in texts])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("region", PartitionField("identity", "region")),
        ("bucket(8, order_id)", PartitionField("bucket", "order_id", 8)),
        ("truncate( 4,name )", PartitionField("truncate", "name", 4)),
        (" days(placed_at) ", PartitionField("days", "placed_at")),
    ],
)
def test_a_partition_field_is_parsed(text, expected):
    """
    Whitespace does not matter.
    """
    assert expected == parse_partition(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket(order_id)",
        "bucket(0, id)",
        "days(a, b)",
        "weeks(at)",
        "a b",
        "days(",
    ],
)
def test_an_invalid_partition_field_is_a_mistake(text):
    """
    The message shows a valid field.
    """
    with pytest.raises(ValueError, match="such as 'bucket"):
        parse_partition(text)


def test_a_table_is_created_with_its_partitioning():
    """
    Columns are quoted; a table without fields has no clause.
    """
    table = partitioned("bucket(8, id)", "days(at)", "name")

    assert ("PARTITIONED BY (bucket(8, `id`), days(`at`), `name`)\n", "") == (
        partitioned_by(table),
        partitioned_by(partitioned()),
    )


@pytest.mark.parametrize(
    "text",
    ["bucket(8, gone)", "days(name)", "hours(day)", "ratio", "truncate(2, paid)"],
)
def test_a_partitioning_that_the_columns_do_not_allow_is_refused(text):
    """
    The error names the table and the column.
    """
    with pytest.raises(PartitionFieldError, match=r"shop\.orders: "):
        partitioned_by(partitioned(text))


def test_a_type_with_a_precision_is_partitioned_too():
    """
    The parentheses after a type name are ignored.
    """
    assert "truncate(10, `total`)" in partitioned_by(partitioned("truncate(10, total)"))


def test_a_changed_partitioning_drops_and_adds_the_difference():
    """
    Existing fields are unchanged, so a repetition does nothing.
    """
    table = partitioned("bucket(16, id)", "days(at)")
    found = [parse_partition("bucket(8, id)"), parse_partition("days(at)")]

    assert repartition(table, found) == [
        "ALTER TABLE lake.`shop`.`orders` DROP PARTITION FIELD bucket(8, `id`)",
        "ALTER TABLE lake.`shop`.`orders` ADD PARTITION FIELD bucket(16, `id`)",
    ]
    assert repartition(table, table.partition) == []

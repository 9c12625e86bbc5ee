"""The warehouse's types for Postgres types, and the statements that use them."""

import pytest

from towpath.settings import WarehouseOptions
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import KeylessTableError
from towpath.sinks.targets.warehouse.client import (
    ForeignTableError,
    ReservedColumnError,
    WarehouseAddressError,
)
from towpath.sinks.targets.warehouse.ddl import (
    creation,
    evolution,
    identifier_fields,
    live_view,
    properties_of,
    property_changes,
)
from towpath.sinks.targets.warehouse.schema import (
    current_state,
    event_log,
    lake_name,
    literal,
    quoted,
    type_of,
)
from towpath.sinks.verify.table import is_kept_as_text


def shape(*columns, key=("id",)):
    """Describe a table of the source."""
    return RelationShape("shop", "orders", tuple(columns), tuple(key), "0")


def numeric(precision, scale):
    """Return the type modifier that Postgres stores."""
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column("c", "smallint"), "int"),
        (Column("c", "integer"), "int"),
        (Column("c", "bigint"), "bigint"),
        (Column("c", "oid"), "bigint"),
        (Column("c", "boolean"), "boolean"),
        (Column("c", "real"), "float"),
        (Column("c", "double precision"), "double"),
        (Column("c", "date"), "date"),
        (Column("c", "timestamp with time zone"), "timestamp"),
        (Column("c", "timestamp without time zone"), "timestamp_ntz"),
        (Column("c", "bytea"), "binary"),
        (Column("c", "numeric", numeric(12, 2)), "decimal(12,2)"),
        (Column("c", "numeric", numeric(38, 0)), "decimal(38,0)"),
        (Column("c", "numeric", numeric(39, 0)), "string"),
        (Column("c", "numeric", numeric(2, 5)), "string"),
        (Column("c", "numeric", numeric(5, -2)), "string"),
        (Column("c", "numeric"), "string"),
        (Column("c", "uuid"), "string"),
        (Column("c", "jsonb"), "string"),
        (Column("c", "interval"), "string"),
        (Column("c", "shop.order_status"), "string"),
    ],
)
def test_each_postgres_type_has_a_warehouse_type(column, expected):
    """
    Values are kept exactly, in a type that is at least as wide, or as text.
    """
    table = current_state("shop.orders", shape(Column("id", "bigint"), column))

    assert expected == table.columns[1].type.ddl


@pytest.mark.parametrize(
    ("precision", "scale", "is_text"),
    [(38, 0, False), (5, 5, False), (39, 0, True), (2, 5, True), (5, -2, True)],
)
def test_verification_knows_which_numerics_a_warehouse_keeps_as_text(
    precision, scale, is_text
):
    """
    Text can represent NaN and the infinities, which a decimal cannot.
    """
    assert is_text == is_kept_as_text(Column("c", "numeric", numeric(precision, scale)))


def test_no_floating_point_type_is_a_key():
    """
    A float that identifies rows is kept as its text.
    """
    table = current_state("shop.orders", shape(Column("id", "double precision")))

    assert table.columns[0].type.ddl == "string"


def test_a_table_is_created_with_its_key_and_its_guard():
    """Key columns are required; the position and the tombstone mark are at the end."""
    columns = (Column("order_id", "bigint"), Column("line_no", "integer"))
    source = shape(*columns, Column("note", "text"), key=("line_no", "order_id"))
    lines = current_state("shop.lines", source)
    namespace, table = creation(lines, WarehouseOptions(), "1")

    assert namespace == "CREATE NAMESPACE IF NOT EXISTS lake.`shop`"
    assert table.partition("TBLPROPERTIES")[0] == (
        "CREATE TABLE IF NOT EXISTS lake.`shop`.`lines` (\n"
        "  `order_id` bigint NOT NULL,\n"
        "  `line_no` int NOT NULL,\n"
        "  `note` string,\n"
        "  `_position` string,\n"
        "  `_is_deleted` boolean\n"
        ")\nUSING iceberg\n"
    )
    assert """'towpath.key' = '["line_no", "order_id"]'""" in table
    assert "'write.merge.mode' = 'merge-on-read'" in table
    assert identifier_fields(lines) == (
        "ALTER TABLE lake.`shop`.`lines` SET IDENTIFIER FIELDS `line_no`, `order_id`"
    )


def test_the_view_leaves_tombstones_out():
    """The view has the table's columns except the mark, and only live rows."""
    table = current_state("shop.orders", shape(Column("id", "bigint")))

    assert live_view(table) == (
        "CREATE OR REPLACE VIEW lake.`shop`.`orders_live` AS\n"
        "SELECT `id`, `_position` FROM lake.`shop`.`orders` WHERE NOT `_is_deleted`"
    )


def test_an_event_log_is_keyed_by_the_event():
    """
    An event log has one row per event id, and a time column.
    """
    table = event_log("shop.events")

    assert (("id",), "timestamp") == (table.key, table.columns[-1].type.ddl)


EXISTING = {"id": "int", "total": "decimal(10,2)", "gone": "string"}


def test_a_table_gains_columns_and_width():
    """
    New columns are added, and types are widened; dropped source columns remain.
    """
    wanted = current_state(
        "shop.orders",
        shape(
            Column("id", "bigint"),
            Column("total", "numeric", numeric(12, 2)),
            Column("channel", "text"),
        ),
    )
    own = {"_position": "string", "_is_deleted": "boolean"}

    assert evolution(wanted, EXISTING | own) == [
        "ALTER TABLE lake.`shop`.`orders` ALTER COLUMN `id` TYPE bigint",
        "ALTER TABLE lake.`shop`.`orders` ALTER COLUMN `total` TYPE decimal(12,2)",
        "ALTER TABLE lake.`shop`.`orders` ADD COLUMN `channel` string",
    ]


def test_a_wider_column_remains_wide():
    """A type that was narrowed in the source still fits the wider column."""
    wanted = current_state("shop.orders", shape(Column("id", "integer")))
    existing = {"id": "bigint", "_position": "string", "_is_deleted": "boolean"}

    assert evolution(wanted, existing) == []


def test_a_name_that_differs_only_in_case_is_refused():
    """The engine treats both as one column, and would refuse to add it."""
    wanted = current_state(
        "shop.orders", shape(Column("id", "integer"), Column("total", "text"))
    )
    own = {"_position": "string", "_is_deleted": "boolean"}

    with pytest.raises(ForeignTableError, match=r"total differs only in case .* Total"):
        evolution(wanted, {"id": "int", "Total": "string"} | own)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("string", Column("id", "bigint")),
        ("bigint", Column("id", "text")),
        ("decimal(10,2)", Column("id", "numeric", numeric(12, 3))),
        ("decimal(10,2)", Column("id", "bigint")),
    ],
)
def test_a_column_that_cannot_be_widened_is_refused(found, wanted):
    """A column of a different type stops the sink; the error names both types."""
    with pytest.raises(ForeignTableError, match=r"column id is .* should be"):
        evolution(current_state("shop.orders", shape(wanted)), {"id": found})


def test_a_table_without_a_key_is_refused():
    """
    The guard needs a key.
    """
    with pytest.raises(KeylessTableError, match=r"shop\.orders"):
        current_state("shop.orders", shape(Column("id", "bigint"), key=()))


@pytest.mark.parametrize("name", ["_deleted", "_pos", "_position", "_IS_DELETED", "ID"])
def test_a_reserved_column_name_is_refused(name):
    """These are the format's columns, ours, and names that differ only in case."""
    with pytest.raises(ReservedColumnError, match=name.lower()):
        current_state(
            "shop.orders", shape(Column("id", "bigint"), Column(name, "text"))
        )


@pytest.mark.parametrize("route", ["orders", "shop.", ".orders", ""])
def test_a_route_is_named_by_schema_and_table(route):
    """Any other name is a mistake in the configuration."""
    with pytest.raises(WarehouseAddressError, match=r"schema\.table"):
        lake_name(route)


def test_names_and_texts_are_escaped():
    """
    Quotes and escapes inside a name or a string do not end it.
    """
    assert ("`a``b`", r"'it\'s \\'") == (quoted("a`b"), literal("it's \\"))


@pytest.mark.parametrize(
    "ddl", ["int", "bigint", "timestamp", "timestamp_ntz", "decimal(12,2)", "binary"]
)
def test_a_type_is_found_by_its_name(ddl):
    """
    An existing column is written with its own type.
    """
    assert ddl == type_of(ddl).ddl


def test_a_foreign_type_is_not_guessed():
    """
    A column of a type that we never create is not changed.
    """
    assert type_of("struct<a:int>") is None


def test_only_differing_properties_are_set():
    """
    The changed properties of an older table are set; a current table is unchanged.
    """
    table = current_state("shop.orders", shape(Column("id", "bigint")))
    options = WarehouseOptions(history_s=60, metadata_versions=7)
    has = properties_of(table, WarehouseOptions())

    assert property_changes(table, options, has | {"other": "x"}) == [
        (
            "ALTER TABLE lake.`shop`.`orders` SET TBLPROPERTIES ("
            "'write.metadata.previous-versions-max' = '7', "
            "'history.expire.max-snapshot-age-ms' = '60000')"
        )
    ]
    assert property_changes(table, WarehouseOptions(), has) == []

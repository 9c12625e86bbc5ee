"""A record of the relations topic becomes a table's shape."""

import orjson
import pytest

from towpath.sinks.changes.relations import Column, RelationShape, parse_relation
from towpath.sinks.errors import MalformedRelationError

DOCUMENT = {
    "schema": "shop",
    "table": "order_lines",
    "oid": 16423,
    "columns": [
        {
            "name": "order_id",
            "type": "bigint",
            "type_oid": 20,
            "typmod": -1,
            "nullable": False,
        },
        {
            "name": "unit_price",
            "type": "numeric",
            "type_oid": 1700,
            "typmod": 786438,
            "nullable": True,
        },
    ],
    "key": ["order_id"],
    "position": "00000000016b3748.0000000000",
}


def test_a_shape_names_columns_types_and_key():
    """Columns keep their order, and the key columns keep the order of the key."""
    expected = RelationShape(
        schema="shop",
        table="order_lines",
        columns=(
            Column("order_id", "bigint", nullable=False),
            Column("unit_price", "numeric", 786438),
        ),
        key=("order_id",),
        position="00000000016b3748.0000000000",
    )

    assert expected == parse_relation(orjson.dumps(DOCUMENT))


@pytest.mark.parametrize(
    ("type_", "typmod", "expected"),
    [
        ("numeric", 786438, (12, 2)),
        ("numeric", (5 << 16 | -2 & 0x7FF) + 4, (5, -2)),
        ("numeric", (1000 << 16 | 1000) + 4, (1000, 1000)),
        ("numeric", -1, None),
        ("bigint", 786438, None),
    ],
)
def test_a_numeric_has_its_precision_and_scale(
    type_: str, typmod: int, expected: object
):
    """
    Precision and scale come from the type modifier.
    """
    assert expected == Column("c", type_, typmod).precision_and_scale


@pytest.mark.parametrize(
    ("inside", "is_object"),
    [
        ({"fields": [{"name": "x", "type": "integer"}]}, True),
        ({"element": {"type": "shop.point", "fields": []}}, True),
        ({"base": {"type": "d[]", "element": {"base": {"fields": []}}}}, True),
        ({"element": {"type": "integer"}}, False),
        ({"base": {"type": "text"}}, False),
        ({"labels": ["a"]}, False),
    ],
)
def test_values_of_a_composite_type_are_objects(inside: dict, is_object: bool):
    """
    The composite type may be alone, in an array, or the base of a domain.
    """
    column = {"name": "at", "type": "t", "typmod": -1, "nullable": True} | inside
    document = DOCUMENT | {"columns": [column]}

    assert is_object == parse_relation(orjson.dumps(document)).columns[0].is_object


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"7", b"{}", orjson.dumps(DOCUMENT | {"columns": [{}]})]
)
def test_an_invalid_relation_record_is_malformed(value: bytes):
    """
    A record without a shape stops the sink, which does not guess types.
    """
    with pytest.raises(MalformedRelationError):
        parse_relation(value)


def test_a_column_is_found_by_its_name():
    """A name that the table lacks finds nothing."""
    shape = parse_relation(orjson.dumps(DOCUMENT))

    assert (shape.columns[1], None) == (
        shape.column("unit_price"),
        shape.column("no_such"),
    )

"""An index is made of a table's shape, and of nothing else."""

import pytest

from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.search.mapping import alias_body, index_body, properties


def shape(*columns: Column) -> RelationShape:
    """Make a table of the given columns."""
    return RelationShape("shop", "orders", columns, ("order_id",), "")


@pytest.mark.parametrize(
    ("type_", "field"),
    [
        ("bigint", "long"),
        ("integer", "integer"),
        ("boolean", "boolean"),
        ("numeric", "keyword"),
        ("text", "text"),
        ("uuid", "keyword"),
        ("timestamp with time zone", "date"),
        ("jsonb", "keyword"),
        ("shop.order_status", "keyword"),
        ("interval", "keyword"),
    ],
)
def test_a_type_has_its_field(type_: str, field: str):
    """Every Postgres type has a field, unknown ones a keyword."""
    assert field == properties(shape(Column("c", type_)))["c"]["type"]


def test_only_announced_columns_are_taken():
    """The index is strict, and knows the sink's own fields beside the columns."""
    mappings = index_body(shape(Column("order_id", "bigint")), "orders")["mappings"]

    assert ("strict", {"order_id", "_position", "_deleted"}) == (
        mappings["dynamic"],
        set(mappings["properties"]),
    )


def test_the_alias_hides_what_is_deleted():
    """Searches through the alias see live rows only, and writes go through it."""
    assert {
        "filter": {"bool": {"must_not": {"term": {"_deleted": True}}}},
        "is_write_index": True,
    } == alias_body()

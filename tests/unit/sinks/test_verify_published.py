"""The columns of a table that are compared: those of its records, with their key."""

from dataclasses import replace

import pytest

from towpath.settings.rows import Rows
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.table import SourceColumn, SourceTable, published
from towpath.sinks.verify.types import SourceType

TABLE = SourceTable(
    "shop",
    "orders",
    (
        SourceColumn("id", "bigint"),
        SourceColumn("code", "text"),
        SourceColumn("note", "text"),
        SourceColumn("new", "text"),
        SourceColumn("open", "time with time zone"),
        SourceColumn("share", "real"),
        SourceColumn("ratio", "double precision"),
        SourceColumn("nick", "public.citext", has_plain_order=False),
        SourceColumn("tags", "text[]", inside=SourceType("text[]", SourceType("text"))),
    ),
    ("id",),
)

TRUNCATED = Rows.model_validate(
    {
        "mask": [
            {"columns": [r"shop\..*\.code"], "form": "truncate", "length": 3},
            {"columns": [r".*\.code"], "form": "hash", "salt": "x"},
        ]
    }
)


def shape(columns, key):
    """Return the announced shape."""
    described = tuple(Column(name, "text") for name in columns.split())
    return RelationShape("shop", "orders", described, tuple(key.split()), "0")


def test_only_announced_columns_and_keys_are_compared():
    """
    A column that was added after the announcement is not in records yet.
    """
    table = published(TABLE, shape("id code note", "code"), Rows())

    assert (["id", "code", "note"], ("code",), ()) == (
        [column.name for column in table.columns],
        table.key,
        table.notes,
    )


def test_a_dropped_column_is_reported():
    """
    The sink may hold it, but it cannot be compared.
    """
    table = published(TABLE, shape("id old", "id"), Rows())

    assert ["id"] == [column.name for column in table.columns]
    assert table.notes[0].endswith("compared: old")


def test_masked_columns_are_reported_and_key_columns_only_read():
    """
    The key of a record has the unmasked value; the column in its row is masked.
    """
    rows = Rows.model_validate(
        {"mask": [{"columns": [r"shop\.orders\.(id|note)"], "form": "hash"}]}
    )
    table = published(TABLE, shape("id code note", "id"), rows)

    assert [("id", False), ("code", True)] == [
        (column.name, column.is_compared) for column in table.columns
    ]
    assert ("masked columns are not compared: id, note",) == table.notes


@pytest.mark.parametrize("kind", ["text", "public.citext"])
def test_a_truncated_text_column_is_not_compared(kind):
    """
    Records lack the end of its values.
    """
    table = replace(
        TABLE, columns=(SourceColumn("id", "bigint"), SourceColumn("code", kind))
    )
    found = published(table, shape("id code", "id"), TRUNCATED)

    assert ["id"] == [column.name for column in found.columns]
    assert ("masked columns are not compared: code",) == found.notes


def test_a_truncated_column_of_a_different_type_is_compared():
    """
    Records have the whole value: only strings are truncated, whatever rules follow.
    """
    table = replace(
        TABLE, columns=(SourceColumn("id", "bigint"), SourceColumn("code", "jsonb"))
    )
    found = published(table, shape("id code", "id"), TRUNCATED)

    assert (["id", "code"], ()) == ([one.name for one in found.columns], found.notes)


@pytest.mark.parametrize(
    "rules",
    [
        {"exclude_columns": [r"shop\.orders\.(id|note)"]},
        {"include_columns": [r"shop\.orders\.code"]},
    ],
)
def test_an_excluded_key_column_is_only_read(rules):
    """
    It is announced for the key, but is in no row.
    """
    table = published(TABLE, shape("id code", "id"), Rows.model_validate(rules))

    assert [("id", False), ("code", True)] == [
        (column.name, column.is_compared) for column in table.columns
    ]


@pytest.mark.parametrize(
    ("columns", "key", "reason"),
    [
        ("id", "", "without a key"),
        ("id Id", "Id", "lacks columns of its published key Id"),
        ("id open", "open id", "key column open"),
        ("id tags", "tags", "key column tags"),
        ("id share", "share", "key column share"),
        ("id ratio", "ratio", "key column ratio"),
        ("id nick", "nick", "key column nick"),
    ],
)
def test_rows_without_identity_are_refused(columns, key, reason):
    """
    The error names the table and the column.
    """
    with pytest.raises(IncomparableError, match=reason):
        published(TABLE, shape(columns, key), Rows())

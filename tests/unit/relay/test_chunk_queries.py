"""The chunk queries for chosen keys, filters, views, SELECTs and ranges."""

# ruff: noqa: S608 - expected text, never executed

import dataclasses

import pytest

from towpath.relay.snapshot import sql
from towpath.relay.snapshot.protocol import ReadChunk
from towpath.relay.snapshot.shape import DeclaredView, TableShape
from towpath.relay.wal.messages import Column, Relation

ITEMS = TableShape(
    Relation(
        7, "s", "items", (Column("a", 23), Column("b", 25), Column("c", 20)), (0,)
    ),
    ("integer",),
)
CHOSEN = dataclasses.replace(ITEMS, order=(2, 1), order_types=("bigint", "text"))
VIEW = TableShape(
    Relation(
        8, "outbox", "order", (Column("aggregate_id", 25), Column("type", 25)), (0,)
    ),
    ("text",),
    view=DeclaredView("order", 's."odd'),
)
REQUEST = ReadChunk(
    chunk_id=1,
    shape=ITEMS,
    low_token=None,
    high_token="",
    after_key=(b"1",),
    maximum_key=(b"9",),
    keys=(),
    condition=None,
    max_rows=10,
)


def test_a_chosen_key_bounds_and_orders_the_chunk():
    """
    The chosen key's column positions differ from those of the identifying key.
    """
    request = dataclasses.replace(REQUEST, after_key=None, maximum_key=(b"5", b"x"))

    assert (
        'copy (select "a", "b", "c" from only "s"."items"'
        " where (\"c\", \"b\") <= ('5'::bigint, 'x'::text)"
        ' order by "c", "b" limit 10) to stdout'
    ) == sql.chunk_query(request, CHOSEN)
    assert (
        'copy (select "c", "b" from only "s"."items"'
        ' order by "c" desc, "b" desc limit 1) to stdout'
    ) == sql.maximum_key_query(CHOSEN)


def test_listed_keys_are_looked_up_with_the_tables_own_key():
    """
    The identifying key is used, whichever key orders the chunks.
    """
    request = dataclasses.replace(REQUEST, keys=((b"3",), (b"4",)))

    assert (
        'copy (select "a", "b", "c" from only "s"."items"'
        " where (\"a\") in (('3'::integer), ('4'::integer))"
        ' order by "c", "b") to stdout'
    ) == sql.chunk_query(request, CHOSEN)


def test_the_publications_filter_is_combined_with_the_condition_of_the_signal():
    """
    Each has parentheses and lines of its own; every query applies the filter.
    """
    shape = dataclasses.replace(ITEMS, row_filter="(a > 0)")
    request = dataclasses.replace(REQUEST, condition="b = 'x' or c = 1 -- few")

    assert (
        'copy (select "a", "b", "c" from only "s"."items"'
        " where ((a > 0)\n) and (b = 'x' or c = 1 -- few\n)"
        " and (\"a\") > ('1'::integer) and (\"a\") <= ('9'::integer)"
        ' order by "a" limit 10) to stdout'
    ) == sql.chunk_query(request, shape)
    assert all(
        "where ((a > 0)\n)" in query
        for query in (
            sql.maximum_key_query(shape),
            sql.estimate_query(shape, None),
            sql.boundaries_query(shape, None, (b"9",), 2, 1.0),
        )
    )


def test_a_view_chunk_reads_one_extra_row():
    """
    The row after the last one shows whether an aggregate has two rows.
    """
    request = dataclasses.replace(REQUEST, shape=VIEW, after_key=(b"it's",))

    assert (
        'copy (select "aggregate_id", "type" from "s"."""odd"'
        " where (\"aggregate_id\") > ('it''s'::text)"
        " and (\"aggregate_id\") <= ('9'::text)"
        ' order by "aggregate_id" limit 11) to stdout'
    ) == sql.chunk_query(request, VIEW)
    assert 'lock table "s"."""odd" in access share mode' == sql.lock_statement(VIEW)


@pytest.mark.parametrize("select", ["select * from s.x -- all", "select * from s.x;\n"])
def test_a_select_is_read_as_a_subquery(select):
    """
    A trailing semicolon or comment does not end the surrounding query.
    """
    request = dataclasses.replace(REQUEST, select=select, maximum_key=None)
    source = select.strip().rstrip(";")

    assert (
        f'copy (select "a", "b", "c" from ({source}\n) selected'
        ' where ("a") > (\'1\'::integer) order by "a" limit 11) to stdout'
    ) == sql.chunk_query(request, ITEMS)
    assert (
        f'copy (select "a" from ({source}\n) selected order by "a" desc limit 1)'
        " to stdout"
    ) == sql.maximum_key_query(ITEMS, select)


def test_range_boundaries_are_read_from_an_ordered_sample():
    """
    The server sorts, counts and divides; Python compares nothing.
    """
    assert (
        'copy (select k0, k1 from (select "c" as k0, "b" as k1,'
        ' row_number() over (order by "c", "b") as place, count(*) over () as total'
        ' from only "s"."items" tablesample system (2.500000)'
        " where (a = 1\n) and (\"c\", \"b\") < ('5'::bigint, 'x'::text)) sampled"
        " where total >= 400 and place < total"
        " and place * 4 / total > (place - 1) * 4 / total order by place) to stdout"
    ) == sql.boundaries_query(CHOSEN, "a = 1", (b"5", b"x"), 4, 2.5)

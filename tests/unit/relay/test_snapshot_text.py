"""The parsing of COPY text, and the queries that read tables of a given shape."""
# ruff: noqa: S106, S608 - watermarks are not passwords; the SQL is expected text

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.snapshot import sql
from towpath.relay.snapshot.protocol import ReadChunk
from towpath.relay.snapshot.shape import TableShape
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.wal.messages import Column, Relation

LINES = TableShape(
    Relation(
        16_400,
        "shop",
        "order_lines",
        (Column("line_no", 23), Column("order_id", 20), Column('odd "name', 25)),
        (1, 0),
    ),
    ("bigint", "integer"),
)
REQUEST = ReadChunk(
    chunk_id=1,
    shape=LINES,
    low_token="low",
    high_token="high",
    after_key=None,
    maximum_key=(b"900", b"3"),
    keys=(),
    condition=None,
    max_rows=1000,
)
COLUMNS = '"line_no", "order_id", "odd ""name"'

# The letters that COPY writes for the characters that it escapes.
ESCAPES = {8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 92: "\\"}


def as_copy_writes(values: list[bytes | None]) -> bytes:
    """Write a row as the server's COPY TO does."""
    fields = []
    for value in values:
        if value is None:
            fields.append(b"\\N")
            continue
        escaped = (
            b"\\" + ESCAPES[byte].encode() if byte in ESCAPES else bytes((byte,))
            for byte in value
        )
        fields.append(b"".join(escaped))
    return b"\t".join(fields) + b"\n"


@given(st.lists(st.lists(st.none() | st.binary(), min_size=1)))
def test_every_copy_text_is_read_back(rows: list[list[bytes | None]]):
    """
    Rows that the server wrote as COPY text are parsed back into their values.
    """
    assert list(map(tuple, rows)) == decode_lines(map(as_copy_writes, rows))


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"1\ta\n", (b"1", b"a")),
        (b"\n", (b"",)),
        (b"\t\n", (b"", b"")),
        (b"\\N\n", (None,)),
        (b"\\\\N\n", (b"\\N",)),
        (b"\\N\t\\\\N\\N\n", (None, b"\\NN")),
        (b"a\\tb\\nc\\\\d\n", (b"a\tb\nc\\d",)),
        (b"\\101\\x41\\x4\\q\\\n\n", (b"AA\x04q\n",)),
    ],
)
def test_each_copy_escape_is_parsed_as_documented(line: bytes, row: tuple):
    """
    NULL, control characters, octal, hex and plain characters are distinguished.
    """
    assert [row] == decode_lines([line])


def test_the_first_chunk_has_only_an_upper_bound():
    """
    A chunk compares keys as row values, in key order, cast to the columns' types.
    """
    assert (
        f'copy (select {COLUMNS} from only "shop"."order_lines"'
        " where (\"order_id\", \"line_no\") <= ('900'::bigint, '3'::integer)"
        ' order by "order_id", "line_no" limit 1000) to stdout'
    ) == sql.chunk_query(REQUEST, LINES)


def test_a_later_chunk_begins_after_the_last_key():
    """
    A filter has parentheses of its own.
    """
    request = dataclasses.replace(
        REQUEST, after_key=(b"7", b"1"), condition="a or b -- c"
    )

    assert (
        f'copy (select {COLUMNS} from only "shop"."order_lines"'
        " where (a or b -- c\n)"
        " and (\"order_id\", \"line_no\") > ('7'::bigint, '1'::integer)"
        " and (\"order_id\", \"line_no\") <= ('900'::bigint, '3'::integer)"
        ' order by "order_id", "line_no" limit 1000) to stdout'
    ) == sql.chunk_query(request, LINES)


def test_listed_keys_are_spelled_without_reading_the_table():
    """
    A signal's keys are cast to the key's types, and nothing is locked.
    """
    keys = ((b"07", b"1"), (b"it's", b"2"))

    assert (
        "copy (values ('07'::bigint, '1'::integer), ('it''s'::bigint, '2'::integer))"
        " to stdout"
    ) == sql.spelling_query(keys, LINES)


def test_listed_keys_are_read_without_the_filter():
    """
    A row that no longer matches the filter still exists, so it is not deleted.
    """
    request = dataclasses.replace(REQUEST, keys=((b"7", b"1"),))
    filtered = dataclasses.replace(request, condition="a or b")

    assert sql.chunk_query(request, LINES) == sql.chunk_query(filtered, LINES)


def test_listed_keys_are_read_without_a_range():
    """
    Keys to be read again are looked up in the whole table.
    """
    request = dataclasses.replace(REQUEST, keys=((b"7", b"1"), (b"8", b"2")))

    assert (
        f'copy (select {COLUMNS} from only "shop"."order_lines"'
        ' where ("order_id", "line_no") in'
        " (values ('7'::bigint, '1'::integer), ('8'::bigint, '2'::integer))"
        ' order by "order_id", "line_no") to stdout'
    ) == sql.chunk_query(request, LINES)


def test_a_key_of_one_column_is_quoted_as_text():
    """
    Quotes in keys and names cannot end a literal or a name.
    """
    relation = Relation(1, 'a"b', "t", (Column("k", 25),), (0,))
    shape = TableShape(relation, ("text",), partitioned=True)
    request = dataclasses.replace(
        REQUEST, shape=shape, maximum_key=("it's \\ é".encode(),)
    )

    assert (
        'copy (select "k" from "a""b"."t" where ("k") <= (\'it\'\'s \\ é\'::text)'
        ' order by "k" limit 1000) to stdout'
    ) == sql.chunk_query(request, shape)


def test_the_maximum_key_is_the_last_in_key_order():
    """
    The highest key is read in the same order, backwards.
    """
    assert (
        'copy (select "order_id", "line_no" from only "shop"."order_lines"'
        ' order by "order_id" desc, "line_no" desc limit 1) to stdout'
    ) == sql.maximum_key_query(LINES)


def test_partitions_are_locked_with_their_root():
    """
    A partitioned table is named without ONLY, other tables with it.
    """
    root = dataclasses.replace(LINES, partitioned=True)
    locks = [sql.lock_statement(shape) for shape in (LINES, root)]

    assert [
        'lock table only "shop"."order_lines" in access share mode',
        'lock table "shop"."order_lines" in access share mode',
    ] == locks


def test_the_row_estimate_applies_the_filter():
    """
    The expected number of rows is that of the filtered table.
    """
    assert (
        'explain (format json) select 1 from only "shop"."order_lines" where (x > 1\n)'
    ) == sql.estimate_query(LINES, "x > 1")


def test_a_chunk_without_bounds_has_no_condition():
    """
    Without bounds and without a filter, there is no WHERE clause.
    """
    request = dataclasses.replace(REQUEST, maximum_key=None)

    assert (
        f'copy (select {COLUMNS} from only "shop"."order_lines"'
        ' order by "order_id", "line_no" limit 1000) to stdout'
    ) == sql.chunk_query(request, LINES)

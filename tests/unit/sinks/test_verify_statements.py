"""The source's queries: in the key's own order, and for names of any kind."""

import pytest

from towpath.sinks.verify import statements
from towpath.sinks.verify.table import SourceColumn, SourceTable

TABLE = SourceTable(
    "shop",
    "lines",
    (
        SourceColumn("id", "bigint"),
        SourceColumn("100%", "character"),
        SourceColumn("raw", "bytea"),
    ),
    ("raw", "100%", "id"),
)


def test_rows_are_ordered_by_the_columns_and_not_by_their_texts():
    """
    The selected expressions have the columns' names, and would be used instead.
    """
    text = statements.next_rows(TABLE, None, 10).text.as_string(None)

    assert text.endswith('order by "read"."raw", "read"."100%%", "read"."id" limit 10')


@pytest.mark.parametrize("kind", ["character", "inet", "xml"])
def test_a_type_whose_cast_to_text_differs_is_read_with_concat(kind):
    """
    A cast of xml keeps the encoding declaration, which records do not contain.
    """
    table = SourceTable("s", "t", (SourceColumn("v", kind),), ("v",))
    text = statements.all_rows(table).text.as_string(None)

    assert text.startswith(
        'select case when "read"."v" is not null then concat("read"."v") end from'
    )


def test_a_key_is_compared_in_the_types_of_its_columns():
    """
    Texts are cast to values; ``character`` does not get its default length of one.
    """
    text, parameters = statements.listed_rows(TABLE, [("AA==", "x ", "7")])

    assert [["AA=="], ["x "], ["7"]] == parameters
    assert (
        """select decode("k0", 'base64'), "k1"::bpchar, "k2"::bigint from unnest"""
        in text.as_string(None)
    )

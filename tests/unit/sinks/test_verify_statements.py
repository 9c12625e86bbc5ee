"""How the source is asked: in the key's own order, and for names of any kind."""

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
    What is selected has the columns' names, and would be taken for them.
    """
    text = statements.part(TABLE, None, 10).text.as_string(None)

    assert text.endswith('order by "read"."raw", "read"."100%%", "read"."id" limit 10')


@pytest.mark.parametrize("kind", ["character", "inet", "xml"])
def test_what_a_cast_would_write_otherwise_is_printed(kind):
    """
    Of xml a cast keeps the declaration of an encoding, which records do not have.
    """
    table = SourceTable("s", "t", (SourceColumn("v", kind),), ("v",))
    text = statements.whole(table).text.as_string(None)

    assert text.startswith(
        'select case when "read"."v" is not null then concat("read"."v") end from'
    )


def test_a_key_is_compared_in_the_types_of_its_columns():
    """
    Texts that were read become values again, without a length of one.
    """
    text, parameters = statements.listed(TABLE, [("AA==", "x ", "7")])

    assert [["AA=="], ["x "], ["7"]] == parameters
    assert (
        """select decode("k0", 'base64'), "k1"::bpchar, "k2"::bigint from unnest"""
        in text.as_string(None)
    )

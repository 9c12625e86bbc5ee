"""The codec of plain JSON: envelopes, placeholders, and the preset's additions."""

import json
from typing import Any

import pytest

from support.copying import replace
from towpath.relay.encode.codecs.codec import (
    Codec,
    EnvelopeFacts,
    TableNames,
    TransactionPlace,
)
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.encode.types.form import TypeFacts
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import UNCHANGED, Column, Relation, Row
from towpath.settings.relay import Relay

COLUMNS = (
    Column("id", 23),
    Column("note", 25),
    Column("raw", 17),
    Column("tags", 1009),
    Column("counts", 1007),
)
TYPES = {
    1007: TypeFacts("_int4", "integer[]", element_oid=23),
    1009: TypeFacts("_text", "text[]", element_oid=25),
}
FACTS = EnvelopeFacts(
    b"u", 5_000_001, 7_000_002, b"false", 9, 120, 160, None, None, None
)
TOASTED = (b"1", *(UNCHANGED,) * 4)


def codec(key: tuple[int, ...] = (0,), **relay: object) -> Codec:
    """Make the codec of a table."""
    settings = Relay.model_validate(relay)
    relation = Relation(oid=7, schema="s", table="100%", columns=COLUMNS, key=key)
    facts = CatalogFacts((), {}, frozenset({"id"}), types=TYPES)
    plan = ColumnRules(settings).plan(relation, facts)
    names = TableNames('p"', "db", "s", "100%", "p.s.100_")
    return json_maker(settings)(names, plan.key, plan.columns)


def after(row: Row, **relay: object) -> dict[str, Any]:
    """Write a new row, and return it parsed."""
    value = codec(**relay).value(None, row, FACTS, is_full=True)
    found: dict[str, Any] = json.loads(value)["after"]
    return found


def source(facts: EnvelopeFacts, **relay: object) -> dict[str, Any]:
    """Write an envelope, and return its parsed source."""
    value = codec(**relay).value(None, None, facts, is_full=False)
    found: dict[str, Any] = json.loads(value)["source"]
    return found


def test_an_unchanged_toast_value_is_left_out_of_json():
    """
    Without a placeholder an unchanged value is absent, in any column.
    """
    row = (UNCHANGED, b"n", None, UNCHANGED, b"{1}")

    assert {"note": "n", "raw": None, "counts": [1]} == after(row)


def test_only_texts_and_bytes_have_a_placeholder():
    """
    Their arrays have it as well, but numbers do not (A73, A76).
    """
    rows = {"placeholder": "__gone"}

    assert {"id": 1, "note": "__gone", "raw": "X19nb25l", "tags": ["__gone"]} == after(
        TOASTED, rows=rows
    )


def test_a_placeholder_may_be_given_in_hex():
    """
    The text after ``hex:`` encodes the bytes themselves.
    """
    found = after(TOASTED, rows={"placeholder": "hex:ff00"})

    assert "/wA=" == found["raw"]


def test_null_differs_from_the_placeholder():
    """
    A NULL in a column that may be unchanged TOAST remains null (A74).
    """
    found = after((b"1", None, None, None, None), rows={"placeholder": "__gone"})

    assert [None] * 4 == [found[name] for name in ("note", "raw", "tags", "counts")]


def test_columns_at_the_end_may_be_excluded():
    """
    Columns at the end of a row can be excluded like any other.
    """
    rows = {"include_columns": [r".*\.(id|note)"]}

    assert {"id": 1, "note": "n"} == after((b"1", b"n", None, None, None), rows=rows)


@pytest.mark.parametrize(("excluded", "count"), [("note", 4), ("id|raw|tags", 2)])
def test_columns_between_others_may_be_excluded(excluded: str, count: int):
    """
    The others keep their values.
    """
    rows = {"exclude_columns": [rf".*\.({excluded})"]}
    found = after((b"1", b"n", b"\\x", b"{}", b"{5}"), rows=rows)

    assert (count, [5]) == (len(found), found["counts"])


def test_an_old_key_yields_a_short_old_row():
    """
    Columns that a short old row lacks are absent from ``before``.
    """
    value = codec().value((b"1", None, None, None, None), None, FACTS, is_full=False)

    assert {"id": 1} == json.loads(value)["before"]


def test_column_names_are_escaped_in_json():
    """
    Quotes and percent signs in names are written literally.
    """
    found = source(FACTS)

    assert ('p"', "100%") == (found["name"], found["table"])


def test_a_chunks_source_has_no_transaction():
    """
    The commit LSN in a READ row's source is the low watermark.
    """
    read = EnvelopeFacts(b"r", 5, 5, b"incremental", None, None, 160, None, None, None)
    found = source(read)

    assert ("incremental", None, None, 160) == (
        found["snapshot"],
        found["txId"],
        found["lsn"],
        found["commit_lsn"],
    )


def test_debeziums_preset_adds_fields_to_the_source():
    """
    It adds finer times, and a sequence that orders rows by commit and LSN.
    """
    found = source(FACTS, preset="debezium")

    assert (5000, 5_000_001, 5_000_001_000, '["160","120"]') == (
        found["ts_ms"],
        found["ts_us"],
        found["ts_ns"],
        found["sequence"],
    )


def test_a_position_in_the_transaction_is_written_as_a_block():
    """
    With enrichment, the envelope has the transaction's id and both order numbers.
    """
    facts = replace(FACTS, transaction=TransactionPlace("9:160", 3, 2))
    value = codec().value(None, None, facts, is_full=False)

    assert {"id": "9:160", "total_order": 3, "data_collection_order": 2} == json.loads(
        value
    )["transaction"]


@pytest.mark.parametrize("missing", [None, UNCHANGED])
def test_a_row_without_its_key_is_refused(missing: None):
    """
    A key is never guessed.
    """
    with pytest.raises(MalformedMessageError):
        codec().key((missing, b"n", None, None, None))


def test_a_key_of_several_columns_is_in_key_order():
    """
    The columns are in key order, not in table order.
    """
    written = codec(key=(1, 0)).key((b"1", b"n", None, None, None))

    assert b'{"note":"n","id":1}' == written


def test_a_table_without_a_key_has_no_json_key():
    """
    Its records have no key.
    """
    assert None is codec(key=()).key((b"1", b"n", None, None, None))

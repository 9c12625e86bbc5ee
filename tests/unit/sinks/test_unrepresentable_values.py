"""Values that a warehouse cannot represent, and how the verifier treats them."""

import pytest

from towpath.sinks.change import is_nan, is_unrepresentable_time
from towpath.sinks.verify.canonical import canonical_of
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.table import SourceColumn, SourceTable

INSTANT = "timestamp with time zone"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("infinity", True),
        ("-infinity", True),
        ("0044-03-15 BC", True),
        ("0044-03-15T10:00:00.000000Z BC", True),
        ("20260-01-01", True),
        ("0001-01-01", False),
        ("9999-12-31T23:59:59.999999Z", False),
        ("soon", False),
        (None, False),
        (7, False),
    ],
)
def test_an_instant_is_in_the_years_1_to_9999(value, expected):
    """
    Any other text instead of a time is a different mistake.
    """
    assert is_unrepresentable_time(value) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [("NaN", True), ("1.50", False), (None, False)]
)
def test_a_numeric_may_be_nan(value, expected):
    """
    NaN has no digits.
    """
    assert is_nan(value) is expected


@pytest.mark.parametrize(
    ("type_name", "value", "kept"),
    [
        ("date", "infinity", "2026-01-01"),
        (INSTANT, "infinity", "2026-01-01T00:00:00.000000Z"),
        ("numeric", "NaN", "1.50"),
        ("numeric", None, "1.50"),
    ],
)
def test_a_value_made_null_compares_as_null(type_name, value, kept):
    """
    The value is null on both sides; no other value is changed.
    """
    form = canonical_of(type_name, treats_unfit_as_null=True)

    assert (None, kept) == (form(value), form(kept))


def test_a_value_that_a_warehouse_keeps_as_text_is_never_null():
    """
    A numeric without a precision is stored as text, which represents every value.
    """
    columns = (
        SourceColumn("id", "bigint"),
        SourceColumn("free", "numeric", is_kept_as_text=True),
        SourceColumn("fixed", "numeric"),
    )
    form = RowForm(SourceTable("s", "t", columns, ("id",)), treats_unfit_as_null=True)
    (row,) = form.source_rows([("1", "NaN", "NaN")])

    assert ["1", "NaN", None] == list(row.texts)


def test_texts_and_doubles_are_always_representable():
    """
    In other types, infinity and NaN are ordinary values.
    """
    text, double = (
        canonical_of(name, treats_unfit_as_null=True)
        for name in ("text", "double precision")
    )

    assert ("infinity", "NaN", "nan") == (text("infinity"), text("NaN"), double("NaN"))


def test_a_row_is_compared_under_the_sinks_policy():
    """
    Unless the sink makes them null, such values are compared like any other.
    """
    columns = (SourceColumn("id", "bigint"), SourceColumn("until", INSTANT))
    table = SourceTable("shop", "t", columns, ("id",))
    rows = [("1", "infinity")]
    kept, nulled = (
        RowForm(table, treats_unfit_as_null=nulls).source_rows(rows)[0].texts
        for nulls in (False, True)
    )

    assert (["1", "infinity"], ["1", None]) == (list(kept), list(nulled))

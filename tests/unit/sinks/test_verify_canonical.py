"""One canonical text per value, on both sides."""

from decimal import Decimal

import pytest

from towpath.sinks.verify.canonical import canonical_of, value_differences
from towpath.sinks.verify.compare import Difference, DifferenceKind
from towpath.sinks.verify.table import UTC_TIMESTAMP


@pytest.mark.parametrize(
    ("type_name", "source", "sink"),
    [
        ("bigint", "9223372036854775807", 2**63 - 1),
        ("boolean", "true", True),
        ("boolean", "false", "false"),
        ("numeric", "1.50", "1.50"),
        ("text", "", ""),
        ("double precision", "1e+20", 1e20),
        ("double precision", "1", 1.0),
        ("double precision", "-0", -0.0),
        ("double precision", "-0", "0"),
        ("real", "-0", "0"),
        ("real", "-0", -0.0),
        ("double precision", "-1e-400", 0.0),
        ("double precision", "NaN", "NaN"),
        ("double precision", "-Infinity", "-Infinity"),
        ("real", "0.1", 0.10000000149011612),
        ("real", "0.1", 0.1),
        ("text", None, None),
        ("real", None, None),
        ("double precision", None, None),
    ],
)
def test_a_value_has_one_canonical_text(type_name, source, sink):
    """
    The source's text and the sink's value give the same text.
    """
    form = canonical_of(type_name)

    assert form(source) == form(sink)


@pytest.mark.parametrize(
    ("type_name", "one", "other"),
    [
        ("bigint", "1", 10),
        ("boolean", "true", 1),
        ("numeric", "1.50", "1.5"),
        ("text", "", None),
        ("text", "null", None),
        ("double precision", "0.1", 0.10000000149011612),
        ("double precision", "0", -5e-324),
        ("real", "0.1", 0.2),
    ],
)
def test_different_values_have_different_texts(type_name, one, other):
    """
    Nothing is rounded, padded or treated as null.
    """
    form = canonical_of(type_name)

    assert form(one) != form(other)


@pytest.mark.parametrize(
    "type_name",
    ["date", "timestamp with time zone", "timestamp without time zone", UTC_TIMESTAMP],
)
def test_an_unrepresentable_instant_is_null_on_both_sides(type_name):
    """
    An event's time, which is in UTC for any column type, is null too.
    """
    form = canonical_of(type_name, treats_unfit_as_null=True)

    assert (None, None, "2026-01-01") == (
        form("infinity"),
        form(None),
        form("2026-01-01"),
    )


@pytest.mark.parametrize(
    ("source", "sink", "paths"),
    [
        ('{"a.b": 1}', '{"a": {"b": 1}}', ["a.b", "a.b"]),
        ('{"a": [1]}', '{"a": {"0": 1}}', ["a.0", "a[0]"]),
        ('{"a.b": 1, "a": {"b": 2}}', '{"a.b": 3, "a": {"b": 2}}', ["a.b"]),
    ],
)
def test_fields_with_dots_in_their_names_differ_from_nested_ones(source, sink, paths):
    """
    A document that differs always has at least one difference.
    """
    found = value_differences(Difference(DifferenceKind.CHANGED, "7", "", source, sink))

    assert paths == sorted(each.column for each in found)


@pytest.mark.parametrize("value", ["abc", Decimal("1.5"), [1], "1e999999"])
@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_a_value_from_before_a_change_of_type_has_a_text(kind, value):
    """
    It counts as a difference, and does not end the verification.
    """
    assert isinstance(canonical_of(kind)(value), str)

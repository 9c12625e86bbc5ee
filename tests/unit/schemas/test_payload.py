"""The compiled check of a JSON payload: the accepted values and reported mismatches."""

import fastavro
import pytest

from towpath.schemas.payload import compile_check

LETTERS = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DATE = {"type": "int", "logicalType": "date"}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
TREE = {
    "type": "record",
    "name": "Node",
    "namespace": "t",
    "fields": [
        {"name": "value", "type": "int"},
        {"name": "children", "type": {"type": "array", "items": "Node"}},
    ],
}


def mismatch_of(schema, value) -> tuple[str, str] | None:
    """Check a value; return the field and the reason of the first mismatch."""
    found = compile_check(fastavro.parse_schema(schema))(value)
    return None if found is None else (found.field, found.reason)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("null", None),
        ("boolean", False),
        ("int", -(2**31)),
        ("long", 2**63 - 1),
        ("float", 1),
        ("double", 1.5),
        ("string", "é"),
        (["null", "string"], None),
        (["int", "string"], "x"),
        (LETTERS, "B"),
        ({"type": "map", "values": "int"}, {"a": 1}),
        ({"type": "array", "items": "int"}, (1, 2)),
        ({"type": "string", "logicalType": "uuid"}, "free text"),
        (DATE, 20_000),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_000_000),
        (AMOUNT, "12345678.90"),
        (AMOUNT, "-0000000000.5"),
        (AMOUNT, "7"),
        (TREE, {"value": 1, "children": [{"value": 2, "children": []}]}),
    ],
)
def test_a_value_of_the_type_is_accepted(schema, value):
    """
    A value of the type has no mismatch.
    """
    assert mismatch_of(schema, value) is None


def test_a_nested_optional_value_is_checked_once():
    """
    With two checks at each level, this test would never end.
    """
    next_ = {"name": "next", "type": ["null", "Node"], "default": None}
    schema = {**TREE, "fields": [TREE["fields"][0], next_]}
    value: object = {"value": "text"}
    for _ in range(60):
        value = {"value": 1, "next": value}

    assert (f"{'next.' * 60}value", "is not a whole number") == mismatch_of(
        schema, value
    )


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("null", 0, ("", "is not null")),
        ("int", 2**31, ("", "is out of the range of int")),
        ("int", True, ("", "is not a whole number")),
        ("int", 1.0, ("", "is not a whole number")),
        ("long", -(2**63) - 1, ("", "is out of the range of long")),
        ("double", float("nan"), ("", "is not a finite number")),
        ("float", float("inf"), ("", "is not a finite number")),
        ("float", 1e300, ("", "is out of the range of a float")),
        ("double", 10**400, ("", "is out of the range of a double")),
        ("float", 10**400, ("", "is out of the range of a float")),
        ("double", "1", ("", "is not a number")),
        ("string", b"x", ("", "is not text")),
        (["null", "string"], 1, ("", "is not text")),
        (["int", "string"], None, ("", "matches no branch of its union")),
        (
            LETTERS,
            "C",
            ("", "is not one of A, B"),
        ),
        (
            {"type": "int", "logicalType": "date"},
            "today",
            ("", "is not a whole number"),
        ),
        (AMOUNT, "123456789.0", ("", "is not the text of a decimal(10, 2)")),
        (AMOUNT, "1.005", ("", "is not the text of a decimal(10, 2)")),
        (AMOUNT, "1e3", ("", "is not the text of a decimal(10, 2)")),
        (AMOUNT, 1.5, ("", "is not the text of a decimal(10, 2)")),
        ({"type": "map", "values": "int"}, [], ("", "is not an object")),
        ({"type": "map", "values": "int"}, {1: 1}, ("", "has a key that is not text")),
        ({"type": "map", "values": "int"}, {"a": ""}, ("a", "is not a whole number")),
        ({"type": "array", "items": "int"}, {}, ("", "is not an array")),
        ({"type": "array", "items": "int"}, [1, ""], ("[1]", "is not a whole number")),
        (TREE, [], ("", "is not an object")),
        (TREE, {"value": 1}, ("children", "is missing")),
        (
            TREE,
            {"value": 1, "children": [{"value": "", "children": []}]},
            ("children[0].value", "is not a whole number"),
        ),
    ],
)
def test_a_value_of_a_different_type_is_refused_with_its_path(schema, value, expected):
    """
    The first mismatch is reported with its path and its reason.
    """
    assert expected == mismatch_of(schema, value)


def test_a_field_with_a_default_may_be_left_out():
    """
    A reader uses the default instead.
    """
    fields = [{"name": "a", "type": "int", "default": 0}]
    schema = {"type": "record", "name": "R", "fields": fields}

    assert mismatch_of(schema, {}) is None


@pytest.mark.parametrize("schema", ["bytes", {"type": "fixed", "name": "F", "size": 2}])
def test_types_without_a_json_form_are_refused_at_once(schema):
    """
    A schema with bytes cannot become a check of JSON payloads.
    """
    with pytest.raises(ValueError, match="an event schema cannot use the type"):
        compile_check(schema)

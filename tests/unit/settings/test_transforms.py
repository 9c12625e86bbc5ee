"""
Transforms in the file each have one verb, and mistakes are reported with their key.
"""

import re
from pathlib import Path

import pytest

from support.configuration import ADDRESSES
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, read
from towpath.settings.secrets import MASKED, masked
from towpath.settings.transforms import (
    Condition,
    TemplateParts,
    ValueType,
    parse_condition,
    parse_value_template,
    parse_value_type,
)

SALT = "0123456789abcdef"


def document(*transforms: dict, sink: str = "cache", **route) -> dict:
    """Make a document with one sink, whose only route has the transforms."""
    block = {
        "name": "my-cache",
        "kind": sink,
        "url": ADDRESSES[sink],
        "route": [
            {
                "topic": "towpath.shop.orders",
                "name": "orders",
                "transforms": [*transforms],
                **route,
            }
        ],
    }
    return {
        "version": 1,
        "source": [{"dsn": "postgresql:///x", "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": "kafka:9092"},
        "registry": {"url": "http://x"},
        "sink": [block],
    }


def check(*transforms: dict, environ=None, **route) -> Settings:
    """Read a document with these transforms."""
    return read(document(*transforms, **route), environ or {}, Path("/"))


def mistakes(*transforms: dict, environ=None, **route) -> str:
    """Return the mistakes in a document with these transforms."""
    with pytest.raises(ConfigurationError) as caught:
        check(*transforms, environ=environ, **route)
    return "\n".join(caught.value.mistakes)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({}, "one verb of rename, constant, .*, not none"),
        ({"mask": "a", "cast": "b", "type": "text"}, "not mask and cast"),
        ({"hsh": "a"}, r"transforms\.0\.hsh: unknown key; did you mean 'hash'"),
        ({"hash": "a"}, "hash needs salt"),
        ({"cast": "a"}, "cast needs type"),
        ({"template": "{a}"}, "template needs to"),
        ({"rename": "a"}, "rename needs to"),
        ({"constant": ""}, "constant needs to"),
        ({"mask": ""}, "mask is empty"),
        ({"constant": [1], "to": "a"}, "must be text, true, false, or a number"),
        ({"mask": "a", "salt": "s"}, "salt is not an option of mask"),
        ({"mask": "a", "keep_last": -1}, "at least 0"),
        ({"template": "{a", "to": "b"}, "single brace"),
        ({"template": "a", "to": "b"}, "names no column"),
        ({"cast": "a", "type": "int"}, "'int' is not a type that values"),
        ({"cast": "a", "type": "numeric(2, 3)"}, "is not a type"),
        ({"drop_if": {}}, "drop_if: "),
        ({"drop_if": {"a": {"less": 1}}}, "a table with one of not, is_null, below"),
        ({"drop_if": {"a": {"below": 1, "at_least": 0}}}, "a table with one of"),
        ({"drop_if": {"a": ["x", 1]}}, "values must be one or more strings"),
        ({"drop_if": {"a": []}}, "values must be one or more strings"),
        ({"drop_if": {"a": {"below": "1"}}}, "need a number"),
        ({"drop_if": {"a": {"is_null": 1}}}, "is_null must be true or false"),
        ({"drop_if": {"a": {"matches": 1}}}, "a regular expression in quotes"),
        ({"drop_if": {"a": {"matches": "("}}}, "not a regular expression"),
        ({"python": "score", "to": "x"}, "to is not an option of python"),
        ({"python": "score", "writes": {"x": "int"}}, "'int' is not a type"),
        ({"python": "score", "writes": {"_x": "text"}}, "'_x': sinks reserve"),
        ({"constant": 1, "to": "_x"}, r"transforms\.0: '_x': sinks reserve"),
    ],
)
def test_an_impossible_entry_is_a_mistake_in_the_file(entry, expected):
    """
    The message names the entry and the mistake.
    """
    found = mistakes(entry)

    assert "transforms" in found
    assert re.search(expected, found)


def test_the_error_for_a_missing_salt_names_its_variable():
    """
    Nothing runs with a hash that anyone could compute.
    """
    found = mistakes({"hash": "email", "salt": "v2"})

    assert "there is no 'v2' in sink.my-cache.hash_salts" in found
    assert "TOWPATH_SINK__MY_CACHE__HASH_SALTS__V2_FILE" in found


def test_the_nearest_salt_is_suggested_last():
    """
    The variable in the message sets the salt that the entry names, not the suggestion.
    """
    environ = {"TOWPATH_SINK__MY_CACHE__HASH_SALTS__V2": SALT}
    found = mistakes({"hash": "email", "salt": "v3"}, environ=environ)

    name = "TOWPATH_SINK__MY_CACHE__HASH_SALTS__V3_FILE"
    assert f"set the salt with {name}; did you mean 'v2'?" in found


def test_the_named_variable_sets_the_salt(tmp_path: Path):
    """
    The salt may be in a file that only its owner can read.
    """
    (tmp_path / "salt").write_text(f"{SALT}\n")
    name = "TOWPATH_SINK__MY_CACHE__HASH_SALTS__V2_FILE"
    settings = check(
        {"hash": "email", "salt": "v2"}, environ={name: str(tmp_path / "salt")}
    )

    assert {"v2": SALT} == settings.sink[0].hash_salts


def test_a_short_secret_is_refused_without_being_shown():
    """
    An attacker could find a short secret by brute force.
    """
    name = "TOWPATH_SINK__MY_CACHE__HASH_SALTS__V2"
    found = mistakes(environ={name: "brief"})

    assert "must be at least 16 characters" in found
    assert "brief" not in found


def test_the_salts_are_masked_in_a_printed_configuration():
    """
    All values in the section are secrets, whatever their names.
    """
    shown = masked({"hash_salts": {"v2": SALT}, "name": "v2"})

    assert {"hash_salts": {"v2": MASKED}, "name": "v2"} == shown


def test_transforms_apply_only_to_rows():
    """
    An event is kept as its service wrote it.
    """
    found = mistakes(
        {"mask": "a"},
        sink="search",
        topic="outbox.event.order",
        kind="aggregate",
        state_types=["OrderPlaced"],
    )

    assert "orders.transforms: applies to rows only" in found


def test_two_routes_of_a_topic_must_have_one_shape_in_an_index():
    """
    A transform changes the shape, just as a rename does.
    """
    whole = document({"mask": "note"}, sink="search")
    other = {"topic": "towpath.shop.orders", "name": "plain"}
    whole["sink"][0]["route"].append(other)

    with pytest.raises(ConfigurationError, match="in a different shape"):
        read(whole, {}, Path("/"))


def test_a_template_is_split_at_its_columns():
    """
    Doubled braces stand for single braces.
    """
    assert TemplateParts(("{", "}-", ""), ("a", "b")) == parse_value_template(
        "{{{a}}}-{b}"
    )


def test_a_numeric_may_have_a_precision_and_a_scale():
    """
    Spaces in the parentheses do not matter.
    """
    assert ValueType("numeric", 12, 2) == parse_value_type("numeric( 12,2 )")


@pytest.mark.parametrize(
    ("value", "condition", "kind"),
    [
        ("x", Condition("in", ("x",)), "text"),
        ([1, 2.5], Condition("in", (1, 2.5)), "number"),
        ({"not": True}, Condition("not", (True,)), "boolean"),
        ({"is_null": False}, Condition("is_null", (False,)), ""),
        ({"matches": "a+"}, Condition("matches", ("a+",)), "text"),
    ],
)
def test_a_condition_has_an_operator_and_values_of_one_kind(value, condition, kind):
    """
    A bare value matches itself, and a list matches any of its values.
    """
    found = parse_condition(value)

    assert (condition, kind) == (found, found.kind)

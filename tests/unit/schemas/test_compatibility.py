"""Compatible changes of an event schema for later readers, one rule at a time."""

import fastavro
import pytest

from towpath.schemas.compatibility import Finding, check_history, compare
from towpath.schemas.events import EventSchema
from towpath.schemas.payload import compile_check


def record(*fields, name="shop.Thing", **more):
    """Make a parsed record schema."""
    schema = {"type": "record", "name": name, "fields": list(fields), **more}
    return fastavro.parse_schema(schema)


def field(avro_type, name="a", **more):
    """Make a field."""
    return {"name": name, "type": avro_type, **more}


def enum(*symbols, **more):
    """Make an enum."""
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


LEAF = {"type": "record", "name": "Leaf", "fields": [field("int")]}
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [field("int"), field(["null", "Node"], "next")],
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (record(field("int")), record(field("int"))),
        (record(field("int"), field("int", "b")), record(field("int"))),
        (record(field("int")), record(field("int"), field("int", "b", default=0))),
        (record(field("int")), record(field("long"))),
        (record(field("long")), record(field("double"))),
        (record(field("string")), record(field("bytes"))),
        (record(field("int")), record(field(["null", "int"]))),
        (record(field(["int"])), record(field("long"))),
        (record(field(["null", "int"])), record(field(["null", "string", "int"]))),
        (record(field(enum("A"))), record(field(enum("A", "B")))),
        (record(field(enum("A", "B"))), record(field(enum("A", default="A")))),
        (record(field("int", "old")), record(field("int", "a", aliases=["old"]))),
        (record(name="a.Thing"), record(name="b.Thing")),
        (record(name="Was"), record(name="Now", aliases=["Was"])),
        (
            record(field({"type": "array", "items": "int"})),
            record(field({"type": "array", "items": "long"})),
        ),
        (record(field(NODE)), record(field(NODE))),
        (
            record(field(LEAF), field("Leaf", "b")),
            record(field(LEAF, "b")),
        ),
        (
            record(field({"type": "fixed", "name": "F", "size": 2})),
            record(field({"type": "fixed", "name": "F", "size": 2})),
        ),
        (
            record(field("int")),
            record(field({"type": "int", "logicalType": "date"})),
        ),
    ],
)
def test_a_compatible_schema_change_has_no_finding(old, new):
    """
    Changes that Avro resolves are compatible.
    """
    assert compare(old, new) == ()


def logical(kind, name, **more):
    """Make a schema with a logical type."""
    return {"type": kind, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("old", "new", "path", "reason"),
    [
        (
            record(field(logical("long", "timestamp-millis"))),
            record(field(logical("long", "timestamp-micros"))),
            "a",
            "was timestamp-millis and became timestamp-micros",
        ),
        (
            record(field(["null", logical("bytes", "decimal", precision=9, scale=2)])),
            record(field(["null", logical("bytes", "decimal", precision=9, scale=4)])),
            "a",
            "was bytes, which no branch of the union reads",
        ),
        (record(), record(field("int")), "a", "was added without a default"),
        (
            record(field("long")),
            record(field("int")),
            "a",
            "was long and became int",
        ),
        (
            record(field(["null", "int"])),
            record(field("int")),
            "a",
            "was null and became int",
        ),
        (
            record(field("string")),
            record(field(["null", "int"])),
            "a",
            "was string, which no branch of the union reads",
        ),
        (
            record(field(enum("A", "B"))),
            record(field(enum("A"))),
            "a",
            "lost B and has no default",
        ),
        (
            record(field({"type": "array", "items": LEAF})),
            record(
                field({"type": "array", "items": LEAF | {"fields": [field("string")]}})
            ),
            "a[].a",
            "was int and became string",
        ),
        (
            record(field({"type": "map", "values": "string"})),
            record(field({"type": "map", "values": "int"})),
            "a{}",
            "was string and became int",
        ),
        (
            record(name="Was"),
            record(name="Now"),
            "",
            "was the record Was and became Now",
        ),
        (
            record(field(enum("A"))),
            record(field(enum("A") | {"name": "F"})),
            "a",
            "was the enum shop.E and was renamed",
        ),
        (
            record(field({"type": "fixed", "name": "F", "size": 2})),
            record(field({"type": "fixed", "name": "F", "size": 3})),
            "a",
            "was a fixed type of a different name or size",
        ),
        (
            record(field(LEAF), field("Leaf", "b")),
            record(field(LEAF | {"fields": [field("string")]}, "b")),
            "b.a",
            "was int and became string",
        ),
    ],
)
def test_an_incompatible_schema_change_is_found(old, new, path, reason):
    """
    Each broken rule is one finding with its place and its reason.
    """
    assert compare(old, new) == (Finding(path, reason),)


def test_every_earlier_version_is_compared_and_not_only_the_last():
    """
    A third version that reads the second but not the first is found.
    """
    versions = [
        record(field("string")),
        record(),
        record(field("int", default=0)),
    ]
    schemas = [
        EventSchema("Thing", number, "shop.Thing", "", parsed, compile_check(parsed))
        for number, parsed in enumerate(versions, start=1)
    ]

    expected = (Finding("shop.Thing:3 after 1: a", "was string and became int"),)

    assert expected == check_history(schemas)

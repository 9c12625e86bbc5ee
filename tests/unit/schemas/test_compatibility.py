"""The compatibility of schema changes with other versions, one rule at a time."""

import fastavro
import pytest

from towpath.schemas.compatibility import Level, check_history, compare
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
            record(field({"type": "array", "items": LEAF}), field("Leaf", "b")),
            record(field(LEAF, "b")),
        ),
        (
            record(field(LEAF, "b")),
            record(field(LEAF, default={"a": 0}), field("Leaf", "b")),
        ),
        (
            record(field(enum("A"), "b")),
            record(field(["null", enum("A")], default=None), field("E", "b")),
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


def money(scale):
    """Make a named type with a logical type."""
    decimal = {"logicalType": "decimal", "precision": 9, "scale": scale}
    return {"type": "fixed", "name": "Money", "size": 4, **decimal}


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
        (
            record(field(money(2)), field("Money", "b")),
            record(field(money(4), "b")),
            "b",
            "was decimal(9, 2) and became decimal(9, 4)",
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
            "was a fixed type of a different size",
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
    Each broken rule gives one finding with its path and its reason.
    """
    found = compare(old, new)

    assert [(path, reason)] == [(each.path, each.reason) for each in found]


def history(*versions):
    """Number parsed schemas as the versions of one subject."""
    return [
        EventSchema("Thing", number, "shop.Thing", "", parsed, compile_check(parsed))
        for number, parsed in enumerate(versions, start=1)
    ]


def test_all_earlier_versions_are_compared():
    """
    A third version that can read the second but not the first is found.
    """
    schemas = history(
        record(field("string")), record(), record(field("int", default=0))
    )

    [found] = check_history(schemas)

    assert (
        (
            "shop.Thing:3 cannot read what shop.Thing:1 wrote: from version 1 to 3, "
            "the field a was string and became int."
        ),
        "Keep the type, and add another field with a default.",
    ) == (found.sentence, found.cure)
    assert () == check_history(schemas, Level.BACKWARD)


@pytest.mark.parametrize(
    ("old", "new", "refusing"),
    [
        (record(), record(field("int", default=0)), set()),
        (record(), record(field("int")), {"BACKWARD", "FULL"}),
        (record(field("int")), record(), {"FORWARD", "FULL"}),
        (record(field("int")), record(field("long")), {"FORWARD", "FULL"}),
        (
            record(field("int")),
            record(field("string")),
            {"BACKWARD", "FORWARD", "FULL"},
        ),
    ],
)
def test_a_level_decides_which_version_reads(old, new, refusing):
    """
    At backward levels the new version reads, at forward levels the earlier one.
    """
    schemas = history(old, new)
    found = {level for level in Level if check_history(schemas, level)}

    assert {f"{one}{more}" for one in refusing for more in ("", "_TRANSITIVE")} == found


def test_a_forward_finding_has_a_remedy_for_the_new_version():
    """
    The earlier version is released, so the remedy is a change to the newer one.
    """
    [found] = check_history(history(record(field("int")), record()), Level.FORWARD)

    assert (
        (
            "shop.Thing:1 cannot read what shop.Thing:2 wrote: from version 2 to 1, "
            "the field a was added without a default."
        ),
        "Keep the field: readers of the earlier version need it.",
        2,
    ) == (found.sentence, found.cure, found.newer.version)

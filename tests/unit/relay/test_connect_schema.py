"""Connect schemas of keys and envelopes, in JSON and Avro."""

import json

import fastavro
import pytest

from towpath.relay.encode.codecs.avro_codec import writer
from towpath.relay.encode.codecs.codec import TableNames
from towpath.relay.encode.codecs.connect_schema import (
    Field,
    envelope_schema,
    key_schema,
    row_schema,
    sanitized_all,
    sanitized_path,
)
from towpath.relay.encode.codecs.factory import avro_text, schema_document
from towpath.relay.encode.types.form import Form, Schema
from towpath.relay.errors import NameCollisionError

NAMES = TableNames("towpath", "db", "shop", "line", "towpath.shop.line")


def form(schema: Schema) -> Form:
    """Make a form of which only the schema matters."""
    return Form(schema, bytes, bytes)


def decimal(precision: int, scale: int) -> Schema:
    """Make the schema of a numeric."""
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return Schema(
        "bytes",
        name="org.apache.kafka.connect.data.Decimal",
        version=1,
        parameters=parameters,
    )


INTEGER = form(Schema("int32"))
TEXT = form(Schema("string"))
VARIABLE = Schema(
    "struct",
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    fields=(("scale", Schema("int32")), ("value", Schema("bytes"))),
)
ID = Field(0, "id", INTEGER, is_nullable=False)
COLUMNS = (
    ID,
    Field(1, "small", form(Schema("int16")), is_nullable=False),
    Field(2, "price", form(decimal(12, 2)), is_nullable=True),
    Field(3, "on", form(Schema("int32", "io.debezium.time.Date", 1)), is_nullable=True),
    Field(
        4,
        "tags",
        form(Schema("array", items=Schema("string").optional())),
        is_nullable=True,
    ),
    Field(5, "more", form(Schema("map", items=Schema("string"))), is_nullable=True),
    Field(6, "any", form(VARIABLE), is_nullable=True),
    Field(7, "other", form(VARIABLE), is_nullable=True),
)
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def test_a_key_schema_has_the_form_that_connect_reads():
    """
    A key's fields are in key order, typed, and optional only if they may be null.
    """
    key = (Field(1, "b", TEXT, is_nullable=True), ID)

    assert (
        '{"type": "struct", "fields": ['
        '{"type": "string", "optional": true, "field": "b"}, '
        '{"type": "int32", "optional": false, "field": "id"}], '
        '"optional": false, "name": "towpath.shop.line.Key"}'
    ) == json.dumps(schema_document(key_schema(NAMES, key)))


def test_a_row_schema_in_json_has_every_kind():
    """
    Semantic names, versions and parameters are written; only the key is required.
    """
    row = schema_document(row_schema(NAMES, (ID,), COLUMNS[:6]))

    assert {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "id"},
            {"type": "int16", "optional": True, "field": "small"},
            {
                "type": "bytes",
                "optional": True,
                "name": DECIMAL,
                "version": 1,
                "parameters": {"scale": "2", "connect.decimal.precision": "12"},
                "field": "price",
            },
            {
                "type": "int32",
                "optional": True,
                "name": "io.debezium.time.Date",
                "version": 1,
                "field": "on",
            },
            {
                "type": "array",
                "items": {"type": "string", "optional": True},
                "optional": True,
                "field": "tags",
            },
            {
                "type": "map",
                "keys": {"type": "string", "optional": False},
                "values": {"type": "string", "optional": False},
                "optional": True,
                "field": "more",
            },
        ],
        "optional": False,
        "name": "towpath.shop.line.Value",
    } == row


def test_an_envelope_schema_in_json_is_debeziums():
    """
    The schema has the envelope's members, its version, and the source of the rows.
    """
    envelope = schema_document(envelope_schema(NAMES, (ID,), (ID,)))
    fields = envelope["fields"]
    source = fields[2]
    snapshot = next(f for f in source["fields"] if f["field"] == "snapshot")

    assert (
        ("towpath.shop.line.Envelope", 2, False),
        ["before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction"],
        [True, True, False, False, True, True, True, True],
        ("io.debezium.connector.postgresql.Source", 1),
        ("io.debezium.data.Enum", "false"),
        {"commit_lsn": True, "origin": True, "lsn": True, "db": False},
        ["id", "total_order", "data_collection_order"],
    ) == (
        (envelope["name"], envelope["version"], envelope["optional"]),
        [f["field"] for f in fields],
        [f["optional"] for f in fields],
        (source["name"], source["version"]),
        (snapshot["name"], snapshot["default"]),
        {
            f["field"]: f["optional"]
            for f in source["fields"]
            if f["field"] in {"commit_lsn", "origin", "lsn", "db"}
        },
        [f["field"] for f in fields[-1]["fields"]],
    )


def test_a_row_schema_in_avro_has_every_kind():
    """
    Unions begin with null, decimals are logical, and a struct is defined only once.
    """
    row = json.loads(avro_text(row_schema(NAMES, (ID,), COLUMNS)))
    fields = {f["name"]: (f["type"], f.get("default", "none")) for f in row["fields"]}
    variable = {
        "type": "record",
        "name": "VariableScaleDecimal",
        "namespace": "io.debezium.data",
        "fields": [
            {"name": "scale", "type": "int"},
            {"name": "value", "type": "bytes"},
        ],
        "connect.version": 1,
        "connect.name": "io.debezium.data.VariableScaleDecimal",
    }

    assert {
        "id": ("int", "none"),
        "small": (["null", {"type": "int", "connect.type": "int16"}], None),
        "price": (
            [
                "null",
                {
                    "type": "bytes",
                    "connect.version": 1,
                    "connect.parameters": {
                        "scale": "2",
                        "connect.decimal.precision": "12",
                    },
                    "connect.name": DECIMAL,
                    "logicalType": "decimal",
                    "scale": 2,
                    "precision": 12,
                },
            ],
            None,
        ),
        "on": (
            [
                "null",
                {
                    "type": "int",
                    "connect.version": 1,
                    "connect.name": "io.debezium.time.Date",
                },
            ],
            None,
        ),
        "tags": (["null", {"type": "array", "items": ["null", "string"]}], None),
        "more": (["null", {"type": "map", "values": "string"}], None),
        "any": (["null", variable], None),
        "other": (["null", "io.debezium.data.VariableScaleDecimal"], None),
    } == fields


def test_an_envelope_schema_in_avro_defines_the_row_once():
    """
    ``after`` refers to the type that ``before`` defined; readers accept the schema.
    """
    text = avro_text(envelope_schema(NAMES, (ID,), COLUMNS))
    envelope = json.loads(text)
    fields = {f["name"]: f for f in envelope["fields"]}
    source = fields["source"]["type"]
    snapshot = next(f for f in source["fields"] if f["name"] == "snapshot")
    fastavro.parse_schema(json.loads(text))

    assert (
        ("Envelope", "towpath.shop.line", "towpath.shop.line.Envelope", 2),
        ["null", "towpath.shop.line.Value"],
        ("Source", "io.debezium.connector.postgresql"),
        ("null", "false", "false"),
    ) == (
        (
            envelope["name"],
            envelope["namespace"],
            envelope["connect.name"],
            envelope["connect.version"],
        ),
        fields["after"]["type"],
        (source["name"], source["namespace"]),
        # A default belongs to the union's first branch.
        (
            snapshot["type"][1],
            snapshot["default"],
            snapshot["type"][0]["connect.default"],
        ),
    )


@pytest.mark.parametrize(("precision", "scale"), [(2, -3), (3, 5)])
def test_a_scale_that_avro_forbids_has_no_logical_type(precision, scale):
    """
    numeric(2, -3) and numeric(3, 5) are not Avro decimals; scale and precision remain.
    """
    schema = Schema("struct", name="T", fields=(("n", decimal(precision, scale)),))
    (field,) = json.loads(avro_text(schema))["fields"]

    assert (None, scale, precision) == (
        field["type"].get("logicalType"),
        field["type"]["scale"],
        field["type"]["precision"],
    )


def test_every_avro_name_is_valid():
    """
    Characters that Avro forbids become underscores, in all names and nested fields.
    """
    names = TableNames("1-a", "db", "my shop", "žluť.line", "t")
    inner = Schema("struct", fields=(("x y", Schema("int32")),))
    columns = (ID, Field(1, "2nd €", form(inner), is_nullable=True))
    row = json.loads(avro_text(row_schema(names, (ID,), columns)))
    nested = row["fields"][1]["type"][1]

    assert (
        "_1_a.my_shop._lu_.line",
        "_2nd__",
        "_1_a.my_shop._lu_.line.Value",
        ("_2nd__", "x_y"),
    ) == (
        row["namespace"],
        row["fields"][1]["name"],
        nested["namespace"],
        (nested["name"], nested["fields"][0]["name"]),
    )


def test_columns_whose_names_become_equal_are_an_error():
    """
    The error names both columns, the table and the shared name (E-21).
    """
    columns = (
        ID,
        Field(1, "a-b", TEXT, is_nullable=True),
        Field(2, "a b", TEXT, is_nullable=True),
    )
    with pytest.raises(NameCollisionError) as raised:
        avro_text(row_schema(NAMES, (ID,), columns))

    assert (
        "'a-b' and 'a b' of towpath.shop.line.Value both become 'a_b' when made "
        "valid for Avro"
    ) == str(raised.value)


def test_structs_that_share_a_name_must_be_equal():
    """
    Different types that share a record name are an error that names both.
    """
    one = Schema("struct", name="shop.a-b", fields=(("x", Schema("int32")),))
    two = Schema("struct", name="shop.a_b", fields=(("x", Schema("string")),))
    whole = Schema("struct", name="T", fields=(("one", one), ("two", two)))
    with pytest.raises(NameCollisionError, match=r"'shop.a-b' and 'shop.a_b'"):
        avro_text(whole)

    parameters = {"__debezium.source.column.type": "A"}
    same = Schema("struct", name="shop.a-b", fields=one.fields, parameters=parameters)
    fine = Schema("struct", name="T", fields=(("one", one), ("two", same)))
    (_, second) = json.loads(avro_text(fine))["fields"]

    assert {"name": "two", "type": "shop.a_b", "connect.parameters": parameters} == (
        second
    )


def test_names_map_to_their_sanitized_forms():
    """
    Valid names are unchanged; two names with the same sanitized form are an error.
    """
    names = ("a", "b c", "_9", "9")

    with pytest.raises(NameCollisionError):
        sanitized_all(names, "t")
    assert ({"a": "a", "b c": "b_c"}, "a._1._") == (
        sanitized_all(names[:2], "t"),
        sanitized_path("a.1."),
    )


@pytest.mark.parametrize("write", [schema_document, avro_text, writer])
def test_an_array_of_an_unknown_type_is_an_error(write):
    """
    An array without a schema for its elements has no schema in any format.
    """
    with pytest.raises(ValueError, match="has no item schema"):
        write(Schema("array"))

"""Debezium's forms, value by value, with its preset and default modes."""

import json
from typing import NamedTuple

import pytest

from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Form, TypeFacts, modes_of
from towpath.settings.relay import Relay

MOOD, PRICE, CITEXT, LTREE, HSTORE, RANGE, MULTIRANGE = range(90_000, 90_007)
TYPES = {
    MOOD: TypeFacts("mood", "tm.mood", "e", labels=("sad", "ok", "happy")),
    PRICE: TypeFacts(
        "price", "tm.price", "d", base_oid=1700, base_typmod=((10 << 16) | 3) + 4
    ),
    CITEXT: TypeFacts("citext", "public.citext"),
    LTREE: TypeFacts("ltree", "public.ltree"),
    HSTORE: TypeFacts("hstore", "public.hstore"),
    RANGE: TypeFacts("int4range", "int4range", "r"),
    MULTIRANGE: TypeFacts("int4multirange", "int4multirange", "m"),
    601: TypeFacts("lseg", "lseg"),
    602: TypeFacts("path", "path"),
    603: TypeFacts("box", "box", delimiter=";"),
    628: TypeFacts("line", "line"),
    3220: TypeFacts("pg_lsn", "pg_lsn"),
    4072: TypeFacts("jsonpath", "jsonpath"),
    1007: TypeFacts("_int4", "integer[]", element_oid=23),
    1182: TypeFacts("_date", "date[]", element_oid=1082),
    1231: TypeFacts("_numeric", "numeric[]", element_oid=1700),
    2951: TypeFacts("_uuid", "uuid[]", element_oid=2950),
    3807: TypeFacts("_jsonb", "jsonb[]", element_oid=3802),
}


def numeric(precision: int, scale: int) -> int:
    """Pack a numeric's modifier."""
    return ((precision << 16) | scale) + 4


class Case(NamedTuple):
    """A column, one of its text values, and the JSON that readers get."""

    type_oid: int
    typmod: int
    text: str
    schema: str
    value: object


UUID = "6f1c1a3e-0000-4000-8000-0123456789ab"
DECIMAL = "bytes org.apache.kafka.connect.data.Decimal"
TIME = "io.debezium.time"
DATA = "io.debezium.data"
CASES = [
    Case(16, -1, "t", "boolean", True),
    Case(16, -1, "f", "boolean", False),
    Case(23, -1, "-2147483648", "int32", -2147483648),
    Case(20, -1, "-9223372036854775808", "int64", -9223372036854775808),
    Case(700, -1, "NaN", "float", "NaN"),
    Case(701, -1, "NaN", "double", "NaN"),
    Case(701, -1, "1e+308", "double", 1e308),
    Case(1700, numeric(5, 0), "12345", DECIMAL, "MDk="),
    Case(1700, numeric(5, 0), "-7", DECIMAL, "+Q=="),
    Case(
        1700,
        -1,
        "123456789012345678901234567890.12345",
        f"struct {DATA}.VariableScaleDecimal",
        {"scale": 5, "value": "AmCwX/vn/LEXoCTx4t95"},
    ),
    Case(1700, -1, "NaN", f"struct {DATA}.VariableScaleDecimal", None),
    Case(1700, -1, "Infinity", f"struct {DATA}.VariableScaleDecimal", None),
    Case(790, -1, "$1,234.56", DECIMAL, "AeJA"),
    Case(790, -1, "-$0.01", DECIMAL, "/w=="),
    Case(1042, 8, "ab  ", "string", "ab  "),
    Case(1042, 8, "žš  ", "string", "žš  "),
    Case(1043, 9, "", "string", ""),
    Case(25, -1, "plain", "string", "plain"),
    Case(25, -1, '\t"\\\n', "string", '\t"\\\n'),
    Case(25, -1, "😀 žluťoučký", "string", "😀 žluťoučký"),
    Case(CITEXT, -1, "MiXeD", "string", "MiXeD"),
    Case(17, -1, "\\x00ff10", "bytes", "AP8Q"),
    Case(1560, 1, "0", "boolean", False),
    Case(1560, 7, "1000001", f"bytes {DATA}.Bits", "QQ=="),
    Case(1560, 24, "000000110000001000000001", f"bytes {DATA}.Bits", "AQID"),
    Case(1562, 12, "", f"bytes {DATA}.Bits", ""),
    Case(1082, -1, "2026-02-28", f"int32 {TIME}.Date", 20512),
    Case(1082, -1, "-infinity", f"int32 {TIME}.Date", -2147472691),
    Case(1082, -1, "9999-12-31", f"int32 {TIME}.Date", 2932896),
    Case(1083, 0, "13:51:30", f"int32 {TIME}.Time", 49890000),
    Case(1083, 3, "13:51:30.123", f"int32 {TIME}.Time", 49890123),
    Case(1083, 6, "13:51:30.123456", f"int64 {TIME}.MicroTime", 49890123456),
    Case(
        1266, -1, "13:51:30.123789+02", f"string {TIME}.ZonedTime", "11:51:30.123789Z"
    ),
    Case(1266, -1, "24:00:00+00", f"string {TIME}.ZonedTime", "00:00:00Z"),
    Case(1114, 3, "2026-03-04 05:06:07.891", f"int64 {TIME}.Timestamp", 1772600767891),
    Case(1114, 6, "-infinity", f"int64 {TIME}.MicroTimestamp", -9223372036832400000),
    Case(
        1114,
        6,
        "9999-12-31 23:59:59.999999",
        f"int64 {TIME}.MicroTimestamp",
        253402300799999999,
    ),
    Case(
        1184,
        -1,
        "0001-01-01 00:00:00+00",
        f"string {TIME}.ZonedTimestamp",
        "0001-01-01T00:00:00.000000Z",
    ),
    Case(1186, -1, "-1 days +02:03:00", f"int64 {TIME}.MicroDuration", -79020000000),
    Case(1186, -1, "00:00:00", f"int64 {TIME}.MicroDuration", 0),
    Case(2950, -1, UUID, f"string {DATA}.Uuid", UUID),
    Case(114, -1, '{"b":1, "a": [1]}', f"string {DATA}.Json", '{"b":1, "a": [1]}'),
    Case(114, -1, '"str"', f"string {DATA}.Json", '"str"'),
    Case(3802, -1, "null", f"string {DATA}.Json", "null"),
    Case(3802, -1, "1.10", f"string {DATA}.Json", "1.10"),
    Case(650, -1, "10.1.0.0/16", "string", "10.1.0.0/16"),
    Case(829, -1, "08:00:2b:01:02:03", "string", "08:00:2b:01:02:03"),
    Case(MOOD, -1, "happy", f"string {DATA}.Enum", "happy"),
    Case(PRICE, -1, "12.345", DECIMAL, "MDk="),
    Case(
        HSTORE,
        -1,
        '"a"=>"1", "b"=>NULL, "k 2"=>"v,2"',
        f"string {DATA}.Json",
        '{"a":"1","b":null,"k 2":"v,2"}',
    ),
    Case(LTREE, -1, "Top.Science", f"string {DATA}.Ltree", "Top.Science"),
    Case(
        600,
        -1,
        "(1.5,-2)",
        f"struct {DATA}.geometry.Point",
        {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None},
    ),
    Case(603, -1, "(1,2),(0,0)", "bytes", "KDEuMCwyLjApLCgwLjAsMC4wKQ=="),
    Case(628, -1, "{1,-1,0}", "bytes", "ezEuMCwtMS4wLDAuMH0="),
    Case(601, -1, "[(0,0),(1,1)]", "bytes", "WygwLjAsMC4wKSwoMS4wLDEuMCld"),
    Case(602, -1, "[(0,0),(1,1)]", "bytes", "WygwLjAsMC4wKSwoMS4wLDEuMCld"),
    Case(RANGE, -1, "[1,6)", "string", "[1,6)"),
    Case(MULTIRANGE, -1, "{[1,3),[5,8)}", "bytes", "e1sxLDMpLFs1LDgpfQ=="),
    Case(
        3614,
        -1,
        "'brown':3 'fox':4 'quick':2",
        f"string {DATA}.Tsvector",
        "'brown':3 'fox':4 'quick':2",
    ),
    Case(26, -1, "4000000000", "int64", 4000000000),
    Case(3220, -1, "16/B374D848", "bytes", "MTYvQjM3NEQ4NDg="),
    Case(4072, -1, '$."a"[*]', "bytes", "JC4iYSJbKl0="),
    Case(1007, -1, "{1,NULL,3}", "array", [1, None, 3]),
    Case(1231, numeric(10, 2), "{1.20,3.40}", "array", ["eA==", "AVQ="]),
    Case(2951, -1, f"{{{UUID}}}", "array", [UUID]),
    Case(1182, -1, "{2026-01-01,2026-01-02}", "array", [20454, 20455]),
    Case(3807, -1, r'{"{\"a\": 1}"}', "array", ['{"a": 1}']),
]


def form(case: Case) -> Form:
    """Choose the form under the preset, with unknown types as opaque bytes."""
    relay = Relay.model_validate(
        {"preset": "debezium", "rows": {"unknown_types": "bytes"}}
    )
    found = FormChooser(TYPES, modes_of(relay), [].append).of(
        case.type_oid, case.typmod
    )
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.type_oid}:{case.text}")
def test_every_value_has_debeziums_form(case: Case):
    """
    The literal type, the semantic name and the JSON are those that consumers expect.

    Debezium's snapshot and stream differ for infinite dates; the stream's form is used.
    """
    found = form(case)
    schema = " ".join(filter(None, (found.schema.kind, found.schema.name)))

    assert (case.schema, case.value) == (
        schema,
        json.loads(found.json(case.text.encode())),
    )


@pytest.mark.parametrize(
    ("type_oid", "typmod", "parameters"),
    [
        (1700, numeric(5, 0), {"connect.decimal.precision": "5", "scale": "0"}),
        (PRICE, -1, {"connect.decimal.precision": "10", "scale": "3"}),
        (790, -1, {"scale": "2"}),
        (1560, 24, {"length": "24"}),
        (1562, -1, {"length": "2147483647"}),
        (MOOD, -1, {"allowed": "sad,ok,happy"}),
    ],
)
def test_schemas_have_debeziums_parameters(
    type_oid: int, typmod: int, parameters: dict[str, str]
):
    """
    A schema's parameters contain everything a semantic type needs besides its name.
    """
    found = form(Case(type_oid, typmod, "", "", None))

    assert parameters == dict(found.schema.parameters)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1e-05,10000000)", "(1.0E-5,1.0E7)"),
        ("(0.001,9999999)", "(0.001,9999999.0)"),
        ("(-1.5e+300,Infinity)", "(-1.5E300,Infinity)"),
        ("(NaN,-0)", "(NaN,-0.0)"),
    ],
)
def test_numbers_in_geometry_are_written_as_java_does(text: str, expected: str):
    """
    The numbers in an opaque geometric value are as Debezium's Java driver writes them.
    """
    found = form(Case(603, -1, "", "", None))

    assert expected.encode() == found.value(text.encode())

"""A value of every type, in SQL, and the forms that it takes in records."""

import base64
from typing import Final, NamedTuple

UUID = "6f1c1a3e-0000-4000-8000-0123456789ab"

TYPES = """
create extension citext;
create extension hstore;
create extension ltree;
create schema s;
create type s.mood as enum ('sad', 'ok', 'happy');
alter type s.mood add value 'so-so' before 'ok';
create domain s.price as numeric(10, 3);
create domain s.dear as s.price check (value > 1);
create type s.point3 as (x int, note text, tags text[]);
create type s.line3 as (a s.point3, mood s.mood, costs s.price[]);
create domain s.moods as s.mood[];
create type s.span as range (subtype = float8);
"""


class Literal(NamedTuple):
    """A type, one of its values in SQL, and the value's default and Debezium forms."""

    type: str
    sql: str
    ours: object
    debezium: object


SAME: Final = object()


def _bytes(text: str) -> str:
    """Return a string in the form that bytes have in JSON."""
    return base64.b64encode(text.encode()).decode()


LITERALS = [
    Literal("boolean", "true", True, SAME),
    Literal("smallint", "-32768", -32768, SAME),
    Literal("integer", "-2147483648", -2147483648, SAME),
    Literal("bigint", "-9223372036854775808", -9223372036854775808, SAME),
    Literal("oid", "4000000000", 4000000000, SAME),
    Literal("real", "'NaN'", "NaN", SAME),
    Literal("real", "0.1", 0.1, SAME),
    Literal("double precision", "1e308", 1e308, SAME),
    Literal("double precision", "0.1::float8 + 0.2", 0.30000000000000004, SAME),
    Literal("double precision", "'-Infinity'", "-Infinity", SAME),
    Literal("numeric(5)", "12345", "12345", "MDk="),
    Literal("numeric(5)", "-7", "-7", "+Q=="),
    Literal("numeric(10, 2)", "1.1", "1.10", "bg=="),
    Literal(
        "numeric",
        "123456789012345678901234567890.12345",
        "123456789012345678901234567890.12345",
        {"scale": 5, "value": "AmCwX/vn/LEXoCTx4t95"},
    ),
    Literal("numeric", "'NaN'", "NaN", None),
    Literal("numeric", "'Infinity'", "Infinity", None),
    Literal("numeric(5, 1)", "'NaN'", "NaN", None),
    Literal("money", "1234.56", "1234.56", "AeJA"),
    Literal("money", "-0.01", "-0.01", "/w=="),
    Literal('"char"', "'x'", "x", SAME),
    Literal("name", "'a name'", "a name", SAME),
    Literal("char(4)", "'ab'", "ab  ", SAME),
    Literal("char(4)", "'žš'", "žš  ", SAME),
    Literal("varchar(5)", "''", "", SAME),
    Literal(
        "text",
        "E'tab\\tquote\"back\\\\slash\\nnewline'",
        'tab\tquote"back\\slash\nnewline',
        SAME,
    ),
    Literal("text", "'😀 žluťoučký'", "😀 žluťoučký", SAME),
    Literal("citext", "'MiXeD'", "MiXeD", SAME),
    Literal("bytea", "'\\x00ff10'", "AP8Q", SAME),
    Literal("bit(1)", "B'0'", "0", False),
    Literal("bit(7)", "B'1000001'", "1000001", "QQ=="),
    Literal(
        "bit(24)", "B'000000110000001000000001'", "000000110000001000000001", "AQID"
    ),
    Literal("varbit(12)", "B''", "", ""),
    Literal("date", "'2026-02-28'", "2026-02-28", 20512),
    Literal("date", "'-infinity'", "-infinity", -2147472691),
    Literal("date", "'infinity'", "infinity", 2147483647),
    Literal("date", "'9999-12-31'", "9999-12-31", 2932896),
    Literal("date", "'20260-01-01'", "20260-01-01", 6680285),
    Literal("date", "'0044-03-15 BC'", "0044-03-15 BC", -735160),
    Literal("time(0)", "'13:51:30'", "13:51:30", 49890000),
    Literal("time(3)", "'13:51:30.123'", "13:51:30.123", 49890123),
    Literal("time(6)", "'13:51:30.123456'", "13:51:30.123456", 49890123456),
    Literal("time", "'24:00:00'", "24:00:00", 86_400_000_000),
    Literal("timetz", "'13:51:30.123789+02:00'", "11:51:30.123789Z", SAME),
    Literal("timetz", "'24:00:00+00'", "00:00:00Z", SAME),
    Literal(
        "timestamp(3)",
        "'2026-03-04 05:06:07.891'",
        "2026-03-04T05:06:07.891000",
        1772600767891,
    ),
    Literal("timestamp(6)", "'-infinity'", "-infinity", -9223372036832400000),
    Literal(
        "timestamp(6)",
        "'9999-12-31 23:59:59.999999'",
        "9999-12-31T23:59:59.999999",
        253402300799999999,
    ),
    Literal(
        "timestamp",
        "'0044-03-15 00:00:00 BC'",
        "0044-03-15T00:00:00.000000 BC",
        -63517824000000000,
    ),
    Literal(
        "timestamptz", "'0001-01-01 00:00:00+00'", "0001-01-01T00:00:00.000000Z", SAME
    ),
    Literal(
        "timestamptz(3)",
        "'2026-03-04 05:06:07.8+02'",
        "2026-03-04T03:06:07.800000Z",
        "2026-03-04T03:06:07.800Z",
    ),
    Literal("timestamptz", "'infinity'", "infinity", SAME),
    Literal(
        "timestamptz",
        "'0044-03-15 00:00:00+00 BC'",
        "0044-03-15T00:00:00.000000Z BC",
        "-0043-03-15T00:00:00.000000Z",
    ),
    Literal("interval", "'-1 day +02:03'", "P0Y0M-1DT2H3M0S", -79020000000),
    Literal("interval", "'0'", "P0Y0M0DT0H0M0S", 0),
    Literal("interval", "'P1Y2M3DT4H5M6.78S'", "P1Y2M3DT4H5M6.78S", 37091106780000),
    Literal("uuid", f"'{UUID}'", UUID, SAME),
    Literal(
        "json",
        """'{"b":1, "a": [1,2,{"c":null}]}'""",
        '{"b":1, "a": [1,2,{"c":null}]}',
        SAME,
    ),
    Literal(
        "jsonb",
        """'{"b":1, "a": [1,2,{"c":null}]}'""",
        '{"a": [1, 2, {"c": null}], "b": 1}',
        SAME,
    ),
    Literal("jsonb", "'null'", "null", SAME),
    Literal("inet", "'10.1.2.3'", "10.1.2.3", SAME),
    Literal("cidr", "'10.1.0.0/16'", "10.1.0.0/16", SAME),
    Literal("macaddr", "'08:00:2b:01:02:03'", "08:00:2b:01:02:03", SAME),
    Literal("macaddr8", "'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05", SAME),
    Literal("s.mood", "'happy'", "happy", SAME),
    Literal("s.price", "12.345", "12.345", "MDk="),
    Literal("s.dear", "12.345", "12.345", "MDk="),
    Literal(
        "hstore",
        """'a=>1,b=>NULL,"k 2"=>"v,2"'""",
        '{"a":"1","b":null,"k 2":"v,2"}',
        SAME,
    ),
    Literal("ltree", "'Top.Science.Astronomy'", "Top.Science.Astronomy", SAME),
    Literal(
        "point",
        "'(1.5,-2)'",
        "(1.5,-2)",
        {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None},
    ),
    Literal("box", "'(0,0),(1,2)'", "(1,2),(0,0)", "KDEuMCwyLjApLCgwLjAsMC4wKQ=="),
    Literal("line", "'{1,-1,0}'", "{1,-1,0}", "ezEuMCwtMS4wLDAuMH0="),
    Literal("lseg", "'[(0,0),(1,1)]'", "[(0,0),(1,1)]", "WygwLjAsMC4wKSwoMS4wLDEuMCld"),
    Literal("path", "'[(0,0),(1,1)]'", "[(0,0),(1,1)]", "WygwLjAsMC4wKSwoMS4wLDEuMCld"),
    Literal("int4range", "'[1,6)'", "[1,6)", SAME),
    Literal("int8range", "'(1,5]'", "[2,6)", SAME),
    Literal("numrange", "'[5.3,6.3)'", "[5.3,6.3)", SAME),
    Literal(
        "tsrange",
        "'[2026-01-01 10:00,2026-01-02 10:00]'",
        '["2026-01-01 10:00:00","2026-01-02 10:00:00"]',
        SAME,
    ),
    Literal(
        "tstzrange", "'[2026-01-01 10:00+00,)'", '["2026-01-01 10:00:00+00",)', SAME
    ),
    Literal("daterange", "'[2026-01-01,2026-01-31]'", "[2026-01-01,2026-02-01)", SAME),
    Literal("s.span", "'[1.5,2.5)'", "[1.5,2.5)", SAME),
    Literal(
        "int4multirange", "'{[1,3),[5,8)}'", "{[1,3),[5,8)}", "e1sxLDMpLFs1LDgpfQ=="
    ),
    Literal(
        "tsvector",
        "to_tsvector('english', 'The quick brown foxes')",
        "'brown':3 'fox':4 'quick':2",
        SAME,
    ),
    Literal("pg_lsn", "'16/B374D848'", "16/B374D848", "MTYvQjM3NEQ4NDg="),
    Literal("jsonpath", "'$.a[*]'", '$."a"[*]', "JC4iYSJbKl0="),
    Literal("int2vector", "'1 2 3'", "1 2 3", "MSAyIDM="),
    Literal("integer[]", "'{1,NULL,3}'", [1, None, 3], SAME),
    Literal("integer[]", "'[0:1]={1,2}'", [1, 2], SAME),
    Literal("integer[][]", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]], SAME),
    Literal(
        "text[]", """'{a,"b,c",NULL,"NULL",""}'""", ["a", "b,c", None, "NULL", ""], SAME
    ),
    Literal("bytea[]", "array['\\xff'::bytea]", ["/w=="], SAME),
    Literal(
        "box[]",
        "array['(0,0),(1,2)'::box, '(0,0),(1,1)'::box]",
        ["(1,2),(0,0)", "(1,1),(0,0)"],
        ["KDEuMCwyLjApLCgwLjAsMC4wKQ==", "KDEuMCwxLjApLCgwLjAsMC4wKQ=="],
    ),
    Literal("numeric(10, 2)[]", "'{1.2,3.40}'", ["1.20", "3.40"], ["eA==", "AVQ="]),
    Literal("uuid[]", f"'{{{UUID}}}'", [UUID], SAME),
    Literal(
        "date[]",
        "'{2026-01-01,2026-01-02}'",
        ["2026-01-01", "2026-01-02"],
        [20454, 20455],
    ),
    Literal("jsonb[]", """array['{"a":1}'::jsonb]""", ['{"a": 1}'], SAME),
    Literal("s.mood[]", "'{sad,so-so}'", ["sad", "so-so"], SAME),
    Literal("s.moods", "'{sad}'", ["sad"], SAME),
    Literal("s.price[]", "'{1.5}'", ["1.500"], ["Bdw="]),
    Literal(
        "s.line3",
        "row(row(1, 'say \"hi\", (x)\\', '{a,\"b c\"}'), 'ok', '{1.5}')",
        {
            "a": {"x": 1, "note": 'say "hi", (x)\\', "tags": ["a", "b c"]},
            "mood": "ok",
            "costs": ["1.500"],
        },
        _bytes(
            r'''("(1,""say """"hi"""", (x)\\\\"",""{a,""""b c""""}"")",ok,{1.500})'''
        ),
    ),
    Literal(
        "s.point3[]",
        "array[row(1, '', null)::s.point3, null]",
        [{"x": 1, "note": "", "tags": None}, None],
        [_bytes('(1,"",)'), None],
    ),
    Literal("text", "null", None, SAME),
    Literal("integer[]", "null", None, SAME),
]

"""
Rows of a table with a column of every kind of type, and the table's codec and route.

``COLUMNS`` has each column's type, and a strategy for the text that Postgres writes.
The codec and the route are made with any of the settings in ``SETTINGS``.
"""

import functools
from typing import Any

from hypothesis import strategies as st

from towpath.relay.encode.codecs.codec import Codec, TableNames
from towpath.relay.encode.codecs.factory import CodecFactory
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.encode.rows import ReadSlice
from towpath.relay.encode.table import RouteCallbacks, TableRoute
from towpath.relay.encode.types.form import TypeFacts, TypeField
from towpath.relay.wal.messages import Column, Relation
from towpath.settings.relay import Relay

TYPES = {
    1007: TypeFacts("_int4", "integer[]", category="A", element_oid=23),
    1009: TypeFacts("_text", "text[]", category="A", element_oid=25),
    9002: TypeFacts(
        "part",
        "shop.part",
        kind="c",
        fields=(TypeField("n", 23, -1), TypeField("note", 25, -1)),
    ),
    9003: TypeFacts("mood", "shop.mood", kind="e", labels=('s"ad', "ok")),
    9004: TypeFacts("hstore", "public.hstore"),
    9005: TypeFacts("amount", "shop.amount", kind="d", base_oid=1700),
    9006: TypeFacts("cube", "public.cube"),
}
NUMERIC_12_2 = (12 << 16 | 2) + 4

# Strings that a check of many joined strings may misread.
NASTY = (
    '"',
    '",',
    ',"',
    '","',
    "\\",
    "\\u0000",
    "\\\\u0000",
    "u0000",
    "\x1f\x7f",
    "\t",
)
TEXTS = st.lists(
    st.sampled_from(NASTY)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    max_size=3,
).map("".join)
INTEGERS = st.integers(-(2**31), 2**31 - 1).map(str)
FLOATS = st.floats().map(
    lambda x: repr(x).replace("inf", "Infinity").replace("nan", "NaN")
)


def _instant(parts: tuple[str, str, str, str]) -> str:
    """Write an instant as Postgres does, without trailing zeros."""
    day, clock, fraction, era = parts
    digits = fraction.rstrip("0")
    return f"{day} {clock}{'.' if digits else ''}{digits}{{zone}}{era}"


INSTANTS = st.sampled_from(["infinity", "-infinity"]) | st.tuples(
    st.sampled_from(["2026-11-21", "0001-01-01", "9999-12-31", "10000-02-28"]),
    st.sampled_from(["00:00:00", "23:59:59"]),
    st.integers(0, 999_999).map("{:06d}".format),
    st.sampled_from(["", "", " BC"]),
).map(_instant)
ZONED = INSTANTS.map(lambda text: text.format(zone="+00"))
LOCAL = INSTANTS.map(lambda text: text.format(zone=""))
LISTS = st.lists(INTEGERS | st.just("NULL"), max_size=3)
NON_FINITE = st.sampled_from(["NaN", "Infinity", "-Infinity"])
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=4).map(
    "{:f}".format
)
QUOTED = TEXTS.map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)

# The oid and modifier of each column, and a strategy for the text that Postgres writes.
COLUMNS: tuple[tuple[int, int, st.SearchStrategy[str]], ...] = (
    (20, -1, INTEGERS),
    (25, -1, TEXTS),
    (1043, 9, TEXTS),
    (16, -1, st.sampled_from("tf")),
    (701, -1, FLOATS),
    (1700, NUMERIC_12_2, st.integers(-(10**9), 10**9).map(lambda n: f"{n / 100:.2f}")),
    (1184, -1, ZONED),
    (1184, 3, st.just("2026-11-21 10:00:00.123+00")),
    (1114, -1, LOCAL),
    (1082, -1, st.dates().map(str)),
    (1083, -1, st.times().map(lambda at: at.isoformat("microseconds"))),
    (2950, -1, st.uuids().map(str)),
    (3802, -1, st.sampled_from(['{"a": "\\"b"}', "null", "[]"])),
    (17, -1, st.binary(max_size=9).map(lambda data: "\\x" + data.hex())),
    (869, -1, st.just("10.0.0.1/8")),
    (1007, -1, LISTS.map(lambda found: "{" + ",".join(found) + "}")),
    (9002, -1, st.tuples(INTEGERS, INTEGERS).map("({0[0]},{0[1]})".format)),
    (9003, -1, st.sampled_from(['s"ad', "ok"])),
    (1700, -1, DECIMALS | NON_FINITE),
    (9005, -1, DECIMALS | NON_FINITE),
    (1009, -1, st.lists(QUOTED, max_size=3).map(lambda x: "{" + ",".join(x) + "}")),
    (1007, -1, st.sampled_from(["{{1,2},{NULL,4}}", "[0:1]={1,2}", "{}"])),
    (9002, -1, QUOTED.map("(7,{})".format) | st.sampled_from(["(,)", "(1,2,3)"])),
    (9004, -1, QUOTED.map('"a"=>{}, "b"=>NULL'.format)),
    (1266, -1, st.sampled_from(["10:00:00.5+02", "24:00:00-03:30"])),
    (1186, -1, st.sampled_from(["1 year 2 mons -3 days 04:05:06.789", "-00:00:01"])),
    (790, -1, st.sampled_from(["$1,234.56", "-$0.01"])),
    (1560, 1, st.sampled_from("01")),
    (1562, -1, st.text("01", max_size=12)),
    (600, -1, st.sampled_from(["(1.5,-2)", "(1e+20,NaN)"])),
    (9006, -1, TEXTS),
)
ROWS = st.lists(
    st.tuples(
        COLUMNS[0][2],
        *(st.none() | st.none() | texts_ for _, _, texts_ in COLUMNS[1:]),
    )
    | st.tuples(*(texts_ for _, _, texts_ in COLUMNS)),
    min_size=1,
    max_size=6,
)
RELATION = Relation(
    oid=7,
    schema="shop",
    table="order-lines",
    columns=tuple(
        Column(f"c {at}", oid, typmod) for at, (oid, typmod, _) in enumerate(COLUMNS)
    ),
    key=(0,),
)
FACTS = CatalogFacts((), {}, frozenset({"c 0"}), types=TYPES)
COLUMN_PREFIX = r"shop\.order-lines\.c "
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"placeholder": "__gone", "sanitize_names": True},
    {"key_columns": {"shop.order-lines": ["c 2", "c 0", "c 3"]}},
    {
        "key_columns": {"shop.order-lines": ["c 1"]},
        "source_types": [COLUMN_PREFIX + ".*"],
    },
    {"exclude_columns": [COLUMN_PREFIX + "[0-9]"]},
    {"include_columns": [COLUMN_PREFIX + "1"], "binaries": "hex"},
    {"times": "connect", "decimals": "double", "tombstones": False},
    {"decimals": "precise", "hstore": "map", "unknown_types": "bytes"},
    {
        "mask": [
            {"columns": [COLUMN_PREFIX + "1"], "form": "mask", "length": 5},
            {"columns": [COLUMN_PREFIX + "2"], "form": "truncate", "length": 2},
            {
                "columns": [COLUMN_PREFIX + "6"],
                "form": "hash",
                "algorithm": "SHA-256",
                "salt": "pepper",
            },
        ]
    },
)
SETTINGS = st.tuples(
    st.sampled_from(["towpath", "debezium"]),
    st.sampled_from(["json", "json-schema", "avro"]),
    st.integers(0, len(OPTIONS) - 1),
)
READ_SLICE = ReadSlice(0xABC, "sig-ž", "towpath.backfill", 1_700_000_001_000_001)


def sections(preset: str, form: str, option: int) -> dict[str, Any]:
    """Return the sections of ``[relay]`` for the given settings."""
    return {"preset": preset, "rows": {"format": form, **OPTIONS[option]}}


@functools.cache
def codec_and_route(preset: str, form: str, option: int) -> tuple[Codec, TableRoute]:
    """Make the codec and the route of the table for the given settings."""
    relay = Relay.model_validate(sections(preset, form, option))
    return make_codec_and_route(relay, RELATION, FACTS)


def make_codec_and_route(
    relay: Relay, table: Relation, facts: CatalogFacts
) -> tuple[Codec, TableRoute]:
    """Make the codec and the route of a table."""
    plan = ColumnRules(relay).plan(table, facts)
    names = TableNames("towpath", "db", table.schema, table.table, "towpath.x")
    codec = CodecFactory(relay, lambda *_: 9).make(names, plan.key, plan.columns)
    return codec, TableRoute(
        "towpath", table, plan, codec, relay.rows, RouteCallbacks()
    )

"""The verifier reads values of every type as records represent them."""

import json

import psycopg
import pytest

from support.literals import LITERALS, SAME, TYPES, Literal
from towpath.schemas.table_name import TableName
from towpath.settings.rows import Rows
from towpath.sinks.key_text import text_of
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import as_written

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

MORE_TYPES = (
    TYPES
    + """
create domain s.since as timestamp;
create domain s.seen as timestamptz;
create domain s.blob as bytea;
create domain s.span_of_time as interval;
create domain s.code as character(4);
create domain s.fee as money;
create domain s.notes as hstore;
create type s.all_of_it as (
    at timestamptz, since s.since, open timetz, took interval, fee money, raw bytea,
    ok boolean, ratio real, tags hstore, body json, nothing text, empty text,
    inner_one s.point3);
"""
)
# Values inside other values, and domains over types with a form of their own.
MORE = [
    Literal("s.since", "'2026-03-04 05:06:07.8'", "2026-03-04T05:06:07.800000", SAME),
    Literal("s.seen", "'2026-03-04 05:06+02'", "2026-03-04T03:06:00.000000Z", SAME),
    Literal("s.blob", "'\\x00ff10'", "AP8Q", SAME),
    Literal("s.span_of_time", "'1 day -02:03:04.5'", "P0Y0M1DT-2H-3M-4.5S", SAME),
    Literal("s.code", "'ab'", "ab  ", SAME),
    Literal("s.fee", "'-$1,234,567.80'", "-1234567.80", SAME),
    Literal("s.notes", "'a=>1'", '{"a":"1"}', SAME),
    Literal("timetz", "'00:30:00+02:30'", "22:00:00Z", SAME),
    Literal("integer[]", "'{}'", [], SAME),
    Literal("text[]", "null", None, SAME),
    Literal("boolean[]", "'{t,f,NULL}'", [True, False, None], SAME),
    Literal("money[]", "'{1.5,-1234.5}'", ["1.50", "-1234.50"], SAME),
    Literal(
        "real[]",
        "'{0.1,1e20,NaN,-Infinity,1}'",
        [0.1, 1e20, "NaN", "-Infinity", 1],
        SAME,
    ),
    Literal("float8[]", "'{-2,1.5}'", [-2, 1.5], SAME),
    Literal("timetz[]", "'{13:51:30.5+02}'", ["11:51:30.5Z"], SAME),
    Literal("s.since[]", "'{2026-03-04 05:06}'", ["2026-03-04T05:06:00.000000"], SAME),
    Literal(
        "timestamptz[]",
        "'{2026-03-04 05:06:07.8+02,infinity,0044-03-15 00:00+00 BC}'",
        [
            "2026-03-04T03:06:07.800000Z",
            "infinity",
            "0044-03-15T00:00:00.000000Z BC",
        ],
        SAME,
    ),
    Literal(
        "interval[]",
        "'{1 year -2 mons 3 days -04:05:06.07,0,-00:00:00.5}'",
        ["P0Y10M3DT-4H-5M-6.07S", "P0Y0M0DT0H0M0S", "P0Y0M0DT0H0M-0.5S"],
        SAME,
    ),
    Literal("hstore[]", 'array[\'a=>"q\\""\'::hstore]', ['{"a":"q\\""}'], SAME),
    Literal("json[]", """array['{"b":1, "a":[]}'::json]""", ['{"b":1, "a":[]}'], SAME),
    Literal(
        "s.point3[]",
        "array[row(1, null, '{}')::s.point3, null]",
        [{"x": 1, "note": None, "tags": []}, None],
        SAME,
    ),
    Literal(
        "s.all_of_it",
        "row('2026-03-04 05:06+00', '2026-03-04 05:06', '05:06+01', '1 day', 2,"
        " '\\xff', false, 0.5, 'a=>NULL', '{\"a\": \"\\\\\"}', null, '',"
        " row(1, ',', null))",
        {
            "at": "2026-03-04T05:06:00.000000Z",
            "since": "2026-03-04T05:06:00.000000",
            "open": "04:06:00Z",
            "took": "P0Y0M1DT0H0M0S",
            "fee": "2.00",
            "raw": "/w==",
            "ok": False,
            "ratio": 0.5,
            "tags": '{"a":null}',
            "body": '{"a": "\\\\"}',
            "nothing": None,
            "empty": "",
            "inner_one": {"x": 1, "note": ",", "tags": None},
        },
        SAME,
    ),
]
ALL = [*LITERALS, *MORE]


def row_of(dsn, literals, rows):
    """Make a table with a column for each value; return its form and its only row."""
    with psycopg.connect(dsn) as connection:
        connection.execute(MORE_TYPES)
        columns = ", ".join(f"c{at:03d} {one.type}" for at, one in enumerate(literals))
        connection.execute(f"create table s.t (id int primary key, {columns})")
        values = ", ".join(one.sql for one in literals)
        connection.execute(f"insert into s.t values (1, {values})".encode())  # noqa: S608 - the test's own
    with Source(dsn) as source:
        table = as_written(source.table(TableName("s", "t")), rows)
        form = RowForm(table)
        ((read,),) = (form.source_rows(some) for some in source.rows(table))
    return form, read


@pytest.mark.parametrize("are_texts", [False, True])
def test_every_type_compares_equal(database, are_texts):
    """
    A sink may store the record's values, or their texts.
    """
    form, read = row_of(database, ALL, Rows())
    fields = {
        f"c{at:03d}": text_of(one.ours) if are_texts and one.ours else one.ours
        for at, one in enumerate(ALL)
    }
    held = form.sink_row(StoredRow("1", {"id": 1, **fields}, "", False))
    differing = {
        one.type: (source, sink)
        for one, source, sink in zip(
            ALL, read.texts[1:], json.loads(held.packed)[1:], strict=True
        )
        if source != sink
    }

    assert {} == differing


def test_an_hstore_may_be_stored_as_an_object(database):
    """
    With ``hstore = "map"``, records represent it as an object, even inside an array.
    """
    literals = [
        Literal("hstore", "'b=>1,a=>NULL'", {"a": None, "b": "1"}, SAME),
        Literal("hstore[]", "array['a=>1'::hstore]", [{"a": "1"}], SAME),
    ]
    form, read = row_of(database, literals, Rows.model_validate({"hstore": "map"}))
    fields = {f"c{at:03d}": one.ours for at, one in enumerate(literals)}
    held = form.sink_row(StoredRow("1", {"id": 1, **fields}, "", False))

    assert json.loads(held.packed) == list(read.texts)

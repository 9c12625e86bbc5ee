"""The keys and settings of a source, and how the verifier handles them."""

from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from towpath.schemas.table_name import TableName
from towpath.settings.rows import Rows
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.verify import source as reading
from towpath.sinks.verify.errors import IncomparableError
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.source import Source
from towpath.sinks.verify.table import comparable, published

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KEYS = """
    create extension citext;
    create extension ltree;
    create schema s;
    create domain s.nick as citext;
    create domain s.word as varchar(9);
    create type s.mood as enum ('sad', 'so', 'ok');
    create table s.t (
        whole int primary key, nick s.nick, place ltree, share real, ratio float8,
        mood s.mood, word s.word, days daterange, network inet, code char(3));
"""
ROWS = """
    insert into s.t (whole, mood, word, days, network, code) values
        (1, 'sad', 'B', '[2026-01-02,2026-01-03)', '10.0.0.1', 'B'),
        (2, 'so', 'a', '[2026-01-01,)', '10.0.0.1/8', 'a'),
        (3, 'ok', 'C', '(,)', '9.0.0.1', 'ab');
"""
SHAPE = RelationShape(
    *("s", "t"),
    tuple(
        Column(name, "text")
        for name in (
            *("whole", "nick", "place", "share", "ratio"),
            *("mood", "word", "days", "network", "code"),
        )
    ),
    *(("whole",), "0"),
)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("nick", "public.citext"),
        ("place", "public.ltree"),
        ("share", "real"),
        ("ratio", "double precision"),
    ],
)
def test_a_key_with_an_ambiguous_order_or_text_is_refused(database, key, kind):
    """
    Otherwise rows could be missed between two chunks, or taken for different rows.

    Plain operators may not follow the order of an extension's type; a float can be
    written in several forms.
    """
    with psycopg.connect(database) as connection:
        connection.execute(KEYS)
    with Source(database) as source:
        table = source.table(TableName("s", "t"))

    with pytest.raises(IncomparableError, match=rf"key column {key} .* type {kind}"):
        published(table, replace(SHAPE, key=(key,)), Rows())


@pytest.mark.parametrize("key", ["mood", "word", "days", "network", "code"])
def test_a_key_with_a_built_in_order_is_read_in_order(database, key, monkeypatch):
    """Enums, domains and ranges are read without missing a row between two chunks."""
    monkeypatch.setattr(reading, "ROWS_AT_ONCE", 1)
    with psycopg.connect(database) as connection:
        connection.execute(KEYS)
        connection.execute(ROWS)
    with Source(database) as source:
        table = comparable(replace(source.table(TableName("s", "t")), key=(key,)))
        found = [row[0] for rows in source.rows(table) for row in rows]

    assert ["1", "2", "3"] == sorted(str(one) for one in found)


def test_bytes_inside_values_are_read_in_any_output_format(database):
    """
    The database's settings do not change the compared texts.
    """
    name = conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            sql.SQL("alter database {} set bytea_output = 'escape'").format(
                sql.Identifier(name)
            )
        )
        connection.execute(
            "create table public.t (id int primary key, raw bytea[]);"
            r" insert into public.t values (1, array['\x00ff'::bytea])"
        )
    with Source(database) as source:
        table = source.table(TableName("public", "t"))
        form = RowForm(table)
        ((read,),) = (form.source_rows(some) for some in source.rows(table))

    assert ("1", '["AP8="]') == tuple(read.texts)


def test_types_that_a_warehouse_keeps_as_text_are_recognized(database):
    """
    These are domains, and numerics without a precision or beyond Iceberg's limits.
    """
    kinds = {
        "free": ("numeric", True),
        "fixed": ("numeric(38, 2)", False),
        "wide": ("numeric(39, 2)", True),
        "round": ("numeric(3, -2)", True),
        "fee": ("s.fee", True),
        "since": ("s.since", True),
        "day": ("date", False),
    }
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in kinds.items())
    with psycopg.connect(database) as connection:
        connection.execute(
            "create schema s; create domain s.fee as numeric(5, 2);"
            " create domain s.since as timestamptz;"
            f" create table s.t ({columns})".encode()
        )
    with Source(database) as source:
        table = source.table(TableName("s", "t"))

    assert {name: is_text for name, (_, is_text) in kinds.items()} == {
        one.name: one.is_kept_as_text for one in table.columns
    }

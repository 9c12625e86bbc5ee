"""Expressions of a connector, held against a real catalog."""

import json
from pathlib import Path

import psycopg
import pytest

from towpath.cli import app as root
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
create schema shop;
create table shop.orders (id int primary key, number text);
create table shop.order_lines (id int primary key, order_id int);
create table shop.tmp_orders (id int);
create table shop.parts (id int, day date) partition by range (day);
create table shop.parts_2026 partition of shop.parts
    for values from ('2026-01-01') to ('2027-01-01');
create table public.outbox (id uuid primary key);
create view shop.all_orders as select * from shop.orders;
"""
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "database.dbname": "shop",
    "table.include.list": r"shop\..*,public.outbox",
    "table.exclude.list": r"shop\.tmp_.*",
    "message.key.columns": "shop.order.*:^i",
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
}


def test_expressions_are_made_into_tables(database: str, tmp_path: Path):
    """
    Tables, not views, and partitioned ones by their root; the outbox apart.
    """
    with psycopg.connect(database, autocommit=True) as source:
        source.execute(TABLES)
    connector, out = tmp_path / "connector.json", tmp_path / "towpath.toml"
    connector.write_text(json.dumps(CONNECTOR), encoding="utf-8")
    words = ["config", "from-debezium", str(connector), "--out", str(out)]

    assert root.run([*words, "--dsn", database]) == 0

    settings = load(out, {})
    tables = ("shop.order_lines", "shop.orders", "shop.parts")
    assert settings.relay.outbox.table == "public.outbox"
    assert settings.relay.rows.key_columns["shop.orders"] == ("id",)

    assert tables == settings.database.tables


def test_a_database_that_does_not_answer_is_reported(tmp_path: Path, capsys):
    """
    Exit 3, with the reason; nothing is written.
    """
    connector, out = tmp_path / "connector.json", tmp_path / "towpath.toml"
    connector.write_text(json.dumps(CONNECTOR), encoding="utf-8")
    words = ["config", "from-debezium", str(connector), "--out", str(out)]

    code = root.run([*words, "--dsn", "postgresql://nobody@127.0.0.1:1/none"])

    assert (code, out.exists()) == (3, False)

    assert "the database that --dsn names does not answer" in capsys.readouterr().err

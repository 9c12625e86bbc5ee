"""Regular expressions of a Debezium connector, resolved against a real catalog."""

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


def test_regular_expressions_are_resolved_to_tables(database: str, tmp_path: Path):
    """
    Views are left out, partitions count as their root, and the outbox is separate.
    """
    with psycopg.connect(database, autocommit=True) as source:
        source.execute(TABLES)
    connector, out = tmp_path / "connector.json", tmp_path / "towpath.toml"
    connector.write_text(json.dumps(CONNECTOR), encoding="utf-8")
    args = ["config", "from-debezium", str(connector), "--out", str(out)]

    assert root.run([*args, "--dsn", database]) == 0

    settings = load(out, {})
    tables = ("shop.order_lines", "shop.orders", "shop.parts")
    assert settings.relay.outbox.table == "public.outbox"
    assert settings.relay.rows.key_columns["shop.orders"] == ("id",)

    assert tables == settings.database.tables


def test_an_unreachable_database_is_reported(tmp_path: Path, capsys):
    """
    The exit code is 3, the error has the reason, and no file is written.
    """
    connector, out = tmp_path / "connector.json", tmp_path / "towpath.toml"
    connector.write_text(json.dumps(CONNECTOR), encoding="utf-8")
    args = ["config", "from-debezium", str(connector), "--out", str(out)]

    code = root.run([*args, "--dsn", "postgresql://nobody@127.0.0.1:1/none"])

    assert (code, out.exists()) == (3, False)

    assert "the database that --dsn names does not answer" in capsys.readouterr().err

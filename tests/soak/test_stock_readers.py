"""
Unmodified readers of ``preset = "debezium"`` keep tables equal to a changing source.

``docs/stock-readers.md`` shows the settings of this file.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from support.connect import UNWRAPPED, connected, jdbc_sink, rows_of
from support.flink import FAILED, flink
from support.rig import Rig
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

WITHIN_S = 600.0
ROWS = 2_000
CHANGES = 3_000
COLUMNS = (
    *("id", "name", "price", "made_at", "local_at", "day"),
    *("is_live", "big", "ratio", "data", "doc", "tag"),
)
TABLE = """
create table {} (
    id int primary key, name text not null, price numeric(10, 2), made_at timestamptz,
    local_at timestamp(3), day date, is_live boolean, big bigint,
    ratio double precision, data bytea, doc jsonb, tag uuid)
"""
FILL = """
insert into s.items select n, 'item ' || n, n * 1.25, '2026-01-01'::timestamptz
    + n * interval '61.000001 s', '2026-01-01'::timestamp(3) + n * interval '61.001 s',
    '2026-01-01'::date + n, n %% 2 = 0, n::bigint << 32, n / 7.0::float8,
    decode('00ff', 'hex'), jsonb_build_object('n', n), gen_random_uuid()
from generate_series(%s::int, %s::int) n
"""
# Every kind of change, each to a row that may or may not exist.
STATEMENTS = (
    "update s.items set name = 'ä ''\"' || %s, price = -price where id = %s",
    (
        "update s.items set price = null, made_at = null, data = null, day = null,"
        " local_at = null, doc = null, tag = null, is_live = null, big = null,"
        " ratio = null where %s > 0 and id = %s"
    ),
    (
        "update s.items set id = %s where id = %s and not exists"
        " (select from s.items where id = %s)"
    ),
    "delete from s.items where %s > 0 and id = %s",
    (
        "insert into s.items (id, name, price, made_at) values (%s, 'new ' || %s,"
        " 12345678.90, '1999-12-31 23:59:59.999999+14') on conflict do nothing"
    ),
)

FLINK_COLUMNS = """
    id INT, name STRING, price DECIMAL(10, 2), made_at STRING, local_at TIMESTAMP(3),
    `day` DATE, is_live BOOLEAN, big BIGINT, ratio DOUBLE, data BYTES, doc STRING,
    tag STRING, PRIMARY KEY (id) NOT ENFORCED"""
FLINK_SETTINGS = """
SET 'table.local-time-zone' = 'UTC';
SET 'table.dml-sync' = 'true';
SET 'table.exec.source.cdc-events-duplicate' = 'true';
"""
FLINK_SOURCE = """
CREATE TABLE {name}_topic ({columns}) WITH (
    'connector' = 'kafka',
    'topic' = '{topic}',
    'properties.bootstrap.servers' = '{kafka}',
    'scan.startup.mode' = 'earliest-offset',
    'format' = '{format}',
    {options}
);
"""
FLINK_SINK = """
CREATE TABLE {name}_copy ({columns}) WITH (
    'connector' = 'jdbc',
    'url' = '{url}?stringtype=unspecified',
    'username' = '{user}',
    'password' = 'none',
    'table-name' = '{name}',
    'sink.buffer-flush.interval' = '200ms'
);
"""
JSON_OPTIONS = """\
'debezium-json.schema-include' = 'true',
    'debezium-json.timestamp-format.standard' = 'ISO-8601'"""
AVRO_OPTIONS = "'debezium-avro-confluent.url' = '{registry}'"
# Flink's `debezium-json` cannot read decimals as bytes, or times as numbers.
JSON_RELAY = """\
preset = "debezium"
[relay.rows]
decimals = "string"
times = "iso"
"""
AVRO_RELAY = """\
preset = "debezium"
[relay.rows]
format = "avro"
"""


@pytest.fixture
def relays(stack, database, unique, tmp_path) -> Iterator[Callable[..., Rig]]:
    """Provide a function that starts relays of one table with many column types."""
    made: list[Rig] = []

    def make(name: str, relay: str, **more: Any) -> Rig:
        folder = tmp_path / name
        folder.mkdir()
        rig = Rig(database, stack.kafka, f"{unique}_{name}", folder)
        made.append(rig)
        if rig.one("select to_regclass('s.items')") is None:
            rig.execute("create schema s")
            rig.connection.execute(sql.SQL(TABLE).format(sql.Identifier("s", "items")))
            rig.execute("alter table s.items replica identity full")
        rig.configure(relay, tables=["s.items"], partitions=3, **more)
        rig.init()
        rig.start()
        return rig

    yield make
    for rig in made:
        rig.close()


def change(rig: Rig, rng: random.Random, times: int) -> None:
    """Make random changes to rows, including their keys."""
    for _ in range(times):
        statement = rng.choice(STATEMENTS)
        new, old = (rng.randrange(1, 2 * ROWS) for _ in range(2))
        values = (new, old, new)[: statement.count("%s")]
        rig.execute(statement, *values)


def wait_for_copies(rig: Rig, names: list[str], log: Path, failed: str) -> None:
    """Wait until copies equal the source; fail if the reader fails."""
    source = rows_of(rig, sql.Identifier("s", "items"), COLUMNS)
    assert len(source) > ROWS / 2
    for name in names:
        until(
            lambda name=name: (
                rows_of(rig, sql.Identifier(name), COLUMNS) == source
                or failed in log.read_text()
            ),
            f"{name} equals the source",
            timeout_s=WITHIN_S,
            pause_s=0.5,
        )
        assert failed not in log.read_text(), log.read_text()[-5000:]


def read_existing(rig: Rig) -> None:
    """Request a snapshot of the rows that are older than the relay's slot."""
    data = {"data-collections": ["s.items"], "type": "incremental", "relay": rig.prefix}
    rig.execute(
        "insert into towpath.signal (id, type, data) values (%s, %s, %s)",
        *(rig.prefix, "execute-snapshot", json.dumps(data)),
    )


def statements(rig: Rig, name: str, form: str, options: str) -> str:
    """Return the Flink SQL that declares a topic and a copy of its table."""
    parts = conninfo_to_dict(rig.dsn)
    url = f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}"
    source = FLINK_SOURCE.format(
        name=name,
        columns=FLINK_COLUMNS,
        topic=rig.topic("s.items"),
        kafka=rig.kafka,
        format=form,
        options=options,
    )
    return source + FLINK_SINK.format(
        name=name, columns=FLINK_COLUMNS, url=url, user=parts["user"]
    )


def test_flink_keeps_tables_equal(stack, relays, tmp_path):
    """Flink applies a snapshot and then changes, from JSON and from Avro."""
    rng = random.Random(41)  # noqa: S311 - no secret
    plain = relays("plain", JSON_RELAY)
    plain.execute(FILL, 1, ROWS)
    avro = relays("avro", AVRO_RELAY, registry_url=stack.registry_url)
    for name in ("plain", "avro"):
        avro.connection.execute(sql.SQL(TABLE).format(sql.Identifier(name)))
    read_existing(avro)
    change(plain, rng, CHANGES)
    avro_options = AVRO_OPTIONS.format(registry=stack.registry_url)
    script = "".join(
        (
            FLINK_SETTINGS,
            statements(plain, "plain", "debezium-json", JSON_OPTIONS),
            statements(avro, "avro", "debezium-avro-confluent", avro_options),
            "BEGIN STATEMENT SET;\n",
            "INSERT INTO plain_copy SELECT * FROM plain_topic;\n",
            "INSERT INTO avro_copy SELECT * FROM avro_topic;\n",
            "END;\n",
        )
    )
    with flink(tmp_path, script) as log:
        wait_for_copies(plain, ["plain", "avro"], log, FAILED)
        change(plain, rng, CHANGES)
        wait_for_copies(plain, ["plain", "avro"], log, FAILED)


def test_debeziums_jdbc_sink_keeps_tables_equal(relays, tmp_path):
    """The sink applies a snapshot, then changes, with and without unwrapping."""
    rng = random.Random(42)  # noqa: S311 - no secret
    rig = relays("connect", 'preset = "debezium"\n')
    rig.execute(FILL, 1, ROWS)
    read_existing(rig)
    change(rig, rng, CHANGES)
    sinks = [
        jdbc_sink(rig, "s.items", "whole"),
        jdbc_sink(rig, "s.items", "unwrapped", **UNWRAPPED),
    ]
    names = [sink["name"] for sink in sinks]
    with connected(rig.kafka, tmp_path, sinks) as log:
        wait_for_copies(rig, names, log, "unrecoverable exception")
        change(rig, rng, CHANGES)
        wait_for_copies(rig, names, log, "unrecoverable exception")

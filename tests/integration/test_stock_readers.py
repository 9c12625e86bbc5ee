"""
Unmodified readers of ``preset = "debezium"`` keep their tables equal to the source.

Debezium's own JDBC sink runs in Kafka Connect, whose converters read our topics.
"""

from collections.abc import Iterator

import pytest
from psycopg import sql

from support.connect import UNWRAPPED, connected, jdbc_sink, rows_of
from support.rig import Rig
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

# Connect scans all of its archives at startup.
STARTED_WITHIN_S = 180.0
COLUMNS = ("id", "name", "price", "made_at", "is_live", "data")


@pytest.fixture
def rig(stack, database, unique, tmp_path) -> Iterator[Rig]:
    """Provide a relay with Debezium's preset, and a table with common types."""
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.execute("create schema s")
    rig.execute(
        "create table s.items (id int primary key, name text not null,"
        " price numeric(10, 2), made_at timestamptz, is_live boolean, data bytea)"
    )
    rig.configure('preset = "debezium"\n', tables=["s.items"], partitions=1)
    rig.init()
    rig.start()
    yield rig
    rig.close()


def test_debeziums_jdbc_sink_keeps_its_table_equal_to_the_source(rig):
    """
    It applies every kind of change, with and without ``ExtractNewRecordState``.
    """
    rig.execute(
        "insert into s.items select n, 'item ' || n, n * 1.25, now(), n % 2 = 0,"
        " decode('00ff', 'hex') from generate_series(1, 20) n"
    )
    rig.execute("update s.items set name = 'ä ''\"', price = null where id = 3")
    rig.execute("update s.items set id = 104 where id = 4")
    rig.execute("delete from s.items where id in (5, 6)")
    rig.execute("update s.items set id = 5, made_at = 'epoch' where id = 7")
    rig.confirm()
    sinks = [
        jdbc_sink(rig, "s.items", "enveloped"),
        jdbc_sink(rig, "s.items", "unwrapped", **UNWRAPPED),
    ]
    with connected(rig.kafka, rig.folder, sinks) as log:
        for sink in sinks:
            copy = sql.Identifier(sink["name"])
            until(
                lambda copy=copy: (
                    rows_of(rig, copy, COLUMNS)
                    == rows_of(rig, sql.Identifier("s", "items"), COLUMNS)
                    or "unrecoverable exception" in log.read_text()
                ),
                f"{sink['name']} equals the source",
                timeout_s=STARTED_WITHIN_S,
            )
        assert "unrecoverable exception" not in log.read_text()
    assert len(rows_of(rig, sql.Identifier("enveloped"), COLUMNS)) == 18

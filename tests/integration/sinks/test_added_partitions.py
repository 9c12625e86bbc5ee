"""Partitions are added to a topic under load, and a sink still equals its source."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from support.topics import read_to_end
from support.verified_sink import VerifiedRig
from support.waiting import until
from towpath.cli.app import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WRITES = """
    update s.t set v = v + 1 where id % 50 = %(n)s % 50;
    delete from s.t where id = %(n)s;
    insert into s.t select %(n)s + 1000, %(n)s on conflict (id) do update set v = 0
"""


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a cache that follows a table."""
    stack.up("postgres", "kafka")
    made = VerifiedRig(database, stack.kafka, unique, tmp_path)
    made.prepare(
        f'kind = "cache"\nurl = "{stack.redis_url}"\n',
        {"t": "id int primary key, v int"},
    )
    made.execute("insert into s.t select n, n from generate_series(1, 500) n")
    try:
        with made.followed():
            yield made
    finally:
        made.close()


@contextmanager
def load(rig):
    """Continuously change, delete and insert rows during the block."""
    ending = threading.Event()

    def write():
        number = 0
        with psycopg.connect(rig.dsn, autocommit=True) as connection:
            while not ending.wait(0.01):
                number += 1
                for statement in WRITES.split(";"):
                    connection.execute(
                        statement.replace("% 50", "%% 50"), {"n": number}
                    )

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(write)
        try:
            yield
        finally:
            ending.set()
    done.result()


def partitions_with_records(rig, topic):
    """Return the partitions that have a record."""
    return {each.partition() for each in read_to_end(rig.kafka, topic)}


def test_a_sink_equals_its_source_after_keys_changed_partitions(rig, capsys):
    """
    Added partitions have no record until the repair; then the sink ends up equal.
    """
    topic = rig.topic("s.t")
    admin = AdminClient({"bootstrap.servers": rig.kafka})
    with load(rig):
        admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
        assert rig.process.wait(60) == 3
        assert partitions_with_records(rig, topic) <= {0, 1, 2}
        command = ["relay", "state", "repair", "--yes", "--config", str(rig.config)]
        assert run(command) == 0
        rig.start()
        until(
            lambda: partitions_with_records(rig, topic) > {0, 1, 2},
            "the added partitions have records",
        )
    rig.catch_up()
    code, report = rig.verify(capsys)

    assert (code, [route["error"] for route in report["routes"]]) == (0, [None])

"""
Checks of the doctor that need a specially prepared server to fail.

The servers are brokers that are killed or fenced, a standby, a Postgres 15, and servers
with settings that need a restart or with tables that grew for years.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from opensearchpy import OpenSearch

from support import postgres_15
from support.examined_source import (
    TABLES,
    Source,
    examined,
    health,
    health_of_postgres,
    ids,
    prepared,
)
from support.kafka_cluster import KafkaCluster
from support.own_postgres import OwnPostgres
from support.rig import Rig
from support.standby import start_standby
from support.valkey import valkey
from support.waiting import until
from towpath.deploy.doctor.servers import broker_findings
from towpath.deploy.local import postgres
from towpath.deploy.local.stack import Stack
from towpath.relay.errors import BrokerUnavailableError
from towpath.relay.kafka.preflight import read_cluster
from towpath.schemas.failure import UnavailableError
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_topic
from towpath.settings import load

# Long enough for servers to start on a busy machine.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# No source is needed to examine a broker.
UNUSED = "postgresql://unused/shop"
UNSAFE_BROKER = """
auto.create.topics.enable=true
unclean.leader.election.enable=true
offsets.topic.num.partitions=1
"""
# The controller fences a broker that has not reported for this long.
SHORT_SESSION = "broker.session.timeout.ms=1000\n"
RARE_HEARTBEATS = (
    "broker.session.timeout.ms=180000\nbroker.heartbeat.interval.ms=60000\n"
)

DEAD_ROWS = """
alter table towpath.outbox set (autovacuum_enabled = false);
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
select gen_random_uuid(), 'note', n, 'Written', '1' from generate_series(1, 100001) n;
delete from towpath.outbox;
select pg_stat_force_next_flush()
"""
PARTITIONED = """
create table box (id int) partition by range (id);
create table box_1 partition of box for values from (1) to (9);
create table box_2 partition of box for values from (9) to (20)
"""
BOX = '[relay.outbox]\ntable = "public.box"'
DETACH = "alter table box detach partition box_1 concurrently"
PREPARED = "create table held (id int); begin; insert into held values (1);"


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., KafkaCluster]]:
    """Provide a function that makes Kafka clusters without starting them."""
    made: list[KafkaCluster] = []

    def make(*args: object) -> KafkaCluster:
        made.append(KafkaCluster(tmp_path / "kafka", *args))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_unsafe_brokers_and_a_dead_broker_are_found(
    make_cluster, unique: str, tmp_path: Path
):
    """
    Unsafe settings, topics with one replica, and a dead broker are reported.

    The dead broker has the only replica of ``__consumer_offsets``; the other findings
    are still reported.
    """
    cluster = make_cluster(3)
    cluster.start(more=UNSAFE_BROKER)
    cluster.wait_for_brokers(3)
    note, day = (table_topic(unique, TableName("public", t)) for t in ("note", "day"))
    cluster.create(note, [[1, 2, 3]], min_insync_replicas="1")
    for single in (day, "__consumer_offsets"):
        cluster.create(single, [[3]])
    settings = Source(cluster, UNUSED, unique, tmp_path).configure()
    before = ids(broker_findings(settings))
    cluster.kill(3)
    cluster.wait_for_brokers(2)
    lost = ids(broker_findings(settings)) - before

    assert before >= {
        "warning kafka-auto-create",
        "warning kafka-unclean-election",
        "warning kafka-replication-single",
        "warning topic-min-insync-low",
    }
    assert {"error topic-leaderless", "warning topic-under-replicated"} == lost


def test_a_fenced_broker_is_unavailable(make_cluster, unique: str, tmp_path: Path):
    """
    The broker responds, but lists no brokers, because its heartbeats are late.
    """
    cluster = make_cluster(2, "controller")
    cluster.start(1, more=SHORT_SESSION)
    cluster.start(2)
    cluster.wait_for_brokers(1)
    cluster.create(table_topic(unique, TableName("public", "note")), [[2]])
    cluster.kill(2)
    cluster.start(2, more=RARE_HEARTBEATS)
    settings = Source(cluster, UNUSED, unique, tmp_path).configure()

    def is_fenced() -> bool:
        with suppress(BrokerUnavailableError):
            read_cluster(settings)
            return False
        return True

    until(is_fenced, "the controller fences the broker")
    with pytest.raises(BrokerUnavailableError, match="reading the brokers' settings"):
        read_cluster(settings)
    with pytest.raises(UnavailableError):
        broker_findings(settings)


def test_a_source_without_logical_wal_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The server has Postgres's default WAL level.
    """
    source = Source(stack, server.start(wal_level="replica"), unique, tmp_path)
    source.execute(TABLES)

    assert "error postgres-wal-level" in examined(source)


def test_a_standby_can_be_neither_source_nor_target(stack, unique: str, tmp_path: Path):
    """
    On the primary, a standby's slot is found until logical slots wait for it.
    """
    primary = Stack(tmp_path / "primary")
    standby = None
    try:
        dsn = primary.up(["postgres"]).dsn("shop")
        source = prepared(stack, dsn, unique, tmp_path)
        standby = start_standby(primary, tmp_path / "standby", copies_slots=False)
        on_primary = examined(source)
        source.execute(
            "alter system set synchronized_standby_slots = 'standby'",
            "select pg_reload_conf()",
        )
        until(
            lambda: "warning postgres-standby-behind" not in examined(source),
            "the setting takes effect",
        )
        copy = standby.addresses().dsn("shop")
        source.dsn = copy
        found, target = examined(source), health_of_postgres(copy)
    finally:
        for each in filter(None, (standby, primary)):
            each.purge()

    assert "error postgres-standby" not in on_primary
    assert "warning postgres-standby-behind" in on_primary
    assert ("error postgres-standby" in found, {"error target-standby"}) == (
        True,
        target,
    )


def test_a_release_without_failover_and_checksums_is_found(
    stack, unique: str, tmp_path: Path
):
    """
    Postgres 15 cannot copy a slot to standbys, and has no checksums by default.
    """
    with postgres_15.serving() as addresses:
        postgres.create_database(addresses.dsn("postgres"), unique)
        source = prepared(stack, addresses.dsn(unique), unique, tmp_path)
        before = examined(source)
        source.execute("select pg_create_physical_replication_slot('{name}_standby')")
        after = examined(source)

    assert "info postgres-checksums" in before
    assert {"info slot-failover-unsupported"} == after - before


def test_a_slot_at_its_limit_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    Little space left is a warning; no space left is an error.
    """
    dsn = server.start(max_slot_wal_keep_size="64MB")
    source = prepared(stack, dsn, unique, tmp_path)
    before = examined(source)
    server.write_log_until("safe_wal_size between 1 and 6000000")
    near = examined(source)
    server.write_log_until("wal_status = 'unreserved'")
    beyond = examined(source)

    assert {"warning slot-near-limit"} == near - before
    assert "error slot-near-limit" in beyond


def test_a_collation_of_a_different_version_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The catalog has an older collation version, as after a system upgrade.
    """
    server.start()
    server.one(
        "create database c template template0 locale_provider builtin"
        " builtin_locale 'C.UTF-8' locale 'C.UTF-8'"
    )
    source = Source(stack, server.dsn.replace(unique, "c"), unique, tmp_path)
    source.execute(TABLES)
    before = examined(source)
    source.execute("update pg_database set datcollversion = '0' where datname = 'c'")

    assert {"warning postgres-collation-version"} == examined(source) - before


def test_a_large_outbox_is_found(
    stack, server: OwnPostgres, unique: str, tmp_path: Path
):
    """
    The table's files are sparse, but their size is eleven gigabytes.
    """
    source = prepared(stack, server.start(), unique, tmp_path)
    before = examined(source)
    server.inflate("towpath.outbox", 11)

    assert {"warning outbox-large"} == examined(source) - before


def test_a_target_that_is_full_or_unsafe_is_found(server: OwnPostgres):
    """
    Nine of ten connections are in use, and fsync is off, so a crash may lose rows.
    """
    dsn = server.start(max_connections="10", fsync="off")
    before = health_of_postgres(dsn)
    others = [psycopg.connect(dsn) for _ in range(8)]
    try:
        found = health_of_postgres(dsn)
    finally:
        for each in others:
            each.close()

    assert ({"warning target-fsync"}, {"info target-connections"}) == (
        before,
        found - before,
    )


def test_an_outbox_of_dead_rows_is_found(source: Source):
    """
    All rows of the outbox are deleted, but the table is not vacuumed.
    """
    before = examined(source)
    source.execute(DEAD_ROWS)
    found: set[str] = set()

    def is_reported() -> bool:
        found.update(examined(source) - before)
        return bool(found)

    until(is_reported, "the statistics are written")
    assert {"warning outbox-dead-rows"} == found


def test_an_interrupted_detachment_is_found(source: Source):
    """
    A reader delays the detachment until its statement times out.
    """
    source.execute(PARTITIONED)
    before = examined(source, BOX)
    with psycopg.connect(source.dsn) as reader, psycopg.connect(source.dsn) as other:
        reader.execute("select from box")
        other.autocommit = True
        other.execute("set statement_timeout = '500ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            other.execute(DETACH)
    found = examined(source, BOX) - before

    assert {"warning outbox-partition-detaching"} == found


def test_a_prepared_transaction_that_delays_the_slot_is_found(bare: Source):
    """
    The creation of the slot would wait for the prepared transaction.
    """
    before = examined(bare)
    with psycopg.connect(bare.dsn, autocommit=True) as connection:
        connection.execute(PREPARED)
        connection.execute(f"prepare transaction '{bare.name}'")
        try:
            found = examined(bare) - before
        finally:
            connection.execute(f"rollback prepared '{bare.name}'")

    assert {"warning transaction-old"} == found


def test_added_partitions_are_found(stack, database: str, unique, tmp_path):
    """
    The relay has a mark for one partition, but the topic has two.
    """
    rig = Rig(database, stack.kafka, unique, tmp_path)
    try:
        rig.execute("create table note (id int primary key)")
        rig.configure(tables=["public.note"], partitions=1)
        rig.init()
        rig.start()
        rig.execute("insert into note values (1)")
        rig.confirm()
        assert 0 == rig.stop()
        settings = load(rig.config, {})
        before = ids(broker_findings(settings))
        topic = table_topic(unique, TableName("public", "note"))
        admin = AdminClient({"bootstrap.servers": stack.kafka})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(10)
        after = ids(broker_findings(settings))
    finally:
        rig.close()

    assert {"error topic-partitions-changed"} == after - before


def test_a_cache_that_cannot_write_its_file_is_found(tmp_path: Path):
    """
    The folder of its file is gone, as if its disk had been unmounted.
    """
    with valkey(tmp_path / "cache", "--appendonly", "no") as server:
        before = health("cache", server.url, "r")
        shutil.rmtree(server.folder)
        server.client.bgsave()
        until(
            lambda: "error cache-file-failed" in health("cache", server.url, "r"),
            "the write has failed",
        )

    assert {"warning cache-no-file"} == before


def test_an_index_without_its_shard_is_found(stack, unique: str):
    """
    Its settings prevent the assignment of its primary shard.
    """
    client = OpenSearch(hosts=[stack.opensearch_url])
    before = health("search", stack.opensearch_url, unique)
    settings = {"index.routing.allocation.require._name": "nowhere"}
    client.indices.create(
        index=unique, body={"settings": settings}, params={"wait_for_active_shards": 0}
    )
    try:
        found = health("search", stack.opensearch_url, unique) - before
    finally:
        client.indices.delete(index=unique)
        client.close()

    assert "error search-red" in found

"""Findings of the checks before a start, computed from facts alone."""

from types import SimpleNamespace

import orjson
import pytest

from support.copying import replace
from towpath.relay.kafka.preflight import ClusterFacts, TopicSettings, kafka_findings
from towpath.relay.postgres.preflight import running_findings
from towpath.relay.postgres.relays import RelayFacts
from towpath.relay.postgres.replication import read_forks
from towpath.relay.postgres.source_facts import (
    OWN_TABLES,
    OldTransaction,
    PublicationFacts,
    PublishedTable,
    ServerFacts,
    SourceFacts,
)
from towpath.relay.recovery.backfill import fill_statement, gap_record
from towpath.relay.recovery.lineage import Gap, Lineage, SlotHistory
from towpath.relay.snapshot.naming import Registration
from towpath.schemas.findings import Severity
from towpath.settings import (
    Kafka,
    Registry,
    Relay,
    Settings,
    Snapshot,
    Source,
    Topics,
)

SETTINGS = Settings(
    version=1,
    source=(Source(dsn="x", tables=("shop.orders",)),),
    kafka=Kafka(bootstrap_servers="x"),
    registry=Registry(url="http://x"),
    topics=Topics(replication_factor=2),
)
NAMED = PublishedTable()
TABLES = PublicationFacts(
    is_for_all=False,
    operations=(True,) * 4,
    via_root=True,
    tables={"shop.orders": NAMED, "towpath.signal": NAMED},
)
EVENTS = replace(TABLES, tables={"towpath.outbox": NAMED})
SERVER = ServerFacts(180006, "logical", "UTF8", keep_mebibytes=51_200)
READY = SourceFacts(
    server=SERVER,
    own_tables=frozenset(OWN_TABLES),
    tables={},
    publications={"towpath": TABLES, "towpath_outbox": EVENTS},
    slot=SlotHistory(1, is_active=True),
    relays=RelayFacts({"towpath": 1}),
)
RELAY = Registration("towpath", 1)
ORDERS = "towpath.shop.orders"
TOPIC = TopicSettings(6, 2, {"retention.ms": "604800000", "cleanup.policy": "delete"})
STATE = TopicSettings(1, 2, {"cleanup.policy": "compact"})
CLUSTER = ClusterFacts(2, topics={ORDERS: TOPIC, "towpath.relay-state": STATE})


def with_topic(**settings: str) -> ClusterFacts:
    """Change settings of the table's topic."""
    changed = {**TOPIC.settings, **settings}
    return replace(
        CLUSTER, topics={**CLUSTER.topics, ORDERS: replace(TOPIC, settings=changed)}
    )


def test_a_source_that_is_ready_has_no_findings():
    """
    A correct source yields an empty list.
    """
    assert [] == running_findings(READY, SETTINGS)


@pytest.mark.parametrize(
    ("facts", "what", "remedy"),
    [
        (replace(READY, slot=None), "slot towpath is missing", "relay init"),
        (
            replace(READY, slot=SlotHistory(1, invalidation_reason="wal_removed")),
            "wal_removed",
            "on_gap",
        ),
        (
            replace(READY, slot=SlotHistory(1, is_ours=False, kind="a physical one")),
            "a physical one",
            "[source] slot",
        ),
        (
            replace(READY, publications={"towpath": TABLES}),
            "publication towpath_outbox is missing",
            "relay init",
        ),
        (
            replace(READY, publications={"towpath": EVENTS, "towpath_outbox": EVENTS}),
            "does not include shop.orders",
            "relay init",
        ),
        (
            replace(READY, publications={"towpath": EVENTS, "towpath_outbox": EVENTS}),
            "does not include towpath.signal",
            "relay init",
        ),
        (
            replace(READY, own_tables=frozenset({"towpath.outbox"})),
            "table towpath.heartbeat is missing",
            "relay init",
        ),
        (
            replace(READY, slot=None, server=replace(SERVER, slots=10, max_slots=10)),
            "all 10 replication slots",
            "max_replication_slots = 15",
        ),
        (
            replace(
                READY,
                slot=SlotHistory(1),
                server=replace(SERVER, senders=10, max_senders=10),
            ),
            "all 10 WAL senders",
            "max_wal_senders = 15",
        ),
        (
            replace(READY, server=replace(SERVER, keep_mebibytes=-1)),
            "max_slot_wal_keep_size is -1",
            "'50GB'",
        ),
        (
            replace(READY, server=replace(SERVER, decoding_kibibytes=64)),
            "logical_decoding_work_mem is 64 kB",
            "'64MB'",
        ),
        (
            replace(READY, old_transactions=[OldTransaction("77", "psql", 301.0)]),
            "transaction of 77 (psql)",
            "pg_terminate_backend(77)",
        ),
        (
            replace(
                READY,
                slot=None,
                old_transactions=[OldTransaction("prepared p1", "me", 1.0)],
            ),
            "transaction of prepared p1",
            "ROLLBACK PREPARED 'p1'",
        ),
        (
            replace(
                READY,
                slot=None,
                old_transactions=[OldTransaction("prepared it's", "me", 1.0)],
            ),
            "transaction of prepared it's",
            "ROLLBACK PREPARED 'it''s'",
        ),
    ],
)
def test_each_defect_of_the_source_is_found_with_its_remedy(
    facts: SourceFacts, what: str, remedy: str
):
    """
    B30, B77, W-01, W-14: each missing or endangered part is named with its remedy.
    """
    found = running_findings(facts, SETTINGS)

    assert any(what in each.what and remedy in each.cure for each in found)


def test_an_unpublished_bare_signal_table_is_found():
    """
    Its signals would never arrive; the table may have been created after init.
    """
    bare = SETTINGS.model_copy(
        update={"relay": Relay(snapshot=Snapshot(signal_table="public.dbz_signal"))}
    )
    missing = [each.what for each in running_findings(READY, bare)]

    assert ["publication towpath does not include public.dbz_signal"] == missing


def test_a_cluster_that_is_ready_has_no_findings():
    """
    Topics as the relay creates them, on a healthy cluster, yield no findings.
    """
    assert [] == kafka_findings(CLUSTER, SETTINGS)


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("towpath.relay-state", " and run towpath relay state repair"),
        (
            "towpath.relations",
            (
                ", start the relay again and run towpath snapshot start: a table is "
                "announced with its next change, or with its rows in a snapshot"
            ),
        ),
        ("__debezium-heartbeat.towpath", " and start the relay again"),
    ],
)
def test_the_remedy_for_a_topic_to_delete_restores_its_contents(
    topic: str, remedy: str
):
    """
    A repair needs a lost state; a table without changes needs a snapshot.
    """
    topics = {topic: replace(STATE, partition_count=3)}
    (found,) = kafka_findings(replace(CLUSTER, topics=topics), SETTINGS)

    assert f"stop the relay, delete the topic {topic}{remedy}" == str(found.cure)


@pytest.mark.parametrize(
    ("facts", "level", "what"),
    [
        (replace(CLUSTER, broker_count=1), Severity.ERROR, "replication_factor is 2"),
        (
            replace(CLUSTER, broker={"auto.create.topics.enable": "true"}),
            Severity.WARNING,
            "auto.create",
        ),
        (
            replace(CLUSTER, broker={"unclean.leader.election.enable": "true"}),
            Severity.WARNING,
            "unclean",
        ),
        (
            replace(
                CLUSTER,
                topics={
                    "towpath.relay-state": replace(
                        STATE, settings={"cleanup.policy": "delete"}
                    )
                },
            ),
            Severity.ERROR,
            "cleanup.policy delete",
        ),
        (
            replace(
                CLUSTER,
                topics={"towpath.relay-state": replace(STATE, partition_count=3)},
            ),
            Severity.ERROR,
            "3 partitions",
        ),
        (with_topic(**{"retention.ms": "3600000"}), Severity.WARNING, "for 1 h"),
        (with_topic(**{"retention.ms": "1800000"}), Severity.WARNING, "for 0.5 h"),
        (with_topic(**{"retention.bytes": "99"}), Severity.WARNING, "at most 99 bytes"),
        (
            with_topic(**{"min.insync.replicas": "3"}),
            Severity.ERROR,
            "min.insync.replicas is 3",
        ),
        (replace(CLUSTER, marked={ORDERS: 3}), Severity.ERROR, "but had 3"),
        (
            replace(
                with_topic(**{"max.message.bytes": "100"}),
                broker={"message.max.bytes": "200"},
            ),
            Severity.WARNING,
            "accepts 100 bytes, but the broker's default is 200",
        ),
        (
            replace(
                CLUSTER,
                topics={
                    ORDERS: replace(TOPIC, settings={"max.message.bytes": "200"}),
                    "towpath.dead.relay": replace(
                        TOPIC, settings={"max.message.bytes": "100"}
                    ),
                },
            ),
            Severity.WARNING,
            "accepts 100 bytes",
        ),
    ],
)
def test_each_risk_in_the_cluster_is_found(
    facts: ClusterFacts, level: Severity, what: str
):
    """
    Each risk to delivery, order or retention is reported at its level.
    """
    found = kafka_findings(facts, SETTINGS)

    assert [(level, True)] == [(each.level, what in each.what) for each in found]


@pytest.mark.parametrize(
    ("topic", "finding"),
    [
        (replace(TOPIC, leaderless=1), "error topic-leaderless"),
        (replace(TOPIC, lagging=2), "warning topic-under-replicated"),
        (
            replace(TOPIC, replica_count=3, settings={"min.insync.replicas": "1"}),
            "warning topic-min-insync-low",
        ),
    ],
)
def test_a_topic_endangered_by_a_lost_broker_is_found(
    topic: TopicSettings, finding: str
):
    """
    It has no leader, a lagging replica, or writes confirmed by one broker of three.
    """
    found = kafka_findings(replace(CLUSTER, topics={ORDERS: topic}), SETTINGS)
    pair = replace(TOPIC, settings={"min.insync.replicas": "1"})

    assert [f"{each.level} {each.id}" for each in found] == [finding]
    assert kafka_findings(replace(CLUSTER, topics={ORDERS: pair}), SETTINGS) == []


@pytest.mark.parametrize(("replicas", "minimum"), [(1, 1), (2, 1), (3, 2)])
def test_the_recommended_minimum_of_in_sync_replicas_spares_a_broker(
    replicas: int, minimum: int
):
    """
    If all replicas had to be in sync, the next restart of a broker would block writes.
    """
    topic = replace(
        TOPIC, replica_count=replicas, settings={"min.insync.replicas": "4"}
    )
    (found,) = kafka_findings(replace(CLUSTER, topics={ORDERS: topic}), SETTINGS)

    assert found.cure.endswith(f"min.insync.replicas={minimum}")


@pytest.mark.parametrize(
    ("version", "found"),
    [("2.4-IV1", ["kafka-version"]), ("2.5-IV0", []), ("4.0", []), ("next", [])],
)
def test_an_old_broker_is_found(version: str, found: list[str]):
    """
    Before 2.5 the idempotent producer may lose the order of records at a restart.
    """
    facts = replace(CLUSTER, broker={"inter.broker.protocol.version": version})

    assert [each.id for each in kafka_findings(facts, SETTINGS)] == found


def test_one_replica_on_many_brokers_is_a_warning():
    """
    Acknowledged records with a single replica are lost with its broker.
    """
    settings = SETTINGS.model_copy(update={"topics": Topics(replication_factor=1)})
    (found,) = kafka_findings(CLUSTER, settings)

    assert "set replication_factor = 2" == found.cure


def test_the_history_of_a_timeline_is_parsed_line_by_line():
    """
    Each line of a history file is a fork; comments and empty lines are skipped.
    """
    text = "1\t0/3000148\tno recovery target specified\n\n# x\n2\t1/A0\tbefore X\n"
    reply = SimpleNamespace(fetchone=lambda: ("00000003.history", text.encode()))
    connection = SimpleNamespace(execute=lambda _query: reply)
    forks = read_forks(connection, 3)

    assert [(1, 0x3000148), (2, 0x1_000000A0)] == [tuple(fork) for fork in forks]
    assert () == read_forks(connection, 1)


def test_a_gap_notification_contains_the_statement_that_fills_the_gap():
    """
    The notification has Debezium's form and contains the statement to run.
    """
    gap = Gap("slot x is gone", 0x10, "2026-01-02T03:04:05+00:00", ("shop.o'ne",))
    lineage = Lineage(2, "7", 1, 808, "x", gap)
    record = gap_record("p", lineage, gap, RELAY, 5)
    notification = orjson.loads(record.value or b"")

    assert ("p.notifications", b"gap-2", "Lineage", "GAP", 5) == (
        record.topic,
        record.key,
        notification["aggregate_type"],
        notification["type"],
        notification["timestamp"],
    )
    assert (fill_statement(lineage, gap, RELAY), "0/10") == (
        notification["additional_data"]["fill"],
        notification["additional_data"]["since_lsn"],
    )
    assert "[\"shop.o''ne\"]" in fill_statement(lineage, gap, RELAY)


def test_a_gap_without_captured_tables_needs_no_statement():
    """
    Without captured tables a snapshot would fill nothing.
    """
    gap = Gap("slot x is gone", 1, "2026-01-02T03:04:05+00:00", ())

    assert "" == fill_statement(Lineage(2, "7", 1, 808, "x", gap), gap, RELAY)

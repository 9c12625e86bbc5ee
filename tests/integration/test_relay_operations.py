"""Transactions, messages, origins and operations of a relay with real servers."""

import json
import os
import signal
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from support.exposition import mistakes
from support.forked import Running
from support.rig import Rig
from support.topics import position_of
from support.waiting import CLOCK, stretched, until
from towpath.schemas import telemetry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
create schema shop;
create table shop.line (id bigint primary key, note text);
create table shop.item (id bigint primary key, note text);
"""


class RunningRelay(Rig):
    """A database, the relay process that captures it, and the relay's output."""

    def prepare(
        self, sections: str = "", tables: Sequence[str] = ("shop.line", "shop.item")
    ) -> None:
        """Write the configuration, and prepare the database with relay init."""
        self.configure(f"{sections}\n{self.outbox}", tables=tables, partitions=1)
        self.init()

    def point_at(self, dsn: str) -> None:
        """Write a configuration with a different address for the source."""
        self.configure(self.outbox, tables=("shop.line",))
        text = self.config.read_text(encoding="utf-8")
        self.config.write_text(text.replace(self.dsn, dsn), encoding="utf-8")

    def start(self, *, streams: bool = True) -> Running:
        """Start a relay process; by default, wait until it streams."""
        seen = len(self.logged("relay streaming"))
        process = super().start()
        if streams:
            until(
                lambda: len(self.logged("relay streaming")) > seen, "the relay streams"
            )
        return process

    def has_failed(self, count: int) -> bool:
        """Return whether more than ``count`` attempts have failed."""
        return len(self.logged("session failed: retrying")) > count

    def fetch(self, path: str) -> tuple[int, str]:
        """Fetch a page from the admin port of the relay that was started last."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def metrics(self) -> dict[str, float]:
        """Scrape the metrics; return the samples by ``name`` or ``name{value}``."""
        samples = {}
        for family in text_string_to_metric_families(self.fetch("/metrics")[1]):
            for sample in family.samples:
                labels = ",".join(sample.labels.values())
                name = f"{sample.name}{{{labels}}}" if labels else sample.name
                samples[name] = sample.value
        return samples

    def end(self, topic: str) -> int:
        """
        Return the end offset of a topic's only partition, or 0 if there is no topic.
        """
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": "test"})
        partition = TopicPartition(f"{self.prefix}.{topic}", 0)
        try:
            return consumer.get_watermark_offsets(partition, timeout=10)[1]
        except KafkaException:
            return 0
        finally:
            consumer.close()


def values(messages: list[Message]) -> list[dict]:
    """Return the values of records, without tombstones."""
    return [json.loads(m.value()) for m in messages if m.value() is not None]


@pytest.fixture(scope="session")
def stack(worker_stack):
    """Provide the worker's own stack: a test freezes its broker."""
    return worker_stack


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[RunningRelay]:
    """Provide a relay for a fresh database, neither prepared nor started."""
    relay = RunningRelay(database, stack.kafka, unique, tmp_path)
    relay.execute(TABLES)
    yield relay
    relay.close()


TABLELESS = json.dumps(
    {
        "id": "0b6f5a1e-0000-4000-8000-000000000001",
        "aggregate_type": "order",
        "aggregate_id": "7",
        "type": "Placed",
        "payload": {},
    }
)
METADATA = "[relay.transactions]\nmetadata = true\n[relay.messages]\npublish = true"


def test_all_records_of_a_transaction_share_its_id(relay: RunningRelay):
    """
    A78, A80, A82: BEGIN, every record and END have the id; END counts per collection.
    """
    relay.prepare(METADATA)
    relay.start()
    with relay.connection.transaction():
        relay.connection.execute("insert into shop.line values (1, 'a'), (2, 'b')")
        relay.connection.execute("insert into shop.item values (1, 'a')")
        relay.connection.execute("update shop.line set id = 3 where id = 2")
        relay.connection.execute(
            "select pg_logical_emit_message(true, 'users', 'hello')"
        )
        relay.connection.execute(
            "insert into towpath.outbox (id, aggregate_type, aggregate_id, type,"
            " payload) values (gen_random_uuid(), 'order', '7', 'Placed', '{}')"
        )
        relay.connection.execute(
            "select pg_logical_emit_message(true, 'towpath.outbox', %s)", (TABLELESS,)
        )
    relay.connection.execute("create table shop.other (id int primary key)")
    relay.connection.execute("insert into shop.line values (9, 'next')")
    boundaries = relay.read("transaction", at_least=4)
    begin, end, *following = values(boundaries)
    lines = values(relay.read("shop.line", at_least=6))
    found = [
        (one["op"], one["transaction"])
        for one in lines[:4]
        + values(relay.read("shop.item", at_least=1))
        + values(relay.read("message", at_least=1))
    ]
    counts = {
        each["data_collection"]: each["event_count"] for each in end["data_collections"]
    }

    assert (
        {begin["id"], end["id"]},
        [
            ("c", 1, 1),
            ("c", 2, 2),
            ("d", 4, 3),
            ("c", 5, 4),
            ("c", 3, 1),
            ("m", 6, 1),
        ],
        ("BEGIN", None, None, "END", 8),
        {"shop.line": 4, "shop.item": 1, "message": 1, "towpath.outbox": 2},
        [("BEGIN", None), ("END", 1)],
        sorted(map(position_of, boundaries)),
    ) == (
        {at["id"] for _, at in found},
        [(op, at["total_order"], at["data_collection_order"]) for op, at in found],
        (
            begin["status"],
            begin["event_count"],
            begin["data_collections"],
            end["status"],
            end["event_count"],
        ),
        counts,
        [(one["status"], one["event_count"]) for one in following],
        [position_of(m) for m in boundaries],
    )


def test_a_kill_during_a_transaction_keeps_its_counts_correct(relay: RunningRelay):
    """
    A80: the transaction is streamed again, counted as before, and reported once.
    """
    relay.prepare("max_in_flight_bytes = 2097152\n" + METADATA)
    relay.connection.execute(
        "insert into shop.line select n, repeat('x', 200)"
        " from generate_series(1, 150000) n"
    )
    process = relay.start(streams=False)
    until(lambda: relay.end("shop.line") > 1000, "rows are published", pause_s=0.001)
    process.kill()
    process.wait()
    written = relay.end("shop.line")
    relay.start()
    boundaries = relay.read("transaction", at_least=2)
    lines = values(relay.read("shop.line", at_least=150_000))
    orders = [one["transaction"]["total_order"] for one in lines]

    assert (True, ["BEGIN", "END"], 150_000, list(range(1, 150_001)), 1) == (
        1000 < written < 150_000,
        [one["status"] for one in values(boundaries)],
        values(boundaries)[-1]["event_count"],
        orders,
        len({one["transaction"]["id"] for one in lines}),
    )


def test_messages_are_published_as_configured(relay: RunningRelay):
    """
    A81, A83: both kinds of message, with any bytes, are published once.

    This holds across a restart, too. Messages with excluded prefixes, or with Towpath's
    own prefixes, are not published.
    """
    rules = '[relay.messages]\npublish = true\nexclude = ["secret.*"]'
    relay.prepare(rules, tables=())
    process = relay.start()
    emit = "select pg_logical_emit_message(%s, %s, %s::bytea)"
    relay.connection.execute(emit, (False, "foo", b"bar"))
    relay.connection.execute(emit, (False, "secret.key", b"no"))
    relay.connection.execute(emit, (True, "préfixe ☃", b"\0\xff"))
    relay.connection.execute(emit, (False, "towpath.verify", b"ours"))
    relay.read("message", at_least=2)
    code = relay.stop(process)
    relay.start()
    relay.connection.execute(emit, (False, "last", b""))
    messages = relay.read("message", at_least=3)
    found = values(messages)

    assert (
        0,
        [("foo", b"bar"), ("préfixe ☃", b"\0\xff"), ("last", b"")],
        [True, False, True],
        [{"prefix": one["message"]["prefix"]} for one in found],
        sorted(map(position_of, messages)),
    ) == (
        code,
        [
            (one["message"]["prefix"], b64decode(one["message"]["content"]))
            for one in found
        ],
        [one["source"]["txId"] is None for one in found],
        [json.loads(m.key()) for m in messages],
        [position_of(m) for m in messages],
    )


def test_a_change_has_its_replication_origin(relay: RunningRelay):
    """
    Only the rows of a replicated transaction have the origin in their source block.
    """
    relay.prepare()
    relay.start()
    origin = f"{relay.prefix}_far"
    relay.connection.execute("select pg_replication_origin_create(%s)", (origin,))
    relay.connection.execute(
        "select pg_replication_origin_session_setup(%s)", (origin,)
    )
    relay.connection.execute("insert into shop.line values (1, 'far'), (2, 'far')")
    relay.connection.execute("select pg_replication_origin_session_reset()")
    relay.connection.execute("insert into shop.line values (3, 'near')")
    lines = values(relay.read("shop.line", at_least=3))
    relay.connection.execute("select pg_replication_origin_drop(%s)", (origin,))

    assert [origin, origin, None] == [one["source"].get("origin") for one in lines]


def test_a_relay_is_ready_once_its_heartbeat_has_returned(relay: RunningRelay):
    """
    Streaming alone does not make a relay ready; missing heartbeats end its readiness.
    """
    relay.prepare("heartbeat_interval_s = 0.5")
    with psycopg.connect(relay.dsn) as other:
        other.execute("lock table towpath.heartbeat in exclusive mode")
        relay.start()
        streaming = telemetry.RELAY_STREAMING
        until(lambda: relay.metrics()[streaming] == 1, "the relay streams")
        before = relay.fetch("/health/ready")
        live = relay.fetch("/health/live")
    until(lambda: relay.fetch("/health/ready")[0] == 200, "the relay is ready")
    with psycopg.connect(relay.dsn) as other:
        other.execute("lock table towpath.heartbeat in exclusive mode")
        until(lambda: relay.fetch("/health/ready")[0] == 503, "the relay is not ready")
        after = relay.fetch("/health/ready")[1]

    assert (
        (503, "no heartbeat has come back yet\n"),
        (200, "live\n"),
        True,
    ) == (before, live, after.startswith("the last heartbeat came back"))


def test_the_metrics_describe_the_relay(relay: RunningRelay):
    """
    Prometheus's own parser finds counts, latencies, the slot and the clock.
    """
    relay.prepare("heartbeat_interval_s = 0.2")
    relay.start()
    for number in range(20):
        relay.connection.execute("insert into shop.line values (%s, 'a')", (number,))
    relay.read("shop.line", at_least=20)
    count = telemetry.RELAY_LATENCY + "_count"
    until(lambda: relay.metrics()[count] >= 20, "twenty transactions are settled")
    until(lambda: telemetry.SLOT_RETAINED in relay.metrics(), "the slot is measured")
    found = relay.metrics()
    page = relay.fetch("/metrics")[1]
    heartbeats = telemetry.RELAY_HEARTBEATS
    until(
        lambda: relay.metrics()[heartbeats] > found[heartbeats], "a heartbeat follows"
    )

    assert (1, True, True, True, True, 1, 1, True) == (
        found[telemetry.RELAY_STREAMING],
        found[telemetry.RELAY_RECORDS] >= 20,
        found[telemetry.RELAY_CHANGES] >= 20,
        found[telemetry.RELAY_LATENCY + "_bucket{10.0}"] >= 20,
        found[telemetry.RELAY_CONFIRMED_LSN] > 0,
        found[telemetry.SLOT_STATUS + "{reserved}"],
        found[telemetry.RELAY_TABLE + "{shop.line}"],
        abs(found[telemetry.RELAY_CLOCK_AHEAD]) < 0.5,
    )
    # The slot is active and has no WAL limit, and no snapshot is running.
    absent = {
        telemetry.SLOT_INACTIVE,
        telemetry.SLOT_SAFE,
        telemetry.SNAPSHOT_DURATION,
    }
    prefixes = ("towpath_build_", "towpath_relay_", "towpath_snapshot_")
    assert [] == mistakes(page, prefixes, absent)


def test_the_metrics_show_the_progress_of_a_snapshot(relay: RunningRelay):
    """
    After a snapshot, its table counts as completed, with its number of rows.
    """
    relay.prepare()
    relay.connection.execute(
        "insert into shop.line select n, 'a' from generate_series(1, 30) n"
    )
    relay.start()
    relay.connection.execute(
        "insert into towpath.signal (id, type, data)"
        """ values ('s', 'execute-snapshot', '{"data-collections": ["shop.line"]}')"""
    )
    completed = telemetry.SNAPSHOT_TABLES + "{completed}"
    until(lambda: relay.metrics().get(completed) == 1, "the table is completed")
    found = relay.metrics()
    running = telemetry.SNAPSHOT_TABLES + "{running}"

    assert (0, 30, False) == (
        found[running],
        found[telemetry.SNAPSHOT_TABLE_ROWS + "{shop.line}"],
        telemetry.SNAPSHOT_DURATION in found,
    )


def test_a_stop_meets_its_deadline_while_kafka_is_frozen(relay: RunningRelay, stack):
    """
    The relay logs the number of unacknowledged bytes; a new relay publishes all rows.
    """
    relay.prepare("stop_timeout_s = 2")
    process = relay.start()
    relay.connection.execute("insert into shop.line values (0, 'a')")
    relay.read("shop.line", at_least=1)
    kafka = next(part for part in stack.stack.status() if part.name == "kafka")
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        relay.connection.execute(
            "insert into shop.line select n, 'a' from generate_series(1, 500) n"
        )
        read = telemetry.RELAY_CHANGES
        until(lambda: relay.metrics()[read] > 500, "the rows are read")
        began_s = CLOCK.monotonic_s()
        code = relay.stop(process)
        took_s = CLOCK.monotonic_s() - began_s
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    (stopped,) = relay.logged("relay stopped before Kafka had acknowledged everything")
    relay.start()
    lines = values(relay.read("shop.line", at_least=501))

    assert (3, True, True, list(range(501))) == (
        code,
        took_s < stretched(4.0),
        stopped["in_flight_bytes"] > 0,
        [one["after"]["id"] for one in lines],
    )


def test_a_relay_can_be_stopped_while_its_database_is_unreachable(relay: RunningRelay):
    """
    SIGTERM ends the relay while it waits for its next attempt to connect.
    """
    relay.prepare()
    relay.point_at("postgresql://u:hunter2@127.0.0.1:1/db")
    process = relay.start(streams=False)
    until(lambda: bool(relay.logged("session failed: retrying")), "the relay retries")

    assert 0 == relay.stop(process)


def test_every_line_is_json_and_has_no_credentials(relay: RunningRelay):
    """
    Unreachable servers, refused roles and malformed addresses reveal no password.
    """
    secret = "hunter2"  # noqa: S105 - it must not be shown
    port = relay.connection.info.port
    codes = []
    for dsn in (
        f"postgresql://u:{secret}%zz@127.0.0.1:{port}/db",
        f"host=127.0.0.1 user=u password={secret} {secret}",
    ):
        relay.point_at(dsn)
        codes.append(relay.start(streams=False).wait(30))
    for dsn in (
        f"postgresql://u:{secret}@127.0.0.1:1/db",
        f"host=127.0.0.1 port={port} user=nobody_here password={secret} dbname=no",
    ):
        relay.point_at(dsn)
        failed = len(relay.logged("session failed: retrying"))
        process = relay.start(streams=False)
        until(partial(relay.has_failed, failed), "the relay retries")
        codes.append(relay.stop(process))
    lines = relay.printed().splitlines()
    fields = {"at", "level", "logger", "event"}

    assert ([3, 3, 0, 0], [], []) == (
        codes,
        [line for line in lines if not fields <= json.loads(line).keys()],
        [line for line in lines if secret in line],
    )

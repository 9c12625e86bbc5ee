"""
The current code takes over a stack that an earlier version left with unfinished work.

``tests/data/recording`` defines the stack: a relay and a driver that were killed, an
unfinished snapshot, dead letters with parked followers, a command that no sink has
executed, and unread changes.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import redis
import requests
from confluent_kafka import Consumer, Message
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.table import StaticTable

from support.recording import (
    CONFIG,
    FOLDER,
    PARTS,
    SINKS,
    WITNESS,
    Process,
    driver,
    held_stack,
    relay,
    unpack,
)
from support.topics import headers_of, read_to_end
from support.waiting import until
from towpath.deploy.local.configuration import write_configuration
from towpath.deploy.local.stack import Addresses
from towpath.settings import load
from towpath.sinks.engine.block_changes import BLOCK_FILE, block_digest
from towpath.sinks.wait import Waiter

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

EXPECTED_METRICS = Path(__file__).parents[1] / "data/outside/metrics.txt"
COMMAND = (sys.executable, "-m", "towpath.cli")
# Long enough for engines to start on a busy machine.
PATIENCE_S = 300.0
# By table, the last key column of each row that had unapplied changes when the stack
# was recorded, or that this test changes. An empty set stands for all rows.
TOUCHED: dict[str, set[str]] = {
    "type": {*map(str, range(1, 24, 4)), "9", "300", "2", "3", "301"},
    "document": {*map(str, range(5, 13)), "2"},
    "emptied": {*map(str, range(30, 40)), "16", "50"},
    "moment": {"1", "2", "3", "4"},
    "orders": {"1"},
    "page": set(),
}
# The key columns of warehouse tables whose key is not ``id``.
KEYS = {
    "order_lines": ("order_id", "line_no"),
    "type": ("region", "id"),
}
# Each statement is a transaction. An order gets an event; two parcels get more events,
# one of which is parked behind an earlier event.
CHANGES = """
update rich.type set price = 7.25 where id = 2;
delete from rich.type where id = 3;
insert into rich.type (id, region, words) values (301, 'eu', '{new}');
update rich.document set title = 'taken over' where id = 2;
delete from rich.emptied where id = 16;
insert into rich.emptied values (50, 'new');
update rich.page set title = title || ' taken over' where id in (7, 200, 397);
delete from rich.page where id in (8, 201, 396);
insert into rich.page values (401, 'new');
update rich.moment set at = '2026-02-02 02:02Z' where id = 3;
insert into shop.customers (id, name, email, created_at, updated_at)
values (gen_random_uuid(), 'New', 'new@example.org', now(), now());
update shop.orders set status = 'paid', updated_at = now() where id = 1;
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
select gen_random_uuid(), 'order', aggregate_id, 'OrderPaid', payload
  from shop.order_documents where aggregate_id::text = '1';
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
values (gen_random_uuid(), 'parcel', 'two', 'ParcelSent', '{"n": 9}'),
       (gen_random_uuid(), 'parcel', 'one', 'ParcelSent', '{"n": 9}');
delete from towpath.outbox where aggregate_type = 'parcel' and aggregate_id = 'two'
"""
# Rows with parked changes get values that a warehouse can store.
REPAIR = "update rich.moment set at = '2026-02-02 02:02Z' where id in (1, 2)"
REPAIRED = datetime(2026, 2, 2, 2, 2, tzinfo=UTC)
UNFINISHED = "select state from towpath.snapshot where snapshot_id = 'unfinished'"
OUTBOX = "select id::text from towpath.outbox"
# Topics whose older records may be compacted away.
COMPACTED = ("relay-state", "relations", "heartbeat.stack")
# The publishing time in a record.
NOW = re.compile(rb'"ts_[mun]s":\s*\d+')

Topics = dict[tuple[str, int], list[Message]]


class Contents(NamedTuple):
    """The contents of the stack at one moment, and the sinks' progress."""

    topics: Topics
    sinks: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
    progress: dict[str, dict[str, Any]]


class Stack:
    """The recorded stack while it runs, and the contents of its topics and sinks."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self.source = psycopg.connect(addresses.dsn("shop"), autocommit=True)
        self.relay: Process = relay()
        self.driver: Process = driver()
        self.witness: Process = relay(WITNESS)

    def one(self, statement: str) -> Any:
        """Return the first value that a statement returns."""
        row = self.source.execute(statement).fetchone()
        return row[0] if row else None

    def change(self) -> None:
        """Change rows, some for the first time; add events."""
        for statement in CHANGES.split(";"):
            self.source.execute(statement)

    def contents(self) -> Contents:
        """Read all topics, sinks and progress files."""
        sinks = self.cached(), self.indexed(), self.stored()
        return Contents(self.topics(), sinks, {sink: progress(sink) for sink in SINKS})

    def has_moments(self) -> bool:
        """Return whether the warehouse has the rows that were dead letters."""
        stored = self.stored("rich.moment")
        rows = [stored.get(f"rich.moment:{number}") for number in (1, 2, 3)]
        return all(row is not None and row["at"] == REPAIRED for row in rows)

    def is_confirmed(self, slot: str, lsn: str) -> bool:
        """Return whether a slot's relay has confirmed an LSN."""
        query = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        row = self.source.execute(query, (lsn, slot)).fetchone()
        return bool(row and row[0])

    def close(self) -> None:
        """Kill the processes, and close the connection."""
        self.relay.kill()
        self.driver.kill()
        self.witness.kill()
        self.source.close()

    def wait_for(self, statement: str, expected: object) -> None:
        """Wait until a statement returns a value; fail if relay or driver ends."""

        def holds() -> bool:
            for process in (self.relay, self.driver):
                running = process.process
                assert running is not None
                assert running.poll() is None, process.printed()[-6000:]
            return bool(expected == self.one(statement))

        until(holds, f"{statement} is {expected}", timeout_s=PATIENCE_S)

    def topics(self, prefix: str = "stack") -> Topics:
        """Read all topics of a relay and its sinks; each partition is in order."""
        kafka = self._addresses.kafka
        consumer = Consumer({"bootstrap.servers": kafka, "group.id": "names"})
        try:
            names = consumer.list_topics(timeout=10).topics
        finally:
            consumer.close()
        ours = sorted(name for name in names if name.startswith(f"{prefix}."))
        found: Topics = {}
        for record in read_to_end(kafka, *ours):
            found.setdefault((record.topic(), record.partition()), []).append(record)
        return found

    def cached(self) -> dict[str, Any]:
        """Return each key of the cache with its type, content and time to live."""
        with redis.Redis.from_url(self._addresses.redis_url) as client:
            kinds = {key: client.type(key) for key in client.scan_iter()}
            content = {
                key.decode(): (
                    kind,
                    client.hgetall(key) if kind == b"hash" else client.dump(key),
                    client.pttl(key) > 0,
                )
                for key, kind in kinds.items()
            }
            # This field counts batches, so it differs.
            content["stack:_witness.cache"][1].pop(b"count")
            # A changed guard gets a new library: earlier drivers still call this one.
            libraries = client.function_list(withcode=True)
            return content | {f"library/{one[1].decode()}": one for one in libraries}

    def indexed(self) -> dict[str, Any]:
        """Return the versioned documents, and each index's mapping and aliases."""
        url = self._addresses.opensearch_url
        requests.post(f"{url}/_refresh", timeout=30).raise_for_status()
        indexes = requests.get(f"{url}/_mapping", timeout=30).json()
        aliases = requests.get(f"{url}/_alias", timeout=30).json()
        found: dict[str, Any] = {
            f"{name}/_meta": (index["mappings"], aliases[name])
            for name, index in indexes.items()
        }
        query = {"size": 5000, "version": True}
        hits = requests.get(f"{url}/_all/_search", json=query, timeout=30).json()
        for hit in hits["hits"]["hits"]:
            found[f"{hit['_index']}:{hit['_id']}"] = hit["_version"], hit["_source"]
        return found

    def stored(self, wanted: str = "%") -> dict[str, Any]:
        """Return the rows and columns of each warehouse table, or of one table."""
        with psycopg.connect(self._addresses.dsn("warehouse")) as connection:
            tables = connection.execute(
                "select table_namespace || '.' || table_name, metadata_location"
                " from iceberg_tables where iceberg_type <> 'VIEW'"
                " and table_namespace || '.' || table_name like %s order by 1",
                (wanted,),
            ).fetchall()
        found: dict[str, Any] = {}
        for name, location in tables:
            table = StaticTable.from_metadata(location)
            fields = [
                (f.field_id, f.name, str(f.field_type)) for f in table.schema().fields
            ]
            found[f"{name}/columns"] = fields
            key = KEYS.get(name.partition(".")[2], ("id",))
            for row in table.scan().to_arrow().to_pylist():
                found[":".join((name, *(str(row[part]) for part in key)))] = row
        return found


class TakeOver(NamedTuple):
    """The contents before and after, and the output of commands and pages."""

    before: Contents
    after: Contents
    witness: Topics
    outbox: set[str]
    reports: dict[str, Any]
    still_parked: set[str]
    metrics: list[str]


@pytest.fixture(scope="module")
def result() -> Iterator[TakeOver]:
    """Take over the recorded stack once for all tests."""
    ports = FOLDER / "stack/ports.json"
    with held_stack() as held:
        unpack(held)
        recorded = ports.read_text(encoding="utf-8")
        addresses = held.up(PARTS)
        for path in (CONFIG, WITNESS):
            write_configuration(addresses, path)
        if recorded != ports.read_text(encoding="utf-8"):
            move_targets()
        stack = Stack(addresses)
        try:
            yield take_over(stack)
        finally:
            stack.close()


def move_targets() -> None:
    """
    Store the targets' current addresses in the sinks' state.

    Another stack may occupy a recorded port, and a sink refills a target whose address
    has changed.
    """
    for sink in load(CONFIG, {}).sink:
        path = FOLDER / "sinks" / sink.name / BLOCK_FILE
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["target"] = block_digest(sink).target
        path.write_text(json.dumps(stored), encoding="utf-8")


def take_over(stack: Stack) -> TakeOver:
    """Run relay and driver from where earlier ones died, until all work is done."""
    before = stack.contents()
    stack.change()
    stack.relay.begin()
    stack.driver.begin()
    stack.wait_for(UNFINISHED, "completed")
    # The command starts a Python process, so it runs only once the log record exists.
    wait_until(
        lambda: (
            stack.driver.logged("dead letter request handled")
            and {"1", "2"} == parked()
        ),
        "the command is executed",
    )
    stack.source.execute(REPAIR)
    wait_until(stack.has_moments, "the warehouse has the parked rows")
    lsn = stack.one("select pg_current_wal_insert_lsn()::text")
    with Waiter(load(CONFIG, {})) as waiter:
        for sink in SINKS:
            waiter.wait_for(lsn, sink, PATIENCE_S)
    reports = {report["sink"]: report for report in command("verify")}
    metrics = families(stack.relay.admin_port) + families(
        stack.driver.logged("metrics port opened")[-1]["port"]
    )
    stack.relay.kill()
    stack.witness.begin()
    wait_until(
        lambda: stack.is_confirmed("witness", lsn),
        "the witness has published everything",
    )
    outbox = {row[0] for row in stack.source.execute(OUTBOX)}
    witness = stack.topics("witness")
    after = stack.contents()
    return TakeOver(before, after, witness, outbox, reports, parked(), metrics)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition that takes a while to check."""
    until(holds, what, timeout_s=PATIENCE_S, pause_s=1)


def command(*args: str) -> Any:
    """Run a command; return its JSON document, or a list of several."""
    line = (*COMMAND, *args, "--json", "--config", str(CONFIG))
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found, rest = [], done.stdout.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    assert found, done.stderr
    return found if len(found) > 1 else found[0]


def families(port: int) -> list[str]:
    """List the metrics that a port serves, each with its type and labels."""
    page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    return [
        " ".join(
            (one.name, one.type, *sorted({n for s in one.samples for n in s.labels}))
        )
        for one in text_string_to_metric_families(page)
    ]


def parked() -> set[str]:
    """Return the ids of the ``moment`` rows that are dead letters of the warehouse."""
    listed = command("dead-letters", "list", "--sink", "warehouse")
    return {str(json.loads(one["key"])["id"]) for one in listed}


def is_touched(name: str) -> bool:
    """Return whether the row with this name (table or index, and key) may differ."""
    parts = name.removeprefix("stack:").split(":")
    table = parts[0].rpartition(".")[2].partition("-")[0]
    touched = TOUCHED.get(table)
    return touched is not None and (not touched or parts[-1] in touched)


def untouched(content: dict[str, Any]) -> dict[str, Any]:
    """Return stored content without the rows that may differ."""
    return {name: one for name, one in content.items() if not is_touched(name)}


def progress(sink: str) -> dict[str, Any]:
    """Read a sink's progress file."""
    path = FOLDER / "sinks" / sink / "progress.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def applied(document: dict[str, Any]) -> int:
    """Return how many records a sink has applied."""
    return sum(sum(ends.values()) for ends in document["applied"].values())


def positions(records: list[Message]) -> list[str]:
    """Return the positions of the streamed records."""
    return [headers_of(one)["position"] for one in records if is_streamed(one)]


def is_streamed(record: Message) -> bool:
    """Return whether a record was streamed, not read by a snapshot and not copied."""
    found_headers = headers_of(record)
    is_ours = re.match(r"\w+\.(shop|rich|event|dead\.relay)\b", str(record.topic()))
    return bool(
        is_ours and "position" in found_headers and "snapshot" not in found_headers
    )


def streamed(topics: Topics, prefix: str) -> dict[tuple[str, int], list[object]]:
    """Return the streamed records of each partition without their publishing times."""
    found: dict[tuple[str, int], list[object]] = {}
    for (topic, partition), records in topics.items():
        source = topic.removeprefix(f"{prefix}."), partition
        plain = [
            (
                *(one.key(), plainly(one.value(), prefix), one.timestamp()),
                *((name, plainly(text, prefix)) for name, text in one.headers()),
            )
            for one in records
            if is_streamed(one)
        ]
        if topic.startswith(f"{prefix}.") and plain:
            found[source] = plain
    return found


def plainly(value: bytes | None, prefix: str) -> bytes | None:
    """Mask the parts that differ between relays: the prefix and the publishing time."""
    return value and NOW.sub(b"", value.replace(prefix.encode(), b"PREFIX"))


def content(record: Message) -> tuple[object, ...]:
    """Return all fields of a record."""
    return (
        *(record.offset(), record.key(), record.value(), record.headers()),
        record.timestamp(),
    )


def events(topics: Topics) -> Counter[str]:
    """Count the streamed events by their ids."""
    found_headers = (
        headers_of(record)
        for records in topics.values()
        for record in records
        if is_streamed(record)
    )
    return Counter(each["id"] for each in found_headers if "id" in each)


def state(topics: Topics) -> dict[str, Any]:
    """Return the newest record of each key of the relay's state."""
    return {
        record.key().decode(): json.loads(record.value())
        for (topic, _), records in topics.items()
        if topic == "stack.relay-state"
        for record in records
        if record.value()
    }


def shape(value: object) -> object:
    """Return the structure and types of a document, without its values."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return type(value).__name__


def without_new(known: object, found: object) -> object:
    """Return a shape without the members that a known shape lacks."""
    if isinstance(known, dict) and isinstance(found, dict):
        return {name: without_new(one, found.get(name)) for name, one in known.items()}
    return found


def test_the_sinks_of_a_recorded_stack_equal_the_source(result):
    """
    Each sink has all rows, even those of parked keys and of the unfinished snapshot.
    """
    results = {
        sink: (report["result"], report["differences"])
        for sink, report in result.reports.items()
    }
    rows = [
        route["source_rows"]
        for report in result.reports.values()
        for route in report["routes"]
    ]

    assert dict.fromkeys(SINKS, ("equal", 0)) == results
    assert (True, set()) == (min(rows) > 0, result.still_parked)


def test_the_topics_of_a_recorded_stack_continue(result):
    """
    Existing records remain; positions are unique, and rise in each partition.
    """
    before, after = result.before.topics, result.after.topics
    changed = [
        partition
        for partition, records in before.items()
        if not partition[0].endswith(COMPACTED)
        and list(map(content, records))
        != list(map(content, after[partition][: len(records)]))
    ]
    repeated = [
        partition
        for partition, records in after.items()
        if (at := positions(records)) != sorted(set(at))
    ]

    assert ([], []) == (changed, repeated)
    assert sum(map(len, after.values())) > sum(map(len, before.values()))


def test_each_event_of_a_recorded_stack_is_published_once(result):
    """
    Events of parked aggregates, too, are published once, as dead letters.
    """
    counts = events(result.after.topics)

    assert {1} == set(counts.values())
    assert result.outbox <= set(counts)


def test_the_records_of_a_recorded_stack_are_identical(result):
    """
    For the whole log, the current relay publishes the same bytes as the earlier one.
    """
    assert streamed(result.witness, "witness") == streamed(result.after.topics, "stack")


def test_the_relay_of_a_recorded_stack_keeps_its_state(result):
    """
    The lineage continues, and each record of the state keeps its key and its members.

    A record may have additional members.
    """
    before, after = state(result.before.topics), state(result.after.topics)
    shapes = {key: shape(one) for key, one in before.items()}

    assert before["lineage"] == after["lineage"]
    assert shapes == {
        key: without_new(one, shape(after.get(key))) for key, one in shapes.items()
    }


def test_no_sink_of_a_recorded_stack_restarts_from_the_beginning(result):
    """
    Each sink resumes at its checkpoint, and counts every record after it once.
    """
    counted, expected = {}, {}
    for sink in SINKS:
        before, after = result.before.progress[sink], result.after.progress[sink]
        counted[sink] = after["records"] - before["records"]
        expected[sink] = applied(after) - applied(before)

    assert min(expected.values()) > 0
    assert expected == counted


def test_the_metrics_of_a_recorded_stack_keep_names_types_and_labels(result):
    """
    Dashboards and alarms depend on the names, types and labels.
    """
    expected = EXPECTED_METRICS.read_text(encoding="utf-8").splitlines()

    assert expected == result.metrics


@pytest.mark.parametrize("sink", SINKS)
def test_untouched_rows_of_a_recorded_stack_do_not_change(result, sink):
    """
    Keys, values, versions and columns remain the same, and so does an index's metadata.
    """
    before = untouched(result.before.sinks[SINKS.index(sink)])
    after = untouched(result.after.sinks[SINKS.index(sink)])

    assert len(before) > 50
    assert before == {name: after.get(name) for name in before}

"""The relay as a process, with a real Postgres and a real Kafka."""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic

from support.forked import Running
from support.rig import Rig
from support.topics import limit_records, position_of
from support.waiting import until
from towpath.relay.__main__ import init, status
from towpath.relay.errors import NotPreparedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

MEBIBYTE = 1024 * 1024

TABLES = """
create schema shop;
create table shop.line (
    order_id bigint, line_no int, note text, price numeric(12, 2),
    at timestamptz not null default '2026-01-02 03:04:05.6+00',
    primary key (order_id, line_no)
);
create table shop.other (id int primary key, note text);
"""


class Relay(Rig):
    """A database, the relay that captures it, and the topics that the relay writes."""

    def prepare(self, *, relay: str = "") -> None:
        """Write the configuration, and prepare the database with relay init."""
        self.capture("shop.line", relay=relay)
        self.init()

    def capture(self, *tables: str, relay: str = "") -> None:
        """Write a configuration that captures these tables."""
        self.configure(f"{relay}\n{self.outbox}", tables=tables)

    def fetch(self, path: str) -> str:
        """Fetch a page from the admin port of the relay that was started last."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as page:
            return page.read().decode()

    def has_read(self, transactions: int) -> bool:
        """Return whether the relay has read this number of transactions."""
        name = "towpath_relay_transactions_total "
        lines = self.fetch("/metrics").splitlines()
        value = next(line for line in lines if line.startswith(name))
        return float(value.removeprefix(name)) >= transactions

    def insert_events(
        self, count: int, *, first: int = 0, size: int = 5, order: str = ""
    ) -> None:
        """
        Insert events, ten per transaction, padded with ``size`` random bytes.

        Args:
            count: The number of events.
            first: The number of the first event.
            size: The length of the padding.
            order: The aggregate of all events; by default, there are seven aggregates.
        """
        with self.connection.cursor() as cursor:
            for start in range(first, first + count, 10):
                with self.connection.transaction():
                    cursor.executemany(
                        "insert into towpath.outbox"
                        " (id, aggregate_type, aggregate_id, type, payload)"
                        " values (gen_random_uuid(), 'order', %s, 'Placed', %s)",
                        [
                            (
                                order or n % 7,
                                json.dumps({"n": n, "pad": token_hex(size)}),
                            )
                            for n in range(start, min(start + 10, first + count))
                        ],
                    )

    def confirmed_lag_bytes(self) -> int:
        """Return the distance from the confirmed LSN to the end of the log."""
        lag = self.one(
            "select (pg_current_wal_lsn() - confirmed_flush_lsn)::bigint"
            " from pg_replication_slots where slot_name = %s",
            self.prefix,
        )
        return -1 if lag is None else int(lag)


def peak_bytes(process: Running) -> int:
    """Return a process's peak resident memory."""
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def numbers(messages: list[Message]) -> list[int]:
    """Return the numbers of events."""
    return [json.loads(m.value())["n"] for m in messages]


@pytest.fixture(scope="session")
def stack(worker_stack):
    """Provide the worker's own stack: tests freeze its broker."""
    return worker_stack


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Relay]:
    """Provide a relay for a fresh database, neither prepared nor started."""
    relay = Relay(database, stack.kafka, unique, tmp_path)
    relay.execute(TABLES)
    yield relay
    relay.close()


def test_every_event_arrives_once_and_in_order_for_its_key(relay: Relay):
    """
    Committed outbox rows become events, each once, in commit order per aggregate.
    """
    relay.prepare()
    relay.insert_events(300)
    relay.start()
    relay.insert_events(200, first=300)
    messages = relay.read("event.order", at_least=500)
    by_key: dict[bytes, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.key(), []).append(json.loads(message.value())["n"])

    assert (list(range(500)), True) == (
        sorted(numbers(messages)),
        all(found == sorted(found) for found in by_key.values()),
    )


def test_a_rollback_emits_nothing(relay: Relay):
    """
    Changes that are rolled back, fully or to a savepoint, are in no topic (I1).
    """
    relay.prepare()
    relay.start()
    insert = "insert into shop.line (order_id, line_no) values (%s, 1)"
    with relay.connection.transaction(force_rollback=True):
        relay.connection.execute(insert, (1,))
    with relay.connection.transaction():
        relay.connection.execute(insert, (2,))
        with relay.connection.transaction(force_rollback=True):
            relay.connection.execute(insert, (3,))
    relay.connection.execute(insert, (4,))
    messages = relay.read("shop.line", at_least=2)

    assert [2, 4] == sorted(json.loads(m.key())["order_id"] for m in messages)


def test_row_changes_are_published_in_order(relay: Relay):
    """
    Inserts, updates, key changes, deletes and truncates become the right records.
    """
    relay.prepare()
    relay.start()
    for statement in (
        "insert into shop.line values (1, 1, 'Zoë', 2.50)",
        "update shop.line set price = 3, note = null",
        "update shop.line set line_no = 2",
        "delete from shop.line",
        "truncate shop.line",
    ):
        relay.connection.execute(statement)
    messages = relay.read("shop.line", at_least=10)
    rows = sorted((position_of(m), m.key(), m.value()) for m in messages)
    envelopes = [(key, json.loads(value or b"null")) for _, key, value in rows]
    first, second = b'{"order_id":1,"line_no":1}', b'{"order_id":1,"line_no":2}'

    assert [
        (first, "c"),
        (first, "u"),
        (first, "d"),
        (first, None),
        (second, "c"),
        (second, "d"),
        (second, None),
        (None, "t"),
        (None, "t"),
        (None, "t"),
    ] == [(key, each and each["op"]) for key, each in envelopes]


def test_an_envelope_has_the_form_that_sinks_rely_on(relay: Relay):
    """
    Integers, numerics, times, NULL and the source have the documented form.
    """
    relay.prepare()
    relay.start()
    relay.connection.execute("insert into shop.line values (1, 1, null, 2.50)")
    (message,) = relay.read("shop.line", at_least=1)
    document = json.loads(message.value())
    source = document["source"]

    assert (
        {
            "order_id": 1,
            "line_no": 1,
            "note": None,
            "price": "2.50",
            "at": "2026-01-02T03:04:05.600000Z",
        },
        (relay.prefix, "shop", "line", "false"),
        source["ts_ms"],
        f"{source['commit_lsn']:016x}.0000000000",
    ) == (
        document["after"],
        (source["name"], source["schema"], source["table"], source["snapshot"]),
        message.timestamp()[1],
        position_of(message),
    )


def test_an_unchanged_large_value_is_left_out(relay: Relay):
    """
    The header "unchanged" names a TOASTed value that an update did not change.
    """
    relay.prepare()
    relay.connection.execute("alter table shop.line alter note set storage external")
    relay.start()
    relay.connection.execute(
        "insert into shop.line values (1, 1, repeat('x', 9000), 1)"
    )
    relay.connection.execute("update shop.line set price = 2")
    messages = relay.read("shop.line", at_least=2)
    update = next(m for m in messages if json.loads(m.value())["op"] == "u")

    assert (False, b'["note"]') == (
        "note" in json.loads(update.value())["after"],
        dict(update.headers())["unchanged"],
    )


def test_rows_from_before_a_column_was_added_lack_it(relay: Relay):
    """
    Later rows have the column, and the new relation is published.
    """
    relay.prepare()
    relay.connection.execute("insert into shop.line (order_id, line_no) values (1, 1)")
    relay.connection.execute(
        "alter table shop.line add extra jsonb not null default '[]'"
    )
    relay.connection.execute("insert into shop.line (order_id, line_no) values (2, 1)")
    relay.start()
    rows = relay.read("shop.line", at_least=2)
    has_extra = {
        json.loads(m.key())["order_id"]: "extra" in json.loads(m.value())["after"]
        for m in rows
    }
    shapes = [json.loads(m.value()) for m in relay.read("relations", at_least=2)]
    last = shapes[-1]

    assert (
        {1: False, 2: True},
        ["order_id", "line_no"],
        {
            "order_id": "bigint",
            "line_no": "integer",
            "note": "text",
            "price": "numeric",
            "at": "timestamp with time zone",
            "extra": "jsonb",
        },
    ) == (has_extra, last["key"], {c["name"]: c["type"] for c in last["columns"]})


def test_kill_9_loses_nothing(relay: Relay):
    """
    A relay killed twice while it reads a backlog still publishes every event.
    """
    relay.prepare()
    relay.insert_events(6000, size=100)
    for _ in range(2):
        process = relay.start()
        until(lambda: bool(relay.logged("relay streaming")), "the relay streams")
        relay.read("event.order", at_least=100)
        process.kill()
        process.wait()
        relay.log_file.unlink()
    relay.start()
    until(lambda: relay.confirmed_lag_bytes() < 1000, "everything is confirmed")
    messages = relay.read("event.order", at_least=6000)

    assert set(range(6000)) == set(numbers(messages))


def test_a_relay_killed_before_acknowledgements_loses_nothing(relay: Relay, stack):
    """
    Records that Kafka had not acknowledged are streamed again after a kill.
    """
    relay.prepare()
    process = relay.start()
    relay.insert_events(10)
    relay.read("event.order", at_least=10)
    kafka = next(part for part in stack.stack.status() if part.name == "kafka")
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        relay.insert_events(300, first=10)
        until(lambda: relay.has_read(31), "the relay has read the first events")
        # The metrics of a turn are published with the next turn.
        relay.insert_events(10, first=310)
        until(lambda: relay.has_read(32), "the relay has read the last events")
        process.kill()
        process.wait()
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    relay.start()
    messages = relay.read("event.order", at_least=320)

    assert set(range(320)) == set(numbers(messages))


def test_a_graceful_stop_repeats_nothing(relay: Relay):
    """
    Stopped and started under load, the relay publishes every event exactly once.
    """
    relay.prepare()
    load = threading.Thread(target=relay.insert_events, args=(3000,))
    load.start()
    codes = []
    for _ in range(3):
        process = relay.start()
        until(lambda: bool(relay.logged("relay streaming")), "the relay streams")
        codes.append(relay.stop(process))
        relay.log_file.unlink()
    relay.start()
    load.join()
    messages = relay.read("event.order", at_least=3000)

    assert (list(range(3000)), [0, 0, 0]) == (sorted(numbers(messages)), codes)


def test_memory_is_bounded_while_the_broker_is_silent(relay: Relay, stack):
    """
    While Kafka is frozen, the relay stops reading at its limit; later it continues.
    """
    relay.prepare(relay=f"max_in_flight_bytes = {2 * MEBIBYTE}")
    process = relay.start()
    relay.insert_events(10)
    relay.read("event.order", at_least=10)
    kafka = next(part for part in stack.stack.status() if part.name == "kafka")
    before = peak_bytes(process)
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        relay.insert_events(6000, first=10, size=2500)
        stalled = relay.confirmed_lag_bytes()
        grown = peak_bytes(process) - before
    finally:
        os.kill(kafka.pid, signal.SIGCONT)
    messages = relay.read("event.order", at_least=6010)

    assert (True, True, set(range(6010))) == (
        stalled > 20 * MEBIBYTE,
        grown < 40 * MEBIBYTE,
        set(numbers(messages)),
    )


def test_a_huge_transaction_is_streamed_in_bounded_memory(relay: Relay):
    """
    200,000 rows of one transaction are published without being collected first.
    """
    relay.prepare(relay=f"max_in_flight_bytes = {8 * MEBIBYTE}")
    relay.connection.execute(
        "insert into shop.line select n, 1, repeat('x', 400), 1"
        " from generate_series(1, 200000) n"
    )
    process = relay.start()
    messages = relay.read("shop.line", at_least=200_000)
    positions = {dict(m.headers())["position"] for m in messages}

    assert (200_000, 200_000, True) == (
        len(messages),
        len(positions),
        peak_bytes(process) < 200 * MEBIBYTE,
    )


def test_a_record_that_is_too_large_becomes_a_dead_letter(relay: Relay):
    """
    The dead letter has the key and the topic; other rows are published.
    """
    relay.prepare()
    relay.start()
    relay.connection.execute(
        "insert into shop.line values"
        " (1, 1, 'a', 1), (2, 1, repeat('x', 1500000), 1), (3, 1, 'c', 1)"
    )
    rows = relay.read("shop.line", at_least=2)
    (dead,) = relay.read("dead.relay", at_least=1)
    until(lambda: relay.confirmed_lag_bytes() < 1000, "everything is confirmed")

    assert (
        [1, 3],
        (b'{"order_id":2,"line_no":1}', relay.topic("shop.line").encode()),
        1,
    ) == (
        sorted(json.loads(m.key())["order_id"] for m in rows),
        (dead.key(), dict(dead.headers())["topic"]),
        len(relay.logged("dead letter written")),
    )


def test_a_small_limit_of_a_topic_is_respected(relay: Relay):
    """
    Batches remain below the smallest limit of any topic, even one that is used later.
    """
    relay.prepare()
    name = relay.topic("event.order")
    new = NewTopic(name, 1, 1, config={"max.message.bytes": "4000"})
    admin = AdminClient({"bootstrap.servers": relay.kafka})
    admin.create_topics([new])[name].result()
    relay.insert_events(200, size=450)
    relay.insert_events(10, first=200, size=4500)
    relay.start()
    messages = relay.read("event.order", at_least=200)
    dead = relay.read("dead.relay", at_least=10)

    assert (set(range(200)), 10) == (set(numbers(messages)), len(dead))


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
def test_lowering_the_limit_of_a_topic_loses_no_event(relay: Relay, delivery):
    """
    The broker refuses a batch while later ones are in flight, and appends none of them.

    Some of the partitions do not have a record yet.
    """
    relay.prepare(relay=f'delivery = "{delivery}"')
    relay.start()
    relay.insert_events(10, order="3")
    relay.read("event.order", at_least=10)
    name = relay.topic("event.order")
    limit_records(relay.kafka, name, 4000)
    for first in range(10, 410, 40):
        relay.insert_events(30, first=first)
        relay.insert_events(10, first=first + 30, size=4500, order="large")
    messages = relay.read("event.order", at_least=310)
    dead = relay.read("dead.relay", at_least=100)
    large = {n for first in range(10, 410, 40) for n in range(first + 30, first + 40)}

    assert (sorted(set(range(410)) - large), 100) == (
        sorted(numbers(messages)),
        len(dead),
    )
    assert relay.logged("session failed: retrying")


def test_traffic_of_other_tables_is_confirmed(relay: Relay):
    """
    Changes to a table that is not captured do not make the slot retain WAL.
    """
    relay.prepare()
    relay.start()
    until(lambda: bool(relay.logged("relay streaming")), "the relay streams")
    relay.connection.execute(
        "insert into shop.other select n, repeat('x', 900)"
        " from generate_series(1, 5000) n"
    )
    until(lambda: 0 <= relay.confirmed_lag_bytes() < 100_000, "the log is confirmed")

    assert [] == relay.logged("session failed: retrying")


def test_a_second_relay_waits_and_takes_over(relay: Relay):
    """
    The second relay logs the holder of the slot, and streams once the slot is free.
    """
    relay.prepare()
    first = relay.start()
    until(lambda: bool(relay.logged("relay streaming")), "the first relay streams")
    relay.start()
    until(
        lambda: bool(relay.logged("slot held by another process: waiting")),
        "the second relay waits",
    )
    holder = relay.logged("slot held by another process: waiting")[0]["holder"]
    relay.stop(first)
    until(lambda: len(relay.logged("relay streaming")) == 2, "the second relay streams")
    relay.insert_events(10)
    messages = relay.read("event.order", at_least=10)

    assert (10, True) == (len(messages), "towpath-relay" in holder)


def test_a_relay_reconnects_after_a_lost_connection(relay: Relay):
    """
    If the server ends the connection, the relay reconnects and no event is lost.
    """
    relay.prepare()
    relay.start()
    relay.insert_events(50)
    relay.read("event.order", at_least=50)
    relay.connection.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        " where slot_name = %s",
        (relay.prefix,),
    )
    relay.insert_events(50, first=50)
    messages = relay.read("event.order", at_least=100)

    assert (set(range(100)), True) == (
        set(numbers(messages)),
        bool(relay.logged("session failed: retrying")),
    )


def test_a_lost_slot_halts_the_relay_with_a_remedy(relay: Relay):
    """
    With on_gap = "halt", the slot of a relay that has run is not recreated.
    """
    relay.prepare(relay='on_gap = "halt"')
    process = relay.start()
    until(lambda: bool(relay.logged("relay streaming")), "the relay streams")
    relay.stop(process)
    relay.connection.execute("select pg_drop_replication_slot(%s)", (relay.prefix,))
    code = relay.start().wait(30)

    assert (3, True) == (code, "snapshot" in relay.logged("relay halted")[0]["remedy"])


def test_a_relay_without_a_slot_halts_with_a_remedy(relay: Relay):
    """
    If the source was never prepared, the remedy names the command that prepares it.
    """
    relay.capture("shop.line")
    code = relay.start().wait(30)

    assert (3, True) == (
        code,
        "relay init" in relay.logged("relay halted")[0]["remedy"],
    )


def test_init_is_repeatable_and_follows_the_configuration(relay: Relay, capsys):
    """
    A second run finds nothing to do; a changed list of tables alters the publication.
    """
    relay.prepare()
    init(relay.config, dry_run=False)
    second = capsys.readouterr().out.splitlines()[-1]
    relay.capture("shop.line", "shop.other")
    init(relay.config, dry_run=True)
    printed = capsys.readouterr().out
    init(relay.config, dry_run=False)
    tables = relay.connection.execute(
        "select schemaname || '.' || tablename from pg_publication_tables"
        " where pubname = 'towpath' order by 1"
    ).fetchall()

    assert (
        "nothing to do: the source is prepared",
        True,
        [("shop.line",), ("shop.other",), ("towpath.signal",)],
    ) == (second, "alter publication" in printed, tables)


def test_init_reports_every_problem_with_its_remedy(relay: Relay):
    """
    Missing tables, keys and identities are reported together, before any change.
    """
    relay.connection.execute("create table shop.bare (id int)")
    relay.connection.execute("alter table shop.other replica identity nothing")
    relay.capture("shop.bare", "shop.none", "shop.other")
    with pytest.raises(NotPreparedError) as caught:
        init(relay.config, dry_run=False)
    found = str(caught.value).splitlines()
    schema = relay.connection.execute("select to_regnamespace('towpath')").fetchone()

    assert (3, True, (None,)) == (
        len(found),
        all(
            remedy in str(caught.value)
            for remedy in ("PRIMARY KEY", "REPLICA", "[source]")
        ),
        schema,
    )


def test_status_describes_the_slot(relay: Relay, capsys):
    """
    The status has the name of the slot, and states whether it is active.
    """
    relay.prepare()
    capsys.readouterr()
    code = status(relay.config, as_json=True)
    report = json.loads(capsys.readouterr().out)

    assert (1, relay.prefix, False) == (code, report["slot"], report["active"])


def test_the_admin_port_reports_health_and_metrics(relay: Relay):
    """
    The relay is ready while it streams, and counts its records.
    """
    relay.prepare()
    relay.start()
    relay.insert_events(20)
    relay.read("event.order", at_least=20)
    ready = relay.fetch("/health/ready")
    metrics = relay.fetch("/metrics")
    with pytest.raises(urllib.error.HTTPError):
        relay.fetch("/nothing")

    assert ("ready\n", True) == (ready, "towpath_relay_records_total 20.0" in metrics)

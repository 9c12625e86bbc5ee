"""Two relays on one database: each carries out, stores and reports its own signals."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer

from support.snapshots import SnapshotRig
from support.topics import headers_of
from towpath.cli import app as root
from towpath.relay.__main__ import init

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 300
RELAY_TABLE = "select name, number from towpath.relay order by number"

# The relay's tables as they were before their rows named a relay.
OLD_TABLES = """
create schema towpath;
create table towpath.signal (
    id varchar(64) primary key, type varchar(32) not null, data text,
    status text, detail jsonb, updated_at timestamptz
);
create table towpath.outbox (
    id uuid primary key, aggregate_type text, aggregate_id text, type text,
    payload json, headers json, traceparent text, occurred_at timestamptz
);
create table towpath.heartbeat (
    id int primary key, counter bigint not null, beat_at timestamptz not null
);
create table towpath.snapshot (
    snapshot_id text not null, collection text not null, ordinal int not null,
    state text not null, table_oid oid not null default 0, condition text,
    target text, max_rows_per_second int, last_key jsonb, maximum_key jsonb,
    pending_keys jsonb, rows bigint not null default 0,
    dropped bigint not null default 0, chunks bigint not null default 0,
    estimated_rows bigint not null default 0, percent numeric, error text,
    queued_at timestamptz not null default now(), started_at timestamptz,
    updated_at timestamptz, completed_at timestamptz, asked_keys int,
    asked_until text, kind text not null default 'incremental', order_by jsonb,
    ranges jsonb, floor bigint, sweeps boolean not null default false,
    rows_per_second double precision, eta_s double precision, key_columns jsonb,
    primary key (snapshot_id, collection)
);
"""


class Relay(SnapshotRig):
    """One relay with its own slot, prefix and publications."""

    def prepare(self) -> None:
        """Write the configuration of a relay that captures ``s.a``."""
        self.configure(
            "heartbeat_interval_s = 0.2\n[relay.snapshot]\nchunk_rows = 50\n",
            tables=("s.a",),
            source=(
                f'publication = "{self.prefix}"\n'
                f'outbox_publication = "{self.prefix}_outbox"\n'
            ),
            partitions=1,
        )

    def reads(self) -> set[str]:
        """Return the snapshots that have rows in this relay's topic."""
        found = (headers_of(each).get("snapshot") for each in self.records("s.a"))
        return {snapshot for snapshot in found if snapshot is not None}

    def notified(self, kind: str) -> set[str]:
        """Return the ids in this relay's notifications of the given type."""
        documents = [json.loads(each.value()) for each in self.records("notifications")]
        return {each["id"] for each in documents if each["type"] == kind}


@pytest.fixture
def relays(stack, database: str, unique: str, tmp_path: Path) -> Iterator[list[Relay]]:
    """
    Provide two configured relays of one database, neither initialized nor started.
    """
    stack.up("postgres", "kafka")
    configured = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        configured.append(Relay(database, stack.kafka, f"{unique}_{name}", folder))
    try:
        configured[0].execute("create schema s")
        configured[0].execute("create table s.a (id int primary key, v int)")
        configured[0].execute(
            "insert into s.a select g, g from generate_series(1, %s) g", ROWS
        )
        for relay in configured:
            relay.prepare()
        yield configured
    finally:
        for relay in configured:
            relay.close()


def keys_signal(signal_id: str, **data: object) -> dict[str, object]:
    """Return a signal, as a JSON document, that reads one row of the table."""
    read = {"data-collections": ["s.a"], "keys": [[7]], **data}
    return {"id": signal_id, "type": "execute-snapshot", "data": read}


def produce_signal(relay: Relay, signal: dict[str, object]) -> None:
    """Produce a signal to a relay's signal topic, as its sinks do."""
    producer = Producer({"bootstrap.servers": relay.kafka})
    producer.produce(f"{relay.prefix}-signal", json.dumps(signal), relay.prefix)
    assert producer.flush(20) == 0


def post_signal(relay: Relay, signal: dict[str, object]) -> None:
    """Send a signal to a relay's admin port."""
    relay.wait_for(lambda: bool(relay.logged("relay started")))
    request = Request(
        f"http://127.0.0.1:{relay.admin_port}/signals",
        json.dumps(signal).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=20) as response:  # noqa: S310 - as above
        assert response.status == HTTPStatus.ACCEPTED


def command(*arguments: str, relay: Relay) -> int:
    """Run a command with the configuration of a relay."""
    return root.run([*arguments, "--config", str(relay.config)])


def listed(relay: Relay, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the snapshots that the command lists for a relay."""
    capsys.readouterr()
    command("snapshot", "list", "--json", relay=relay)
    return {row["snapshot_id"] for row in json.loads(capsys.readouterr().out)}


def test_each_relay_answers_only_its_own_signals(relays: list[Relay], capsys):
    """
    A signal is carried out by the relay that it names, or whose channel it arrives on.

    In the table, a signal that names no known relay is rejected once.
    """
    one, two = relays
    for relay in relays:
        relay.init()
        relay.start()
    for relay in relays:
        relay.wait_for(lambda relay=relay: bool(relay.logged("relay streaming")))
    one.signal("table-two", data_collections=["s.a"], relay=two.prefix)
    produce_signal(two, keys_signal("kafka-two"))
    post_signal(two, keys_signal("http-two"))
    post_signal(two, keys_signal("http-one", relay=one.prefix))
    one.signal("to-nobody", data_collections=["s.a"])
    one.signal("to-unknown", data_collections=["s.a"], relay="three")
    code = command("snapshot", "start", "s.a", "--wait", "--id", "cli", relay=one)
    expected = [{"cli", "http-one"}, {"table-two", "kafka-two", "http-two"}]
    for signal_id in sorted(expected[0] | expected[1]):
        one.wait_for_answer(signal_id)
    reasons = [
        one.wait_for_answer(name, "rejected")["reason"]
        for name in ("to-nobody", "to-unknown")
    ]
    for relay in relays:
        relay.confirm()
    rejected = [relay.notified("REJECTED") for relay in relays]

    assert code == 0
    assert expected == [relay.reads() for relay in relays]
    assert expected == [listed(relay, capsys) for relay in relays]
    assert all(relay.prefix in why for why in reasons for relay in relays)
    assert {"to-nobody", "to-unknown"} == rejected[0] | rejected[1]
    assert set() == rejected[0] & rejected[1]
    assert expected == [relay.notified("COMPLETED") for relay in relays]
    assert [(1, True), (2, True)] == one.execute(
        "select id, counter > 0 from towpath.heartbeat order by id"
    )


def prepare_as_before(one: Relay) -> None:
    """Set up the source as an older release left it in the middle of a snapshot."""
    one.execute(OLD_TABLES)
    one.execute("insert into towpath.heartbeat values (1, 40, now())")
    one.execute(
        "insert into towpath.signal values ('s1', 'execute-snapshot',"
        """ '{"data-collections": ["s.a"]}', 'running', '{}')"""
    )
    one.execute(
        "insert into towpath.snapshot (snapshot_id, collection, ordinal, state,"
        " table_oid, last_key, maximum_key, rows, chunks, floor)"
        " values ('s1', 's.a', 0, 'running', 's.a'::regclass,"
        """ '["100"]', %s::jsonb, 100, 2, 1)""",
        json.dumps([str(ROWS)]),
    )
    for name, tables in (("", "s.a, towpath.signal"), ("_outbox", "towpath.outbox")):
        one.execute(f"create publication {one.prefix}{name} for table {tables}")
    one.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", one.prefix)


def test_tables_without_a_relay_are_migrated_and_their_snapshot_continues(
    relays: list[Relay], capsys
):
    """
    A relay refuses to start with them; ``relay init`` migrates them, and only once.
    """
    one, two = relays
    prepare_as_before(one)
    one.start()
    code = one.ended()
    halted = one.logged("relay halted")
    two.init()
    unowned = two.one("select count(*) from towpath.snapshot where relay is null")
    capsys.readouterr()
    init(one.config, dry_run=True)
    one.init()
    one.init()
    printed = capsys.readouterr().out
    one.start()
    one.wait_for_answer("s1")
    keys = sorted(
        json.loads(each.value())["after"]["id"] for each in one.records("s.a")
    )

    assert 3 == code
    assert "towpath relay init" in halted[-1]["remedy"]
    assert 1 == unowned
    assert "insert into towpath.relay" in printed
    assert 1 == printed.count("nothing to do")
    assert [(one.prefix, 1), (two.prefix, 2)] == one.execute(RELAY_TABLE)
    assert 40 < one.one("select counter from towpath.heartbeat where id = 1")
    assert list(range(101, ROWS + 1)) == keys

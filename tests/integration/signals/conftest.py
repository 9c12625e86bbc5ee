"""A source with two tables, a relay with every channel for signals, what it says."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from towpath.relay.__main__ import init
from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
TIMEOUT_S = 60.0
ROWS = 1_000


class Rig:
    """A relay process over a database, and the four ways to leave it a signal."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        self.dsn, self.kafka, self.prefix, self.folder = dsn, kafka, prefix, folder
        self.config = folder / "towpath.toml"
        self.signal_topic = f"{prefix}-signal"
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make the tables and write the configuration; let the relay do the rest."""
        self.execute("create schema s")
        self.execute("create schema inventory")
        self.execute(
            "create table inventory.dbz_signal"
            " (id varchar(80), type varchar(32), data varchar(2048))"
        )
        for name in ("a", "b"):
            self.execute(
                f"create table s.{name} (id int primary key, v int, note text)"
            )
            self.execute(
                f"insert into s.{name} select *"  # noqa: S608 - a name of ours
                " from (select g, g %% 7, 'old' from generate_series(1, %s) g) g",
                ROWS,
            )
        self.config.write_text(
            f"""
version = 1
[[source]]
dsn = "{self.dsn}"
prefix = "{self.prefix}"
slot = "{self.prefix}"
tables = ["s.a", "s.b"]
[kafka]
bootstrap_servers = "{self.kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 2
[relay.snapshot]
chunk_rows = 100
signal_topic = "{self.signal_topic}"
signal_table = "inventory.dbz_signal"
""",
            encoding="utf-8",
        )
        init(self.config, dry_run=False)

    def start(self) -> None:
        """Start the relay."""
        (self.folder / "relay.log").unlink(missing_ok=True)
        with (self.folder / "relay.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "towpath.relay", str(self.config)],
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Kill the relay as an accident would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        self.kill()
        with contextlib.suppress(psycopg.Error):
            self.execute("select pg_drop_replication_slot(%s)", self.prefix)
        self.connection.close()

    # The source ------------------------------------------------------------------

    def execute(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement on the source; return its rows, if it has any."""
        done = self.connection.execute(statement, arguments or None)
        return done.fetchall() if done.description else []

    def signal(
        self, signal_id: str, kind: str = "execute-snapshot", **data: Any
    ) -> None:
        """Leave a signal in the relay's own table."""
        self.execute(
            "insert into towpath.signal (id, type, data) values (%s, %s, %s)",
            *(signal_id, kind, json.dumps(fields(data))),
        )

    def leave_bare(self, signal_id: str | None, kind: str | None, data: str | None):
        """Leave a signal in the table as Debezium's users have it."""
        self.execute(
            "insert into inventory.dbz_signal values (%s, %s, %s)",
            *(signal_id, kind, data),
        )

    def leave_in_kafka(self, value: bytes | None, key: str | None = None) -> None:
        """Leave a signal in the topic."""
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(self.signal_topic, value=value, key=key or self.prefix)
        assert producer.flush(20) == 0

    def answer(self, signal_id: str) -> tuple[str, dict[str, Any]]:
        """Return a signal's status and detail."""
        rows = self.execute(
            "select coalesce(status, ''), coalesce(detail, '{}') from towpath.signal"
            " where id = %s",
            signal_id,
        )
        return rows[0] if rows else ("gone", {})

    def table(self, signal_id: str, collection: str = "s.a") -> tuple[str, int]:
        """Return the state of a table in a snapshot, and how many rows were read."""
        rows = self.execute(
            "select state, rows + dropped from towpath.snapshot"
            " where snapshot_id = %s and collection = %s",
            *(signal_id, collection),
        )
        return rows[0] if rows else ("none", 0)

    # Waiting ---------------------------------------------------------------------

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, while the relay lives."""
        deadline = Deadline(CLOCK, TIMEOUT_S)
        while not holds():
            has_ended = self.process is not None and self.process.poll() is not None
            if deadline.passed() or has_ended:
                log = (self.folder / "relay.log").read_text(encoding="utf-8")
                raise AssertionError(log[-6000:])
            CLOCK.wait(0.02)

    def wait_for_answer(self, signal_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until a signal has ended, and return its detail."""
        ends = statuses or ("completed",)
        final = {"completed", "failed", "rejected", *ends}
        self.wait_for(lambda: self.answer(signal_id)[0] in final)
        status, detail = self.answer(signal_id)
        assert status in ends, detail
        return detail

    def wait_for_rows(self, signal_id: str, count: int) -> None:
        """Wait until a snapshot has read so many rows of the first table."""
        self.wait_for(lambda: self.table(signal_id)[1] >= count)

    def wait_for_state(self, signal_id: str, state: str) -> None:
        """Wait until the first table of a snapshot is in a state."""
        self.wait_for(lambda: self.table(signal_id)[0] == state)

    def wait_for_notification(self, signal_id: str, kind: str) -> dict[str, Any]:
        """Wait until a signal was told of so, and return what was told."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [
                each
                for each in self.notifications()
                if (each["id"], each["type"]) == (signal_id, kind)
            ]
            return bool(found)

        self.wait_for(has_come)
        return found[0]

    def confirm(self) -> None:
        """Wait until all that was committed until now is confirmed."""
        self.execute("select pg_logical_emit_message(true, 'test', 'x')")
        [(lsn,)] = self.execute("select pg_current_wal_lsn()")
        confirmed = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        self.wait_for(lambda: self.execute(confirmed, lsn, self.prefix)[0][0])

    # What it says ------------------------------------------------------------------

    def reads(self, table: str = "s.a") -> Counter[tuple[str, int]]:
        """Count the READ rows of a topic by snapshot and key."""
        found: Counter[tuple[str, int]] = Counter()
        for message in self._records(f"{self.prefix}.{table}"):
            headers = dict(message.headers() or ())
            if "snapshot" in headers and message.value() is not None:
                row = json.loads(message.value())["after"]
                found[headers["snapshot"].decode(), row["id"]] += 1
        return found

    def notifications(self) -> list[dict[str, Any]]:
        """Return what was told on the notifications topic."""
        topic = f"{self.prefix}.notifications"
        return [json.loads(message.value()) for message in self._records(topic)]

    def ask(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """Ask the admin port for a page of JSON."""
        connection = HTTPConnection("127.0.0.1", self._admin_port(), timeout=20)
        body = None if document is None else json.dumps(document)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def _admin_port(self) -> int:
        ports: list[int] = []

        def is_told() -> bool:
            text = (self.folder / "relay.log").read_text(encoding="utf-8")
            lines = [json.loads(x) for x in text.splitlines() if x.startswith("{")]
            ports[:] = [x["admin_port"] for x in lines if "admin_port" in x]
            return bool(ports)

        self.wait_for(is_told)
        return ports[-1]

    def _records(self, topic: str) -> Iterator[Any]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": f"{self.prefix}-test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            known = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            for number in known:
                consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
                while (message := consumer.poll(20)) is not None:
                    if message.error() is not None:
                        break
                    yield message
        finally:
            consumer.close()


def fields(data: dict[str, Any]) -> dict[str, Any]:
    """Spell the fields of a signal as it does."""
    return {name.replace("_", "-"): value for name, value in data.items()}


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Lend a prepared source whose relay is not started yet."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    try:
        made.prepare()
        yield made
    finally:
        made.close()

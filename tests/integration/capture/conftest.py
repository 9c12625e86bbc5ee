"""A database that a relay process follows, and what its readers have."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from towpath.relay.__main__ import init
from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
TIMEOUT_S = 60.0


class Followed:
    """
    A source whose relay is a process of its own.

    Attributes:
        tables: The entries of ``[[source]] tables``.
        excluded: Those of ``exclude_tables``.
        snapshot: ``[relay.snapshot]``.
        on_gap: ``[relay] on_gap``.
        more: Other lines of the file, to stand at its end.
    """

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        self.dsn, self.kafka, self.prefix, self.folder = dsn, kafka, prefix, folder
        self.config = folder / "towpath.toml"
        self.tables: list[str] = []
        self.excluded: list[str] = []
        self.snapshot: dict[str, Any] = {}
        self.on_gap = "plan"
        self.more = ""
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self) -> None:
        """Write the file."""
        wanted = "\n".join(f"{k} = {json.dumps(v)}" for k, v in self.snapshot.items())
        self.config.write_text(
            f"""
version = 1
[[source]]
dsn = "{self.dsn}"
prefix = "{self.prefix}"
slot = "{self.prefix}"
tables = {json.dumps(self.tables)}
exclude_tables = {json.dumps(self.excluded)}
[kafka]
bootstrap_servers = "{self.kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 2
[relay]
on_gap = "{self.on_gap}"
heartbeat_interval_s = 0.5
[relay.snapshot]
{wanted}
{self.more}
""",
            encoding="utf-8",
        )

    def prepare(self) -> None:
        """Write the file, and let the relay prepare the database."""
        self.configure()
        init(self.config, dry_run=False)

    def start(self) -> None:
        """Start the relay."""
        with (self.folder / "relay.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "towpath.relay", str(self.config)],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> int:
        """End the relay as a service manager does, and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait for the relay's own end, and return its exit code."""
        assert self.process is not None
        code = self.process.wait(TIMEOUT_S)
        self.process = None
        return code

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
        self.connection.close()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where slot_name = %s",
                (self.prefix,),
            )

    def execute(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement on the source; return its rows, if it has any."""
        done = self.connection.execute(statement, arguments or None)
        return done.fetchall() if done.description else []

    def one(self, statement: str, *arguments: object) -> Any:
        """Return the first value that a statement gives."""
        rows = self.execute(statement, *arguments)
        return rows[0][0] if rows else None

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, while the relay lives."""
        deadline = Deadline(CLOCK, TIMEOUT_S)
        while not holds():
            has_ended = self.process is not None and self.process.poll() is not None
            if deadline.passed() or has_ended:
                log = (self.folder / "relay.log").read_text(encoding="utf-8")
                raise AssertionError(log[-6000:])
            CLOCK.wait(0.02)

    def wait_for_log(self, event: str) -> dict[str, Any]:
        """Wait until something is logged, and return its newest record."""
        self.wait_for(lambda: bool(self.logged(event)))
        return self.logged(event)[-1]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Read the log records of one event."""
        lines = (self.folder / "relay.log").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record["event"] == event]

    def states(self, snapshot_id: str) -> dict[str, str]:
        """Return the state of each table of a snapshot."""
        return dict(
            self.execute(
                "select collection, state from towpath.snapshot where snapshot_id = %s",
                snapshot_id,
            )
        )

    def wait_for_snapshot(self, snapshot_id: str, state: str = "completed") -> None:
        """Wait until every table of a snapshot is in one state."""
        self.wait_for(lambda: {state} == set(self.states(snapshot_id).values()))

    def confirm(self) -> None:
        """Wait until all that was committed until now is confirmed."""
        self.execute("select pg_logical_emit_message(true, 'test', 'x')")
        lsn = self.one("select pg_current_wal_lsn()")
        confirmed = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        self.wait_for(lambda: bool(self.one(confirmed, lsn, self.prefix)))

    def read(self, table: str) -> list[tuple[int, dict[str, Any], dict[str, str]]]:
        """Read a table's topic: partition, envelope and headers, without tombstones."""
        topic = f"{self.prefix}.{table}"
        found = []
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": self.prefix,
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic]
            for number in partitions.partitions:
                consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
                while True:
                    message = consumer.poll(20)
                    if message is None or message.error() is not None:
                        break
                    if message.value() is not None:
                        found.append((number, *_parts(message)))
        except KafkaException:
            return []
        finally:
            consumer.close()
        return found

    def fold(self, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return what a sink of a table's topic would have."""
        newest: dict[Any, tuple[str, dict[str, Any] | None]] = {}
        for _, envelope, headers in self.read(table):
            if envelope["op"] not in "crud":
                continue
            row = envelope["after"] or envelope["before"]
            held = newest.get(row[key])
            if held is None or headers["position"] >= held[0]:
                newest[row[key]] = (headers["position"], envelope["after"])
        return {name: row for name, (_, row) in newest.items() if row is not None}

    def rows(self, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return a table as a sink should have it."""
        done = self.connection.execute(f"table {table}")
        names = [column.name for column in done.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in done]
        return {row[key]: row for row in rows}


def _parts(message: Any) -> tuple[dict[str, Any], dict[str, str]]:
    headers: Mapping[str, bytes] = dict(message.headers() or ())
    texts = {name: value.decode() for name, value in headers.items()}
    return json.loads(message.value()), texts


@pytest.fixture
def followed(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Followed]:
    """Lend a source with an empty schema ``s``."""
    stack.up("postgres", "kafka")
    made = Followed(database, stack.kafka, unique, tmp_path)
    made.execute("create schema s")
    yield made
    made.close()

"""A source with two tables, and a relay that accepts signals on every channel."""

import json
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from support.forked import Running
from support.snapshots import SnapshotRig
from support.topics import headers_of

ROWS = 1_000


class Rig(SnapshotRig):
    """A relay process, its database, and the channels through which it gets signals."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        super().__init__(dsn, kafka, prefix, folder)
        self.signal_topic = f"{prefix}-signal"

    def prepare(self) -> None:
        """Create the tables, write the configuration, and run relay init."""
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
        self.configure(
            """
[relay.snapshot]
chunk_rows = 100
signal_table = "inventory.dbz_signal"
""",
            tables=("s.a", "s.b"),
            partitions=2,
        )
        self.init()

    def start(self, *command: str) -> Running:
        """Start the relay with a new log file."""
        self.log_file.unlink(missing_ok=True)
        return super().start(*command)

    # The source ------------------------------------------------------------------

    def insert_debezium_signal(
        self, signal_id: str | None, kind: str | None, data: str | None
    ):
        """Insert a signal into a signal table in Debezium's format."""
        self.execute(
            "insert into inventory.dbz_signal values (%s, %s, %s)",
            *(signal_id, kind, data),
        )

    def produce_signal(self, value: bytes | None, key: str | None = None) -> None:
        """Produce a record to the signal topic."""
        producer = Producer({"bootstrap.servers": self.kafka})
        producer.produce(self.signal_topic, value=value, key=key or self.prefix)
        assert producer.flush(20) == 0

    def table(self, signal_id: str, collection: str = "s.a") -> tuple[str, int]:
        """Return the state of a table in a snapshot, and the number of rows read."""
        rows = self.execute(
            "select state, rows + dropped from towpath.snapshot"
            " where snapshot_id = %s and collection = %s",
            *(signal_id, collection),
        )
        return rows[0] if rows else ("none", 0)

    # Waiting ---------------------------------------------------------------------

    def wait_for_rows(self, signal_id: str, count: int) -> None:
        """Wait until a snapshot has read ``count`` rows of the first table."""
        self.wait_for(lambda: self.table(signal_id)[1] >= count)

    def wait_for_state(self, signal_id: str, state: str) -> None:
        """Wait until the first table of a snapshot is in the given state."""
        self.wait_for(lambda: self.table(signal_id)[0] == state)

    def wait_for_notification(self, signal_id: str, kind: str) -> dict[str, Any]:
        """Wait for a signal's notification of the given type, and return it."""
        found: list[dict[str, Any]] = []

        def has_arrived() -> bool:
            found[:] = [
                each
                for each in self.notifications()
                if (each["id"], each["type"]) == (signal_id, kind)
            ]
            return bool(found)

        self.wait_for(has_arrived)
        return found[0]

    # The output --------------------------------------------------------------------

    def reads(self, table: str = "s.a") -> Counter[tuple[str, int]]:
        """Count the READ rows of a topic by snapshot and key."""
        found: Counter[tuple[str, int]] = Counter()
        for message in self.records(table):
            headers = headers_of(message)
            if "snapshot" in headers and message.value() is not None:
                row = json.loads(message.value())["after"]
                found[headers["snapshot"], row["id"]] += 1
        return found

    def streamed(self, table: str = "s.a") -> list[int]:
        """Return the keys of the streamed inserts, in the order of the topic."""
        values = (message.value() for message in self.records(table))
        changes = [json.loads(value) for value in values if value is not None]
        return [each["after"]["id"] for each in changes if each["op"] == "c"]

    def notifications(self) -> list[dict[str, Any]]:
        """Return the records of the notifications topic."""
        return [json.loads(each.value()) for each in self.records("notifications")]

    def call_admin(
        self, method: str, path: str, document: object = None
    ) -> tuple[int, Any]:
        """Send a request to the admin port; return the status and the JSON document."""
        self.wait_for(lambda: bool(self.logged("relay started")))
        connection = HTTPConnection("127.0.0.1", self.admin_port, timeout=20)
        body = None if document is None else json.dumps(document)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a prepared source whose relay has not been started."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    try:
        rig.prepare()
        yield rig
    finally:
        rig.close()

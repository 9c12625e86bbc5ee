"""
A source database, the relay process that captures it, and methods that read its topics.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from support.rig import Rig
from support.topics import headers_of


class Followed(Rig):
    """
    A source database whose relay runs as a separate process.

    Attributes:
        tables: The entries of ``[[source]] tables``.
        excluded: The entries of ``exclude_tables``.
        on_drop: ``on_drop`` of the source.
        snapshot: ``[relay.snapshot]``.
        on_gap: ``[relay] on_gap``.
        more: Additional lines, appended to the configuration file.
    """

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        super().__init__(dsn, kafka, prefix, folder)
        self.tables: list[str] = []
        self.excluded: list[str] = []
        self.on_drop = "keep"
        self.snapshot: dict[str, Any] = {}
        self.on_gap = "plan"
        self.more = ""

    def prepare(self) -> None:
        """Write the configuration file, and prepare the database with relay init."""
        self.write()
        self.init()

    def write(self) -> None:
        """Write the configuration file."""
        lines = (f"{k} = {json.dumps(v)}" for k, v in self.snapshot.items())
        snapshot_settings = "\n".join(lines)
        self.configure(
            f"""
on_gap = "{self.on_gap}"
heartbeat_interval_s = 0.5
[relay.snapshot]
{snapshot_settings}
{self.more}
""",
            tables=self.tables,
            source=f"exclude_tables = {json.dumps(self.excluded)}"
            f'\non_drop = "{self.on_drop}"',
            partitions=2,
        )

    def wait_for_log(self, event: str) -> dict[str, Any]:
        """Wait until an event is logged, and return its newest log record."""
        self.wait_for(lambda: bool(self.logged(event)))
        return self.logged(event)[-1]

    def states(self, snapshot_id: str) -> dict[str, str]:
        """Return the state of each table of a snapshot."""
        return dict(
            self.execute(
                "select collection, state from towpath.snapshot where snapshot_id = %s",
                snapshot_id,
            )
        )

    def wait_for_snapshot(self, snapshot_id: str, state: str = "completed") -> None:
        """Wait until every table of a snapshot is in the given state."""
        self.wait_for(lambda: {state} == set(self.states(snapshot_id).values()))

    def envelopes(self, table: str) -> list[tuple[int, dict[str, Any], dict[str, str]]]:
        """Return the partition, envelope and headers of each record with a value."""
        records = self.records(table)
        return [_parts(record) for record in records if record.value() is not None]

    def fold(self, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return the rows that a sink of a table's topic would hold, by key."""
        newest: dict[Any, tuple[str, dict[str, Any] | None]] = {}
        floor = ""
        for _, envelope, headers in self.envelopes(table):
            floor = max(floor, headers.get("sweep", ""))
            if envelope["op"] not in "crud":
                continue
            row = envelope["after"] or envelope["before"]
            held = newest.get(row[key])
            if held is None or headers["position"] >= held[0]:
                newest[row[key]] = (headers["position"], envelope["after"])
        return {
            name: row
            for name, (position, row) in newest.items()
            if row is not None and position >= floor
        }

    def rows(self, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
        """Return the rows of a table, by key."""
        cursor = self.connection.execute(f"table {table}")
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return {row[key]: row for row in rows}


def _parts(record: Message) -> tuple[int, dict[str, Any], dict[str, str]]:
    return record.partition(), json.loads(record.value()), headers_of(record)


@pytest.fixture
def followed(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Followed]:
    """Provide a source with an empty schema ``s``."""
    stack.up("postgres", "kafka")
    source = Followed(database, stack.kafka, unique, tmp_path)
    source.execute("create schema s")
    yield source
    source.close()

"""A database, its relay as a process, and the topics that the relay writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Message

from support.configuration import NO_REGISTRY, configuration
from support.relay_process import RelayProcess
from support.slots import drop_slot
from support.topics import read_at_least, read_to_end
from towpath.relay.__main__ import init


class Rig(RelayProcess):
    """
    A database whose relay is a process; prefix and slot share one name.

    Attributes:
        client: The lines of ``[kafka.client]``; by default none.
    """

    client = ""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        super().__init__(folder / "towpath.toml", folder / "relay.log")
        self.dsn = dsn
        self.kafka = kafka
        self.prefix = prefix
        self.folder = folder
        self.connection = psycopg.connect(dsn, autocommit=True)
        self._seen: set[tuple[str | None, int | None, int | None]] = set()

    def configure(
        self,
        sections: str = "",
        *,
        tables: Sequence[str] = (),
        source: str = "",
        partitions: int = 3,
        registry_url: str = NO_REGISTRY,
    ) -> None:
        """
        Write the configuration.

        Args:
            sections: The text below ``[relay]``: its keys, then whole sections.
            tables: The captured tables.
            source: Further lines of ``[[source]]``.
            partitions: The number of partitions of each topic.
            registry_url: The registry; by default an address without a server.
        """
        text = configuration(
            *(self.dsn, self.kafka, self.prefix, tables),
            source=source,
            kafka=self.client,
            topics=f"partitions = {partitions}",
            registry=registry_url,
            relay=sections,
        )
        self.config.write_text(text, encoding="utf-8")

    @property
    def outbox(self) -> str:
        """The section that names the outbox's topics below the prefix."""
        return f'[relay.outbox]\ntopic = "{self.prefix}.event.{{aggregate_type}}"\n'

    def init(self) -> None:
        """Run ``relay init``, which prints its steps."""
        init(self.config, dry_run=False)

    def close(self) -> None:
        """End the processes, close connections and drop the slot."""
        self.kill()
        self.connection.close()
        drop_slot(self.dsn, self.prefix)

    def execute(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Run a statement on the source; return its rows, if it has any."""
        done = self.connection.execute(statement, arguments or None)
        return done.fetchall() if done.description else []

    def one(self, statement: str, *arguments: object) -> Any:
        """Return the first value of a statement's result."""
        rows = self.execute(statement, *arguments)
        return rows[0][0] if rows else None

    def confirm(self) -> None:
        """Wait until everything committed so far is confirmed."""
        self.execute("select pg_logical_emit_message(true, 'test', 'x')")
        lsn = self.one("select pg_current_wal_lsn()::text")
        confirmed = (
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
            " where slot_name = %s"
        )
        self.wait_for(lambda: bool(self.one(confirmed, lsn, self.prefix)))

    def topic(self, name: str) -> str:
        """Return the name of a topic below the prefix."""
        return f"{self.prefix}.{name}"

    def records(self, name: str) -> list[Message]:
        """Read a topic below the prefix from its start to its current end."""
        return read_to_end(self.kafka, self.topic(name))

    def new_records(self, name: str) -> list[Message]:
        """
        Read the records of a topic that this method has not returned yet.

        Each read returns the partitions in a different order, so the number of records
        read before would not show which are new.
        """
        found = []
        for message in self.records(name):
            origin = message.topic(), message.partition(), message.offset()
            if origin not in self._seen:
                self._seen.add(origin)
                found.append(message)
        return found

    def read(self, name: str, *, at_least: int) -> list[Message]:
        """Read a topic below the prefix until it has at least this many records."""
        found = read_at_least(self.kafka, self.topic(name), at_least)
        assert len(found) >= at_least, self.printed()[-3000:]
        return found

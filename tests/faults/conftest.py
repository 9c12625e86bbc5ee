"""
Fixtures for crash tests: a source with a history, relays that die, and a comparison.

Two relays follow one database, each with its own slot and prefix. The first one is
killed; the second one, the witness, is not. At the end, the topics of both must have
the same streamed records: each once, in the same partition and in the same order.
"""

import contextlib
import json
import re
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from support.configuration import configuration
from support.forked import Running
from support.relay_process import RelayProcess
from support.slots import drop_slot
from support.topics import read_to_end
from support.waiting import TIMEOUT_S, until
from towpath.relay.__main__ import init

RUNNER = Path(__file__).with_name("relay_with_fault.py")

TABLES = """
create schema shop;
create table shop.line (id bigint primary key, note text, n int);
create table shop.bare (id bigint, note text);
alter table shop.bare replica identity full;
"""
# The publishing time, which differs between relays.
NOW = re.compile(rb'"ts_[mun]s":\s*\d+')


class StreamedRecord(NamedTuple):
    """A streamed record as it is stored, with its topic, partition and position."""

    topic: str
    partition: int
    position: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Follower(RelayProcess):
    """A relay: its configuration, its processes and its topics."""

    def __init__(self, dsn: str, kafka: str, prefix: str, folder: Path) -> None:
        super().__init__(folder / f"{prefix}.toml", folder / f"{prefix}.log")
        self.dsn = dsn
        self.kafka = kafka
        self.prefix = prefix
        self.isolation = "read_uncommitted"

    def configure(
        self,
        *,
        tables: tuple[str, ...] = ("shop.line", "shop.bare"),
        replicas: int = 1,
        **options: str,
    ) -> None:
        """
        Write the configuration.

        Args:
            tables: The captured tables.
            replicas: The replication factor of each topic.
            options: More lines for ``relay``, ``source``, ``outbox`` and ``kafka``;
                ``sections`` has whole sections.
        """
        lines = {"outbox": f'topic = "{self.prefix}.{{aggregate_type}}"'} | options
        if "transactional" in lines.get("relay", ""):
            self.isolation = "read_committed"
        relay = f"""
heartbeat_interval_s = 0.5
{lines.get("relay", "")}
[relay.outbox]
{lines["outbox"]}
{lines.get("sections", "")}
"""
        text = configuration(
            *(self.dsn, self.kafka, self.prefix, tables),
            source=lines.get("source", ""),
            kafka=lines.get("kafka", ""),
            topics=f"partitions = 3\nreplication_factor = {replicas}",
            relay=relay,
        )
        self.config.write_text(text, encoding="utf-8")

    def prepare(self) -> None:
        """Prepare the database with the relay's ``init``."""
        with contextlib.redirect_stdout(None):
            init(self.config, dry_run=False)

    def start(self, point: str = "", nth: int = 1) -> Running:
        """Start a relay process; with a fault point, one that kills itself there."""
        command = (str(RUNNER), str(self.config), point, str(nth))
        return super().start(*command if point else ())

    def die(self, point: str, nth: int = 1) -> None:
        """Start a process and wait until it has killed itself."""
        code = self.start(point, nth).wait(TIMEOUT_S)
        assert code == -signal.SIGKILL, f"{point} {nth}: exit {code}, {self.tail()}"

    def tail(self) -> str:
        """Return the end of the log."""
        return self.printed()[-3000:]

    def close(self) -> None:
        """Kill the processes, and drop the slot."""
        self.kill()
        drop_slot(self.dsn, self.prefix)

    def topics(self) -> dict[str, int]:
        """Return the partition counts of the topics with the prefix."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        found = admin.list_topics(timeout=10).topics
        return {
            name: len(topic.partitions)
            for name, topic in found.items()
            if name.startswith(f"{self.prefix}.")
        }

    def records(self, *names: str) -> list[Message]:
        """Read the named topics, or all of the relay's, from beginning to end."""
        wanted = [
            topic
            for topic in self.topics()
            if not names or topic.removeprefix(f"{self.prefix}.") in names
        ]
        return read_to_end(self.kafka, *wanted, isolation=self.isolation)

    def streamed(self, *names: str) -> list[StreamedRecord]:
        """Return the streamed records; those of each partition are in order."""
        ours = self.prefix.encode()
        found = []
        for message in self.records(*names):
            headers = [(n, _plain(v, ours)) for n, v in message.headers() or ()]
            values = dict(headers)
            topic = message.topic().removeprefix(f"{self.prefix}.")
            is_streamed = "position" in values and "snapshot" not in values
            if topic == "relations" or not is_streamed:
                continue
            found.append(
                StreamedRecord(
                    topic,
                    message.partition(),
                    (values["position"] or b"").decode(),
                    message.key(),
                    _plain(message.value(), ours),
                    tuple(headers),
                )
            )
        return found


MakeFaults = Callable[[str], "Faults"]


def _plain(text: bytes | None, prefix: bytes) -> bytes | None:
    """Mask the parts that differ between relays: the prefix and the publishing time."""
    return text and NOW.sub(b"", text.replace(prefix, b"PREFIX"))


class Writer:
    """Writes a few changes of every kind, each time with new keys."""

    def __init__(self, dsn: str, first: int) -> None:
        self._source = psycopg.connect(dsn, autocommit=True)
        self._base = first

    def close(self) -> None:
        """Close the connection."""
        self._source.close()

    def insert_events(self, count: int, *, kind: str = "order", size: int = 20) -> None:
        """Insert events in one transaction."""
        with self._source.transaction(), self._source.cursor() as cursor:
            cursor.executemany(
                "insert into towpath.outbox"
                " (id, aggregate_type, aggregate_id, type, payload)"
                " values (gen_random_uuid(), %s, %s, 'Placed', %s)",
                [
                    (kind, str(n % 7), json.dumps({"n": n, "pad": "x" * size}))
                    for n in range(count)
                ],
            )

    def write(self, rounds: int = 1) -> None:
        """Write one or more rounds, each with every kind of change."""
        for _ in range(rounds):
            self._base += 1000
            self._rows(self._base)
            self._messages(self._base)
            number = self._base // 1000
            if number % 1000 == 1:
                self._oversize()
            if number % 3 == 0:
                self._source.execute("truncate shop.bare")
            self.insert_events(5, kind=f"kind{number % 5}")

    def _rows(self, base: int) -> None:
        execute = self._source.execute
        self.insert_events(12)
        execute(
            "insert into shop.line select %s + n, 'a', 0 from generate_series(1, 9) n",
            (base,),
        )
        with self._source.transaction():
            execute("update shop.line set id = id + 500 where id = %s", (base + 1,))
            execute(
                "update shop.line set n = n + 1 where id between %s and %s",
                (base, base + 999),
            )
            execute("update shop.line set id = id + 600 where id = %s", (base + 2,))
            execute("delete from shop.line where id = %s", (base + 3,))
            execute("select pg_logical_emit_message(true, 'other', 'in the middle')")
            execute("insert into shop.bare select n, 'b' from generate_series(1, 7) n")
        execute("delete from shop.bare where id < 3")

    def _messages(self, base: int) -> None:
        for number, is_transactional in enumerate((True, False)):
            event = {
                "id": str(uuid.UUID(int=base + number)),
                "aggregate_type": "tableless",
                "aggregate_id": str(base),
                "type": "Reported",
                "payload": {"base": base},
            }
            self._source.execute(
                "select pg_logical_emit_message(%s, 'outbox', %s)",
                (is_transactional, json.dumps(event)),
            )

    def _oversize(self) -> None:
        """Write an event and a row too large for any topic, and events to be parked."""
        self.insert_events(1, kind="big", size=1_500_000)
        self.insert_events(14, kind="big")
        self._source.execute(
            "insert into shop.line values (%s, repeat('y', 1200000), 0)",
            (self._base + 99,),
        )


class Faults:
    """A database with tables and a writer, the relay to be killed, and the witness."""

    def __init__(self, dsn: str, kafka: str, unique: str, folder: Path) -> None:
        self.source = psycopg.connect(dsn, autocommit=True)
        self.source.execute(TABLES)
        self.dsn = dsn
        self.relay = Follower(dsn, kafka, f"{unique}a", folder)
        self.witness = Follower(dsn, kafka, f"{unique}w", folder)
        self.writer = Writer(dsn, 0)
        self._writers = [self.writer]

    def prepare(self, **options: str) -> None:
        """Configure and prepare both relays in the same way."""
        for follower in (self.relay, self.witness):
            follower.configure(**options)
            follower.prepare()

    def close(self) -> None:
        """Close the relays, the writers and the connection."""
        for follower in (self.relay, self.witness):
            follower.close()
        for writer in self._writers:
            writer.close()
        self.source.close()

    @contextlib.contextmanager
    def load(self, writers: int = 2) -> Iterator[None]:
        """Write continuously from several connections during the block."""
        ending = threading.Event()

        def write(writer: Writer) -> None:
            while not ending.wait(0.02):
                writer.write()

        more = [Writer(self.dsn, 1_000_000 * n) for n in range(1, writers + 1)]
        self._writers += more
        with ThreadPoolExecutor(writers) as threads:
            done = [threads.submit(write, writer) for writer in more]
            try:
                yield
            finally:
                ending.set()
        for one in done:
            one.result()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition."""
        until(holds, what)

    def until_logged(self, event: str, more: int) -> None:
        """Wait until the relay has logged an event ``more`` additional times."""
        count = len(self.relay.logged(event)) + more
        until(lambda: len(self.relay.logged(event)) >= count, f"{event} is logged")

    def check_order(self, records: list[StreamedRecord]) -> None:
        """Fail unless positions are unique, and rise in each partition."""
        check_order(records)

    def end(self) -> int:
        """Write a last transaction, and return an LSN before its end."""
        row = self.source.execute(
            "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
        ).fetchone()
        self.writer.insert_events(1, kind="end")
        return row[0] if row else 0

    def await_confirmed(self, follower: Follower, lsn: int) -> None:
        """Wait until a relay has confirmed an LSN."""

        def is_confirmed() -> bool:
            code = follower.processes[-1].poll()
            assert code is None, f"exit {code}: {follower.tail()}"
            row = self.source.execute(
                "select confirmed_flush_lsn >= '0/0'::pg_lsn + %s"
                " from pg_replication_slots where slot_name = %s",
                (lsn, follower.prefix),
            ).fetchone()
            return bool(row and row[0])

        until(is_confirmed, "everything is confirmed")

    def finish_and_compare(self) -> int:
        """
        Wait until both relays have caught up, and compare; return the record count.

        The relay is running already. The witness is started here, and reads all of the
        log in one run.
        """
        lsn = self.end()
        self.witness.start()
        self.await_confirmed(self.relay, lsn)
        self.await_confirmed(self.witness, lsn)
        return self.compare()

    def compare(self) -> int:
        """Fail unless the relay has the witness's records, each once and in order."""
        ours, theirs = self.relay.streamed(), self.witness.streamed()
        check_order(ours)
        check_order(theirs)
        lost = set(theirs) - set(ours)
        more = set(ours) - set(theirs)
        assert (_positions(lost), _positions(more)) == ([], [])
        self._check_events(ours)
        return len(ours)

    def _check_events(self, records: list[StreamedRecord]) -> None:
        """Fail unless the topics have each event once, or a stub as its dead letter."""
        found_headers = [dict(record.headers) for record in records]
        found = Counter(each["id"] for each in found_headers if "id" in each)
        stubs = sum(each.get("form") == b"stub" for each in found_headers)
        rows = self.source.execute("select id::text from towpath.outbox").fetchall()
        lost = {row[0].encode() for row in rows} - set(found)
        assert ([], True) == (
            [event for event, count in found.items() if count > 1],
            len(lost) <= stubs,
        )


def check_order(records: list[StreamedRecord]) -> None:
    """Fail unless positions are unique, and rise in each partition."""
    counts = Counter((r.topic, r.partition, r.position) for r in records)
    twice = [at for at, count in counts.items() if count > 1]
    assert twice == [], f"{len(twice)} duplicates in {len(records)} records"
    last: dict[tuple[str, int], str] = {}
    for record in records:
        at = record.topic, record.partition
        assert last.get(at, "") < record.position, (at, last[at], record.position)
        last[at] = record.position


def _positions(records: set[StreamedRecord]) -> list[tuple[str, int, str]]:
    return sorted((r.topic, r.partition, r.position) for r in records)[:20]


@pytest.fixture
def make_faults(database: str, unique: str, tmp_path: Path) -> Iterator[MakeFaults]:
    """Provide a function that makes ``Faults`` for the Kafka at an address."""
    made: list[Faults] = []

    def make(kafka: str) -> Faults:
        made.append(Faults(database, kafka, unique, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def faults(make_faults: MakeFaults, stack) -> Faults:
    """Provide a database with two relays; nothing is prepared or started."""
    return make_faults(stack.kafka)

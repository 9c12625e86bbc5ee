"""
Fixtures of the crash tests: a source with a history, relays that die, and a check.

Two relays follow one database, each with a slot and a prefix of its own. The first is
killed; the second, the witness, is not. In the end each streamed record must stand in
the first's topics as it stands in the witness's: once, in the same partition, in order.
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
from support.relay_process import RelayProcess, Running
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
# The time of publishing, which differs from relay to relay.
NOW = re.compile(rb'"ts_[mun]s":\s*\d+')


class Stood(NamedTuple):
    """Where a streamed record stands, and as what."""

    topic: str
    partition: int
    position: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Follower(RelayProcess):
    """One prefix: its configuration, its processes, and what stands in its topics."""

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
            replicas: Of each topic.
            options: Further lines of ``relay``, ``source``, ``outbox`` and ``kafka``;
                ``sections``: whole ones.
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
        """Let the relay prepare the database."""
        with contextlib.redirect_stdout(None):
            init(self.config, dry_run=False)

    def start(self, point: str = "", nth: int = 1) -> Running:
        """Start a relay process; with a point, one that kills itself there."""
        command = (str(RUNNER), str(self.config), point, str(nth))
        return super().start(*command if point else ())

    def die(self, point: str, nth: int = 1) -> None:
        """Start a process and wait until it has killed itself."""
        code = self.start(point, nth).wait(TIMEOUT_S)
        assert code == -signal.SIGKILL, f"{point} {nth}: exit {code}, {self.tail()}"

    def tail(self) -> str:
        """Read the end of the log."""
        return self.printed()[-3000:]

    def close(self) -> None:
        """Leave no process and no slot behind."""
        self.kill()
        drop_slot(self.dsn, self.prefix)

    def topics(self) -> dict[str, int]:
        """Return the partition counts of the topics below the prefix."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        found = admin.list_topics(timeout=10).topics
        return {
            name: len(topic.partitions)
            for name, topic in found.items()
            if name.startswith(f"{self.prefix}.")
        }

    def records(self, *names: str) -> list[Message]:
        """Read topics from beginning to end; all of ours if none is named."""
        wanted = [
            topic
            for topic in self.topics()
            if not names or topic.removeprefix(f"{self.prefix}.") in names
        ]
        return read_to_end(self.kafka, *wanted, isolation=self.isolation)

    def streamed(self, *names: str) -> list[Stood]:
        """Return the streamed records, in the order of each partition."""
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
                Stood(
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
    """Leave out what differs from relay to relay."""
    return text and NOW.sub(b"", text.replace(prefix, b"PREFIX"))


class Writer:
    """Writes a little of everything, each time with new keys."""

    def __init__(self, dsn: str, first: int) -> None:
        self._source = psycopg.connect(dsn, autocommit=True)
        self._base = first

    def close(self) -> None:
        """Leave no connection behind."""
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
        """Write so many rounds of every kind of change."""
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
        say = self._source.execute
        self.insert_events(12)
        say(
            "insert into shop.line select %s + n, 'a', 0 from generate_series(1, 9) n",
            (base,),
        )
        with self._source.transaction():
            say("update shop.line set id = id + 500 where id = %s", (base + 1,))
            say(
                "update shop.line set n = n + 1 where id between %s and %s",
                (base, base + 999),
            )
            say("update shop.line set id = id + 600 where id = %s", (base + 2,))
            say("delete from shop.line where id = %s", (base + 3,))
            say("select pg_logical_emit_message(true, 'other', 'in the middle')")
            say("insert into shop.bare select n, 'b' from generate_series(1, 7) n")
        say("delete from shop.bare where id < 3")

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
        """Write what is too large for every topic, and then who is parked behind it."""
        self.insert_events(1, kind="big", size=1_500_000)
        self.insert_events(14, kind="big")
        self._source.execute(
            "insert into shop.line values (%s, repeat('y', 1200000), 0)",
            (self._base + 99,),
        )


class Faults:
    """A database with tables and a history, the relay to be killed, and the witness."""

    def __init__(self, dsn: str, kafka: str, unique: str, folder: Path) -> None:
        self.source = psycopg.connect(dsn, autocommit=True)
        self.source.execute(TABLES)
        self.dsn = dsn
        self.relay = Follower(dsn, kafka, f"{unique}a", folder)
        self.witness = Follower(dsn, kafka, f"{unique}w", folder)
        self.writer = Writer(dsn, 0)
        self._writers = [self.writer]

    def prepare(self, **options: str) -> None:
        """Configure and prepare both, the same."""
        for follower in (self.relay, self.witness):
            follower.configure(**options)
            follower.prepare()

    def close(self) -> None:
        """Leave nothing behind."""
        for follower in (self.relay, self.witness):
            follower.close()
        for writer in self._writers:
            writer.close()
        self.source.close()

    @contextlib.contextmanager
    def load(self, writers: int = 2) -> Iterator[None]:
        """Write all the time, from several connections."""
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
        """Wait until the relay has logged an event so many times more."""
        count = len(self.relay.logged(event)) + more
        until(lambda: len(self.relay.logged(event)) >= count, f"{event} is logged")

    def check_order(self, records: list[Stood]) -> None:
        """Fail unless each position stands once, rising in each partition."""
        check_order(records)

    def end(self) -> int:
        """Write a last transaction, and return an LSN below its end."""
        row = self.source.execute(
            "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
        ).fetchone()
        self.writer.insert_events(1, kind="end")
        return row[0] if row else 0

    def await_confirmed(self, follower: Follower, lsn: int) -> None:
        """Wait until a relay has confirmed so much."""

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

    def reckon(self) -> int:
        """
        Finish both relays and compare; return how many streamed records there are.

        The relay is running; the witness is started here, and reads all at once.
        """
        lsn = self.end()
        self.witness.start()
        self.await_confirmed(self.relay, lsn)
        self.await_confirmed(self.witness, lsn)
        return self.compare()

    def compare(self) -> int:
        """Fail unless each record stands once, in order, as the witness has it."""
        ours, theirs = self.relay.streamed(), self.witness.streamed()
        check_order(ours)
        check_order(theirs)
        lost = set(theirs) - set(ours)
        more = set(ours) - set(theirs)
        assert (_places(lost), _places(more)) == ([], [])
        self._check_events(ours)
        return len(ours)

    def _check_events(self, records: list[Stood]) -> None:
        """Fail unless each event of the outbox stands once in all topics."""
        found_headers = [dict(record.headers) for record in records]
        found = Counter(each["id"] for each in found_headers if "id" in each)
        stubs = sum(each.get("form") == b"stub" for each in found_headers)
        rows = self.source.execute("select id::text from towpath.outbox").fetchall()
        lost = {row[0].encode() for row in rows} - set(found)
        assert ([], True) == (
            [event for event, count in found.items() if count > 1],
            len(lost) <= stubs,
        )


def check_order(records: list[Stood]) -> None:
    """Fail unless each position stands once per topic, rising in each partition."""
    counts = Counter((r.topic, r.partition, r.position) for r in records)
    twice = [at for at, count in counts.items() if count > 1]
    assert twice == [], f"{len(twice)} twice of {len(records)}"
    last: dict[tuple[str, int], str] = {}
    for record in records:
        at = record.topic, record.partition
        assert last.get(at, "") < record.position, (at, last[at], record.position)
        last[at] = record.position


def _places(records: set[Stood]) -> list[tuple[str, int, str]]:
    return sorted((r.topic, r.partition, r.position) for r in records)[:20]


@pytest.fixture
def make_faults(database: str, unique: str, tmp_path: Path) -> Iterator[MakeFaults]:
    """Make them over any Kafka, by its address."""
    made: list[Faults] = []

    def make(kafka: str) -> Faults:
        made.append(Faults(database, kafka, unique, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def faults(make_faults: MakeFaults, stack) -> Faults:
    """Provide a database with two relays over it; nothing is prepared or started."""
    return make_faults(stack.kafka)

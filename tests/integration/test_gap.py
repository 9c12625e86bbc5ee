"""A gap in the source's history, as the readers of Kafka and the operator see it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from towpath.relay.__main__ import init, status
from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

CLOCK = SystemClock()


class Relay:
    """A database with one table, and the relay process that follows it."""

    def __init__(self, dsn: str, kafka: str, name: str, folder: Path) -> None:
        self.kafka, self.name = kafka, name
        self.config, self.log_file = folder / "towpath.toml", folder / "relay.log"
        self.source = psycopg.connect(dsn, autocommit=True)
        self.source.execute("create table public.note (id int primary key, note text)")
        self.process: subprocess.Popen[bytes] | None = None
        self.dsn = dsn

    def prepare(self, on_gap: str) -> None:
        """Write the configuration, prepare the database and start."""
        self.config.write_text(
            f"""
version = 1
[[source]]
dsn = "{self.dsn}"
prefix = "{self.name}"
slot = "{self.name}"
tables = ["public.note"]
[kafka]
bootstrap_servers = "{self.kafka}"
[registry]
url = "http://127.0.0.1:1"
[topics]
partitions = 1
[relay]
on_gap = "{on_gap}"
heartbeat_interval_s = 0.3
""",
            encoding="utf-8",
        )
        init(self.config, dry_run=False)
        self.start()

    def start(self) -> None:
        """Start the process."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "towpath.relay", str(self.config)],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> int:
        """End it, and return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(20)

    def close(self) -> None:
        """Leave no process behind."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.source.close()

    def write(self, first: int, last: int) -> None:
        """Insert notes, each in a transaction of its own."""
        for number in range(first, last + 1):
            self.source.execute("insert into public.note values (%s, 'x')", [number])

    def logged(self, event: str) -> list[dict]:
        """Read the log records of one event."""
        lines = self.log_file.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record["event"] == event]

    def read(self, topic: str) -> list[Message]:
        """Read the one partition of a topic to its end."""
        settings = {
            "bootstrap.servers": self.kafka,
            "group.id": self.name,
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(f"{self.name}.{topic}", 0, OFFSET_BEGINNING)])
        messages = []
        while (message := consumer.poll(20)) is not None and message.error() is None:
            messages.append(message)
        consumer.close()
        return messages

    def ids(self, kind: str) -> set[int]:
        """List the ids of the notes whose records have this operation."""
        values = [json.loads(m.value()) for m in self.read("public.note") if m.value()]
        return {value["after"]["id"] for value in values if value["op"] == kind}


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    deadline = Deadline(CLOCK, 40)
    while not holds():
        assert not deadline.passed(), what
        CLOCK.wait(0.1)


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Relay]:
    """Lend a relay."""
    made = Relay(database, stack.kafka, unique, tmp_path)
    yield made
    made.close()


def test_a_lost_slot_is_announced_and_its_gap_filled(relay: Relay, capsys):
    """
    X-06: nothing of what the gap swallowed is missing in Kafka, and positions rise.
    """
    relay.prepare("snapshot")
    relay.write(1, 5)
    until(lambda: relay.ids("c") == {1, 2, 3, 4, 5}, "the first five are there")
    assert relay.stop() == 0
    relay.source.execute("select pg_drop_replication_slot(%s)", [relay.name])
    relay.write(6, 9)
    relay.start()
    until(lambda: relay.ids("r") == set(range(1, 10)), "all rows are read")
    relay.write(10, 10)
    until(lambda: 10 in relay.ids("c"), "the stream goes on")
    capsys.readouterr()
    status(relay.config, as_json=True)
    told = json.loads(capsys.readouterr().out)
    gaps = [json.loads(m.value()) for m in relay.read("notifications")]
    positions = [
        dict(m.headers())["position"]
        for m in relay.read("public.note")
        if "snapshot" not in dict(m.headers())
    ]

    assert (1, 2, True) == (
        len([gap for gap in gaps if gap["type"] == "GAP"]),
        told["lineage"],
        "is gone" in told["gap"],
    )
    assert sorted(positions) == positions


def test_a_gap_halts_if_it_is_to(relay: Relay):
    """
    X-03: with on_gap = halt the relay ends with the failure's name and remedy.
    """
    relay.prepare("halt")
    relay.write(1, 1)
    until(lambda: relay.ids("c") == {1}, "the row is there")
    relay.stop()
    relay.source.execute("select pg_drop_replication_slot(%s)", [relay.name])
    relay.start()
    assert relay.process is not None
    code = relay.process.wait(40)
    (halted,) = relay.logged("halted")

    assert (3, True, True) == (
        code,
        "is gone" in halted["reason"],
        "on_gap" in halted["remedy"],
    )


def test_a_database_that_goes_back_is_noticed_while_running(relay: Relay):
    """
    The guardian sees the heartbeat fall, and the relay goes on in a new lineage.
    """
    relay.prepare("plan")
    relay.write(1, 1)
    until(lambda: relay.ids("c") == {1}, "the row is there")
    counter = "select counter > 3 from towpath.heartbeat"
    until(lambda: relay.source.execute(counter).fetchone() == (True,), "it beats")
    relay.source.execute("update towpath.heartbeat set counter = 0")
    until(lambda: bool(relay.logged("gap in the source's history")), "it is told")
    relay.write(2, 2)
    until(lambda: 2 in relay.ids("c"), "the stream goes on")
    told = relay.logged("gap in the source's history")

    assert (1, 2, ["public.note"]) == (
        len(told),
        told[0]["lineage"],
        told[0]["plan"],
    )

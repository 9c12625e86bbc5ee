"""
The relay's memory under overload: a huge transaction, and a broker that is down.

The tests take minutes to an hour; the relay's other tests include small versions of
them. Each test has its own stack, because it stops the broker.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from towpath.deploy.local import lifecycle
from towpath.deploy.local.stack import LazyStack, Stack
from towpath.relay.__main__ import init
from towpath.schemas.clock import Deadline, SystemClock

CLOCK = SystemClock()
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MEBIBYTE = 1024 * 1024
LIMIT_BYTES = 300 * MEBIBYTE
TOPIC = "events.order"
KEYS = 1000

CONFIGURATION = """\
version = 1
[[source]]
dsn = "{dsn}"
[kafka]
bootstrap_servers = "{kafka}"
[registry]
url = "http://127.0.0.1:1"
[relay.outbox]
topic = "events.{{aggregate_type}}"
"""
# A payload of 250 bytes that compresses badly, with the number of its row.
INSERT = """
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
select gen_random_uuid(), 'order', (n %% 1000)::text, 'Placed',
  (rpad('{"n":' || n || ',"pad":"' || md5(n::text) || md5((n + 1)::text)
    || md5((n + 2)::text) || md5((n + 3)::text) || md5((n + 4)::text)
    || md5((n + 5)::text) || md5((n + 6)::text), 248, '0') || '"}')::json
from generate_series(%s::int, %s::int - 1) n
"""


ROWS = 5_000_000
DOWN_S = 300.0
PATIENCE_S = 1800.0


class Contents(NamedTuple):
    """The counts of a topic's lost, duplicate and out-of-order records."""

    lost: int
    twice: int
    out_of_order: int


class Rig:
    """A stack, a prepared source and one relay process."""

    def __init__(self, folder: Path) -> None:
        self.stack = LazyStack(Stack(folder))
        self.stack.up("postgres", "kafka")
        self.source = psycopg.connect(self.stack.dsn("shop"), autocommit=True)
        config = folder / "towpath.toml"
        config.write_text(
            CONFIGURATION.format(dsn=self.stack.dsn("shop"), kafka=self.stack.kafka)
        )
        init(config, dry_run=False)
        self._log = (folder / "relay.log").open("wb")
        self.relay = subprocess.Popen(
            [sys.executable, "-m", "towpath.relay", str(config)],
            stdout=self._log,
            stderr=self._log,
        )

    def close(self) -> None:
        """End the relay, close the connections, and remove the stack."""
        self.relay.kill()
        self.relay.wait()
        self._log.close()
        self.source.close()
        self.stack.stack.purge()

    def insert(self, rows: int, per_transaction: int) -> None:
        """Insert rows, ``per_transaction`` of them in each transaction."""
        for first in range(0, rows, per_transaction):
            self.source.execute(INSERT, (first, min(rows, first + per_transaction)))

    def sent_lsn(self) -> str:
        """Return the LSN up to which the server has sent WAL."""
        row = self.source.execute(
            "select coalesce(max(sent_lsn)::text, '') from pg_stat_replication"
        ).fetchone()
        return row[0]

    def peak_bytes(self) -> int:
        """Return the peak resident set size of the relay."""
        status = Path(f"/proc/{self.relay.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def until(self, holds: Callable[[], bool], what: str, patience_s: float) -> None:
        """Wait for a condition; fail if the relay ends."""
        deadline = Deadline(CLOCK, patience_s)
        while not holds():
            if deadline.passed():
                pytest.fail(f"not within {patience_s:g} s: {what}")
            assert self.relay.poll() is None, "the relay has ended"
            CLOCK.wait(0.25)

    def until_published(self, rows: int, patience_s: float) -> None:
        """Wait until the topic has at least ``rows`` records."""
        with contextlib.closing(self._consumer()) as consumer:
            self.until(
                lambda: sum(ends_by_now(consumer).values()) >= rows,
                f"the topic has {rows:,} events",
                patience_s,
            )

    def until_sending_stops(self, patience_s: float) -> None:
        """Wait until the relay stops reading, and backpressure reaches the server."""
        seen: list[str] = []

        def is_still() -> bool:
            seen.append(self.sent_lsn())
            return len(seen) > 12 and len(set(seen[-12:])) == 1

        self.until(is_still, "the relay stops reading", patience_s)

    def contents(self, rows: int) -> Contents:
        """Read the whole topic; count missing, repeated and out-of-order numbers."""
        counts = bytearray(rows)
        newest: dict[bytes, int] = {}
        out_of_order = 0
        with contextlib.closing(self._consumer()) as consumer:
            left = {p: end for p, end in ends(consumer).items() if end}
            consumer.assign([TopicPartition(TOPIC, p, 0) for p in left])
            while left:
                for message in consumer.consume(10_000, 5.0):
                    assert message.error() is None, message.error()
                    number = int(message.value()[5:].partition(b",")[0])
                    counts[number] += 1
                    out_of_order += number < newest.get(message.key(), -1)
                    newest[message.key()] = number
                    if message.offset() + 1 >= left.get(message.partition(), 0):
                        left.pop(message.partition(), None)
        return Contents(
            counts.count(0), sum(count > 1 for count in counts), out_of_order
        )

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.stack.kafka,
                "group.id": "soak",
                "log_level": 0,
            }
        )

    @contextlib.contextmanager
    def broker_stopped(self) -> Iterator[None]:
        """Suspend the broker during the block; its sockets remain open."""
        broker = psutil.Process(self._broker_pid())
        broker.suspend()
        try:
            yield
        finally:
            broker.resume()

    @contextlib.contextmanager
    def broker_killed(self) -> Iterator[None]:
        """Kill the broker; restart it with its data after the block."""
        os.kill(self._broker_pid(), signal.SIGKILL)
        yield
        part = next(p for p in self.stack.stack.parts() if p.name == "kafka")
        lifecycle.bring_up(part, self.stack.stack.state)

    def _broker_pid(self) -> int:
        status = self.stack.stack.status()
        return next(part.pid for part in status if part.name == "kafka")


def ends(consumer: Consumer) -> dict[int, int]:
    """Return each partition's end offset."""
    partitions = consumer.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
    return {
        p: consumer.get_watermark_offsets(TopicPartition(TOPIC, p), timeout=10)[1]
        for p in partitions
    }


def ends_by_now(consumer: Consumer) -> dict[int, int]:
    """Return the end offsets, or nothing if the broker is not back yet."""
    with contextlib.suppress(KafkaException):
        return ends(consumer)
    return {}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Provide a streaming relay with an empty source."""
    made = Rig(tmp_path)
    try:
        made.until(lambda: made.sent_lsn() != "", "the relay streams", 60)
        yield made
    finally:
        made.close()


def test_a_huge_transaction_needs_little_memory(rig: Rig):
    """
    Rows of one transaction are produced as they arrive, and are not buffered (I8).
    """
    rig.insert(ROWS, per_transaction=ROWS)
    rig.until_published(ROWS, PATIENCE_S)
    peak_bytes = rig.peak_bytes()

    assert (Contents(0, 0, 0), True) == (
        rig.contents(ROWS),
        peak_bytes < LIMIT_BYTES,
    ), f"peak: {peak_bytes / MEBIBYTE:.0f} MiB"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_broker_outage_under_load_needs_little_memory(rig: Rig, how: str):
    """
    The relay stops reading at its bound, and continues once the broker is back (I8).
    """
    down = rig.broker_stopped if how == "stopped" else rig.broker_killed
    # The topic exists beforehand, and the producer knows it.
    rig.insert(1000, per_transaction=100)
    rig.until_published(1000, PATIENCE_S)
    with down():
        rig.source.execute("set synchronous_commit = off")
        for first in range(1000, ROWS, 1000):
            rig.source.execute(INSERT, (first, min(ROWS, first + 1000)))
        rig.until_sending_stops(PATIENCE_S)
        CLOCK.wait(DOWN_S)
    rig.until_published(ROWS, PATIENCE_S)
    peak_bytes = rig.peak_bytes()

    assert (Contents(0, 0, 0), True) == (
        rig.contents(ROWS),
        peak_bytes < LIMIT_BYTES,
    ), f"peak: {peak_bytes / MEBIBYTE:.0f} MiB"

"""Events take effect in a second database, although relay and consumer are killed."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from support import inbox_worker
from support.rig import Rig
from support.waiting import until
from towpath.inbox import create_statements
from towpath.outbox import Events, Outbox

pytestmark = [pytest.mark.integration, pytest.mark.faults]

KEYS = 10
# One in this many transactions is rolled back.
ROLLED_BACK = 5
OUTBOX = Outbox(Events(unknown="none"))


class Application(threading.Thread):
    """An application that counts per key, and records each new count as an event."""

    def __init__(self, dsn):
        super().__init__()
        self._dsn = dsn
        self._random = random.Random(7)  # noqa: S311 - a repeatable test
        self.stop = threading.Event()
        self.failure = None

    def run(self):
        """Write until stopped."""
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.failure = error

    def _write(self):
        with psycopg.connect(self._dsn) as connection:
            for number in range(1_000_000):
                if self.stop.wait(0.005):
                    return
                key = f"k{self._random.randrange(KEYS)}"
                count = connection.execute(
                    "insert into counts values (%s, 1) on conflict (key)"
                    " do update set count = counts.count + 1 returning count",
                    [key],
                ).fetchone()[0]
                event = {
                    "aggregate_type": "post",
                    "aggregate_id": key,
                    "type": "PostViewed",
                    "payload": {"count": count},
                }
                OUTBOX.record(connection, event)
                if number % ROLLED_BACK:
                    connection.commit()
                else:
                    connection.rollback()


class Reader:
    """The consumer's database, and its processes."""

    def __init__(self, dsn, kafka, topic, group, folder):
        self._args = (dsn, kafka, topic, group, "one")
        self._log = (folder / "consumer.log").open("ab")
        self.connection = psycopg.connect(dsn, autocommit=True)
        for statement in (*create_statements(), inbox_worker.EFFECTS):
            self.connection.execute(statement)
        self.process = None

    def start(self):
        """Start a consumer."""
        self.process = subprocess.Popen(
            [sys.executable, str(Path(inbox_worker.__file__)), *self._args],
            stdout=self._log,
            stderr=self._log,
            env=os.environ.copy(),  # noqa: TID251 - a separate process
        )

    def kill(self):
        """Kill the consumer in the middle of its work."""
        assert self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def applied(self):
        """Return the number of effects."""
        rows = self.connection.execute("select count(*) from effects")
        return rows.fetchone()[0]

    def counts(self):
        """Return the counts that were applied for each key, in order."""
        found = {}
        rows = self.connection.execute("select key, count from effects order by number")
        for key, count in rows:
            found.setdefault(key, []).append(count)
        return found

    def close(self):
        """End the consumer."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self.connection.close()


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with an outbox and a relay."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.configure(made.outbox)
    made.init()
    made.execute("create table counts (key text primary key, count int)")
    yield made
    made.close()


@pytest.fixture
def reader(stack, rig, unique, tmp_path):
    """Provide a consumer with its own database."""
    name = f"{unique}_reader"
    rig.execute(f"create database {name}")
    dsn = psycopg.conninfo.make_conninfo(rig.dsn, dbname=name)
    made = Reader(
        dsn, stack.kafka, rig.topic("event.post"), f"{unique}-reader", tmp_path
    )
    yield made
    made.close()
    rig.execute(f"drop database {name} with (force)")


@pytest.mark.timeout(300)
def test_every_committed_event_has_its_effect_once_despite_kills(rig, reader):
    """
    The relay, the consumer or both are killed; commits take effect once and in order.
    """
    application = Application(rig.dsn)
    application.start()
    rig.start()
    reader.start()
    try:
        for number in range(6):
            before = reader.applied()
            until(lambda n=before: reader.applied() > n + 20, "more events are applied")
            if number % 3 != 1:
                rig.kill()
            if number % 3 != 0:
                reader.kill()
                reader.start()
            if number % 3 != 1:
                rig.start()
    finally:
        application.stop.set()
        application.join()
    assert application.failure is None
    committed = dict(rig.execute("select key, count from counts"))
    until(
        lambda: reader.applied() >= sum(committed.values()),
        "all events are applied",
        timeout_s=120,
    )

    assert {k: [*range(1, n + 1)] for k, n in committed.items()} == reader.counts()
    assert sum(committed.values()) == rig.one("select count(*) from towpath.outbox")

"""Consumers that are killed at random apply every event exactly once."""

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import inbox_worker
from support.waiting import until
from towpath.inbox import create_statements

pytestmark = [pytest.mark.integration, pytest.mark.faults]

WORKERS = ("one", "two-s", "three-s")
KEYS = 40
# One in this many events is produced twice.
REPEATED = 20


class Group:
    """Three consumers, the events for them, and the effects in the database."""

    def __init__(self, dsn, kafka, name, folder):
        self.dsn, self.kafka, self.name = dsn, kafka, name
        self.topic = f"{name}.events"
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.create_topics([NewTopic(self.topic, 6, 1)])[self.topic].result()
        self._producer = Producer({"bootstrap.servers": kafka})
        self.connection = psycopg.connect(dsn, autocommit=True)
        for statement in (*create_statements(), inbox_worker.EFFECTS):
            self.connection.execute(statement)
        self.random = random.Random(7)  # noqa: S311 - a repeatable test
        self.sent = {f"k{number}": 0 for number in range(KEYS)}
        self._log = (folder / "workers.log").open("ab")
        self.processes = {}

    def send(self, count):
        """Produce events with random keys, numbered per key; some of them twice."""
        for number in range(count):
            key = self.random.choice([*self.sent])
            self.sent[key] += 1
            id_ = str(uuid.uuid4())
            for _ in range(2 if number % REPEATED == 0 else 1):
                self._producer.produce(
                    self.topic,
                    json.dumps({"count": self.sent[key]}),
                    key,
                    headers=[("id", id_)],
                )
        self._producer.flush()

    def start(self, worker):
        """Start a worker."""
        args = (self.dsn, self.kafka, self.topic, self.name, worker)
        self.processes[worker] = subprocess.Popen(
            [sys.executable, str(Path(inbox_worker.__file__)), *args],
            stdout=self._log,
            stderr=self._log,
            env=os.environ.copy(),  # noqa: TID251 - a separate process
        )

    def applied(self):
        """Return the number of effects."""
        (count,) = self.connection.execute("select count(*) from effects").fetchone()
        return count

    def kill(self):
        """Kill a random worker in the middle of its work, and start it again."""
        worker = self.random.choice(WORKERS)
        process = self.processes[worker]
        assert process.poll() is None, worker
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start(worker)

    def counts(self):
        """Return the counts that were applied for each key, in order."""
        rows = self.connection.execute("select key, count from effects order by number")
        found = {key: [] for key in self.sent}
        for key, count in rows:
            found[key].append(count)
        return found

    def close(self):
        """Terminate the workers, and return their exit codes."""
        for process in self.processes.values():
            process.terminate()
        codes = [process.wait(60) for process in self.processes.values()]
        self._log.close()
        self.connection.close()
        return codes


@pytest.fixture
def group(stack, database, unique, tmp_path):
    """Provide a group of consumers."""
    stack.up("postgres", "kafka")
    return Group(database, stack.kafka, unique, tmp_path)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(15, marks=pytest.mark.timeout(400)),
        pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
def test_killed_consumers_apply_each_event_once(group, kills):
    """
    Each effect is in the database once, and the effects of each key are in order.
    """
    for worker in WORKERS:
        group.start(worker)
    group.send(500)
    until(lambda: group.applied() > 0, "the consumers have started")
    for _ in range(kills):
        before = group.applied()
        group.send(60)
        some = before + group.random.randrange(1, 40)
        until(lambda some=some: group.applied() >= some, "the consumers make progress")
        group.kill()
    total = sum(group.sent.values())
    until(lambda: group.applied() >= total, "all events are applied", timeout_s=120)
    found = group.counts()

    assert [0] * len(WORKERS) == group.close()
    assert {key: [*range(1, n + 1)] for key, n in group.sent.items()} == found

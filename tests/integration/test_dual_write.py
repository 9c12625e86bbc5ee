"""
The dual write that the outbox replaces: it loses events, and nothing reports it.

Each handler is a process that is killed right after its commit, as can happen during a
deployment or when memory runs out.
"""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.rig import Rig
from support.topics import read_to_end

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

# The arguments are database, brokers and topic; DIES becomes a kill, or nothing.
DUAL_WRITE = """
    import os, signal, sys
    import psycopg
    from confluent_kafka import Producer

    dsn, kafka, topic = sys.argv[1:]
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into bookings (id) values (1)")
    DIES
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, b'{"id": 1}', b"1")
    producer.flush()
"""
OUTBOX = """
    import os, signal, sys
    import psycopg
    from towpath.outbox import Events, Outbox, OutboxEvent

    dsn, kafka, topic = sys.argv[1:]
    outbox = Outbox(Events(unknown="none"))
    event = OutboxEvent(
        aggregate_type="booking", aggregate_id="1", type="Booked", payload={"id": 1}
    )
    with psycopg.connect(dsn) as connection:
        connection.execute("insert into bookings (id) values (1)")
        outbox.record(connection, event)
    DIES
"""
INSIDE = """
    import psycopg
    from confluent_kafka import Producer

    def test_a_booking(no_dual_writes):
        with psycopg.connect("DSN") as connection:
            connection.execute("create table bookings (id bigint)")
            connection.execute("insert into bookings (id) values (1)")
            producer = Producer({"bootstrap.servers": "127.0.0.1:1"})
            producer.produce("booking", b"1")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path):
    """Provide a database with bookings and an outbox, and a running relay."""
    stack.up("postgres", "kafka")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.execute("create table bookings (id bigint primary key)")
    made.configure(made.outbox)
    made.init()
    made.start()
    yield made
    made.close()


def run_handler(rig: Rig, text: str, dies: str) -> int:
    """Run a handler; return the exit code, which is negative for a signal."""
    script = textwrap.dedent(text).replace("DIES", dies)
    command = [
        sys.executable,
        "-c",
        script,
        rig.dsn,
        rig.kafka,
        rig.topic("event.booking"),
    ]
    return subprocess.run(command, check=False, timeout=60).returncode


def test_a_dual_write_loses_its_event_if_the_handler_is_killed_after_the_commit(
    rig: Rig,
):
    """
    The booking is committed, the event is missing, and nothing records the loss.
    """
    killed = run_handler(rig, DUAL_WRITE, KILL)
    rig.confirm()

    assert -signal.SIGKILL == killed
    assert [(1,)] == rig.execute("select id from bookings")
    assert [] == read_to_end(rig.kafka, rig.topic("event.booking"))
    assert [] == rig.execute("select * from towpath.outbox")


def test_the_outbox_loses_no_event_when_its_handler_is_killed_after_the_commit(
    rig: Rig,
):
    """
    The event was committed with the booking, so the relay publishes it.
    """
    killed = run_handler(rig, OUTBOX, KILL)
    (event,) = rig.read("event.booking", at_least=1)

    assert -signal.SIGKILL == killed
    assert [(1,)] == rig.execute("select id from bookings")
    assert (b"1", {"id": 1}) == (event.key(), json.loads(event.value()))


def test_a_producer_inside_the_transaction_fails_the_handlers_test(
    pytester: pytest.Pytester, database: str
):
    """
    A call before the commit is a dual write, too; the library's check detects it.
    """
    guard = "from towpath.outbox.testing import guard_producers\nguard_producers()\n"
    pytester.makeconftest(guard)
    pytester.makepyfile(textwrap.dedent(INSIDE.replace("DSN", database)))
    options = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    result = pytester.runpytest_subprocess(*options)

    result.stdout.fnmatch_lines(["*DualWriteError: *was called while a transaction*"])

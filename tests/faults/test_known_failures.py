"""
Known failures of change data capture systems, each provoked with real servers.

The tests freeze and kill the broker, so that its socket holds requests that a client
has sent and the broker has not read.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from towpath.schemas.clock import Deadline, SystemClock

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CLOCK = SystemClock()
PUBLISHED = """
[relay.transactions]
metadata = true
[relay.messages]
publish = true
"""


@pytest.fixture(scope="session")
def stack(worker_stack):
    """Provide the worker's own stack: tests freeze and kill its broker."""
    return worker_stack


def broker(stack) -> int:
    """Return the broker's process id."""
    kafka = next(part for part in stack.stack.status() if part.name == "kafka")
    return kafka.pid


@contextlib.contextmanager
def frozen(stack) -> Iterator[None]:
    """Freeze the broker during the block, so that its sockets fill up."""
    pid = broker(stack)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def holds_for(holds, seconds: float) -> bool:
    """Return whether a condition holds for a number of seconds."""
    deadline = Deadline(CLOCK, seconds)
    while holds() and not deadline.passed():
        CLOCK.wait(0.05)
    return deadline.passed()


def confirmed(faults) -> int:
    """Return the LSN that the relay's slot has confirmed."""
    row = faults.source.execute(
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots"
        " where slot_name = %s",
        (faults.relay.prefix,),
    ).fetchone()
    return row[0]


def log_end(faults) -> int:
    """Return the LSN at the end of the WAL."""
    row = faults.source.execute(
        "select (pg_current_wal_insert_lsn() - '0/0')::bigint"
    ).fetchone()
    return row[0]


def test_a_keepalive_during_transactions_confirms_nothing(faults, stack):
    """
    While Kafka is frozen, interleaved commits and keepalives confirm no LSN (B1, B3).
    """
    faults.prepare()
    name = faults.source.info.dbname
    faults.source.execute(f'alter database "{name}" set wal_sender_timeout = 800')
    faults.relay.start()
    # Create the topic first: the relay would stop reading to wait for a new one.
    faults.source.execute("insert into shop.line values (0, 'known', 0)")
    faults.await_confirmed(faults.relay, faults.end())
    with psycopg.connect(faults.dsn) as first:
        first.execute("insert into shop.line values (1, 'first', 0)")
        with frozen(stack):
            before = log_end(faults)
            faults.source.execute("insert into shop.line values (2, 'second', 0)")
            first.execute(
                "insert into shop.line select n, repeat('x', 200), 0"
                " from generate_series(1000, 9000) n"
            )
            first.commit()
            faults.source.execute("insert into shop.line values (3, 'third', 0)")
            first.execute("insert into shop.line values (4, 'open', 0)")
            is_kept = holds_for(lambda: confirmed(faults) <= before, 3)
            faults.relay.kill()
        first.commit()
    faults.relay.start()
    faults.finish_and_compare()

    assert is_kept


def test_a_message_and_a_commit_at_one_lsn_are_both_published_once(faults):
    """
    A non-transactional message ends at the LSN where the next commit begins (A91).
    """
    faults.prepare(sections=PUBLISHED)
    for number in range(40):
        with faults.source.transaction():
            faults.source.execute(
                "insert into shop.line values (%s, 'x', 0)", (number,)
            )
            faults.source.execute(
                "select pg_logical_emit_message(false, 'other', %s)", (str(number),)
            )
    deaths = [("produced+", 9), ("marks stored", 1), ("postgres confirmed", 1)]
    for number, (point, nth) in enumerate(deaths):
        faults.relay.die(point, nth)
        with faults.source.transaction():
            faults.source.execute(
                "insert into shop.line values (%s, 'x', 0)", (100 + number,)
            )
            faults.source.execute(
                "select pg_logical_emit_message(false, 'other', 'later')"
            )
    faults.relay.start()
    faults.finish_and_compare()
    records = faults.relay.streamed("message", "shop.line")
    at = {
        name: {r.position.split(".")[0] for r in records if r.topic == name}
        for name in ("message", "shop.line")
    }

    assert len(at["message"] & at["shop.line"]) > 20


def test_requests_in_a_frozen_brokers_socket_are_fenced(faults, stack):
    """
    With transactions, records in a dead relay's unread requests never become visible.
    """
    faults.prepare(relay='delivery = "transactional"')
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    for _ in range(2):
        with frozen(stack):
            faults.writer.write(2)
            CLOCK.wait(0.5)
            faults.relay.kill()
            faults.relay.start()
            CLOCK.wait(0.5)
        faults.await_confirmed(faults.relay, faults.end())

    assert faults.finish_and_compare() > 100


def test_requests_in_a_frozen_brokers_socket_are_not_lost(faults, stack):
    """
    With idempotent delivery, a dead relay's requests may be read late; nothing is lost.
    """
    faults.prepare()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    with frozen(stack):
        faults.writer.write(2)
        CLOCK.wait(0.5)
        faults.relay.kill()
        faults.relay.start()
        CLOCK.wait(0.5)
    lsn = faults.end()
    faults.witness.start()
    faults.await_confirmed(faults.relay, lsn)
    faults.await_confirmed(faults.witness, lsn)

    assert set(faults.relay.streamed()) == set(faults.witness.streamed())


def test_a_reconnect_while_requests_are_in_flight_repeats_nothing(faults, stack):
    """
    The relay keeps running, but its Postgres connection ends while Kafka is frozen.
    """
    faults.prepare()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    for _ in range(2):
        with frozen(stack):
            faults.writer.write(2)
            CLOCK.wait(0.3)
            faults.source.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots"
                " where slot_name = %s",
                (faults.relay.prefix,),
            )
            CLOCK.wait(0.5)
        faults.await_confirmed(faults.relay, faults.end())

    assert faults.finish_and_compare() > 100


def test_a_broker_killed_with_requests_in_its_socket_gets_them_once(faults, stack):
    """
    The broker dies with unread requests; retried by the client, each is stored once.
    """
    faults.prepare()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    with faults.load(1):
        pid = broker(stack)
        os.kill(pid, signal.SIGSTOP)
        CLOCK.wait(0.5)
        os.kill(pid, signal.SIGKILL)
        stack.stack.up(["kafka"])
        CLOCK.wait(1)

    assert faults.finish_and_compare() > 100


def test_a_changed_partition_count_is_refused_and_nothing_is_changed(faults):
    """
    Keys would change partitions: the relay halts at startup, and names a remedy (B15).
    """
    faults.prepare()
    faults.writer.write()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    faults.relay.kill()
    faults.writer.write()
    topic = f"{faults.relay.prefix}.order"
    admin = AdminClient({"bootstrap.servers": faults.relay.kafka})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    before = (confirmed(faults), len(faults.relay.records()))
    code = faults.relay.start().wait(30)
    log_record = faults.relay.logged("relay halted")[-1]

    assert (3, True, "state repair" in log_record["remedy"], before) == (
        code,
        "changed from 3 to 5 partitions" in log_record["reason"],
        True,
        (confirmed(faults), len(faults.relay.records())),
    )


def test_a_partition_count_that_changes_while_running_halts(faults):
    """
    No key may move to a different partition, even while the relay runs.
    """
    fast_refresh = 'client = {"topic.metadata.refresh.interval.ms" = "100"}'
    faults.prepare(kafka=fast_refresh)
    faults.writer.write()
    process = faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    topic = f"{faults.relay.prefix}.order"
    admin = AdminClient({"bootstrap.servers": faults.relay.kafka})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
    with faults.load(1):
        code = process.wait(30)
    again = faults.relay.start().wait(30)
    reasons = [record["reason"] for record in faults.relay.logged("relay halted")]

    assert (3, 3, [True, True]) == (
        code,
        again,
        [f"topic {topic} changed from 3 to" in reason for reason in reasons],
    )


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_deleted_or_recreated_topic_is_refused(faults, is_recreated):
    """
    The topic's earlier records are lost: the relay halts at startup, changing nothing.
    """
    faults.prepare()
    faults.writer.write()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    faults.relay.kill()
    faults.writer.write()
    topic = f"{faults.relay.prefix}.order"
    admin = AdminClient({"bootstrap.servers": faults.relay.kafka})
    admin.delete_topics([topic])[topic].result()
    CLOCK.wait(0.5)
    if is_recreated:
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result()
        CLOCK.wait(0.5)
    before = (confirmed(faults), len(faults.relay.records()))
    code = faults.relay.start().wait(30)
    log_record = faults.relay.logged("relay halted")[-1]

    assert (3, True, True, before) == (
        code,
        topic in log_record["reason"],
        "Restore the topic" in log_record["remedy"],
        (confirmed(faults), len(faults.relay.records())),
    )

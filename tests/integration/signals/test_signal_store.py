"""How signals reach the source and change the stored snapshots, without a relay."""

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from support.copying import replace
from towpath.relay.errors import SourceUnavailableError
from towpath.relay.kafka.signals import SignalSource, SignalTopicReader
from towpath.relay.postgres.exported_snapshots import ExportedSnapshots
from towpath.relay.postgres.signals import USED_ID, SignalInbox, SourceSignalService
from towpath.relay.postgres.views import CollectionCatalog
from towpath.relay.postgres.worker import SnapshotCommands
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.signals import (
    ExternalSignal,
    SignalRefusal,
    SignalRejectedError,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.schemas.clock import Deadline, SystemClock
from towpath.settings import Kafka, Topics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

RUNNING = StoredTable("s1", "s.t", 0, "running", 4711)


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    clock = SystemClock()
    deadline = Deadline(clock, 40.0)
    while not holds():
        assert not deadline.passed()
        clock.wait(0.02)


# Effects of a signal ------------------------------------------------------------------


def store(worker, connection: psycopg.Connection, *tables: StoredTable) -> None:
    """Store a snapshot's tables as a signal does."""
    connection.execute("insert into towpath.signal values ('s1', 'execute-snapshot')")
    worker.request(protocol.StoreSignal("s1", "accepted", {}, tables))


def change(worker, signal_id: str, table: StoredTable, state: str) -> None:
    """Store the answer to a signal that changes the state of a table."""
    changed = (replace(table, state=state),)
    worker.request(protocol.StoreSignal(signal_id, "completed", {}, changed=changed))


def states(connection: psycopg.Connection) -> list[tuple[str, str | None]]:
    """Return the state and the error of each stored table."""
    return connection.execute(
        "select state, error from towpath.snapshot order by ordinal"
    ).fetchall()


def test_a_paused_table_stays_paused_until_it_is_queued(connection, worker):
    """
    Progress saved late does not restart the table, but late completion is accepted.
    """
    store(worker, connection, RUNNING)
    seen = []
    for signal_id, state in (("p1", "paused"), ("r1", "queued"), ("p2", "paused")):
        change(worker, signal_id, RUNNING, state)
        worker.request(protocol.SaveProgress(1, replace(RUNNING, rows=7, chunks=1)))
        seen += states(connection)
    worker.request(
        protocol.SaveProgress(2, replace(RUNNING, state="completed", chunks=2))
    )
    seen += states(connection)

    assert ["paused", "running", "paused", "completed"] == [state for state, _ in seen]


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ("completed", "stopped", "completed"),
        ("completed", "paused", "completed"),
        ("completed", "queued", "completed"),
        ("failed", "paused", "failed"),
        ("running", "queued", "running"),
        ("failed", "queued", "queued"),
        ("stopped", "queued", "queued"),
        ("paused", "stopped", "stopped"),
    ],
)
def test_only_tables_in_the_right_state_change(
    connection, worker, before, wanted, after
):
    """
    A signal does not change a table that has ended before the signal is answered.
    """
    store(worker, connection, RUNNING)
    connection.execute("update towpath.snapshot set state = %s", (before,))
    change(worker, "x1", RUNNING, wanted)

    assert [(after, None)] == states(connection)


def test_all_tables_of_an_ended_snapshot_are_read(connection, worker):
    """
    Its tables are returned with everything that a resume needs, except the listed keys.
    """
    tables = (
        replace(RUNNING, state="queued", kind="blocking", order_by=("b", "a")),
        replace(
            RUNNING,
            collection="s.u",
            ordinal=1,
            state="queued",
            pending_keys=((b"1",), (b"2",)),
            estimated_rows=2,
            asked_keys=2,
        ),
    )
    store(worker, connection, *tables)
    connection.execute("update towpath.snapshot set state = 'failed', error = 'why'")
    fact = worker.request(protocol.ReadSnapshotTables("r1", "s1"))
    unknown = worker.request(protocol.ReadSnapshotTables("r1", "s2"))
    failed = {"state": "failed", "error": "why"}

    assert protocol.SnapshotTablesRead("r1", ()) == unknown
    assert (
        replace(tables[0], **failed),
        replace(tables[1], **failed, pending_keys=None),
    ) == fact.tables


class BreakingConnection:
    """A connection that breaks after each commit, before the client learns of it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str):
        return getattr(self._connection, name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit, and lose the confirmation."""
        with self._connection.transaction():
            yield
        message = "server closed the connection unexpectedly"
        raise psycopg.OperationalError(message)


@pytest.mark.parametrize("has_row", [True, False])
def test_a_retry_finds_the_answer_of_an_unconfirmed_commit(connection, has_row):
    """
    The retry counts as the first answer, even if the signal has no row in the table.
    """
    catalog, exported = CollectionCatalog("towpath", {}), ExportedSnapshots(None)
    commands = SnapshotCommands(catalog, exported, list, "towpath")
    if has_row:
        connection.execute("insert into towpath.signal values ('s1', 'x')")
    tables = (RUNNING, replace(RUNNING, collection="s.u", ordinal=1))
    effects = [protocol.StoreSignal("s1", "accepted", {}, tables) for _ in range(2)]
    with pytest.raises(psycopg.OperationalError):
        commands.perform(BreakingConnection(connection), effects[0])
    found = [commands.perform(connection, each) for each in effects]
    row = connection.execute("select status from towpath.signal").fetchall()

    # The second effect belongs to a different signal with the same id.
    assert [True, False] == [each.is_new for each in found]
    assert ([("accepted",)] if has_row else []) == row
    assert 2 == len(states(connection))


def test_an_attempt_that_did_not_commit_is_repeated(connection):
    """
    The retry stores the same answer, unless a different one was stored first.
    """
    catalog, exported = CollectionCatalog("towpath", {}), ExportedSnapshots(None)
    commands = SnapshotCommands(catalog, exported, list, "towpath")
    connection.execute("insert into towpath.signal values ('s1', 'x'), ('s2', 'x')")
    fine = protocol.StoreSignal("s1", "accepted", {}, (RUNNING,))
    late = protocol.StoreSignal("s2", "completed", {})
    is_new = []
    for effect in (fine, late):
        with pytest.raises(psycopg.OperationalError), connection.transaction():
            commands.perform(BreakingConnection(connection), effect)
        if effect is late:
            connection.execute("update towpath.signal set status = 'rejected'")
        is_new.append(commands.perform(connection, effect).is_new)

    assert [True, False] == is_new


# The signal inbox ---------------------------------------------------------------------


@pytest.fixture
def inbox(connection, database: str) -> Iterator[SignalInbox]:
    """
    Provide a signal inbox on the prepared database; ``REFUSALS`` collects its refusals.
    """
    assert connection.info.dbname in database
    inbox = SignalInbox(database, lambda: None, REFUSALS.append)
    REFUSALS.clear()
    yield inbox
    inbox.close()


REFUSALS: deque[SignalRefusal] = deque()


def test_the_inbox_inserts_each_signal_once_and_in_order(
    connection, inbox: SignalInbox
):
    """
    A repeated signal is ignored; a different signal with the same id is refused.
    """
    signals = [("s1", "log", "{}"), ("s2", "log", None), ("s1", "log", "{}")]
    names = [inbox.put(*signal, "t") for signal in (*signals, ("s2", "log", "{}"))]
    durable: list[str] = []

    def is_done() -> bool:
        durable.extend(inbox.durable())
        return len(durable) == 4

    wait_for(is_done)
    rows = connection.execute("select id, type, data from towpath.signal").fetchall()

    assert (signals[:2], names) == (rows, durable)
    assert [SignalRefusal("s2", USED_ID, "t")] == list(REFUSALS)


def test_the_inbox_retries_until_the_source_stores_a_signal(
    connection, inbox: SignalInbox
):
    """
    While the signal table is missing, no signal is durable, and none is lost.
    """
    connection.execute("alter table towpath.signal rename to away")
    inbox.put("s1", "log", None, "t")
    early = list(inbox.durable())
    connection.execute("alter table towpath.away rename to signal")
    wait_for(lambda: bool(inbox.durable()))
    rows = connection.execute("select id from towpath.signal").fetchall()

    assert ([], [("s1",)]) == (early, rows)


def test_a_source_that_is_not_prepared_is_reported(connection, database: str):
    """
    The admin port does not wait for the missing table: its error names the table.
    """
    signals = SourceSignalService(database, "towpath")
    signals.store(ExternalSignal("s1", "log", None, "t"))
    with pytest.raises(SignalRejectedError):
        signals.store(ExternalSignal("s1", "log", "{}", "t"))
    connection.execute("drop table towpath.signal")
    with pytest.raises(Exception, match=r"towpath\.signal"):
        signals.store(ExternalSignal("s2", "log", None, "t"))


# The topic ----------------------------------------------------------------------------


class Source:
    """A source that stores signals once it is available."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.tries: list[str] = []
        self.is_available = threading.Event()

    def store(self, signal: ExternalSignal) -> None:
        """Store a signal, or raise while the source is unavailable."""
        self.tries.append(signal.signal_id)
        if not self.is_available.is_set():
            message = "unavailable"
            raise SourceUnavailableError(message)
        self.stored.append(signal.signal_id)


def test_an_offset_is_committed_only_once_its_signal_is_stored(stack, unique: str):
    """
    While the source is unavailable, the record is retried; none is skipped.
    """
    stack.up("kafka")
    source = Source()
    signal_source = SignalSource(f"{unique}-signal", unique, f"{unique}-signals")
    clients = Kafka(bootstrap_servers=stack.kafka), Topics()
    topic = SignalTopicReader(clients, signal_source, source.store, REFUSALS.append)
    topic.start()
    producer = Producer({"bootstrap.servers": stack.kafka})
    for number in range(3):
        document = b'{"id": "s%d", "type": "log"}' % number
        producer.produce(signal_source.topic, value=document, key=unique, partition=0)
    producer.flush(20)
    consumer = Consumer(
        {"bootstrap.servers": stack.kafka, "group.id": signal_source.group}
    )
    partition = TopicPartition(signal_source.topic, 0)
    try:
        wait_for(lambda: len(source.tries) > 1)
        early = consumer.committed([partition], timeout=10)[0].offset
        source.is_available.set()
        wait_for(lambda: consumer.committed([partition], timeout=10)[0].offset == 3)
    finally:
        topic.close()
        consumer.close()

    assert early < 0
    assert ({"s0"}, ["s0", "s1", "s2"]) == (set(source.tries[:-3]), source.stored)


def test_a_deleted_topic_is_recreated(stack, unique: str):
    """
    The reader logs a warning and continues: signals that are sent afterwards are read.
    """
    stack.up("kafka")
    source = Source()
    source.is_available.set()
    signal_source = SignalSource(f"{unique}-signal", unique, f"{unique}-signals")
    clients = Kafka(bootstrap_servers=stack.kafka), Topics()
    topic = SignalTopicReader(clients, signal_source, source.store, REFUSALS.append)
    admin = AdminClient({"bootstrap.servers": stack.kafka})

    def exists() -> bool:
        return signal_source.topic in admin.list_topics(timeout=10).topics

    def send(signal_id: str) -> None:
        producer = Producer({"bootstrap.servers": stack.kafka})
        document = json.dumps({"id": signal_id, "type": "log"})
        producer.produce(signal_source.topic, value=document, key=unique, partition=0)
        producer.flush(20)

    with capture_logs() as logs:
        topic.start()
        try:
            wait_for(exists)
            send("s0")
            wait_for(lambda: source.stored == ["s0"])
            admin.delete_topics([signal_source.topic])[signal_source.topic].result(20)
            wait_for(lambda: not exists())
            wait_for(exists)
            send("s1")
            wait_for(lambda: source.stored == ["s0", "s1"])
        finally:
            topic.close()
    [warned] = [each for each in logs if each["log_level"] == "warning"]

    assert f"topic {signal_source.topic} was deleted" in warned["reason"]

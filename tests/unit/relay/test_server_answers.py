"""Rare responses of the server: locks that are held, closed connections."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Self

import psycopg
import pytest
from structlog.testing import capture_logs

from towpath.relay.errors import SourceRefusedError, SourceUnavailableError
from towpath.relay.postgres import backfill, preflight
from towpath.relay.postgres.backfill import FirstSnapshotProgress
from towpath.relay.postgres.connect import ConnectionWorker, connect
from towpath.relay.postgres.initial_snapshot import InitialSnapshot
from towpath.relay.postgres.outbox_cleaning import OutboxTable, Partition
from towpath.schemas import source_tables
from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings import FirstStart, Kafka, Relay, Settings, Snapshot, Source


def outbox(
    connection: object, *, is_pending: bool = False
) -> tuple[OutboxTable, Partition]:
    """Return a partitioned outbox on a connection, and one day's partition."""
    described = source_tables.outbox("towpath.outbox", {})
    day = datetime(2026, 1, 2, tzinfo=UTC)
    name = TableName("towpath", "outbox_20260102")
    return (
        OutboxTable(connection, described, "id", "inserted_at"),
        Partition(
            *(name, day, day), is_attached=True, is_pending=is_pending, has_range=True
        ),
    )


class Locked:
    """A connection to a server on which a second session has locked the partition."""

    transaction = nullcontext

    def __init__(self):
        self.statements: list[str] = []

    def execute(self, statement: bytes) -> None:
        self.statements.append(statement.decode())
        if statement.startswith((b"lock table", b"drop table")):
            reason = "canceling statement due to lock timeout"
            raise psycopg.errors.LockNotAvailable(reason)


def test_a_partition_locked_by_another_session_is_left_to_the_next_run():
    """
    It is neither detached without its mark nor dropped, and the run continues.
    """
    connection = Locked()
    table, partition = outbox(connection)

    assert table.detach(partition, 1.0) is False
    assert table.drop(partition) is False
    assert not any("detach" in statement for statement in connection.statements)


class Dropped:
    """A connection to a server on which a concurrent run has dropped the partition."""

    transaction = nullcontext

    def execute(self, statement: bytes) -> None:
        if b"outbox_20260102" in statement and not statement.startswith(b"drop"):
            reason = 'relation "towpath.outbox_20260102" does not exist'
            raise psycopg.errors.UndefinedTable(reason)


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_partition_dropped_by_another_run_does_not_end_the_run(is_pending):
    """
    It was listed before, but cannot be detached, read or dropped anymore.
    """
    table, partition = outbox(Dropped(), is_pending=is_pending)

    assert table.detach(partition, 1.0) is False
    assert table.first_insert(partition) is None
    assert table.drop(partition) is True


class Detaching:
    """A connection to a server that refuses to detach a partition."""

    transaction = nullcontext

    def __init__(
        self,
        error: type[BaseException] | BaseException,
        *,
        is_attached: bool = True,
        mark: str | None = None,
    ):
        self.statements: list[str] = []
        self._error = error
        self._row = ("outbox_20260102", None, None, is_attached, False, is_attached)
        self._mark = mark

    def execute(self, statement: bytes, _values: object = None) -> SimpleNamespace:
        self.statements.append(statement.decode())
        if b"detach partition" in statement:
            raise self._error
        return SimpleNamespace(
            fetchall=lambda: [self._row], fetchone=lambda: (self._mark,)
        )


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.UndefinedTable,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ],
    ids=["detached", "detaching"],
)
def test_a_partition_being_detached_by_another_run_is_left_to_the_next_run(error):
    """
    The other run may have detached it after this run had marked it.
    """
    table, partition = outbox(Detaching(error))

    assert table.detach(partition, 1.0) is False


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (psycopg.errors.DeadlockDetected, TowpathError),
        (psycopg.errors.InsufficientPrivilege, TowpathError),
        (KeyboardInterrupt, KeyboardInterrupt),
    ],
)
def test_a_failed_run_leaves_no_mark_on_a_partition_that_is_still_attached(
    error, reported
):
    """
    An operator who later detaches it does not thereby ask for it to be dropped.
    """
    connection = Detaching(error)
    table, partition = outbox(connection)
    with capture_logs() as logs, pytest.raises(reported):
        table.detach(partition, 1.0)
    comments = [s for s in connection.statements if s.startswith("comment on")]

    assert [True, False] == ["to be detached" in text for text in comments]
    assert comments[-1].endswith("is null")
    assert [] == logs


@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("towpath outbox clean: to be detached", ["towpath.outbox_20260102"]),
        ("towpath outbox clean: to be dropped once it is published", []),
    ],
    ids=["by an unknown session", "by another run"],
)
def test_a_partition_that_is_detached_after_an_interrupt_is_logged(mark, named):
    """
    The server may complete the statement, and no run drops the table without its mark.
    """
    table, partition = outbox(
        Detaching(KeyboardInterrupt, is_attached=False, mark=mark)
    )
    with capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        table.detach(partition, 1.0)

    assert named == [entry["partition"] for entry in logs]


class Lost(Detaching):
    """A connection that is lost while the server detaches a partition."""

    def execute(self, statement: bytes, _values: object = None) -> SimpleNamespace:
        if any("detach partition" in earlier for earlier in self.statements):
            reason = "the connection is closed"
            raise psycopg.OperationalError(reason)
        return super().execute(statement)


def test_a_connection_lost_during_a_detachment_is_reported():
    """
    The mark remains, but the run reports the lost connection instead.
    """
    table, partition = outbox(Lost(psycopg.errors.AdminShutdown("shut down")))

    with pytest.raises(SourceUnavailableError, match="detaching partition"):
        table.detach(partition, 1.0)


def test_an_endless_wait_becomes_the_longest_timeout_of_the_server():
    """
    The server's timeout is in milliseconds, and zero would mean no timeout.
    """
    connection = Detaching(psycopg.errors.QueryCanceled)
    table, partition = outbox(connection)
    for wait_s in (0.0, 2.5, math.inf):
        table.detach(partition, wait_s)
    limits = [
        int(statement.rpartition(" ")[2])
        for statement in connection.statements
        if statement.startswith("set statement_timeout")
    ]

    assert [1, 2_500, 2**31 - 1] == limits[::2]


class ClosedInfo:
    """The facts of a connection that was closed."""

    @property
    def backend_pid(self) -> int:
        reason = "the connection is closed"
        raise psycopg.OperationalError(reason)


def test_a_closed_connection_has_no_server_process():
    """
    A reader closes its connection in its own thread; a second thread reads the load.
    """
    connection = SimpleNamespace(info=ClosedInfo(), close=lambda: None)
    pids: list[int | None] = []

    def connect_and_record(_effect: str, worker: ConnectionWorker[str]) -> None:
        worker.connection()
        pids.append(worker.server_pid)

    failures: list[BaseException] = []
    worker = ConnectionWorker(
        "reader", lambda: connection, connect_and_record, failures.append
    )
    worker.submit("connect")
    worker.close(5.0, is_urgent=False)

    assert ([None], []) == (pids, failures)


def only_initial() -> InitialSnapshot:
    """Make the snapshot of a relay that ends after it."""
    settings = Settings(
        version=1,
        source=(Source(dsn="x", tables=("s.a",)),),
        kafka=Kafka(bootstrap_servers="x"),
        relay=Relay(snapshot=Snapshot(mode=FirstStart.INITIAL_ONLY)),
    )
    clock = SimpleNamespace(monotonic_s=lambda: 0.0)
    wakeup = SimpleNamespace(wake=lambda: None)
    return InitialSnapshot(settings, clock, wakeup, "run", lambda: False)


def ends(logs: Sequence[dict[str, object]]) -> int:
    """Count the log records of the snapshot's end."""
    return sum("snapshot for initial_only ended" in log["event"] for log in logs)


def test_the_end_of_the_only_snapshot_is_logged_once(monkeypatch):
    """
    The monitor's task continues while the last records are being acknowledged.
    """
    ended = FirstSnapshotProgress(0, 0, ())
    monkeypatch.setattr(backfill, "read_progress", lambda *_: ended)
    snapshot = only_initial()
    with capture_logs() as logs:
        snapshot.turn(None)
        snapshot.turn(None)

    assert snapshot.is_over
    assert 1 == ends(logs)


class Pooler:
    """
    The ordinary connection that a pooler makes instead of a replication connection.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close nothing."""

    def execute(self, _statement: bytes) -> None:
        reason = 'syntax error at or near "IDENTIFY_SYSTEM"'
        raise psycopg.errors.SyntaxError(reason)


def test_a_pooler_that_ignores_the_replication_mode_is_found(monkeypatch):
    """
    The server then parses the command as SQL.
    """
    monkeypatch.setattr(preflight, "connect", lambda *_, **__: Pooler())
    (found,) = preflight.replication_findings("host=pooler")

    assert "postgres-replication-connection" == found.id
    assert "IDENTIFY_SYSTEM" in found.what


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("sslmode=maybe", "invalid sslmode value"),
        ("connect_timeout=soon", "connect_timeout"),
        ("port=99999", "invalid port number"),
        ("host=a,b port=1,2,3", "could not match 3 port numbers"),
        ("service=none-such", "none-such"),
    ],
)
def test_an_invalid_option_of_the_address_is_not_retried(option: str, reason: str):
    """
    The server is never contacted, so a retry could not succeed.
    """
    with pytest.raises(SourceRefusedError, match=reason):
        connect(f"host=127.0.0.1 port=1 {option}")

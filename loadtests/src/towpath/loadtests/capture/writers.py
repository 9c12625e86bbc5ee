"""
The table, and the processes that write to it.

Every method has the same writers. A method may add a ``ChangePublisher`` to each: the
writer passes every transaction to its publisher after the commit, and waits for the
publisher. Only the publisher of a dual write does anything.

Each writer is a process with one connection, as in production, so that one of them can
be killed between its commit and its publisher.
"""

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol, Self

import psycopg

from towpath.loadtests.capture import CREATE, RowImage
from towpath.loadtests.capture.load import LoadPlan, PlannedTransaction, RowChange
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock, SystemClock

Session = psycopg.Connection[Any]

TABLE: Final = "public.item"

_CREATE_TABLE: Final = """
create table public.item (
  id bigint primary key,
  change bigint not null,
  note text not null,
  updated_at timestamptz not null default now()
)
"""
_INSERT: Final = "insert into public.item (id, change, note) values (%s, %s, %s)"
_UPDATE: Final = (
    "update public.item set change = %s, note = %s, updated_at = now() where id = %s"
)
_DELETE: Final = "delete from public.item where id = %s"

_READY_WITHIN_S: Final = 60.0
# A writer that is this late is stuck.
_STUCK_AFTER_S: Final = 300.0
_MS: Final = 1000.0


class ChangePublisher(Protocol):
    """The part of a method that runs in each writer, after the commit."""

    def publish(self, changes: Iterable[RowChange]) -> None:
        """Publish a committed transaction's changes, and wait until that is done."""


class PublisherFactory(Protocol):
    """Opens the publisher of one writer, in the writer's own process."""

    def open(self) -> ChangePublisher:
        """Open a publisher."""


class NoPublisher:
    """Publishes nothing: the method does not need the writer."""

    def open(self) -> ChangePublisher:
        """Return this object."""
        return self

    def publish(self, changes: Iterable[RowChange]) -> None:
        """Do nothing."""


def create_table(session: Session) -> None:
    """Create the empty table."""
    session.execute(_CREATE_TABLE)


def read_table(session: Session) -> dict[int, RowImage]:
    """Return the rows of the table by their keys."""
    rows = session.execute("select id, change, note from public.item")
    return {key: RowImage(change, note) for key, change, note in rows}


def apply(session: Session, changes: Iterable[RowChange]) -> None:
    """
    Run the statements of changes; the session's transaction stays open.

    Raises:
        BenchError: A row that a change needs does not exist.
    """
    for change in changes:
        image = change.image
        if image is None:
            done = session.execute(_DELETE, (change.key,))
        elif change.operation == CREATE:
            done = session.execute(_INSERT, (change.key, *image))
        else:
            done = session.execute(_UPDATE, (*image, change.key))
        if done.rowcount != 1:
            message = f"the load's change {change.number} found no row {change.key}"
            raise BenchError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSetup:
    """Everything that a writer's process needs."""

    dsn: str
    publisher: PublisherFactory
    transactions: tuple[PlannedTransaction, ...]


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of a writer's process."""

    reason: str


def write_load(setup: WriterSetup, pipe: Connection) -> None:
    """
    Write the transactions of one writer; this is the program of its process.

    The process sends ``None`` when it is ready, and begins when it receives something.
    At the end it sends the times of the transactions that were neither held nor rolled
    back.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        publisher = setup.publisher.open()
        with psycopg.connect(setup.dsn) as session:
            pipe.send(None)
            pipe.recv()
            clock = SystemClock()
            began_s = clock.monotonic_s()
            times_ms = []
            for one in setup.transactions:
                clock.wait(max(0.0, began_s + one.at_s - clock.monotonic_s()))
                took_ms = _write(session, one, publisher, clock)
                if not (one.is_rolled_back or one.held_s):
                    times_ms.append(took_ms)
        pipe.send(times_ms)
    except Exception as error:  # noqa: BLE001 - raised again by the process that waits
        pipe.send(_Failure(repr(error)))


def _write(
    session: Session,
    one: PlannedTransaction,
    publisher: ChangePublisher,
    clock: Clock,
) -> float:
    """Run one transaction; return its time in ms, including the publisher's."""
    began_s = clock.monotonic_s()
    apply(session, one.changes)
    clock.wait(one.held_s)
    if one.is_rolled_back:
        session.rollback()
    else:
        session.commit()
        publisher.publish(one.changes)
    return (clock.monotonic_s() - began_s) * _MS


def commit_and_stall(setup: WriterSetup, pipe: Connection) -> None:
    """Commit one transaction, and wait to be killed before publishing it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    [transaction] = setup.transactions
    try:
        publisher = setup.publisher.open()
        with psycopg.connect(setup.dsn) as session:
            apply(session, transaction.changes)
            session.commit()
            pipe.send(None)
            pipe.recv()
            publisher.publish(transaction.changes)
    except Exception as error:  # noqa: BLE001 - raised again by the process that waits
        pipe.send(_Failure(repr(error)))


def kill_after_commit(setup: WriterSetup) -> None:
    """
    Run a writer's process until it has committed, and kill it before it publishes.

    Raises:
        BenchError: The process failed before its commit.
    """
    with WriterProcess(commit_and_stall, setup) as writer:
        writer.receive(_READY_WITHIN_S)
        writer.kill()


class _Program(Protocol):
    """The program of a writer's process."""

    def __call__(self, setup: WriterSetup, pipe: Connection) -> None:
        """Run the program."""


class WriterProcess:
    """The process of one writer; leaving its context kills it."""

    def __init__(self, program: _Program, setup: WriterSetup) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=program, args=(setup, self._other), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        # The process now has the only copy of its end, which closes when it ends.
        self._other.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()

    def send(self) -> None:
        """
        Signal the process to continue.

        Raises:
            BenchError: The process ended.
        """
        try:
            self._pipe.send(None)
        except OSError as error:
            raise _ended() from error

    def receive(self, within_s: float) -> Any:  # noqa: ANN401 - the program's own
        """
        Return the next object that the process sends.

        Raises:
            BenchError: The process failed, ended, or sent nothing in time.
        """
        if not self._pipe.poll(within_s):
            message = f"a writer did nothing for {within_s:.0f} s"
            raise BenchError(message)
        try:
            received = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _ended() from error
        if isinstance(received, _Failure):
            message = f"a writer failed: {received.reason}"
            raise BenchError(message)
        return received

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.join()


def _ended() -> BenchError:
    return BenchError("a writer ended")


@contextmanager
def ready_writers(
    dsn: str, publisher: PublisherFactory, plan: LoadPlan
) -> Iterator[list[WriterProcess]]:
    """Start a plan's writers, wait until all are ready, and kill them at the end."""
    setups = [
        WriterSetup(dsn=dsn, publisher=publisher, transactions=each)
        for each in plan.writers
    ]
    with ExitStack() as processes:
        writers = [
            processes.enter_context(WriterProcess(write_load, setup))
            for setup in setups
        ]
        for writer in writers:
            writer.receive(_READY_WITHIN_S)
        yield writers


def write_all(writers: Iterable[WriterProcess], plan: LoadPlan) -> list[float]:
    """
    Run the ready writers of a plan; return their transactions' times, in ms.

    Raises:
        BenchError: A writer failed, or is stuck.
    """
    running = list(writers)
    within_s = plan.duration_s + _STUCK_AFTER_S
    for writer in running:
        writer.send()
    return [ms for writer in running for ms in writer.receive(within_s)]

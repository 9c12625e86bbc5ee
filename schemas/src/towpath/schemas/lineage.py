"""
Runs of the pipeline's jobs and their datasets, reported to catalogs (OpenLineage).

A job is the relay, a snapshot of a table, or a sink. Its run has a START event when it
begins, a RUNNING event every minute, and ends with COMPLETE, FAIL or ABORT. Each event
lists the datasets at that time: tables, topics, and the places in the targets.

Reporting is off unless OpenLineage's own variables, or its file ``openlineage.yml``,
name a receiver, and needs the extra ``lineage``. Events wait in a queue of bounded
length for a thread that looks up their datasets and sends the events: no part of the
pipeline waits for a receiver, and events that it does not accept are lost and counted.
"""

import enum
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

from towpath.schemas.clock import Clock, Deadline, SystemClock

# The time between two RUNNING events, which show a catalog that a run is alive.
RUNNING_EVERY_S: Final = 60.0
# Two events for each of a hundred runs: more wait only if the receiver is unavailable.
_QUEUE_EVENTS: Final = 200
# The longest wait for the receiver when the process stops.
CLOSE_S: Final = 2.0

_VARIABLES: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_PREFIX: Final = "OPENLINEAGE__"
_FILE: Final = "openlineage.yml"


class DatasetName(NamedTuple):
    """A dataset's OpenLineage name: its system, and its name within the system."""

    namespace: str
    name: str


class Field(NamedTuple):
    """A column, and its type as the source names it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """
    A dataset that a job reads or writes.

    Attributes:
        fields: Its columns; empty if they are not known.
        origins: By column, the input columns that its values come from.
    """

    name: DatasetName
    fields: Sequence[Field] = ()
    origins: Mapping[str, Sequence[tuple[DatasetName, str]]] = field(
        default_factory=lambda: MappingProxyType({})
    )


class JobDatasets(NamedTuple):
    """The datasets of a job."""

    inputs: Sequence[Dataset] = ()
    outputs: Sequence[Dataset] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """
    A job.

    Attributes:
        name: Its name, the same for each run.
        kind: ``RELAY``, ``SNAPSHOT`` or ``SINK``.
        datasets: Looks up its datasets; called for each event, in another thread.
        is_streaming: Whether it runs until it is stopped.
    """

    name: str
    kind: str
    datasets: Callable[[], JobDatasets]
    is_streaming: bool = True


class RunState(enum.StrEnum):
    """The states of a run, under OpenLineage's names."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


@dataclass(frozen=True, slots=True)
class RunEvent:
    """
    One event of a run.

    Attributes:
        failure: Why the run has failed.
    """

    run_id: str
    job: Job
    state: RunState
    at: datetime
    failure: str | None = None


class LineageRun(Protocol):
    """A run that has begun; the calls never wait and never raise."""

    def end(self, failure: str | None = None, *, is_aborted: bool = False) -> None:
        """End the run; only the first call counts."""


class LineageReporter(Protocol):
    """Reports runs; only ``close`` waits for the receiver, and no call raises."""

    def start(self, job: Job) -> LineageRun:
        """Begin a run of a job."""

    def close(self) -> None:
        """Send the remaining events, but stop after a short time."""


class _NoRun:
    """Implements ``LineageRun`` while reporting is off."""

    def end(self, failure: str | None = None, *, is_aborted: bool = False) -> None:
        """Do nothing."""


class NoReporter:
    """Implements ``LineageReporter`` while reporting is off."""

    def start(self, job: Job) -> LineageRun:
        """Return a run that is not reported."""
        del job
        return _NoRun()

    def close(self) -> None:
        """Do nothing."""


NO_REPORTER: Final = NoReporter()

# Sends an event with its job's datasets; raises any error of the receiver.
Send: TypeAlias = Callable[[RunEvent, JobDatasets], None]


class BackgroundReporter:
    """Implements ``LineageReporter`` with its own thread."""

    def __init__(
        self,
        send: Send,
        on_problem: Callable[[str], None],
        clock: Clock | None = None,
        running_every_s: float = RUNNING_EVERY_S,
    ) -> None:
        """
        Start the thread.

        Args:
            send: Sends an event.
            on_problem: Called with the reason why events are not sent, at most once
                until an event is sent again; from any thread.
            clock: The source of the events' times.
            running_every_s: The time between two RUNNING events of a run.
        """
        self._send = send
        self._on_problem = on_problem
        self._clock = clock or SystemClock()
        self._running_every_s = running_every_s
        self._events: queue.Queue[RunEvent | None] = queue.Queue(_QUEUE_EVENTS)
        # Runs that have not ended; only the thread reads and writes them.
        self._open: dict[str, RunEvent] = {}
        # Runs whose start was queued but whose end did not fit into the queue: they are
        # no longer running.
        self._lost_ends: set[str] = set()
        self._has_problem = False
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="lineage", daemon=True)
        self._thread.start()

    def start(self, job: Job) -> LineageRun:
        run = _QueuedRun(job, self._put, self._lost_ends.add, self._clock)
        run.begin()
        return run

    def close(self) -> None:
        deadline = Deadline(self._clock, CLOSE_S)
        # If the queue stays full, the thread ends with the process.
        try:
            self._events.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(deadline.remaining_s())

    def _put(self, event: RunEvent) -> bool:
        """Put an event into the queue; return whether there was room."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._lose("events wait for the receiver, and there is no room for more")
            return False
        return True

    def _run(self) -> None:
        due_s = self._clock.monotonic_s() + self._running_every_s
        while True:
            try:
                left_s = max(0.0, due_s - self._clock.monotonic_s())
                event = self._events.get(timeout=left_s)
            except queue.Empty:
                due_s = self._clock.monotonic_s() + self._running_every_s
                self._report_running()
                continue
            if event is None:
                return
            if event.state is RunState.START:
                self._open[event.run_id] = event
            else:
                self._open.pop(event.run_id, None)
            self._try_to_send(event)

    def _report_running(self) -> None:
        at = self._clock.now()
        for run_id in self._open.keys() & self._lost_ends.copy():
            del self._open[run_id]
            self._lost_ends.discard(run_id)
        for event in self._open.values():
            self._try_to_send(replace(event, state=RunState.RUNNING, at=at))

    def _try_to_send(self, event: RunEvent) -> None:
        try:
            self._send(event, event.job.datasets())
        except Exception as error:  # noqa: BLE001 - the receiver's, or of a look-up
            self._lose(f"{type(error).__name__}: {error}")
        else:
            self._has_problem = False

    def _lose(self, reason: str) -> None:
        self.lost += 1
        if not self._has_problem:
            self._has_problem = True
            self._on_problem(reason)


class _QueuedRun:
    """Implements ``LineageRun``: puts its events into the queue."""

    def __init__(
        self,
        job: Job,
        put: Callable[[RunEvent], bool],
        lose_end: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._job = job
        self._put = put
        self._lose_end = lose_end
        self._clock = clock
        self._id = str(uuid.uuid4())
        self._is_known = False
        self._has_ended = False

    def begin(self) -> None:
        """Report the start."""
        self._is_known = self._report(RunState.START)

    def end(self, failure: str | None = None, *, is_aborted: bool = False) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        state = RunState.ABORT if is_aborted else RunState.COMPLETE
        if failure is not None:
            state = RunState.FAIL
        if not self._report(state, failure) and self._is_known:
            self._lose_end(self._id)

    def _report(self, state: RunState, failure: str | None = None) -> bool:
        at = self._clock.now()
        return self._put(RunEvent(self._id, self._job, state, at, failure))


def kafka_dataset(bootstrap_servers: str, topic: str) -> DatasetName:
    """Name the dataset of a topic after the first of the brokers' addresses."""
    first = bootstrap_servers.partition(",")[0].strip()
    return DatasetName(f"kafka://{first}", topic)


def postgres_dataset(place: Mapping[str, object], name: str) -> DatasetName:
    """Name the dataset of a table after the address and database of a connection."""
    address = f"{place.get('host', 'localhost')}:{place.get('port', 5432)}"
    database = place.get("dbname", place.get("user", "postgres"))
    return DatasetName(f"postgres://{address}", f"{database}.{name}")


def lineage_folders() -> tuple[Path, ...]:
    """Return the folders in which OpenLineage looks for its file."""
    folders = [Path()]
    # A process may run as a user without a home.
    with suppress(RuntimeError):
        folders.append(Path("~/.openlineage").expanduser())
    return tuple(folders)


def start_lineage(
    environ: Mapping[str, str],
    folders: Iterable[Path],
    on_problem: Callable[[str], None],
) -> LineageReporter:
    """
    Return the reporter of this process: off, unless a receiver is configured.

    Args:
        environ: The variables; OpenLineage reads its own from the process.
        folders: The folders in which OpenLineage looks for its file.
        on_problem: Called with the reason why events are not sent; from any thread.
    """
    is_disabled = environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true"
    is_named = any(environ.get(name) for name in _VARIABLES) or any(
        name.startswith(_PREFIX) for name in environ
    )
    if is_disabled or not (is_named or any(map(_has_file, folders))):
        return NO_REPORTER
    if find_spec("openlineage") is None:
        on_problem("the extra lineage of this package is not installed")
        return NO_REPORTER
    # Not imported while reporting is off: the import takes half a second.
    from towpath.schemas.openlineage_events import sender  # noqa: PLC0415

    try:
        send = sender(environ)
    except Exception as error:  # noqa: BLE001 - any error of a transport
        on_problem(f"{type(error).__name__}: {error}")
        return NO_REPORTER
    return BackgroundReporter(send, on_problem)


def _has_file(folder: Path) -> bool:
    """Return whether OpenLineage's file is in a folder that this user can read."""
    try:
        return (folder / _FILE).is_file()
    except OSError:
        return False

"""
A task: the slice of one partition, applied in a process of an executor.

The driver sends a task its ``PartitionTask``; the task returns a ``TaskResult``. A
failure is part of the result, because the driver decides what to do about it: if a
target or a broker does not answer, the batch is retried; after any other failure the
driver writes the records of the task, and reports what it finds.

Sinks stay open in the process between tasks, so that no batch waits for connections.

A task that the driver has abandoned may still be running, on a machine that the driver
cannot reach. Targets refuse its stale rows, but only sinks compare floors: a row from
below a later floor would reappear. Therefore a task begins no call later than
``WRITES_WITHIN_S`` after the driver has sent the task, a call in flight ends within its
own time limit, and after a task is abandoned no floor is applied until both have passed
(``AbandonedTasks``). The age of a task is measured by wall clocks, because an executor
may be suspended, which stops a monotonic clock. Once the task runs, a monotonic clock
bounds it as well, in case the wall clock is set back.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
from structlog.contextvars import bound_contextvars

from towpath.schemas.clock import Clock, Deadline, SystemClock
from towpath.schemas.failure import BusyError, TowpathError, UnavailableError
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.encoded import RowEncoder, SliceRows
from towpath.sinks.apply.slice import SliceContext, SliceOutcome, apply_slice
from towpath.sinks.changes.decode import RECORDS, ReadRecords, RepeatableSlices
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.errors import (
    BrokerUnavailableError,
    ExecutorsFailedError,
    IndexGoneError,
    RecordsGoneError,
    TargetUnavailableError,
    TaskExpiredError,
    TasksAbandonedError,
)
from towpath.sinks.kinds import kind_of
from towpath.sinks.ports import Sink

# Ten times as long as a large batch takes.
WRITES_WITHIN_S: Final = 120.0
# The longest response timeout of a target that stores rows, plus 10 s of clock skew. A
# webhook may wait longer: its receiver itself refuses changes below a sweep.
_CALL_WITHIN_S: Final = 40.0


class AbandonedTasks:
    """The time until which abandoned tasks, or an abandoned driver, may still write."""

    def __init__(
        self, clock: Clock, *, is_first_run: bool, was_running: bool = False
    ) -> None:
        """
        Start with the tasks that an earlier run may have abandoned.

        Args:
            clock: Measures the time since a task was abandoned.
            is_first_run: Whether there was no earlier run of the sink with tasks.
            was_running: Whether an earlier driver, which starts no new call, may still
                have one in flight.
        """
        self._clock = clock
        self._until = Deadline(clock, _CALL_WITHIN_S if was_running else 0)
        if not is_first_run:
            self.add()

    def add(self) -> None:
        """Record that a task was abandoned, no later than now."""
        self._until = Deadline(self._clock, WRITES_WITHIN_S + _CALL_WITHIN_S)

    def check_floor(self) -> None:
        """
        Check that a floor may be applied.

        Raises:
            TasksAbandonedError: It may not be applied yet; retry the batch after the
                pause.
        """
        left_s = self._until.remaining_s()
        if left_s:
            message = "an abandoned task or driver may still write below the floor"
            raise TasksAbandonedError(message, retry_after_s=left_s)


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """
    The parameters of a task, the same for all tasks of a batch.

    Attributes:
        sink: The sink, as it is configured.
        blocked_keys: Keys that only the driver may write.
        incomplete_routes: Routes on which only the driver may write partial changes.
    """

    sink: SinkSettings
    blocked_keys: frozenset[ParkedKey]
    incomplete_routes: frozenset[str]
    batch_id: int


class Opening(NamedTuple):
    """
    How a task opens the sink that it writes to.

    Attributes:
        id: The id of this opening. A sink from an earlier opening is unaware of the
            floors that were applied later.
        make: Makes the sink on an executor.
        sent_at_s: When the driver sent the task, in seconds since the epoch.
    """

    id: str
    make: Callable[[], Sink]
    sent_at_s: float


class TaskResult(NamedTuple):
    """
    The result of a task.

    Attributes:
        outcome: The outcome of its slice; after a failure without a retry all records
            are left.
        failure: Why the slice was not written; empty if it was.
        retry: The error to raise so that the batch is retried; without one, the driver
            writes the records that are left.
        retry_after_s: The pause that the target asks for.
        is_repeated: Whether an earlier attempt at the task was abandoned.
    """

    outcome: SliceOutcome
    failure: str = ""
    retry: type[UnavailableError] | None = None
    retry_after_s: float = 0.0
    is_repeated: bool = False


class _OpenSink(NamedTuple):
    """A sink that stays open in this process between tasks."""

    opening: str
    sink: Sink


_open_sinks: Final[dict[str, _OpenSink]] = {}


def run_task(task: PartitionTask, opening: Opening, read: ReadRecords) -> TaskResult:
    """
    Write the records of one partition; a failure is part of the result.

    Args:
        task: The parameters.
        opening: The sink; it is opened if it is not open in this process.
        read: Reads the records.
    """
    clock = SystemClock()
    age_s = clock.now().timestamp() - opening.sent_at_s
    expiry = Deadline(clock, WRITES_WITHIN_S - age_s)

    def check() -> None:
        now_s = clock.now().timestamp()
        if expiry.passed() or now_s - opening.sent_at_s > WRITES_WITHIN_S:
            message = "the task has taken too long: its batch will be retried"
            raise TaskExpiredError(message)

    records = RepeatableSlices(read)
    try:
        with bound_contextvars(sink=task.sink.name):
            context = replace(_context(task, _opened(task, opening)), check=check)
            return TaskResult(apply_slice(context, records.slices()))
    except Exception as error:  # noqa: BLE001 - part of the result
        close_sink(task.sink.name)
        result = _failed(error)
    if result.retry is not None:
        return result
    try:
        left = pa.concat_tables([RECORDS.empty_table(), *records.slices()])
    except TowpathError as error:
        # Records that cannot be read cannot be left to the driver: retry the batch.
        return _failed(error)._replace(retry=ExecutorsFailedError)
    return result._replace(outcome=SliceOutcome(len(left), left))


def encode_slice(
    task: PartitionTask, make: Callable[[], RowEncoder], read: ReadRecords
) -> tuple[SliceOutcome, Sequence[SliceRows]]:
    """
    Encode the records of one partition for the engine.

    If the engine loses the rows, it may repeat the task. An error fails the task, so
    that no rows of a batch are missing.
    """
    encoder = make()
    with bound_contextvars(sink=task.sink.name), closing(encoder):
        encoder.open()
        outcome = apply_slice(_context(task, encoder), read())
        return outcome, encoder.encoded()


def _context(task: PartitionTask, sink: Sink) -> SliceContext:
    return SliceContext(
        Routes(task.sink),
        sink,
        task.blocked_keys,
        task.incomplete_routes,
        task.batch_id,
        SystemClock(),
        kind_of(task.sink).pipelined_records,
    )


def close_sink(name: str) -> None:
    """Close a sink that is open in this process."""
    kept = _open_sinks.pop(name, None)
    if kept is not None:
        kept.sink.close()


def _opened(task: PartitionTask, opening: Opening) -> Sink:
    """Return the sink of an opening, and open it if need be."""
    name = task.sink.name
    kept = _open_sinks.get(name)
    if kept is not None and kept.opening == opening.id:
        return kept.sink
    close_sink(name)
    sink = opening.make()
    # Stored before it is opened, so that it is closed if ``open`` fails.
    _open_sinks[name] = _OpenSink(opening.id, sink)
    sink.open()
    return sink


def _failed(error: Exception) -> TaskResult:
    """Return the result of a failure, without any records left to the driver yet."""
    is_known = isinstance(error, TowpathError)
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    nothing = SliceOutcome(0, RECORDS.empty_table())
    if isinstance(error, BusyError):
        return TaskResult(
            *(nothing, text, TargetUnavailableError), retry_after_s=error.retry_after_s
        )
    return TaskResult(nothing, text, _retry(error))


def _retry(error: Exception) -> type[UnavailableError] | None:
    # The driver recreates a deleted index.
    is_gone = isinstance(error, IndexGoneError)
    if isinstance(error, TargetUnavailableError | TaskExpiredError) and not is_gone:
        return TargetUnavailableError
    # The driver finds out whether the records still exist.
    if isinstance(error, BrokerUnavailableError | RecordsGoneError):
        return ExecutorsFailedError
    return None

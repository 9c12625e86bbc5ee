"""
The work of one executor task: write the rows of one partition. Free of Spark.

A task writes plain changes (see ``plain``) that the target accepts. For everything else
it returns a reason, and the driver writes the whole batch.

A failure is returned as well, never raised: the engine would retry at once, and would
pass on only its text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import BusyError, TowpathError
from towpath.settings import Sink as SinkSettings
from towpath.sinks.apply.plain import decode_plain
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.routing import Routes
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.errors import IndexGoneError, TargetUnavailableError
from towpath.sinks.ports import Batch, Sink

# Topic, partition, offset, key, value and headers.
KafkaRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """
    The parameters of one task.

    Attributes:
        sink: The sink, as it is configured.
        make: Makes the sink on an executor.
        opening: Identifies the opening of the sink to write with: a sink opened earlier
            does not know the floors applied since.
        blocked_keys: Keys that only the driver may write.
        incomplete_routes: Routes of which only the driver may write partial changes.
    """

    sink: SinkSettings
    make: Callable[[], Sink]
    opening: str
    blocked_keys: frozenset[ParkedKey]
    incomplete_routes: frozenset[str]
    batch_id: int


class PartitionResult(NamedTuple):
    """
    The outcome of one task.

    Attributes:
        fallback_reason: Why the driver has to write the batch; empty if all is written.
        is_unavailable: Whether the target does not answer: the batch is to be retried.
        retry_after_s: The pause that the target asks for.
    """

    records: int = 0
    rows: int = 0
    stale: int = 0
    skipped: int = 0
    tombstones: int = 0
    position: str = ""
    decode_ms: int = 0
    apply_ms: int = 0
    flush_ms: int = 0
    fallback_reason: str = ""
    is_unavailable: bool = False
    retry_after_s: float = 0.0


class _OpenSink(NamedTuple):
    """A sink that stays open in this process between tasks."""

    opening: str
    sink: Sink


_open_sinks: Final[dict[str, _OpenSink]] = {}


def write_task_slice(task: PartitionTask, rows: Iterable[KafkaRow]) -> PartitionResult:
    """Write the rows of one task; a failure is part of the result."""
    try:
        return _write(task, [_record(row) for row in rows], SystemClock())
    except Exception as error:  # noqa: BLE001 - see above
        close_sink(task.sink.name)
        return _failure(error)


def close_sink(name: str) -> None:
    """Close a sink that is open in this process."""
    kept = _open_sinks.pop(name, None)
    if kept is not None:
        kept.sink.close()


def _write(
    task: PartitionTask, records: Sequence[Record], clock: Clock
) -> PartitionResult:
    began_s = clock.monotonic_s()
    routes = Routes(task.sink)
    plain = decode_plain(records, routes, task.blocked_keys, task.incomplete_routes)
    decoded_s = clock.monotonic_s()
    done = PartitionResult(
        records=len(records),
        skipped=plain.skipped,
        tombstones=plain.tombstones,
        position=plain.position,
        decode_ms=_ms(decoded_s - began_s),
        fallback_reason=plain.fallback_reason,
    )
    if plain.fallback_reason or not plain.changes:
        return done
    sink = _opened(task)
    sink.apply(Batch(task.batch_id, plain.changes))
    applied_s = clock.monotonic_s()
    checkpoint = sink.flush()
    return done._replace(
        rows=checkpoint.applied,
        stale=checkpoint.stale,
        apply_ms=_ms(applied_s - decoded_s),
        flush_ms=_ms(clock.monotonic_s() - applied_s),
        fallback_reason="the target refuses a change" if checkpoint.refused else "",
    )


def _opened(task: PartitionTask) -> Sink:
    """Return the sink of the task's opening, and open it if need be."""
    name = task.sink.name
    kept = _open_sinks.get(name)
    if kept is not None and kept.opening == task.opening:
        return kept.sink
    close_sink(name)
    sink = task.make()
    # Stored before it is opened, so that a failing ``open`` closes it.
    _open_sinks[name] = _OpenSink(task.opening, sink)
    sink.open()
    return sink


def _record(row: KafkaRow) -> Record:
    """Convert a row into a record; the last value of a repeated header counts."""
    topic, partition, offset, key, value, headers = row
    given = {name: text for name, text in headers or () if text is not None}
    return Record(Origin(topic, partition, offset), key, value, given)


def _failure(error: Exception) -> PartitionResult:
    """Return a failure, and whether the driver is to retry."""
    is_known = isinstance(error, TowpathError)
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    if isinstance(error, BusyError):
        return PartitionResult(
            fallback_reason=text, is_unavailable=True, retry_after_s=error.retry_after_s
        )
    # The driver recreates a deleted index.
    is_unavailable = isinstance(error, TargetUnavailableError)
    return PartitionResult(
        fallback_reason=text,
        is_unavailable=is_unavailable and not isinstance(error, IndexGoneError),
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

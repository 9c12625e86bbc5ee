"""
One part of a batch, written by the executor that has its rows. Free of Spark.

An executor writes what is plain (see ``plain``) and what the target takes. Anything
else is told to the driver, which writes the whole batch again in its own way.

A failure is told as well, and never raised: the engine would try again at once, and
would pass on only a text.
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

# Topic, partition, offset, key, value and headers, as the engine gives them.
KafkaRow: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """
    What an executor is to do with its part.

    Attributes:
        sink: The sink, as it is configured.
        make: Makes the sink on an executor.
        opening: Which opening of the sink to write with: one that was opened for
            another does not know the floors that were carried out since.
        waited_for: Keys of which nothing may be written.
        lacking: Routes of which no partial change may be written.
    """

    sink: SinkSettings
    make: Callable[[], Sink]
    opening: str
    blocked_keys: frozenset[ParkedKey]
    incomplete_routes: frozenset[str]
    batch_id: int


class PartitionResult(NamedTuple):
    """
    What became of one part.

    Attributes:
        left: Why the driver is to write the batch instead; empty if all is written.
        is_away: Whether the target does not answer: the batch is to be tried again.
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
    """A sink that stays open in this process from one part to the next."""

    opening: str
    sink: Sink


_open_sinks: Final[dict[str, _OpenSink]] = {}


def write_task_slice(task: PartitionTask, rows: Iterable[KafkaRow]) -> PartitionResult:
    """Write one part; whatever happens is told."""
    try:
        return _write(task, [_record(row) for row in rows], SystemClock())
    except Exception as error:  # noqa: BLE001 - see above
        close_sink(task.sink.name)
        return _failure(error)


def close_sink(name: str) -> None:
    """Let go of a sink that is open in this process."""
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
    """Return the sink, opened for this errand's opening."""
    name = task.sink.name
    kept = _open_sinks.get(name)
    if kept is not None and kept.opening == task.opening:
        return kept.sink
    close_sink(name)
    sink = task.make()
    # Kept before it is opened, so that it is let go of if that fails.
    _open_sinks[name] = _OpenSink(task.opening, sink)
    sink.open()
    return sink


def _record(row: KafkaRow) -> Record:
    """Make a record; a repeated header's last value counts."""
    topic, partition, offset, key, value, headers = row
    given = {name: text for name, text in headers or () if text is not None}
    return Record(Origin(topic, partition, offset), key, value, given)


def _failure(error: Exception) -> PartitionResult:
    """Tell a target that is away, which the driver waits for, from the rest."""
    is_known = isinstance(error, TowpathError)
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    if isinstance(error, BusyError):
        return PartitionResult(
            fallback_reason=text, is_unavailable=True, retry_after_s=error.retry_after_s
        )
    # An index that is gone is the driver's to make anew.
    is_unavailable = isinstance(error, TargetUnavailableError)
    return PartitionResult(
        fallback_reason=text,
        is_unavailable=is_unavailable and not isinstance(error, IndexGoneError),
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

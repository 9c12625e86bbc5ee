"""
One micro-batch: decode, fold, write, set aside. Free of Spark; rows come as Arrow.

What cannot be read or applied is durable among the dead letters before the batch counts
as done: a crash in between repeats the batch, and the guards absorb the repetition.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from towpath.sinks.change import Change, Origin, Record, Refusal, Value
from towpath.sinks.decode import Decoded, decode
from towpath.sinks.fold import first_per_event, newest_per_key
from towpath.sinks.jobs.sweeps import Sweeps
from towpath.sinks.ports import Batch, DeadLetters, Sink
from towpath.sinks.routes import Routes


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch's records; ``skipped`` are those that say nothing."""

    records: int
    rows: int
    stale: int
    dead_letters: int
    skipped: int = 0


class BatchWriter:
    """Writes micro-batches into one sink."""

    def __init__(
        self, routes: Routes, sink: Sink, dead_letters: DeadLetters, sweeps: Sweeps
    ) -> None:
        self._routes = routes
        self._sink = sink
        self._dead_letters = dead_letters
        self._sweeps = sweeps

    def write(self, table: pa.Table, batch_id: int) -> BatchResult:
        """
        Write one batch; when this returns, all of it is durable.

        Raises:
            UnavailableError: Some part does not answer; write the batch again.
            HaltError: The sink refuses to go on.
        """
        records = records_of(table)
        decoded = decode(records, self._routes)
        floors = self._sweeps.counting(decoded.floors)
        folded = newest_per_key(decoded.changes, floors)
        events = first_per_event(decoded.events)
        self._sink.apply(Batch(batch_id, folded.changes, events, floors))
        checkpoint = self._sink.flush()
        aside = letters(decoded, (*folded.refused, *checkpoint.refused), records)
        return BatchResult(
            records=len(records),
            rows=checkpoint.applied,
            stale=checkpoint.stale + folded.below,
            dead_letters=self._dead_letters.put(aside) if aside else 0,
            skipped=decoded.skipped,
        )


def records_of(table: pa.Table) -> list[Record]:
    """Turn Kafka's columns into records; a repeated header's last value counts."""
    table = table.combine_chunks()
    if not len(table):
        return []
    headers = _headers(table.column("headers"))
    columns = (
        table.column(name).to_pylist()
        for name in ("topic", "partition", "offset", "key", "value")
    )
    return [
        Record(Origin(topic, partition, offset), key, value, given)
        for topic, partition, offset, key, value, given in zip(
            *columns, headers, strict=True
        )
    ]


def letters(
    decoded: Decoded, refusals: Iterable[Refusal], records: Iterable[Record]
) -> list[tuple[Record, str]]:
    """
    Return what is to be set aside: poison, and all that a refused change was made of.

    A change may have been folded out of several records; each of them is needed to
    apply it later.
    """
    reasons: dict[Origin, str] = {}
    for poison in decoded.poison:
        reasons[poison.origin] = poison.reason
    refused = list(refusals)
    if refused:
        by_key: dict[tuple[str, tuple[Value, ...]], list[Change]] = defaultdict(list)
        for change in decoded.changes:
            by_key[change.route, change.key].append(change)
        for change, reason in refused:
            for piece in _pieces(change, by_key[change.route, change.key]):
                reasons[piece.origin] = reason
    if not reasons:
        return []
    return [(r, reasons[r.origin]) for r in records if r.origin in reasons]


def _pieces(refused: Change, changes: list[Change]) -> Iterator[Change]:
    """Go from a change back to the full image, or the delete, that it rests upon."""
    below = [change for change in changes if change.position <= refused.position]
    for change in sorted(below, key=lambda c: c.position, reverse=True):
        if change.row is None and refused.row is not None:
            return
        yield change
        if not change.unchanged:
            return


def _headers(column: pa.ChunkedArray) -> list[dict[str, bytes]]:
    """Read all headers in three passes over flat columns, not row by row."""
    array = pa.concat_arrays(column.chunks)
    flat = array.flatten()
    names = flat.field("key").to_pylist()
    values = flat.field("value").to_pylist()
    rows = []
    end = 0
    for length in pa.compute.list_value_length(array).to_pylist():
        begin, end = end, end + (length or 0)
        rows.append(
            {
                name: value
                for name, value in zip(names[begin:end], values[begin:end], strict=True)
                if value is not None
            }
        )
    return rows

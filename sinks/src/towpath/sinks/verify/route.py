"""One route, verified: both sides read, what differs settled, and what it comes to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from towpath.schemas.failure import UnavailableError
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.compare import (
    Difference,
    SourceRow,
    Suspect,
    differences,
    pack,
    suspects,
)
from towpath.sinks.verify.repair import (
    NOTHING_ASKED,
    Eraser,
    Repaired,
    SourceRepairs,
    repair,
)
from towpath.sinks.verify.report import FIRST_SHOWN, RouteReport
from towpath.sinks.verify.settle import RouteComparison, SampleReader, settle
from towpath.sinks.verify.source import Texts
from towpath.sinks.verify.suspects import DigestTable, Suspects

# What is told of progress: what is read, how many rows more, and of about how many.
Told = Callable[[str, int, int], None]

_TELL_EVERY: Final = 1000
# However small a part is asked for: what only the sink has may be all there is.
_LEAST: Final = 100


@dataclass(slots=True)
class _Counts:
    """What was read, also if reading fails half way."""

    source_rows: int = 0
    sink_rows: int = 0
    tombstones: int = 0
    unmatched: int = 0
    repaired: Repaired = NOTHING_ASKED
    error: str | None = None


def verify_route(
    bench: RouteComparison,
    sample: float | None,
    repairs: SourceRepairs | None,
    told: Told,
    eraser: Eraser | None = None,
) -> RouteReport:
    """
    Compare a route; what cannot be read is told in the report, not raised.

    Args:
        bench: Both sides.
        sample: Of how many rows, or of how large a part; none: of all.
        repairs: Where to ask for what is wrong; none: it is left as it is.
        told: Hears of progress.
        eraser: Erases keys that no row replaces; none: they are left as they are.
    """
    counts = _Counts()
    began_s = bench.clock.monotonic_s()
    with Suspects() as open_ones:
        try:
            if sample is None:
                _read_all(bench, open_ones, counts, told)
            else:
                _read_some(bench, sample, open_ones, counts)
            settle(bench, open_ones)
            if repairs is not None:
                counts.repaired = repair(bench, open_ones, repairs, eraser)
        except UnavailableError as failure:
            counts.error = str(failure)
        count, first = _sum(bench, open_ones)
        return RouteReport(
            route=bench.route,
            table=bench.table.full_name.text,
            source_rows=counts.source_rows,
            sink_rows=counts.sink_rows,
            tombstones=counts.tombstones,
            differences=count,
            first=tuple(first),
            restless=0 if counts.error else open_ones.open_count,
            repaired=counts.repaired.equal,
            left=counts.repaired.left,
            elapsed_s=round(bench.clock.monotonic_s() - began_s, 3),
            error=counts.error,
            notes=bench.table.notes,
            unmatched=counts.unmatched,
        )


def _read_all(
    bench: RouteComparison, open_ones: Suspects, counts: _Counts, told: Told
) -> None:
    """Read the sink onto a shelf, then the source; suspect what is not the same."""
    estimate = bench.source.estimate(bench.table)

    def stored() -> Iterator[StoredRow]:
        for number, row in enumerate(bench.reader.rows(bench.route), 1):
            yield row
            if not number % _TELL_EVERY:
                told("read the sink", _TELL_EVERY, estimate)

    def source_rows() -> Iterator[Sequence[SourceRow]]:
        for rows in bench.source.rows(bench.table):
            written = bench.form.source_rows(rows)
            counts.source_rows += len(written)
            told("compare with the source", len(written), estimate)
            yield written

    with DigestTable() as shelf:
        try:
            shelf.put(bench.form.held(row) for row in stored())
            is_pruned = bench.table.is_pruned
            open_ones.add(suspects(source_rows(), shelf, is_pruned=is_pruned))
            if is_pruned:
                counts.unmatched = sum(not held.is_deleted for held in shelf.rest())
        finally:
            counts.sink_rows = shelf.live_rows
            counts.tombstones = shelf.tombstones


def _read_some(
    bench: RouteComparison, sample: float, open_ones: Suspects, counts: _Counts
) -> None:
    """Suspect what chance picks, of the source's rows and of the sink's."""
    _pick(bench, sample, open_ones, counts)
    if not counts.source_rows:
        # A small part of few rows may be none: of an emptied sink all would be equal.
        _pick(bench, _LEAST, open_ones, counts)
    # What only a log still has proves nothing.
    if bench.table.is_pruned or not isinstance(bench.reader, SampleReader):
        return
    as_many = max(counts.source_rows, int(sample), _LEAST)
    for stored in bench.reader.sample(bench.route, as_many):
        held = bench.form.held(stored)
        counts.tombstones += held.is_deleted
        if not held.is_deleted:
            open_ones.add([Suspect(held.key, None, held)])
            counts.sink_rows += 1


def _pick(
    bench: RouteComparison, sample: float, open_ones: Suspects, counts: _Counts
) -> None:
    """Suspect what chance picks of the source's rows."""
    rows: Iterable[Texts] = chain.from_iterable(
        bench.source.sample(bench.table, sample)
    )
    for row in bench.form.source_rows(rows):
        open_ones.add([Suspect(row.key, pack(row.texts), None)])
        counts.source_rows += 1


def _sum(bench: RouteComparison, found: Suspects) -> tuple[int, list[Difference]]:
    """Return how many differences there are, and the first."""
    count = 0
    first: list[Difference] = []
    for some in found.wrong():
        for suspect in some:
            each = bench.form.told(differences(bench.form.columns, suspect))
            for difference in each:
                count += 1
                if count <= FIRST_SHOWN:
                    first.append(difference)
    return count, first

"""Verify one route: read both sides, settle the suspects, and report the result."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from towpath.schemas.failure import TowpathError
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
    NOTHING_REPAIRED,
    Eraser,
    Repaired,
    SourceRepairs,
    repair,
)
from towpath.sinks.verify.report import FIRST_SHOWN, RouteReport
from towpath.sinks.verify.settle import RouteComparison, SampleReader, settle
from towpath.sinks.verify.source import Texts
from towpath.sinks.verify.suspects import DigestTable, Suspects

# A step, the number of further rows, and their estimated total.
ProgressCallback = Callable[[str, int, int], None]

_REPORT_EVERY: Final = 1000
# The smallest sample; the source may have no rows while the sink has some.
_SMALLEST_SAMPLE: Final = 100


@dataclass(slots=True)
class _RowCounts:
    """The counts of a comparison, even of one that ends early."""

    source_rows: int = 0
    sink_rows: int = 0
    tombstones: int = 0
    unmatched: int = 0
    repaired: Repaired = NOTHING_REPAIRED
    error: str | None = None
    remedy: str | None = None


def verify_route(
    comparison: RouteComparison,
    sample: float | None,
    repairs: SourceRepairs | None,
    report_progress: ProgressCallback,
    eraser: Eraser | None = None,
) -> RouteReport:
    """
    Compare a route; report a failure instead of raising it.

    Args:
        comparison: Both sides.
        sample: The number of rows, or their share if below one; ``None`` for all.
        repairs: Refetches wrong rows; ``None`` leaves them.
        report_progress: Called with the number of further rows of each step.
        eraser: Erases keys that a refetch cannot correct; ``None`` leaves them.
    """
    try:
        return _verified(comparison, sample, repairs, report_progress, eraser)
    except sqlite3.Error as error:
        why = (
            f"a temporary file cannot be used: {error}: free disk space, or name "
            "another folder in SQLITE_TMPDIR"
        )
        table = comparison.table.full_name.text
        return RouteReport(comparison.route, table, error=why)


def _verified(
    comparison: RouteComparison,
    sample: float | None,
    repairs: SourceRepairs | None,
    report_progress: ProgressCallback,
    eraser: Eraser | None,
) -> RouteReport:
    counts = _RowCounts()
    began_s = comparison.clock.monotonic_s()
    with Suspects() as suspects_found:
        try:
            if sample is None:
                _read_all(comparison, suspects_found, counts, report_progress)
            else:
                _read_sample(comparison, sample, suspects_found, counts)
            settle(comparison, suspects_found)
            if repairs is not None:
                counts.repaired = repair(comparison, suspects_found, repairs, eraser)
        except TowpathError as failure:
            counts.error, counts.remedy = str(failure), failure.remedy
        count, first = _count_differences(comparison, suspects_found)
        return RouteReport(
            route=comparison.route,
            table=comparison.table.full_name.text,
            source_rows=counts.source_rows,
            sink_rows=counts.sink_rows,
            tombstones=counts.tombstones,
            differences=count,
            first=tuple(first),
            restless=0 if counts.error else suspects_found.open_count,
            repaired=counts.repaired.equal,
            left=counts.repaired.left,
            elapsed_s=round(comparison.clock.monotonic_s() - began_s, 3),
            error=counts.error,
            notes=(*comparison.table.notes, *comparison.form.notes),
            unmatched=counts.unmatched,
            remedy=counts.remedy,
        )


def _read_all(
    comparison: RouteComparison,
    suspects_found: Suspects,
    counts: _RowCounts,
    report_progress: ProgressCallback,
) -> None:
    """Read the sink's digests, then the source; add differing rows as suspects."""
    estimate = comparison.source.estimate(comparison.table)

    def stored() -> Iterator[StoredRow]:
        for number, row in enumerate(comparison.reader.rows(comparison.route), 1):
            yield row
            if not number % _REPORT_EVERY:
                report_progress("read the sink", _REPORT_EVERY, estimate)

    def source_rows() -> Iterator[Sequence[SourceRow]]:
        for rows in comparison.source.rows(comparison.table):
            written = comparison.form.source_rows(rows)
            counts.source_rows += len(written)
            report_progress("compare with the source", len(written), estimate)
            yield written

    with DigestTable() as digests:
        try:
            digests.put(comparison.form.sink_row(row) for row in stored())
            is_pruned = comparison.table.is_pruned
            suspects_found.add(suspects(source_rows(), digests, is_pruned=is_pruned))
            if is_pruned:
                counts.unmatched = sum(not held.is_deleted for held in digests.rest())
        finally:
            counts.sink_rows = digests.live_rows
            counts.tombstones = digests.tombstones


def _read_sample(
    comparison: RouteComparison,
    sample: float,
    suspects_found: Suspects,
    counts: _RowCounts,
) -> None:
    """Add random rows of the source and of the sink as suspects."""
    _pick(comparison, sample, suspects_found, counts)
    if not counts.source_rows:
        # A small share of few rows may be empty: an emptied sink would look equal.
        _pick(comparison, _SMALLEST_SAMPLE, suspects_found, counts)
    # A row that only the sink has proves nothing if the source deletes rows.
    if comparison.table.is_pruned or not isinstance(comparison.reader, SampleReader):
        return
    as_many = max(counts.source_rows, int(sample), _SMALLEST_SAMPLE)
    for stored in comparison.reader.sample(comparison.route, as_many):
        held = comparison.form.sink_row(stored)
        counts.tombstones += held.is_deleted
        if not held.is_deleted:
            suspects_found.add([Suspect(held.key, None, held)])
            counts.sink_rows += 1


def _pick(
    comparison: RouteComparison,
    sample: float,
    suspects_found: Suspects,
    counts: _RowCounts,
) -> None:
    """Add random rows of the source as suspects."""
    rows: Iterable[Texts] = chain.from_iterable(
        comparison.source.sample(comparison.table, sample)
    )
    for row in comparison.form.source_rows(rows):
        suspects_found.add([Suspect(row.key, pack(row.texts), None)])
        counts.source_rows += 1


def _count_differences(
    comparison: RouteComparison, found: Suspects
) -> tuple[int, list[Difference]]:
    """Return the number of differences, and the first ones."""
    count = 0
    first: list[Difference] = []
    for batch in found.wrong():
        for suspect in batch:
            each = comparison.form.refined(
                differences(comparison.form.columns, suspect)
            )
            for difference in each:
                count += 1
                if count <= FIRST_SHOWN:
                    first.append(difference)
    return count, first

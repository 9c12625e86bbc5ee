"""
The report of a verification, for people and for scripts.

Every difference is counted; the first ones are shown with both values. A route that
could not be compared is reported with its error, next to the results of the others. The
result of a sample covers only its rows; a sample without rows proves nothing.
"""

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Final, Self

import orjson
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from towpath.schemas.failure import UsageError, with_remedy
from towpath.sinks.verify.compare import Difference
from towpath.sinks.verify.repair import UnrepairedKeys

FIRST_SHOWN = 20


class Verdict(enum.StrEnum):
    """The result of a verification; a difference outweighs an error."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNVERIFIED = "unverified"


@dataclass(frozen=True, slots=True)
class RouteReport:
    """
    The result of one route.

    Attributes:
        table: The source's table, with its schema; the topic if it is not known.
        source_rows: Rows of the source that were compared.
        sink_rows: Live rows of the sink; for a sample, only those picked in the sink.
        tombstones: Tombstones of the sink.
        differences: The number of differences.
        restless: Keys that changed in every round: neither equal nor wrong.
        repaired: Keys that differed, and have been equal since their refetch.
        left: Keys that still differ after a repair, by reason.
        first: The first differences.
        error: Why the comparison ended early, if it did.
        notes: Parts that are not compared, and why.
        unmatched: Rows of the sink that are not in the source, if it may delete rows.
        remedy: The remedy of the error, if it has one.
    """

    route: str
    table: str
    source_rows: int = 0
    sink_rows: int = 0
    tombstones: int = 0
    differences: int = 0
    first: tuple[Difference, ...] = ()
    restless: int = 0
    repaired: int = 0
    left: tuple[UnrepairedKeys, ...] = ()
    elapsed_s: float = 0.0
    error: str | None = None
    notes: tuple[str, ...] = ()
    unmatched: int = 0
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """
    The result of one sink.

    Attributes:
        sample: The requested sample; empty if all rows were compared.
        error: Why no route was compared, if none was.
        remedy: The remedy of the error.
    """

    sink: str
    routes: Sequence[RouteReport] = ()
    sample: str = ""
    error: str | None = None
    remedy: str | None = None

    @property
    def differences(self) -> int:
        """The number of differences of all routes."""
        return sum(route.differences for route in self.routes)

    @property
    def rows(self) -> int:
        """The number of compared rows of the source."""
        return sum(route.source_rows for route in self.routes)

    @property
    def verdict(self) -> Verdict:
        """The verdict on all routes."""
        if self.differences:
            return Verdict.DIFFERENT
        if self.reason or any(route.error or route.restless for route in self.routes):
            return Verdict.UNVERIFIED
        return Verdict.EQUAL

    def counts(self, *, is_partial: bool) -> bool:
        """
        Return whether the result replaces the previous one.

        A difference always does. Equality of some routes, or of a sample, proves
        nothing about the rest, and neither does an unknown result.
        """
        if self.verdict is Verdict.EQUAL:
            return not is_partial
        return self.verdict is Verdict.DIFFERENT

    @property
    def reason(self) -> str | None:
        """The reason why the result proves nothing, if there is one."""
        is_failed = any(route.error for route in self.routes)
        picked = sum(route.source_rows + route.sink_rows for route in self.routes)
        if self.sample and not (self.error or is_failed or picked):
            return f"the random sample of {self.sample} has no rows"
        return self.error


def worse(one: Verdict, other: Verdict) -> Verdict:
    """Return the worse of two verdicts."""
    return max(one, other, key=_WORST_LAST.index)


def as_json(found: Verification, *, is_line: bool = False) -> str:
    """Return a verification as a JSON document; with ``is_line`` on one line."""
    document = {
        "sink": found.sink,
        "result": found.verdict,
        "differences": found.differences,
        "sample": found.sample or None,
        "error": found.reason,
        "remedy": found.remedy,
        "routes": [
            asdict(route)
            | {"first": [d._asdict() for d in route.first]}
            | {"left": [left._asdict() for left in route.left]}
            for route in found.routes
        ],
    }
    option = 0 if is_line else orjson.OPT_INDENT_2
    return orjson.dumps(document, option=option).decode()


def show(console: Console, found: Verification) -> None:
    """Print a table of the routes, then the first differences, one per line."""
    if found.routes:
        console.print(_table(found))
    for line in _lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(found: Verification) -> Table:
    title = f"{found.sink} against the source"
    table = Table("route", title=title, title_justify="left")
    for heading in ("source rows", "sink rows", "tombstones", "differences"):
        table.add_column(heading, justify="right")
    for route in found.routes:
        counts = (
            *(route.source_rows, route.sink_rows, route.tombstones),
            route.differences,
        )
        # As ``Text``, so that brackets in a name are not markup.
        table.add_row(Text(route.route), *(f"{count:,}" for count in counts))
    return table


def _lines(found: Verification) -> list[str]:
    routes = found.routes
    first = [(route, difference) for route in routes for difference in route.first]
    lines = [f"{route.route} {difference}" for route, difference in first[:FIRST_SHOWN]]
    if found.differences > len(lines):
        lines.append(f"... and {found.differences - len(lines):,} more")
    lines += [
        f"{r.route} {r.repaired:,} keys were refetched and are equal now"
        for r in routes
        if r.repaired
    ]
    lines += [
        f"{r.route} {left.keys:,} keys are not repaired: {left.reason}"
        for r in routes
        for left in r.left
    ]
    lines += [
        f"{r.route} {r.restless:,} keys changed in every round of reads"
        for r in routes
        if r.restless
    ]
    lines += [f"{r.route} {note}" for r in routes for note in r.notes]
    lines += [
        f"{r.route} {r.unmatched:,} rows of the sink are not in the source"
        for r in routes
        if r.unmatched
    ]
    lines += [
        f"{r.route} could not be compared: {_with_remedy(r.error, r.remedy)}"
        for r in routes
        if r.error
    ]
    lines.append(_summary(found))
    return lines


def _summary(found: Verification) -> str:
    verdict = found.verdict
    if verdict is Verdict.DIFFERENT:
        count = f"{found.differences:,}"
        return f"{found.sink} differs from the source: {count} differences"
    if verdict is Verdict.UNVERIFIED:
        reason = found.reason
        why = f": {_with_remedy(reason, found.remedy)}" if reason else ""
        return f"{found.sink} could not be verified{why}"
    if found.sample:
        rows = f"{found.rows:,} rows"
        return f"{found.sink} equals the source in a random sample of {rows}"
    if any(route.notes for route in found.routes):
        return f"{found.sink} equals the source in all that was compared"
    return f"{found.sink} equals the source, every key and column"


def _with_remedy(error: str, remedy: str | None) -> str:
    return with_remedy(error, remedy) if remedy else error


_WORST_LAST = (Verdict.EQUAL, Verdict.UNVERIFIED, Verdict.DIFFERENT)


class _Rate(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s")


class ProgressBars:
    """A bar for each step of each route, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            _Rate(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def advance(self, step: str, rows: int, estimate: int) -> None:
        """Add rows to a bar; an estimate of zero means an unknown total."""
        task = self._tasks.get(step)
        if task is None:
            task = self._bars.add_task(step, total=estimate or None)
            self._tasks[step] = task
        self._bars.advance(task, rows)


_WHOLE_PERCENT: Final = 100


def sample_size(text: str) -> float | None:
    """
    Parse ``1000`` or ``5%``; a result below one is a share, ``None`` means all.

    Raises:
        UsageError: The text is neither, or it is zero or more than 100 %.
    """
    if not text:
        return None
    number, percent, rest = text.partition("%")
    try:
        size = float(number) / _WHOLE_PERCENT if percent else int(number)
    except ValueError:
        size = 0
    # Written so that ``nan%``, for which every comparison is false, is refused, too.
    if rest or not size > 0 or (percent and size > 1):
        message = f"a sample is a number of rows or a percentage, not {text!r}"
        raise UsageError(message)
    # 100% is a full comparison, which also finds rows that only the sink has.
    return None if percent and size == 1 else size

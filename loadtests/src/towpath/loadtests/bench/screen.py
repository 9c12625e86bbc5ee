"""Where it is told how far things are: a live bar with rate and time left, or lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from towpath.loadtests.bench.plan import Tell

# Drawing takes time of the cores that are measured.
_REFRESHES_PER_S: Final = 2


class _RateColumn(ProgressColumn):
    """How many a second, of late."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="dim")


class LiveScreen:
    """One bar for the step that is being done, and lines that stay above it."""

    def __init__(self, progress: Progress, cases: Console) -> None:
        self._progress = progress
        self._cases = cases
        self._task = progress.add_task("", total=None)

    def say(self, line: str) -> None:
        """Tell something that stays."""
        self._progress.console.print(line, highlight=False, soft_wrap=True)

    def show(self, case: RenderableType) -> None:
        """Print the table of a case that has ended."""
        self._cases.print(case)

    def begin(self, what: str, total: int) -> Tell:
        """Begin a step; the bar is its."""
        self._progress.remove_task(self._task)
        task = self._task = self._progress.add_task(what, total=total or None)

        def tell(done: int) -> None:
            self._progress.update(task, completed=done)

        return tell


@contextmanager
def open_screen(console: Console, cases: Console) -> Iterator[LiveScreen]:
    """
    Show a bar where there is a terminal; lines everywhere.

    Args:
        console: Where progress is shown.
        cases: Where the tables of cases are printed.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        refresh_per_second=_REFRESHES_PER_S,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield LiveScreen(progress, cases)

"""``towpath outbox clean``."""

import json as json_text
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, NonNegativeInt
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from towpath.cli.options import ConfigOption, Flag, JsonOption, read_settings
from towpath.schemas.source_tables import DAYS_AHEAD

app = App(name="outbox", help="Remove old, published events from a kept outbox.")


@app.command
def clean(
    *,
    keep_days: Annotated[NonNegativeFloat, Parameter(name="--keep-days")] = 7.0,
    wait_s: Annotated[NonNegativeFloat, Parameter(name="--wait")] = 60.0,
    days_ahead: NonNegativeInt = DAYS_AHEAD,
    former: Annotated[bool, Flag] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Remove events that every reader of the log has confirmed; safe at any time.

    Rows are deleted in small steps that wait for nobody. A partitioned outbox has whole
    days dropped, and the partitions of the next days made: run it daily.

    Args:
        keep_days: Younger events stay.
        wait_s: The longest wait, in seconds, until the log is confirmed.
        days_ahead: Partitions to have ahead of today's.
        former: Remove events from before the present lineage too, which may never have
            been published: after a lost slot, close the gap first.
        json: Print one JSON document.
        config: Configuration file.
    """
    from towpath.relay.commands import clean_outbox as cleaning  # noqa: PLC0415 - slow
    from towpath.settings.logs import configure_logs  # noqa: PLC0415 - as above

    configure_logs()
    rules = cleaning.CleaningRules(
        timedelta(days=keep_days), wait_s, days_ahead, keeps_former=not former
    )
    with _progress() as report:
        cleaned = cleaning.clean_outbox(read_settings(config), rules, report)
    document = cleaning.document(cleaned)
    if json:
        print(json_text.dumps(document, indent=1))
        return 0
    for name, value in document.items():
        text = ", ".join(value) or "none" if isinstance(value, list) else str(value)
        print(f"{name.replace('_', ' '):12} {text}")
    return 0


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None]]:
    """Show pages, rate and time left on a terminal."""
    bars = Progress(
        TextColumn("pages"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[deleted]:,} deleted, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not Console(stderr=True).is_terminal,
    )
    with bars:
        task = bars.add_task("", total=None, deleted=0, rate=0.0)

        def report(done: int, pages: int, deleted: int) -> None:
            elapsed_s = bars.tasks[0].elapsed or 0.0
            rate = deleted / elapsed_s if elapsed_s else 0.0
            bars.update(
                task,
                completed=min(done, pages),
                total=pages,
                deleted=deleted,
                rate=rate,
            )

        yield report

"""
``towpath doctor``: what stands in the way, or may, with the exact cure of each.

Every part is asked even if another is away. Exit 0: nothing found; 1: something was;
3: a part could not be asked.
"""

import json as json_text
import os
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.deploy.cli.places import ConfigOption, config_file
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError
from towpath.settings import Settings, load

# More than this between two clocks shows in latencies and time stamps.
_CLOCK_BOUND_S: Final = 1.0


class Row(NamedTuple):
    """One line of the report."""

    part: str
    level: str
    what: str
    why: str
    cure: str


def doctor(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Check source and broker, and tell the exact cure of whatever is found.

    Args:
        json: Print one JSON document.
        config: Configuration file.
    """
    settings = load(config_file(config), os.environ)  # noqa: TID251 - a root
    rows = examine(settings, SystemClock())
    if json:
        print(json_text.dumps([row._asdict() for row in rows], indent=1))
    elif rows:
        Console().print(_table(rows))
    else:
        print("nothing found: source and broker are as the relay needs them")
    if any(row.level == "unavailable" for row in rows):
        return 3
    return 1 if rows else 0


def examine(settings: Settings, clock: Clock) -> list[Row]:
    """Ask every part, and gather what is found, the gravest of each part first."""
    return [
        *_asked("source", lambda: _source(settings, clock)),
        *_asked("broker", lambda: _broker(settings)),
    ]


def _asked(part: str, ask: Callable[[], list[Row]]) -> list[Row]:
    try:
        return sorted(ask(), key=lambda row: row.level)
    except TowpathError as failure:
        level = "unavailable" if failure.exit_code == 3 else "error"  # noqa: PLR2004 - the table of exit codes
        return [Row(part, level, str(failure), "it could not be asked", failure.remedy)]


def _source(settings: Settings, clock: Clock) -> list[Row]:
    from towpath.relay.postgres import (  # noqa: PLC0415 - keeps --help fast
        preflight,
        source_checks,
        source_facts,
        table_report,
        views,
    )
    from towpath.relay.postgres.connect import connect  # noqa: PLC0415

    dsn = settings.database.dsn
    with connect(dsn) as connection:
        facts = source_facts.read_facts(connection, settings)
        ours = clock.now()
        of_views = views.findings(connection, settings.relay.outbox.view)
        of_tables = table_report.report(connection, settings).findings()
        problems = source_checks.source_problems(connection, settings)
    found = [
        *preflight.capture_findings(facts, settings),
        *preflight.running_findings(facts, settings),
        *preflight.replication_findings(dsn),
        *of_views,
        *of_tables,
    ]
    known = {finding.what for finding in found}
    found += [problem for problem in problems if problem.what not in known]
    rows = [Row("source", *map(str, finding)) for finding in found]
    theirs = facts.server.now
    if theirs is not None and abs((theirs - ours).total_seconds()) > _CLOCK_BOUND_S:
        rows.append(_clock_row((theirs - ours).total_seconds()))
    return rows


def _clock_row(difference_s: float) -> Row:
    word = "ahead of" if difference_s > 0 else "behind"
    return Row(
        "source",
        "warning",
        f"the source's clock is {abs(difference_s):.1f} s {word} this machine's",
        "latencies and the times of records are off by as much",
        "run a time service on both: timedatectl set-ntp true",
    )


def _broker(settings: Settings) -> list[Row]:
    from towpath.relay.kafka import preflight  # noqa: PLC0415 - keeps --help fast

    facts = preflight.read_facts(settings)
    found = preflight.findings(facts, settings)
    return [Row("broker", *map(str, finding)) for finding in found]


def _table(rows: list[Row]) -> Table:
    table = Table("part", "level", "finding, why it matters, cure", box=None)
    table.columns[-1].overflow = "fold"
    colours = {"error": "red", "unavailable": "red", "warning": "yellow"}
    for row in rows:
        finding = Text(row.what, style="bold")
        finding.append(f"\n{row.why}\n", style="not bold")
        finding.append(f"{row.cure}\n", style="not bold cyan")
        table.add_row(row.part, Text(row.level, style=colours[row.level]), finding)
    return table

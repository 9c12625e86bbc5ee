"""
``towpath doctor``: checks of everything that the platform depends on, with remedies.

Every part is checked even if another is unavailable. The report has one section per
severity, the worst first; docs/doctor.md explains each finding and the JSON document.

Exit 0: no findings, or only information; 4: warnings, but no errors; 1: errors; 3: a
part could not be checked, whatever else was found.
"""

import json as json_text
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from towpath.cli.options import ConfigOption, read_settings
from towpath.deploy.doctor import (
    UNAVAILABLE,
    DoctorFinding,
    examine,
)
from towpath.deploy.doctor.machine import describe_code
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import TowpathError
from towpath.schemas.findings import Fix, Severity, SqlFix
from towpath.settings import Settings
from towpath.settings.logs import configure_logs

_NOTHING: Final = (
    "nothing found: source, broker, registry, sinks and machine are in order"
)
_TITLES: Final = {
    Severity.ERROR: ("errors", "red"),
    UNAVAILABLE: ("could not be checked", "red"),
    Severity.WARNING: ("warnings", "yellow"),
    Severity.INFO: ("information", "cyan"),
}


def doctor(
    *,
    fix: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    config: ConfigOption = None,
) -> int:
    """
    Check source, broker, registry, sinks and machine; name a remedy for each finding.

    Exit 3 if a part could not be checked, else 1 if there is an error, else 4 if there
    is a warning. Nothing is changed without --fix.

    Args:
        fix: Print and apply each remedy that loses no data; then check again.
        json: Print one JSON document.
        config: Configuration file.
    """
    configure_logs()
    settings = read_settings(config)
    rows = examine(settings, SystemClock())
    if fix and _make_fixes(settings, rows):
        rows = examine(settings, SystemClock())
    if json:
        print(json_text.dumps([row.document() for row in rows], indent=1))
    else:
        if rows:
            _print(rows)
        else:
            print(_NOTHING)
        print(describe_code(os.environ))  # noqa: TID251 - where a process begins
    return exit_code(rows)


def exit_code(rows: Iterable[DoctorFinding]) -> int:
    """
    Return the exit code of a report.

    The first that applies: 3 if a part could not be checked, 1 if there is an error, 4
    if there is a warning; else 0.
    """
    levels = {row.level for row in rows}
    for level, code in ((UNAVAILABLE, 3), (Severity.ERROR, 1), (Severity.WARNING, 4)):
        if level in levels:
            return code
    return 0


def make_fix(fix: Fix, settings: Settings) -> None:
    """
    Apply the fix of a finding.

    Raises:
        TowpathError: The server refuses the fix, or does not respond.
    """
    from towpath.relay.kafka.topics import alter_topic  # noqa: PLC0415 - keeps --help fast
    from towpath.relay.postgres.connect import connect, translated_errors  # noqa: PLC0415

    if not isinstance(fix, SqlFix):
        alter_topic(settings.kafka, fix)
        return
    with (
        connect(settings.database.dsn) as connection,
        translated_errors(fix.statement),
    ):
        connection.execute(fix.statement.encode())


def _make_fixes(settings: Settings, rows: Sequence[DoctorFinding]) -> int:
    """Apply the fixes of findings, and return how many there were."""
    fixes = dict.fromkeys(row.fix for row in rows if row.fix is not None)
    for each in fixes:
        # Not on standard output, which may be a JSON document.
        print(f"fix: {each}", file=sys.stderr)
        try:
            make_fix(each, settings)
        except TowpathError as failure:
            print(f"not fixed: {failure}", file=sys.stderr)
    return len(fixes)


def _print(rows: Sequence[DoctorFinding]) -> None:
    """Print one section per severity, and then a summary."""
    console = Console()
    for level, found in groupby(rows, attrgetter("level")):
        console.print(_section(level, list(found)))
    console.print(_summary(rows))


def _section(level: str, rows: Sequence[DoctorFinding]) -> Table:
    title, color = _TITLES[level]
    table = Table("part", title, box=None, header_style=f"bold {color}")
    table.columns[-1].overflow = "fold"
    for row in rows:
        finding = Text(row.what, style="bold")
        finding.append(f"\n{row.why}\n", style="not bold")
        finding.append(f"{row.cure}\n", style="not bold cyan")
        finding.append(f"{row.page}\n", style="not bold dim")
        table.add_row(row.part, finding)
    return table


def _summary(rows: Sequence[DoctorFinding]) -> str:
    """Return the numbers of findings by severity, and of fixes that --fix applies."""
    counts = Counter(row.level for row in rows)
    text = ", ".join(
        f"{title}: {counts[level]}"
        for level, (title, _) in _TITLES.items()
        if counts[level]
    )
    fixable = sum(row.fix is not None for row in rows)
    if fixable:
        text += f"; towpath doctor --fix applies {fixable} of the remedies"
    return text

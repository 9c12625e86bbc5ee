"""The parts of the local stack as a document, and as a table of one line each."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from towpath.deploy.local.lifecycle import PartStatus, State

_COLOURS: Final = {State.READY: "green", State.RUNNING: "yellow", State.STOPPED: "red"}
_MEGABYTE: Final = 1024 * 1024


def part_document(part: PartStatus) -> dict[str, Any]:
    """Return what is told of a part, as JSON may have it."""
    return {**dataclasses.asdict(part), "log": str(part.log)}


def part_table(parts: Iterable[Mapping[str, Any]]) -> Table:
    """Return a row for each part."""
    table = Table("part", "state", "port", "pid", "memory", "uptime", "log", box=None)
    for part in parts:
        memory, uptime_s = part["memory_bytes"], part["uptime_s"]
        table.add_row(
            part["name"],
            Text(part["state"], _COLOURS[part["state"]]),
            str(part["port"] or ""),
            str(part["pid"] or ""),
            "" if memory is None else f"{memory / _MEGABYTE:.0f} MB",
            "" if uptime_s is None else str(dt.timedelta(seconds=int(uptime_s))),
            short_path(Path(part["log"])),
        )
    return table


def short_path(path: Path) -> str:
    """Show a path from here, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

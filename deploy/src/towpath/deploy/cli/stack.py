"""``towpath up | down | status | logs``: the local stack."""

import dataclasses
import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from towpath.deploy.cli.places import StateOption, state_folder
from towpath.deploy.jars import fetch, lock
from towpath.deploy.local import tail
from towpath.deploy.local.configuration import write_configuration
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.lifecycle import PartStatus, State
from towpath.deploy.local.stack import NAMES, Stack
from towpath.schemas.failure import UsageError

_COLOURS: Final = {State.READY: "green", State.RUNNING: "yellow", State.STOPPED: "red"}
_MEGABYTE: Final = 1024 * 1024


def up(*, state: StateOption = None) -> int:
    """Start the local stack, or repair what is down, and write its configuration."""
    stack = Stack(state_folder(state))
    console = Console(stderr=True)
    fetch.ensure(console.print, os.environ, lock.read())  # noqa: TID251 - a root
    news = dict.fromkeys(NAMES, "waiting")
    with console.status("") as line:

        def tell(name: str, word: str) -> None:
            news[name] = word
            if word in {"started", "failed"}:
                console.print(f"{name}: {word}")
            waiting = [n for n, w in news.items() if w in {"waiting", "starting"}]
            line.update(f"starting {', '.join(waiting)}")

        addresses = stack.up(tell=tell)
    path = stack.state.root / "towpath.toml"
    write_configuration(addresses, path)
    print(f"configuration: {_short(path)}")
    return _show(stack.status(), as_json=False)


def down(
    *,
    purge: Annotated[bool, Parameter(negative="")] = False,
    state: StateOption = None,
) -> int:
    """
    Stop the local stack; its data stays.

    Args:
        purge: Remove the data as well.
        state: State folder.
    """
    stack = Stack(state_folder(state))
    if purge:
        stack.purge()
        print("stopped; data removed")
    else:
        stack.down()
        print("stopped")
    return 0


def status(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    state: StateOption = None,
) -> int:
    """
    Show each part: port, process, memory, uptime; exit 1 if some part is not ready.

    Args:
        json: Print one JSON document.
        state: State folder.
    """
    return _show(Stack(state_folder(state)).status(), as_json=json)


def logs(
    part: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    lines: Annotated[int, Parameter(name=["--lines", "-n"])] = 50,
    state: StateOption = None,
) -> int:
    """
    Show what a part has printed.

    Args:
        part: Its name, as status shows it.
        follow: Go on showing new lines until Ctrl-C.
        lines: How many of the last lines.
        state: State folder.
    """
    path = StateFolder(state_folder(state).resolve()).log(part)
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.log"))) or "none"
        message = f"no log of {part!r}; there are: {known}"
        raise UsageError(message)
    for line in tail.last_lines(path, lines):
        print(line)
    if follow:
        for text in tail.follow(path):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _show(parts: list[PartStatus], *, as_json: bool) -> int:
    if as_json:
        rows = [{**dataclasses.asdict(p), "log": str(p.log)} for p in parts]
        print(json.dumps(rows, indent=1))
    else:
        Console().print(_table(parts))
    return 0 if all(p.state is not State.STOPPED for p in parts) else 1


def _table(parts: list[PartStatus]) -> Table:
    table = Table("part", "state", "port", "pid", "memory", "uptime", "log", box=None)
    for part in parts:
        memory = part.memory_bytes
        uptime_s = part.uptime_s
        table.add_row(
            part.name,
            f"[{_COLOURS[part.state]}]{part.state}[/]",
            str(part.port or ""),
            str(part.pid or ""),
            "" if memory is None else f"{memory / _MEGABYTE:.0f} MB",
            "" if uptime_s is None else str(dt.timedelta(seconds=int(uptime_s))),
            _short(part.log),
        )
    return table


def _short(path: Path) -> str:
    """Show a path from here, if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

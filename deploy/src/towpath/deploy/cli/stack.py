"""``towpath up | down | logs``: the local stack, and the end of a part's log file."""

import collections
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console

from towpath.deploy.cli.options import StateOption, state_folder
from towpath.deploy.jars import fetch, store
from towpath.deploy.local.configuration import write_configuration
from towpath.deploy.local.lifecycle import (
    PartState,
    PartStatus,
    part_document,
    part_table,
    short_path,
)
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.stack import NAMES, Stack
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError

_LOOK_AGAIN_S: Final = 0.2


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in collections.deque(file, maxlen=count)]


def follow_file(path: Path, clock: Clock | None = None) -> Iterator[str]:
    """Yield what is added to a file from now on, for ever, a new file's text too."""
    wait = (clock or SystemClock()).wait
    place = path.stat().st_size
    while True:
        size_bytes = path.stat().st_size if path.exists() else 0
        if size_bytes < place:
            place = 0
        if size_bytes > place:
            with path.open("rb") as file:
                file.seek(place)
                added = file.read()
            place += len(added)
            yield added.decode("utf-8", errors="replace")
        else:
            wait(_LOOK_AGAIN_S)


def up(*, state: StateOption = None) -> int:
    """Start the local stack, or repair what is down, and write its configuration."""
    stack = Stack(state_folder(state))
    console = Console(stderr=True)
    fetch.ensure(console.print, os.environ, store.read_lock())  # noqa: TID251 - a root
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
    print(f"configuration: {short_path(path)}")
    return _show(stack.status())


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
    for line in last_lines(path, lines):
        print(line)
    if follow:
        for text in follow_file(path):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _show(parts: list[PartStatus]) -> int:
    Console().print(part_table(part_document(part) for part in parts))
    return 0 if all(p.state is not PartState.STOPPED for p in parts) else 1

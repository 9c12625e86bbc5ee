"""``towpath up | down | logs``: the local stack."""

import os
import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from towpath.deploy.cli.places import StateOption, state_folder
from towpath.deploy.jars import fetch, lock
from towpath.deploy.local import tail
from towpath.deploy.local.configuration import write_configuration
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.lifecycle import PartStatus, State
from towpath.deploy.local.stack import NAMES, Stack
from towpath.deploy.part_table import part_document, part_table, short_path
from towpath.schemas.failure import UsageError


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
    for line in tail.last_lines(path, lines):
        print(line)
    if follow:
        for text in tail.follow(path):
            sys.stdout.write(text)
            sys.stdout.flush()
    return 0


def _show(parts: list[PartStatus]) -> int:
    Console().print(part_table(part_document(part) for part in parts))
    return 0 if all(p.state is not State.STOPPED for p in parts) else 1

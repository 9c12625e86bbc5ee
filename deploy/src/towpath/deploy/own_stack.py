"""
A local stack for one run of one command: its parts, and all that the run starts.

It lives in a folder of its own below the system's temporary folder. Whatever happens,
every process that was started is stopped before the block ends; what a run has left
that was killed itself is cleared away by the next.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from towpath.deploy.demo.folder import stop_all
from towpath.deploy.demo.interrupt import interrupted_once
from towpath.deploy.jars import fetch, lock
from towpath.deploy.local.children import kill_children
from towpath.deploy.local.stack import Stack

SOURCE_AND_BROKER: Final = ("postgres", "kafka")
_OWNER: Final = "owner"
_GONE_WITHIN_S: Final = 10.0


def prepare(prefix: str, news: Console) -> None:
    """Clear away what killed runs have left, and fetch what the stack is made of."""
    clear_abandoned(prefix)
    environ = os.environ  # noqa: TID251 - a root
    fetch.ensure(news.print, environ, lock.read())


def clear_abandoned(prefix: str, folder: Path | None = None) -> None:
    """Stop and remove what runs have left that were killed."""
    for left in (folder or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((left / _OWNER).read_text(encoding="ascii"))
            if not psutil.pid_exists(owner):
                _remove(Stack(left))


@contextlib.contextmanager
def own_stack(
    prefix: str,
    news: Console,
    *,
    keep: bool,
    parts: Sequence[str] = SOURCE_AND_BROKER,
) -> Iterator[Stack]:
    """
    Start a stack for the block; stop and remove it behind, whatever happened.

    Args:
        prefix: What the names of such folders begin with.
        news: Told what goes on.
        keep: Leave logs and configuration files in place.
        parts: Which parts.
    """
    with interrupted_once() as attention:
        stack = Stack(Path(tempfile.mkdtemp(prefix=prefix)))
        owner = stack.state.root / _OWNER
        owner.write_text(f"{os.getpid()}\n", encoding="ascii")
        try:
            with news.status(f"starting {', '.join(parts)}"):
                stack.up(parts)
            yield stack
        finally:
            attention.turn_away()
            if keep:
                stop_all(stack.state)
                stack.down()
                owner.unlink()
                news.print(f"logs and files: {stack.state.root}", soft_wrap=True)
            else:
                _remove(stack)
            kill_children(_GONE_WITHIN_S)


def environment() -> dict[str, str]:
    """Return our environment without the variables that overrule a configuration."""
    inherited = os.environ.items()  # noqa: TID251 - a root
    return {name: text for name, text in inherited if not name.startswith("TOWPATH_")}


def _remove(stack: Stack) -> None:
    stop_all(stack.state)
    stack.purge()
    shutil.rmtree(stack.state.root, ignore_errors=True)

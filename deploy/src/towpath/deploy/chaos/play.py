"""
Chaos from its first step to the last, and the clean-up behind it.

Its stack lives in a folder of its own below the system's temporary folder. Whatever
happens, every process that was started is stopped before this returns; a run that was
killed itself is cleared away by the next.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from towpath.deploy.bench.launcher import Launcher
from towpath.deploy.demo.folder import stop_all
from towpath.deploy.demo.interrupt import interrupted_once
from towpath.deploy.jars import fetch, lock
from towpath.deploy.local import databases
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.stack import Stack
from towpath.loadtests.chaos import play as chaos
from towpath.loadtests.chaos.place import Options, Place
from towpath.loadtests.chaos.result import Result
from towpath.loadtests.chaos.screen import open_screen
from towpath.schemas.clock import SystemClock

EQUAL: Final = 0
DIFFERENT: Final = 1

_PARTS: Final = ("postgres", "kafka")
_FOLDERS: Final = "towpath-chaos-"
_OWNER: Final = "owner"
_NAME: Final = "chaos"
_GONE_WITHIN_S: Final = 10.0


def play(options: Options, *, keep: bool, as_json: bool) -> int:
    """
    Run chaos and print what came of it; return 0 if all was equal, else 1.

    Raises:
        TowpathError: It could not be carried out to its end.
        KeyboardInterrupt: It was interrupted.
    """
    news = Console(stderr=True)
    clear_abandoned()
    environ = os.environ  # noqa: TID251 - a root
    fetch.ensure(news.print, environ, lock.read())
    news.print(f"seed {options.seed}", highlight=False)
    with _stack(news, keep=keep) as stack:
        addresses = stack.addresses()
        databases.create(addresses.dsn("postgres"), _NAME)
        place = place_in(stack.state, addresses.dsn(_NAME), addresses.kafka, _NAME)
        with open_screen(news, place.clock) as screen:
            result = chaos.play(place, options, screen)
    _print(result, as_json=as_json)
    return EQUAL if result.is_equal else DIFFERENT


def place_in(state: StateFolder, dsn: str, kafka: str, prefix: str) -> Place:
    """Describe a place whose processes and files are a state folder's."""
    inherited = os.environ.items()  # noqa: TID251 - a root
    # Less the variables that overrule a configuration.
    env = {name: text for name, text in inherited if not name.startswith("TOWPATH_")}
    return Place(
        dsn=dsn,
        kafka=kafka,
        prefix=prefix,
        towpath=(sys.executable, "-m", "towpath.deploy.cli"),
        folder=state.root,
        env=env,
        launcher=Launcher(state, env),
        clock=SystemClock(),
    )


def clear_abandoned(folder: Path | None = None) -> None:
    """Stop and remove what runs have left that were killed."""
    for left in (folder or Path(tempfile.gettempdir())).glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((left / _OWNER).read_text(encoding="ascii"))
            if not psutil.pid_exists(owner):
                _remove(Stack(left))


@contextlib.contextmanager
def _stack(news: Console, *, keep: bool) -> Iterator[Stack]:
    """Start a stack for the block; stop and remove it behind, whatever happened."""
    with interrupted_once() as attention:
        stack = Stack(Path(tempfile.mkdtemp(prefix=_FOLDERS)))
        owner = stack.state.root / _OWNER
        owner.write_text(f"{os.getpid()}\n", encoding="ascii")
        try:
            with news.status("starting Postgres and Kafka"):
                stack.up(_PARTS)
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
            _kill_children()


def _remove(stack: Stack) -> None:
    stop_all(stack.state)
    stack.purge()
    shutil.rmtree(stack.state.root, ignore_errors=True)


def _kill_children() -> None:
    """Kill what was just being started when the run was interrupted."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=_GONE_WITHIN_S)


def _print(result: Result, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(result.as_json(), indent=1, default=str) + "\n")
        return
    lines = [*result.findings, *_unfinished(result), result.line()]
    sys.stdout.write("\n".join(lines) + "\n")


def _unfinished(result: Result) -> list[str]:
    return [
        f"{signal_id} did not complete: {reason}"
        for signal_id, reason in result.not_completed.items()
    ]

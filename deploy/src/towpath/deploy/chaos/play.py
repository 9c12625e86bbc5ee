"""Chaos from its first step to the last, upon a stack of its own."""

import json
import sys
from typing import Final

from rich.console import Console

from towpath.deploy.bench.launcher import Launcher
from towpath.deploy.local import databases
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.own_stack import environment, own_stack, prepare
from towpath.loadtests.chaos import play as chaos
from towpath.loadtests.chaos.place import Options, Place
from towpath.loadtests.chaos.result import Result
from towpath.loadtests.chaos.screen import open_screen
from towpath.schemas.clock import SystemClock

EQUAL: Final = 0
DIFFERENT: Final = 1

_FOLDERS: Final = "towpath-chaos-"
_NAME: Final = "chaos"


def play(options: Options, *, keep: bool, as_json: bool) -> int:
    """
    Run chaos and print what came of it; return 0 if all was equal, else 1.

    Raises:
        TowpathError: It could not be carried out to its end.
        KeyboardInterrupt: It was interrupted.
    """
    news = Console(stderr=True)
    prepare(_FOLDERS, news)
    news.print(f"seed {options.seed}", highlight=False)
    with own_stack(_FOLDERS, news, keep=keep) as stack:
        addresses = stack.addresses()
        databases.create(addresses.dsn("postgres"), _NAME)
        place = place_in(stack.state, addresses.dsn(_NAME), addresses.kafka, _NAME)
        with open_screen(news, place.clock) as screen:
            result = chaos.play(place, options, screen)
    _print(result, as_json=as_json)
    return EQUAL if result.is_equal else DIFFERENT


def place_in(state: StateFolder, dsn: str, kafka: str, prefix: str) -> Place:
    """Describe a place whose processes and files are a state folder's."""
    env = environment()
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

"""Chaos from its first step to the last, on a stack of its own."""

import json
import sys
from typing import Final

from rich.console import Console

from towpath.deploy.local import postgres
from towpath.deploy.local.own_stack import Launcher, environment, own_stack, prepare
from towpath.deploy.local.part import StateFolder
from towpath.loadtests.chaos import run as chaos
from towpath.loadtests.chaos.context import (
    ChaosEnvironment,
    ChaosOptions,
    ChaosResult,
    open_screen,
)
from towpath.schemas.clock import SystemClock

EQUAL: Final = 0
DIFFERENT: Final = 1

_FOLDERS: Final = "towpath-chaos-"
_NAME: Final = "chaos"


def run_chaos(options: ChaosOptions, *, keep: bool, as_json: bool) -> int:
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
        postgres.create_database(addresses.dsn("postgres"), _NAME)
        place = place_in(stack.state, addresses.dsn(_NAME), addresses.kafka, _NAME)
        with open_screen(news, place.clock) as screen:
            result = chaos.run_chaos(place, options, screen)
    _print(result, as_json=as_json)
    return EQUAL if result.is_equal else DIFFERENT


def place_in(state: StateFolder, dsn: str, kafka: str, prefix: str) -> ChaosEnvironment:
    """Describe a place whose processes and files are a state folder's."""
    env = environment()
    return ChaosEnvironment(
        dsn=dsn,
        kafka=kafka,
        prefix=prefix,
        towpath=(sys.executable, "-m", "towpath.deploy.cli"),
        folder=state.root,
        env=env,
        launcher=Launcher(state, env),
        clock=SystemClock(),
    )


def _print(result: ChaosResult, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(result.as_json(), indent=1, default=str) + "\n")
        return
    lines = [*result.findings, *_unfinished(result), result.line()]
    sys.stdout.write("\n".join(lines) + "\n")


def _unfinished(result: ChaosResult) -> list[str]:
    return [
        f"{signal_id} did not complete: {reason}"
        for signal_id, reason in result.not_completed.items()
    ]

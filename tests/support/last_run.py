"""The duration of the last run of all tests on this machine, for ``make house``."""

import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import xdist

from support.pages import ROOT

KEPT: Final = ROOT / ".towpath" / "last-test.json"
# As in the Makefile's target ``test``.
MARKS: Final = "not soak and not browser and not compose"
_BEGAN_S: Final = time.monotonic()


class LastRun(NamedTuple):
    """
    A run of all tests.

    Attributes:
        outcome: pytest's name for the exit code, such as ``ok``.
    """

    seconds: float
    outcome: str


def keep(session: pytest.Session, exit_code: int, path: Path = KEPT) -> None:
    """Store a session's duration and outcome, if it ran all tests of ``make test``."""
    if xdist.is_xdist_worker(session) or not runs_all_tests(session.config):
        return
    outcome = pytest.ExitCode(exit_code).name.lower().replace("_", " ")
    path.parent.mkdir(exist_ok=True)
    run = LastRun(round(time.monotonic() - _BEGAN_S, 1), outcome)
    path.write_text(json.dumps(run._asdict()) + "\n", encoding="utf-8")


def runs_all_tests(config: Any) -> bool:
    """Return whether a session runs all tests of ``make test``, not a selection."""
    option = config.option
    # Without the cache plugin, which the runner of mutants disables, there is no --lf.
    is_last = getattr(option, "lf", False)
    is_chosen = option.keyword or is_last or option.collectonly
    is_everywhere = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return option.markexpr == MARKS and is_everywhere and not is_chosen


def last_run(path: Path = KEPT) -> LastRun | None:
    """Return the last stored run; ``None`` if there is none."""
    if not path.is_file():
        return None
    return LastRun(**json.loads(path.read_text(encoding="utf-8")))

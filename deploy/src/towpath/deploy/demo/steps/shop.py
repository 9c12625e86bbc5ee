"""
The shop's busy hour: load and sampler in processes of their own.

Both are told to stop and then finish what they were doing: the load its last orders,
the sampler the samples it still waits for.
"""

import signal
from typing import Any, Final

from towpath.deploy.demo import parts
from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.monitor import read_report
from towpath.deploy.demo.stage import Stage
from towpath.deploy.local import process

_FIRST_CHECKOUT_WITHIN_S: Final = 30.0

# The load's users finish in 15 s; the sampler waits a minute for its last samples.
_STOP_WITHIN_S: Final = 75.0


def open_shop(stage: Stage) -> None:
    """Start load and sampler, and wait for the first checkout."""
    start_sampling(stage)
    start_load(stage)


def start_load(stage: Stage) -> None:
    """Start the load, and wait for the first checkout."""
    rate = stage.options.rate
    parts.report_of(stage, parts.LOAD).unlink(missing_ok=True)
    with stage.doing(f"open the shop: {rate:g} checkouts a second"):
        process.start(parts.load(stage), stage.state)
        stage.until(
            lambda: _still_runs(stage) and _checkouts(stage) > 0,
            "the first checkout",
            _FIRST_CHECKOUT_WITHIN_S,
        )


def start_sampling(stage: Stage) -> None:
    """Start the sampler."""
    parts.report_of(stage, parts.SAMPLER).unlink(missing_ok=True)
    process.start(parts.sampler(stage), stage.state)


def close_shop(stage: Stage) -> None:
    """Tell the load to stop, and wait until its last request is answered."""
    with stage.doing("close the shop: the last customers finish"):
        _still_runs(stage)
        _stop(stage, parts.LOAD)


def end_sampling(stage: Stage) -> None:
    """Tell the sampler to stop, and wait for its last samples."""
    with stage.doing("wait for the last latency samples"):
        _stop(stage, parts.SAMPLER)


def load_report(stage: Stage) -> dict[str, Any]:
    """Read what the load did."""
    return read_report(parts.report_of(stage, parts.LOAD))


def sampler_report(stage: Stage) -> dict[str, Any]:
    """Read what the sampler saw."""
    return read_report(parts.report_of(stage, parts.SAMPLER))


def _checkouts(stage: Stage) -> int:
    return int(load_report(stage).get("checkouts", 0))


def _still_runs(stage: Stage) -> bool:
    if process.find(stage.state.process_file(parts.LOAD)) is None:
        message = f"the load has ended by itself; log: {stage.state.log(parts.LOAD)}"
        raise StepError(message)
    return True


def _stop(stage: Stage, name: str) -> None:
    path = stage.state.process_file(name)
    process.stop(path, signal.SIGTERM, within_s=_STOP_WITHIN_S)
    if not read_report(parts.report_of(stage, name)).get("finished"):
        message = f"the {name} has not finished; log: {stage.state.log(name)}"
        raise StepError(message)

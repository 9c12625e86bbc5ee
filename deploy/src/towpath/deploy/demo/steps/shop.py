"""
The shop's busy hour: the load, which samples the sinks too, in a process of its own.

It is told to stop and then finishes what it was doing: first its last orders, then the
samples that it still waits for.
"""

import signal
from typing import Any, Final

from towpath.deploy.demo import parts
from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.monitor import read_report
from towpath.deploy.demo.stage import Stage
from towpath.deploy.local import process

_FIRST_CHECKOUT_WITHIN_S: Final = 60.0

# The sampler waits a minute for its last samples.
_LAST_SAMPLE_WITHIN_S: Final = 75.0

# The load's users finish in 15 s, then come the last samples.
_STOP_WITHIN_S: Final = 100.0


def open_shop(stage: Stage) -> None:
    """Start the load, and wait for the first checkout."""
    rate = stage.options.rate
    parts.progress_of(stage).unlink(missing_ok=True)
    with stage.doing(f"open the shop: {rate:g} checkouts a second"):
        process.start(parts.load(stage), stage.state)
        stage.until(
            lambda: _still_runs(stage) and _checkouts(stage) > 0,
            "the first checkout",
            _FIRST_CHECKOUT_WITHIN_S,
        )


def wait_for_samples(stage: Stage) -> None:
    """Wait until the sampler has its last samples, while the load goes on."""
    with stage.doing("wait for the last latency samples"):
        stage.until(
            lambda: _still_runs(stage) and sampler_report(stage).get("finished", False),
            "the last latency samples",
            _LAST_SAMPLE_WITHIN_S,
        )


def close_shop(stage: Stage) -> None:
    """Tell the load to stop; wait for its last answers, then for its last samples."""
    with stage.doing("close the shop: the last customers finish, and the last samples"):
        _still_runs(stage)
        path = stage.state.process_file(parts.LOAD)
        process.stop(path, signal.SIGTERM, within_s=_STOP_WITHIN_S)
        for report in (load_report(stage), sampler_report(stage)):
            if not report.get("finished"):
                message = f"the load has not finished; log: {_log(stage)}"
                raise StepError(message)


def load_report(stage: Stage) -> dict[str, Any]:
    """Read what the load did."""
    return _part(stage, "load")


def sampler_report(stage: Stage) -> dict[str, Any]:
    """Read what was seen in the sinks."""
    return _part(stage, "lag")


def _part(stage: Stage, name: str) -> dict[str, Any]:
    document: dict[str, Any] = read_report(parts.progress_of(stage)).get(name, {})
    return document


def _checkouts(stage: Stage) -> int:
    return int(load_report(stage).get("checkouts", 0))


def _still_runs(stage: Stage) -> bool:
    if process.find(stage.state.process_file(parts.LOAD)) is None:
        message = f"the load has ended by itself; log: {_log(stage)}"
        raise StepError(message)
    return True


def _log(stage: Stage) -> str:
    return str(stage.state.log(parts.LOAD))

"""
Fill the sinks from rows that were there before: a row in the signal table.

The relay answers in the same row and keeps the progress of each table in
``towpath.snapshot``.
"""

from typing import Final

from towpath.deploy import signals
from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.stage import Stage
from towpath.deploy.demo.steps.settle import wait_for_sinks

_SNAPSHOT_WITHIN_S: Final = 240.0
_NO_MORE: Final = frozenset({"failed", "incomplete", "rejected"})

FIRST: Final = "demo-first-fill"


def fill_sinks(stage: Stage) -> None:
    """Fill the three sinks of everything, while their drivers still start."""
    collections = stage.settings().collections
    with stage.doing(f"snapshot {', '.join(collections)}"):
        signals.ask(stage.source(), collections, signal_id=FIRST)
        wait_for_snapshot(stage, FIRST)
    with stage.doing("wait until the three sinks hold what was there before"):
        wait_for_sinks(stage)


def wait_for_snapshot(stage: Stage, signal_id: str) -> None:
    """
    Wait until a snapshot is complete.

    Raises:
        StepError: It failed, was rejected, or takes too long.
    """
    stage.until(
        lambda: _is_complete(stage, signal_id),
        f"the snapshot {signal_id}",
        _SNAPSHOT_WITHIN_S,
    )


def _is_complete(stage: Stage, signal_id: str) -> bool:
    status, detail = signals.state(stage.source(), signal_id) or (None, None)
    if status in _NO_MORE:
        message = f"the snapshot {signal_id} is {status}: {detail}"
        raise StepError(message)
    return status == "completed"

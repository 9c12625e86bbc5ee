"""
Watching a snapshot until it has ended: the relay answers in the source's own tables.

Nothing here runs the snapshot: who stops watching leaves it to the relay.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from towpath.deploy import signals
from towpath.deploy.errors import RelaySilentError
from towpath.deploy.signals import Progress
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UsageError
from towpath.settings import Source

LOOK_EVERY_S: Final = 0.5
INCOMPLETE: Final = "incomplete"
ENDS: Final = frozenset({"completed", INCOMPLETE, "failed", "rejected"})
_ENDED: Final = frozenset({"completed", INCOMPLETE, "failed", "stopped"})


class Answer(NamedTuple):
    """What the relay says of a signal; no status: nothing yet."""

    status: str | None
    detail: dict[str, Any]

    @property
    def is_good(self) -> bool:
        """Whether it was not rejected, has not failed and delivered every row."""
        return self.status not in {"rejected", "failed", INCOMPLETE}

    @property
    def reason(self) -> str:
        """Why not, or why not all of it; empty without a reason."""
        if "reason" in self.detail:
            return str(self.detail["reason"])
        tables = self.detail.get("tables")
        if not isinstance(tables, dict):
            return ""
        told = {name: each.get("reason") for name, each in tables.items()}
        return "; ".join(f"{name}: {why}" for name, why in told.items() if why)


def read_answer(source: Source, signal_id: str) -> Answer | None:
    """Return what the relay says of a signal; None: there is no such signal."""
    found = signals.state(source, signal_id)
    return None if found is None else Answer(found[0], found[1] or {})


def wait_answer(
    source: Source, signal_id: str, clock: Clock, within_s: float
) -> Answer:
    """
    Wait until the relay has answered a signal.

    Raises:
        RelaySilentError: It has not in time.
        UsageError: The signal is gone.
    """
    deadline = Deadline(clock, within_s)
    while True:
        answer = read_answer(source, signal_id)
        if answer is None:
            message = f"there is no signal {signal_id}"
            raise UsageError(message)
        if answer.status is not None:
            return answer
        if deadline.passed():
            message = (
                f"no relay has answered signal {signal_id} in {within_s:g} s; it waits "
                "in towpath.signal until one does"
            )
            raise RelaySilentError(message)
        clock.wait(LOOK_EVERY_S)


def watch(
    source: Source,
    snapshot_id: str,
    clock: Clock,
    show: Callable[[Sequence[Progress]], None],
) -> Answer:
    """
    Show a snapshot again and again until it has ended, and return its last answer.

    Raises:
        UsageError: There is no such snapshot.
    """
    while True:
        tables = signals.progress(source, snapshot_id)
        answer = read_answer(source, snapshot_id)
        if answer is None and not tables:
            message = f"there is no snapshot {snapshot_id}"
            raise UsageError(message)
        show(tables)
        if answer is not None and answer.status in ENDS and not _goes_on(tables):
            return answer
        if answer is None and not _goes_on(tables):
            # The signal's row was deleted; the tables tell as much.
            states = {table.state for table in tables}
            is_told = states <= {"completed", INCOMPLETE}
            return Answer(max(states) if is_told else "failed", {})
        clock.wait(LOOK_EVERY_S)


def _goes_on(tables: Sequence[Progress]) -> bool:
    """Tell whether a table has not ended; a resumed snapshot has an old answer."""
    return any(table.state not in _ENDED for table in tables)

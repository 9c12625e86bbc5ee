"""
The checks of ``towpath doctor``: source, broker, registry, sinks, machine and settings.

``examine`` returns the findings; nothing is written, and nothing is printed. Every
check runs in a separate thread, so a server that does not answer neither hides the
findings of others nor delays them beyond the time limit.

Each rule is in the package of its subject: the rules for the source and the broker are
in the relay, those for a target in the sinks. Most are pure functions of facts.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from towpath.deploy.doctor.machine import machine_findings, settings_findings
from towpath.deploy.doctor.servers import (
    broker_findings,
    registry_findings,
    sink_findings,
    source_findings,
)
from towpath.schemas.clock import Clock, Deadline, SystemClock
from towpath.schemas.failure import (
    Disposition,
    TooManyFilesError,
    TowpathError,
    has_no_descriptor,
)
from towpath.schemas.findings import CheckFinding, Fix, Severity
from towpath.settings import Settings

# A check sends a server a few dozen requests. Clients give up after ten seconds; this
# limit is for a client that does not.
CHECK_LIMIT_S: Final = 30.0
UNAVAILABLE: Final = "unavailable"
# The order of the report.
LEVELS: Final = (Severity.ERROR, UNAVAILABLE, Severity.WARNING, Severity.INFO)
_UNAVAILABLE_CODE: Final = 3


class DoctorFinding(NamedTuple):
    """
    One finding of the report.

    Attributes:
        part: The examined part: ``source``, ``broker``, ``sink NAME``...
        level: ``error``, ``unavailable`` (the part could not be checked), ``warning``,
            ``info``.
        what: The object and its state, with figures.
        why: The consequence.
        cure: The exact command or change.
        id: The finding's id, which is a heading of ``docs/doctor.md``.
        fix: The fix that ``--fix`` can apply, if there is one.
        failure: The error that prevented the check, if the runbook explains it.
    """

    part: str
    level: str
    what: str
    why: str
    cure: str
    id: str
    fix: Fix | None = None
    failure: str = ""

    @property
    def page(self) -> str:
        """The page and the heading that explain the finding."""
        if self.failure:
            return f"docs/runbook.md#{self.failure.lower()}"
        return f"docs/doctor.md#{self.id}"

    def document(self) -> dict[str, str | None]:
        """Return the finding in JSON types."""
        return {
            "id": self.id,
            "level": str(self.level),
            "part": self.part,
            "what": self.what,
            "why": self.why,
            "cure": self.cure,
            "page": self.page,
            "fix": None if self.fix is None else str(self.fix),
        }


class Check(NamedTuple):
    """One part, and the function that examines it."""

    part: str
    run: Callable[[], Iterable[CheckFinding]]


def examine(settings: Settings, clock: Clock) -> list[DoctorFinding]:
    """Examine every part, and return the findings, the worst first."""
    return run_checks(checks(settings, clock))


def checks(settings: Settings, clock: Clock) -> list[Check]:
    """Return the checks of a configuration; none has run yet."""
    return [
        Check("source", partial(source_findings, settings, clock)),
        Check("broker", partial(broker_findings, settings)),
        Check("registry", partial(registry_findings, settings)),
        *(
            Check(f"sink {sink.name}", partial(sink_findings, settings, sink, clock))
            for sink in settings.sink
        ),
        Check("machine", partial(machine_findings, settings)),
        Check("settings", partial(settings_findings, settings)),
    ]


def run_checks(
    wanted: Sequence[Check], limit_s: float = CHECK_LIMIT_S
) -> list[DoctorFinding]:
    """Run checks in parallel, within a time limit; return the worst findings first."""
    found: queue.SimpleQueue[tuple[int, list[DoctorFinding]]] = queue.SimpleQueue()
    for number, check in enumerate(wanted):
        # A check that never ends does not keep the process alive, because its thread is
        # a daemon.
        threading.Thread(
            target=_run_check, args=(number, check, found.put), daemon=True
        ).start()
    deadline = Deadline(SystemClock(), limit_s)
    rows: dict[int, list[DoctorFinding]] = {}
    while len(rows) < len(wanted):
        try:
            number, results = found.get(timeout=max(0.0, deadline.remaining_s()))
        except queue.Empty:
            break
        rows[number] = results
    ordered = [
        row
        for number, check in enumerate(wanted)
        for row in rows.get(number, [_too_slow(check, limit_s)])
    ]
    return sorted(ordered, key=lambda row: LEVELS.index(row.level))


def _run_check(
    number: int, check: Check, put: Callable[[tuple[int, list[DoctorFinding]]], None]
) -> None:
    try:
        rows = [DoctorFinding(check.part, *finding) for finding in check.run()]
    except TowpathError as failure:
        rows = [_refused(check, failure)]
    except Exception as failure:  # noqa: BLE001 - a defect must not hide the other parts
        rows = [_broken(check, failure)]
    put((number, rows))


def _broken(check: Check, failure: Exception) -> DoctorFinding:
    if has_no_descriptor(failure):
        return _refused(check, TooManyFilesError(f"checking {check.part}"))
    reason = f"the check ended with {type(failure).__name__}: {failure}"
    cure = "report the error, with the versions of Towpath and of the server"
    return _unchecked("check-broken", check, reason, cure)


def _refused(check: Check, failure: TowpathError) -> DoctorFinding:
    reason, cure = str(failure), failure.remedy
    # The runbook has a heading for each error that halts.
    is_halt = failure.disposition is Disposition.HALT
    name = type(failure).__name__ if is_halt else ""
    if failure.exit_code == _UNAVAILABLE_CODE:
        row = _unchecked("part-unavailable", check, reason, cure)
        return row._replace(failure=name)
    row = _unchecked("part-refused", check, reason, cure)
    return row._replace(level=Severity.ERROR, failure=name)


def _too_slow(check: Check, limit_s: float) -> DoctorFinding:
    reason = f"the check did not end within {limit_s:g} s"
    cure = "check the server's load and the network, then run towpath doctor again"
    return _unchecked("check-too-slow", check, reason, cure)


def _unchecked(finding_id: str, check: Check, reason: str, cure: str) -> DoctorFinding:
    why = "this part could not be checked"
    return DoctorFinding(check.part, UNAVAILABLE, reason, why, cure, finding_id)

"""
Long actions of the console, which continue after the browser has disconnected.

Each run has its own thread, which ends with the console at the latest. At most one run
of each kind is active at a time; the newest of each kind is kept with its outcome. The
audit log has the lines of the action that starts a run, and a line at the run's end.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog

from towpath.deploy.console import Document
from towpath.deploy.console.security import AuditLog
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError, with_remedy
from towpath.services.plumbing.http import ConflictError

EXTENSION: Final = "towpath.console.runs"
# The number of a run's newest lines that its page shows.
_MAX_LINES: Final = 200

log = structlog.get_logger(__name__)


class RunStep(NamedTuple):
    """
    A step of a run.

    Attributes:
        name: The step's name.
        rows: The number of rows that are done.
        estimate: The expected number of rows; zero if it is unknown.
        first_rows: The number of rows in the first report.
        first_s: The time of the first report.
        updated_s: The time of the newest report.
    """

    name: str
    rows: int
    estimate: int
    first_rows: int
    first_s: float
    updated_s: float

    def document(self) -> Document:
        """Return the step with its percentage, its rate and the time left."""
        taken_s = self.updated_s - self.first_s
        # Rows before the first report took an unknown time, so they do not count.
        rate = (self.rows - self.first_rows) / taken_s if taken_s > 0 else None
        is_open = bool(rate) and self.rows < self.estimate
        left_s = (self.estimate - self.rows) / rate if rate and is_open else None
        percent = min(100.0, 100 * self.rows / self.estimate) if self.estimate else None
        return {
            "name": self.name,
            "rows": self.rows,
            "estimate": self.estimate or None,
            "percent": percent,
            "rows_per_second": rate,
            "left_s": left_s,
        }


class RunEnd(NamedTuple):
    """The outcome of a run as text, and whether everything requested was done."""

    outcome: str
    is_good: bool = True


class Run:
    """One long action: its progress, and finally its outcome."""

    def __init__(self, event: str, fields: Mapping[str, Any], clock: Clock) -> None:
        self.event = event
        self._fields = fields
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: dict[str, RunStep] = {}
        self._lines: list[str] = []
        self._results: list[Document] = []
        self._began_at = clock.now()
        self._ended_at: datetime | None = None
        self._state = "running"
        self._outcome = ""

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended yet."""
        return self._state == "running"

    def advance(self, step: str, rows: int, estimate: int) -> None:
        """Add rows to a step."""
        with self._lock:
            known = self._steps.get(step)
            self._set(step, rows + (known.rows if known else 0), estimate)

    def show(self, step: str, rows: int, estimate: int) -> None:
        """Set the rows of a step."""
        with self._lock:
            self._set(step, rows, estimate)

    def _set(self, step: str, rows: int, estimate: int) -> None:
        """Set the rows of a step; if the count has dropped, the step starts over."""
        now_s = self._clock.monotonic_s()
        old = self._steps.get(step)
        if old is None or rows < old.rows:
            new = RunStep(step, rows, estimate, rows, now_s, now_s)
        else:
            new = old._replace(rows=rows, estimate=estimate, updated_s=now_s)
        self._steps[step] = new

    def say(self, line: str) -> None:
        """Add a line to the report."""
        with self._lock:
            self._lines = [*self._lines[-_MAX_LINES + 1 :], line]

    def add_result(self, document: Document) -> None:
        """Add a result."""
        with self._lock:
            self._results.append(document)

    def end(self, end: RunEnd) -> None:
        """Record the outcome."""
        with self._lock:
            self._ended_at = self._clock.now()
            self._outcome = end.outcome
            self._state = "ended" if end.is_good else "failed"

    def document(self) -> Document:
        """Return the run as JSON."""
        with self._lock:
            ended_at = self._ended_at
            return {
                "event": self.event,
                "fields": dict(self._fields),
                "state": self._state,
                "outcome": self._outcome,
                "began_at": self._began_at.isoformat(timespec="seconds"),
                "ended_at": ended_at and ended_at.isoformat(timespec="seconds"),
                "steps": [step.document() for step in self._steps.values()],
                "lines": list(self._lines),
                "results": list(self._results),
            }


class Runs:
    """The newest run of each kind."""

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: dict[str, Run] = {}

    def newest(self, kind: str) -> Document | None:
        """Return the newest run of a kind as JSON, or None."""
        run = self._newest.get(kind)
        return run.document() if run else None

    def begin(
        self,
        kind: str,
        event: str,
        fields: Mapping[str, Any],
        work: Callable[[Run], RunEnd],
    ) -> Run:
        """
        Start a run in a separate thread.

        Args:
            kind: The kind of the run.
            event: The action's name in the audit log.
            fields: The actor, and the objects and options of the action.
            work: Does the work, reports to the run, and returns the outcome.

        Raises:
            ConflictError: Another run of the kind has not ended.
        """
        with self._lock:
            known = self._newest.get(kind)
            if known is not None and known.is_running:
                message = f"{known.event} is still running: only one at a time"
                raise ConflictError(message)
            run = self._newest[kind] = Run(event, fields, self._clock)
        args = (run, f"{event} ended", fields, work)
        threading.Thread(target=self._work, args=args, name=kind, daemon=True).start()
        return run

    def _work(
        self,
        run: Run,
        event: str,
        fields: Mapping[str, Any],
        work: Callable[[Run], RunEnd],
    ) -> None:
        try:
            end = work(run)
        except TowpathError as error:
            end = RunEnd(with_remedy(str(error), error.remedy), is_good=False)
        except Exception as error:
            # The page must show that the run ended; the log has the error.
            log.exception("console run failed", run=run.event)
            kind = type(error).__name__
            end = RunEnd(f"failed: {kind}; the console's log says why", is_good=False)
        try:
            self._audit.write(event, {**fields, "outcome": end.outcome})
        except TowpathError as error:
            end = RunEnd(f"{end.outcome}; {error}", is_good=False)
        run.end(end)

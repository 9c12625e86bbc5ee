"""
Findings of checks: a problem, its consequence, and its exact remedy.

A finding has an id, which is a heading of docs/doctor.md. If a remedy loses nothing,
the finding also holds it as a ``Fix``, a value that ``towpath doctor --fix`` applies.
"""

import enum
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

# A larger difference between two clocks shows in latencies and timestamps.
_CLOCK_BOUND_S: Final = 1.0


class Severity(enum.StrEnum):
    """
    The severity of a finding.

    An error prevents the start, or loses data; a warning is a risk; information needs
    no action soon.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class SqlFix(NamedTuple):
    """A statement on the source that changes no row and can be undone."""

    statement: str

    def __str__(self) -> str:
        return self.statement


class TopicFix(NamedTuple):
    """A setting of a topic that deletes no record."""

    topic: str
    name: str
    value: str

    def __str__(self) -> str:
        return (
            "kafka-configs.sh --bootstrap-server HOST:PORT --alter "
            f"--entity-type topics --entity-name {self.topic} "
            f"--add-config {self.name}={self.value}"
        )


Fix: TypeAlias = SqlFix | TopicFix


class CheckFinding(NamedTuple):
    """
    A problem that a check has found.

    Attributes:
        level: Its severity.
        what: The object and its state.
        why: The consequence, in half a sentence.
        cure: The remedy: the exact command or change.
        id: Its id, a heading of docs/doctor.md.
        fix: The remedy as a value, if it loses nothing.
    """

    level: Severity
    what: str
    why: str
    cure: str
    id: str
    fix: Fix | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.why}: {self.cure}"


def error_finding(
    finding_id: str, what: str, why: str, cure: str | Fix
) -> CheckFinding:
    """Return a finding that prevents the start, or loses data."""
    return _finding(Severity.ERROR, finding_id, what, why, cure)


def warning_finding(
    finding_id: str, what: str, why: str, cure: str | Fix
) -> CheckFinding:
    """Return a finding that does not prevent the start."""
    return _finding(Severity.WARNING, finding_id, what, why, cure)


def info_finding(finding_id: str, what: str, why: str, cure: str | Fix) -> CheckFinding:
    """Return a finding that needs no action soon."""
    return _finding(Severity.INFO, finding_id, what, why, cure)


def blocking_findings(findings: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Return the errors among findings."""
    return [finding for finding in findings if finding.level is Severity.ERROR]


def clock_findings(
    server: str, theirs: datetime, before: datetime, after: datetime
) -> Iterator[CheckFinding]:
    """
    Yield a finding if a server's clock differs from this machine's.

    Args:
        server: The server, as the beginning of a sentence.
        theirs: The server's time.
        before: This machine's time before the request.
        after: This machine's time after the response.
    """
    bound = timedelta(seconds=_CLOCK_BOUND_S)
    difference, word = theirs - after, "ahead of"
    if theirs < before:
        difference, word = before - theirs, "behind"
    if difference > bound:
        yield warning_finding(
            "clock-skew",
            f"{server}'s clock is {difference.total_seconds():.1f} s {word} this "
            "machine's",
            "latencies and the times of records are wrong by that much",
            "run a time service on both: timedatectl set-ntp true",
        )


def _finding(
    level: Severity, finding_id: str, what: str, why: str, cure: str | Fix
) -> CheckFinding:
    fix = None if isinstance(cure, str) else cure
    return CheckFinding(level, what, why, str(cure), finding_id, fix)

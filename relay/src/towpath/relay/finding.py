"""What a check before the start finds: what, why it matters, and what cures it."""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class Level(enum.StrEnum):
    """An error stands in the way, or loses; a warning may do so one day."""

    ERROR = "error"
    WARNING = "warning"


class Finding(NamedTuple):
    """
    One thing that is not as it should be.

    Attributes:
        level: How bad it is.
        what: The thing, and how it is.
        why: Why that matters, in half a sentence.
        cure: The exact command or change.
    """

    level: Level
    what: str
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}: {self.cure}"


def error(what: str, why: str, cure: str) -> Finding:
    """Find something that stands in the way."""
    return Finding(Level.ERROR, what, why, cure)


def warning(what: str, why: str, cure: str) -> Finding:
    """Find something that works, for now."""
    return Finding(Level.WARNING, what, why, cure)


def errors(findings: Sequence[Finding]) -> list[Finding]:
    """Pick what stands in the way."""
    return [finding for finding in findings if finding.level is Level.ERROR]

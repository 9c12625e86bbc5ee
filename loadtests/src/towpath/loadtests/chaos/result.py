"""What a chaos run found."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from towpath.loadtests.chaos.place import Options


@dataclass(slots=True)
class Result:
    """
    Counts, and what was wrong; nothing was if there are no findings.

    Attributes:
        options: What was asked for.
        settings: What the seed gave the relay.
        rounds: How many were judged.
        elapsed_s: From the first step to the last judgement.
        written: Transactions, by kind.
        shaped: Alterations, by kind.
        killed: By victim.
        asked: Signals, by what became of them.
        not_completed: Signals that did not, with their reasons.
        reads: READ rows delivered.
        streamed: Changes delivered.
        findings: What was wrong, in sentences.
        warnings: What the relay warned of, with its count.
    """

    options: Options
    settings: Mapping[str, str | int]
    rounds: int = 0
    elapsed_s: float = 0.0
    written: Counter[str] = field(default_factory=Counter)
    shaped: Counter[str] = field(default_factory=Counter)
    killed: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    not_completed: dict[str, str] = field(default_factory=dict)
    reads: int = 0
    streamed: int = 0
    findings: list[str] = field(default_factory=list)
    warnings: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether nothing was wrong."""
        return not self.findings

    def line(self) -> str:
        """Tell it all in one line."""
        verdict = "equal" if self.is_equal else f"{len(self.findings)} findings"
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return (
            f"seed {self.options.seed} ({settings}): {verdict} after"
            f" {self.rounds} rounds in {self.elapsed_s:.0f} s; {self.reads:,} READ rows"
            f" and {self.streamed:,} changes delivered, {total(self.written):,}"
            f" transactions, {total(self.shaped)} alterations,"
            f" {self.killed.total()} kills, {_told(self.asked)} signals"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "seed": self.options.seed,
            "settings": dict(self.settings),
            "equal": self.is_equal,
            "rounds": self.rounds,
            "elapsed_s": round(self.elapsed_s, 1),
            "reads": self.reads,
            "streamed": self.streamed,
            "written": dict(self.written),
            "shaped": dict(self.shaped),
            "killed": dict(self.killed),
            "asked": dict(self.asked),
            "not_completed": self.not_completed,
            "findings": self.findings,
            "warnings": dict(self.warnings),
        }


def total(counts: Counter[str]) -> int:
    """Count what was done, without what the server refused."""
    return sum(n for name, n in counts.items() if not name.startswith("refused"))


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "no"

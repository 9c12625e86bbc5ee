"""
What a benchmark found, as one JSON object. Pure.

::

    {"verified": true, "findings": [], "rounds": 3, "rows": 300000, "machine": {...},
     "cases": {"drain_1": {"systems": {"relay": {"events_per_s":
                              {"min": ..., "median": ..., "max": ...}, ...}, ...},
                           "ratio_of": "events_per_s",
                           "ratio_to_limit": ..., "ratio_to_debezium": ...}, ...}}

A ratio is the relay's median through the other's: of events a second in a drain, where
more is better, and of the 99th percentile under a steady load, where less is. Debezium
is the tuned one. What was not measured has the ratio null: nobody's limit is a latency.
A benchmark that found a difference has no figures at all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from towpath.loadtests.bench.figures import Figures, Spread, ratio, spread
from towpath.loadtests.bench.plan import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    DRAINS,
    LIMIT,
    RELAY,
)

_ROUND: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case: the figures of every round, by system."""

    name: str
    rounds: Mapping[str, tuple[Figures, ...]]

    @property
    def systems(self) -> dict[str, dict[str, Spread]]:
        """Minimum, median and maximum of every figure."""
        return {name: spread(figures) for name, figures in self.rounds.items()}

    @property
    def ratio_of(self) -> str:
        """Which figure the ratios are of."""
        return "events_per_s" if self.name in DRAINS else "p99_ms"

    def ratio_to(self, other: str) -> float | None:
        """Return the ratio of the relay's median to another's."""
        if other == LIMIT and self.name not in DRAINS:
            return None
        systems = self.systems
        return ratio(systems.get(RELAY), systems.get(other), self.ratio_of)

    def as_json(self) -> dict[str, Any]:
        """Return the case as JSON takes it."""
        return {
            "systems": {
                name: {figure: _rounded(one) for figure, one in spreads.items()}
                for name, spreads in self.systems.items()
            },
            "ratio_of": self.ratio_of,
            "ratio_to_limit": _short(self.ratio_to(LIMIT)),
            "ratio_to_debezium": _short(self.ratio_to(DEBEZIUM_TUNED)),
            "ratio_to_debezium_stock": _short(self.ratio_to(DEBEZIUM_STOCK)),
        }


class Reported(Protocol):
    """A case of any benchmark."""

    @property
    def name(self) -> str:
        """Its name in the result."""

    def as_json(self) -> dict[str, Any]:
        """Return the case as JSON takes it."""


CaseT = TypeVar("CaseT", bound=Reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[CaseT]):
    """
    All cases, and what was found wrong in any run.

    Attributes:
        rows: The backlog of a drain, or the rows of a table.
        rounds: How often each case was run with each system.
        machine: What it ran on.
        cases: The cases in their order.
        findings: What differs, by run.
    """

    rows: int
    rounds: int
    machine: Mapping[str, object]
    cases: tuple[CaseT, ...] = ()
    findings: tuple[str, ...] = field(default=())

    @property
    def verified(self) -> bool:
        """Whether every run's topic held just what it should."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return the whole as JSON takes it; without figures if anything differs."""
        shown: Iterable[CaseT] = self.cases if self.verified else ()
        return {
            "verified": self.verified,
            "findings": list(self.findings),
            "rounds": self.rounds,
            "rows": self.rows,
            "machine": dict(self.machine),
            "cases": {case.name: case.as_json() for case in shown},
        }


def _rounded(one: Spread) -> dict[str, float]:
    return {name: round(value, _ROUND) for name, value in one._asdict().items()}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, _ROUND)

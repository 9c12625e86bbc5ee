"""
The result's one case, as JSON takes it. Pure.

::

    {"loads": {"updates": {"systems": {"relay": {"rows_per_s":
                  {"min": ..., "median": ..., "max": ...}, ...}, ...},
               "ratio_to_debezium": ..., "ratio_to_debezium_tuned": ..., ...},
               "quiet": {...}},
     "ratio_of": "rows_per_s", "ratio_to_debezium": ..., "ratio_to_stock": ...,
     "ratio_to_initial": ..., "share_of_copy": ..., "live_p99_ms": ...,
     "idle_p99_ms": ..., "live_ratio": ..., "peak_rss_bytes": ...,
     "cpu_us_per_row": ..., "paper": {"rows": 50000000, "relay": {...}, ...}}

A ratio is the relay's median of rows a second through the other's. ``debezium`` is the
faster of its two tuned incremental snapshots, with watermarks in the source or without.
The case's own ratios are the lower ones of the two loads, and its memory and processor
time the higher ones: whoever states a goal means both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from towpath.loadtests.bench.figures import Figures, Spread, ratio, spread
from towpath.loadtests.bench.plan import DEBEZIUM_STOCK, DEBEZIUM_TUNED, RELAY
from towpath.loadtests.bench.snapshot.paper import Paper, on_paper
from towpath.loadtests.bench.snapshot.plan import (
    CASE,
    COPY,
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
    Load,
)

RATE: Final = "rows_per_s"
# Under which name a ratio is told, and to which systems: the fastest of them counts.
RATIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "ratio_to_debezium": (DEBEZIUM_TUNED, DEBEZIUM_READ_ONLY),
    "ratio_to_stock": (DEBEZIUM_STOCK,),
    "ratio_to_initial": (DEBEZIUM_INITIAL,),
    "share_of_copy": (COPY,),
}
_ROUND: Final = 4

Spreads = dict[str, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCase:
    """The figures of every round, by load and system."""

    loads: Mapping[Load, Mapping[str, tuple[Figures, ...]]]

    @property
    def name(self) -> str:
        """The case's name in the result."""
        return CASE

    def systems(self, load: Load) -> dict[str, Spreads]:
        """Return minimum, median and maximum of every figure under a load."""
        return {name: spread(found) for name, found in self.loads[load].items()}

    def ratio(self, name: str, load: Load) -> float | None:
        """Return a ratio under one load; None if one side of it was not measured."""
        systems = self.systems(load)
        ours = systems.get(RELAY)
        found = [ratio(ours, systems.get(other), RATE) for other in RATIOS[name]]
        return min((one for one in found if one is not None), default=None)

    def ratios(self) -> dict[str, float | None]:
        """Return the lower ones of the two loads."""
        return {
            name: _over(min, (self.ratio(name, load) for load in self.loads))
            for name in RATIOS
        }

    def figure(
        self, name: str, pick: Callable[..., float] = max, system: str = RELAY
    ) -> float | None:
        """Return a system's median of a figure, of the load that the pick says."""
        spreads = (self.systems(load).get(system, {}) for load in self.loads)
        return _over(pick, (s[name].median if name in s else None for s in spreads))

    def papers(self) -> dict[str, Paper]:
        """Return what a large table costs each system, under the dearer load."""
        names = dict.fromkeys(n for systems in self.loads.values() for n in systems)
        found = {name: self._paper(name) for name in names}
        return {name: paper for name, paper in found.items() if paper is not None}

    def as_json(self) -> dict[str, Any]:
        """Return the case as JSON takes it."""
        live = (
            "live_p50_ms",
            "live_p99_ms",
            "idle_p50_ms",
            "idle_p99_ms",
            "live_ratio",
        )
        return {
            "loads": {load.value: self._load_json(load) for load in self.loads},
            "ratio_of": RATE,
            **{name: _short(value) for name, value in self.ratios().items()},
            **{name: _short(self.figure(name)) for name in live},
            "peak_rss_bytes": self.figure("process_peak_rss_bytes"),
            "cpu_us_per_row": _short(self.figure("cpu_us_per_row")),
            "rows_per_s": _short(self.figure(RATE, min)),
            "paper": {name: one.as_json() for name, one in self.papers().items()},
        }

    def _load_json(self, load: Load) -> dict[str, Any]:
        systems = {
            name: {
                figure: {k: round(v, _ROUND) for k, v in one._asdict().items()}
                for figure, one in spreads.items()
            }
            for name, spreads in self.systems(load).items()
        }
        ratios = {name: _short(self.ratio(name, load)) for name in RATIOS}
        return {"systems": systems, **ratios}

    def _paper(self, system: str) -> Paper | None:
        rate = self.figure(RATE, min, system)
        cpu_us = self.figure("cpu_us_per_row", max, system)
        size = self.figure("topic_bytes_per_row", max, system)
        if rate is None or cpu_us is None or size is None:
            return None
        return on_paper(rate, cpu_us, size)


def _over(pick: Callable[..., float], values: Any) -> float | None:  # noqa: ANN401 - any iterable of numbers and gaps
    found = [value for value in values if value is not None]
    return pick(found) if found else None


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, _ROUND)

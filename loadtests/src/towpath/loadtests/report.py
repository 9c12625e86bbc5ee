"""
The report of a run: a folder with ``report.md``, plots as SVG, and their figures.

What the tables say of requests is read off locust's own statistics; lags are exact.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from locust.stats import RequestStats, StatsEntry

from towpath.loadtests import charts, users
from towpath.loadtests.lag import LagSample
from towpath.loadtests.percentile import Latency, at
from towpath.loadtests.progress import METHODS
from towpath.loadtests.series import Series, Step, step_width_s

_NAME: Final = "report.md"
_SHARES: Final = {"p50": 0.50, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    A run that has ended.

    Attributes:
        facts: Its circumstances: when, where, against what, with which options.
        elapsed_s: From the first user's begin to the last one's end.
        stats: Locust's statistics.
        series: The same over time.
        began_at_s: On the clock of the lag samples.
        samples: Every order that a sink showed.
        lag: The sampler's last report; empty without sinks.
        is_open: Arrivals were due at a rate, and may have begun late.
    """

    facts: Mapping[str, str]
    elapsed_s: float
    stats: RequestStats
    series: Series
    began_at_s: float
    samples: Sequence[LagSample]
    lag: Mapping[str, Any]
    is_open: bool


def write(run: Run, folder: Path) -> Path:
    """Write the report into a folder, which is made; return its first file."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = run.series.steps()
    requests = [step for step in steps if step.row[1] in METHODS]
    plots = {"rate": charts.rate(requests)}
    plots["latency"] = charts.latency(requests, users.CHECKOUT)
    if run.samples:
        plots["lag"] = charts.lag(lag_points(run))
    for name, svg in plots.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    _write_figures(steps, folder / "series.csv")
    text = "\n".join(_lines(run, plots)) + "\n"
    (folder / _NAME).write_text(text, encoding="utf-8")
    return folder / _NAME


def lag_points(run: Run) -> Iterator[tuple[float, str, str, float]]:
    """Sum the samples up over steps: seconds, sink, percentile, milliseconds."""
    width_s = step_width_s(run.elapsed_s)

    def key(sample: LagSample) -> tuple[str, int]:
        return sample.sink, math.floor((sample.at_s - run.began_at_s) / width_s)

    for (sink, number), samples in groupby(sorted(run.samples, key=key), key):
        ordered = sorted(sample.lag_ms for sample in samples)
        for name, share in _SHARES.items():
            yield (number + 1) * width_s, sink, name, at(ordered, share)


def _write_figures(steps: Sequence[Step], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(
            ("second", "type", "name", "per_s", "failed_per_s", "p50", "p95", "p99")
        )
        for step in steps:
            name, kind = step.row
            figures = (round(step.per_s, 2), round(step.failed_per_s, 2))
            rows.writerow((step.at_s, kind, name, *figures, *step[4:]))


def _lines(run: Run, plots: Mapping[str, str]) -> Iterator[str]:
    yield "# Load report"
    yield ""
    yield from (f"- {name}: {text}" for name, text in run.facts.items())
    yield from ("", "## Requests", "")
    yield from _requests(run)
    yield from ("", "![requests a second](rate.svg)", "")
    yield "![latency of checkouts](latency.svg)"
    yield from _arrivals(run)
    yield from _lags(run, "lag" in plots)
    yield from _failures(run.stats)


def _requests(run: Run) -> Iterator[str]:
    yield "| request | count | failed | per second | p50 | p95 | p99 | longest |"
    yield "|---|---|---|---|---|---|---|---|"
    for (name, kind), entry in sorted(run.stats.entries.items()):
        if kind in METHODS:
            times = " | ".join(_ms(_at(entry, p)) for p in (0.5, 0.95, 0.99))
            per_s = entry.num_requests / max(run.elapsed_s, 1.0)
            yield (
                f"| {kind} {name} | {entry.num_requests:,} | {entry.num_failures:,} "
                f"| {per_s:.1f} | {times} | {_ms(entry.max_response_time)} |"
            )


def _arrivals(run: Run) -> Iterator[str]:
    if not run.is_open:
        return
    late = run.stats.entries.get((users.LATE, users.ARRIVAL))
    not_started = run.stats.entries.get((users.NOT_STARTED, users.ARRIVAL))
    yield ""
    if late is None:
        yield "No arrival began late."
    else:
        yield (
            f"{late.num_requests:,} arrivals began late: p50 {_ms(_at(late, 0.5))}, "
            f"p99 {_ms(_at(late, 0.99))}, longest {_ms(late.max_response_time)}."
        )
    if not_started is not None:
        count = f"{not_started.num_failures:,} arrivals"
        yield f"{count} were not started: too many were under way."


def _lags(run: Run, has_plot: bool) -> Iterator[str]:  # noqa: FBT001 - one caller
    yield from ("", "## Commit to read", "")
    if not run.lag:
        yield "No sink was sampled."
        return
    yield "| sink | samples | lost | p50 | p95 | p99 |"
    yield "|---|---|---|---|---|---|"
    for name, one in run.lag["sinks"].items():
        latency = Latency(**one["latency"])
        times = (latency.p50_ms, latency.p95_ms, latency.p99_ms)
        lost = one["lost"] + one["awaited"]
        shown = " | ".join(map(_ms, times))
        yield f"| {name} | {latency.count:,} | {lost:,} | {shown} |"
    if has_plot:
        yield from ("", "![commit to read](lag.svg)")


def _failures(stats: RequestStats) -> Iterator[str]:
    yield from ("", "## Failures", "")
    if not stats.errors:
        yield "None."
        return
    yield "| what | count |"
    yield "|---|---|"
    for failure in stats.errors.values():
        reason = " ".join(str(failure.error).replace("|", "/").split())
        yield f"| {failure.method} {failure.name}: {reason} | {failure.occurrences:,} |"


def _at(entry: StatsEntry, share: float) -> float:
    return entry.get_response_time_percentile(share)


def _ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.0f} ms"

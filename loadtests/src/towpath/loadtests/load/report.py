"""
The report of a run: a folder with ``report.md``, plots as SVG, and a CSV of the series.

The latencies of requests come from Locust's own statistics, which round them; lags are
exact. The counts of a running load are also written as JSON for other processes. The
plotting library is imported only when a report is written.
"""

import argparse
import csv
import dataclasses
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import locust
from locust.env import Environment
from locust.runners import MasterRunner
from locust.stats import RequestStats, StatsEntry

from towpath.loadtests.bench.machine import summary
from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load import customers, users
from towpath.loadtests.load.customers import options_of, runner_of
from towpath.loadtests.load.lag import LagSample
from towpath.loadtests.load.options import (
    NO_REPORT,
    OPTIONS,
    is_replaceable,
    is_writable,
    new_file_of,
)
from towpath.loadtests.load.saga import (
    DECLINED,
    SagaReport,
    latency_of,
    paid_at_checkout,
    saga_report,
)
from towpath.loadtests.load.samples import CHECKOUT as SAMPLED_CHECKOUT
from towpath.loadtests.load.samples import Latency, at
from towpath.loadtests.load.series import Row, Series, Step, Totals, step_width_s
from towpath.loadtests.load.shop import without_password

_POST: Final = "POST"
METHODS: Final = ("GET", _POST)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """
    The requests of a load, by action.

    Attributes:
        checkouts: Orders placed.
        payments: Orders paid, including old orders.
        cancellations: Orders cancelled, including old orders.
        returns: Completed orders returned.
        declined: Watched orders that were cancelled because the payment was declined.
        conflicts: Requests too late for the order's state (409); they are not failures.
        failures: Requests that got no response, or an error other than a 409 or the
            404 of a read.
        not_started: Arrivals that did not start, because too many others were under
            way.
        reasons: The failures by request and reason, with their count.
        checkout: The latency of checkouts.
        saga: The watched orders, their steps and compensations.
        elapsed_s: Seconds since the first user began.
        finished: Whether the users have stopped.
    """

    checkouts: int
    payments: int
    cancellations: int
    returns: int
    declined: int
    conflicts: int
    failures: int
    not_started: int
    reasons: dict[str, int]
    checkout: Latency
    saga: SagaReport
    elapsed_s: float
    finished: bool


def totals_of(stats: RequestStats) -> dict[Row, Totals]:
    """Return the totals of every row of Locust's statistics."""
    return {
        key: Totals(one.num_requests, one.num_failures, one.response_times)
        for key, one in stats.entries.items()
    }


def load_report(stats: RequestStats, *, elapsed_s: float, finished: bool) -> LoadReport:
    """Sum up the users' requests in all processes, without those of the sampler."""
    settled = {
        action: _done(stats, action) + _done(stats, customers.RETURN + action)
        for action in (customers.PAY, customers.CANCEL)
    }
    rows = totals_of(stats)
    placed = rows.get((customers.CHECKOUT, _POST))
    sagas = saga_report(rows)
    declined = sagas.outcomes.get(DECLINED)
    return LoadReport(
        checkouts=_done(stats, customers.CHECKOUT),
        payments=settled[customers.PAY] + paid_at_checkout(rows),
        cancellations=settled[customers.CANCEL],
        returns=_done(stats, customers.RETURN_GOODS),
        declined=declined.count if declined is not None else 0,
        conflicts=sum(
            entry.num_requests
            for (name, _), entry in stats.entries.items()
            if name.endswith(customers.TOO_LATE)
        ),
        failures=sum(
            entry.num_failures
            for (name, kind), entry in stats.entries.items()
            if _is_user_request(kind, name)
        ),
        not_started=sum(
            entry.num_failures
            for (_, kind), entry in stats.entries.items()
            if kind == users.ARRIVAL
        ),
        reasons=_reasons(stats),
        checkout=latency_of(placed),
        saga=sagas,
        elapsed_s=elapsed_s,
        finished=finished,
    )


def _is_user_request(kind: str, name: str) -> bool:
    """Return whether an entry is a request of the users, not of the sampler."""
    return kind in METHODS and name != SAMPLED_CHECKOUT


def _reasons(stats: RequestStats) -> dict[str, int]:
    """Count the failures of the users by request and reason."""
    found = Counter[str]()
    for failure in stats.errors.values():
        if _is_user_request(failure.method, failure.name):
            found[f"{failure.name}: {failure.error}"] += failure.occurrences
    return dict(found)


def check_outputs(options: argparse.Namespace) -> None:
    """
    Check that the progress file and the report can be written.

    Raises:
        LoadOptionError: A folder is missing or not writable, or a file's name is too
            long or names a folder.
    """
    progress, named = options.load_progress, options.load_report
    if progress and not is_replaceable(Path(progress)):
        message = f"--load-progress: {progress} is not a file in a writable folder"
        raise LoadOptionError(message)
    if named == NO_REPORT or not (named or options.headless):
        return
    folder = Path(named).absolute()
    if not is_writable((folder, *folder.parents)):
        message = f"--load-report: {named or folder} is not a writable folder"
        raise LoadOptionError(message)


def write_progress(load: LoadReport, lag: Mapping[str, Any], path: Path) -> None:
    """
    Replace the file in one step, so that a reader never sees half a report.

    A file that cannot be written keeps its previous counts, and a warning is logged.
    """
    new_file = new_file_of(path)
    document = {"load": dataclasses.asdict(load), "lag": lag}
    try:
        new_file.write_text(json.dumps(document), encoding="utf-8")
        os.replace(new_file, path)  # noqa: PTH105 - replaces atomically
    except OSError as error:
        log.warning("load progress not written: %s", error)


def _done(stats: RequestStats, name: str) -> int:
    # Not stats.get, which would add a row to the tables.
    entry = stats.entries.get((name, _POST))
    return entry.num_requests - entry.num_failures if entry else 0


Points = Sequence[Mapping[str, Any]]

_WIDTH: Final = 720
_HEIGHT: Final = 260
_SECOND_MS: Final = 1000


def plot_rate(steps: Iterable[Step]) -> str:
    """Plot requests per second, one line for each kind."""
    points = [{"s": one.at_s, "value": one.per_s, "line": one.row[0]} for one in steps]
    return _plot(points, "requests/s", "request")


def plot_latency(steps: Iterable[Step], name: str) -> str:
    """Plot the percentiles of one kind of request."""
    points = [
        {"s": one.at_s, "value": value, "line": line}
        for one in steps
        if one.row[0] == name
        for line, value in (
            ("p50", one.p50_ms),
            ("p95", one.p95_ms),
            ("p99", one.p99_ms),
        )
        if value is not None
    ]
    return _plot(points, f"{name}, ms", "percentile")


def plot_lag(points: Iterable[tuple[float, str, str, float]]) -> str:
    """Plot lags (seconds, sink, percentile, milliseconds) on a logarithmic scale."""
    found = [
        {"s": at_s, "value": lag_ms / _SECOND_MS, "line": sink, "share": share}
        for at_s, sink, share, lag_ms in points
    ]
    return _plot(found, "commit to read, s", "sink", is_logarithmic=True)


def _plot(
    points: Points, title: str, legend: str, *, is_logarithmic: bool = False
) -> str:
    import altair as alt  # noqa: PLC0415 - only a report needs it
    import vl_convert  # noqa: PLC0415 - as above

    scale = alt.Scale(type="log") if is_logarithmic else alt.Scale(zero=True)
    encodings = {
        "x": alt.X("s:Q", title="seconds since the start"),
        "y": alt.Y("value:Q", title=title, scale=scale),
        "color": alt.Color("line:N", title=legend),
    }
    if any("share" in point for point in points):
        encodings["strokeDash"] = alt.StrokeDash("share:N", title="percentile")
    chart = (
        alt.Chart(alt.Data(values=list(points)))
        .mark_line(interpolate="monotone")
        .encode(**encodings)
        .properties(width=_WIDTH, height=_HEIGHT)
    )
    svg: str = vl_convert.vegalite_to_svg(chart.to_json())
    return svg


_NAME: Final = "report.md"
_SHARES: Final = {"p50": 0.50, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """
    A run that has ended.

    Attributes:
        facts: Time, shop, load, machine and options of the run.
        elapsed_s: Seconds from the start of the first user to the end of the last.
        stats: Locust's statistics.
        series: The statistics over time.
        began_at_s: The start, on the clock of the lag samples.
        samples: The first read of every sampled order in each sink.
        lag: The sampler's last report; empty without sinks.
        is_open: Whether arrivals were scheduled at a rate (open loop).
        findings: Each store that was checked after the run, with a sentence for each
            rule that it violates.
    """

    facts: Mapping[str, str]
    elapsed_s: float
    stats: RequestStats
    series: Series
    began_at_s: float
    samples: Sequence[LagSample]
    lag: Mapping[str, Any]
    is_open: bool
    findings: Mapping[str, Sequence[str]]


def write_report(run: EndedRun, folder: Path) -> Path:
    """Create the folder, write the report into it, and return its main file."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = run.series.steps(run.elapsed_s)
    requests = [step for step in steps if step.row[1] in METHODS]
    plots = {"rate": plot_rate(requests)}
    plots["latency"] = plot_latency(requests, customers.CHECKOUT)
    if run.samples:
        plots["lag"] = plot_lag(lag_points(run))
    for name, svg in plots.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    _write_figures(steps, folder / "series.csv")
    text = "\n".join(_lines(run, plots)) + "\n"
    (folder / _NAME).write_text(text, encoding="utf-8")
    return folder / _NAME


def lag_points(run: EndedRun) -> Iterator[tuple[float, str, str, float]]:
    """Yield each step's lag: seconds, sink, percentile, milliseconds."""
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


def _lines(run: EndedRun, plots: Mapping[str, str]) -> Iterator[str]:
    yield "# Load report"
    yield ""
    yield from (f"- {name}: {text}" for name, text in run.facts.items())
    yield from ("", "## Requests", "")
    yield from _requests(run)
    yield from ("", "![requests per second](rate.svg)", "")
    yield "![latency of checkouts](latency.svg)"
    yield from _arrivals(run)
    yield from _sagas(saga_report(totals_of(run.stats)))
    yield from _lags(run, "lag" in plots)
    yield from _failures(run.stats)
    yield from _invariants(run.findings)


def _invariants(findings: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from ("", "## Invariants", "")
    if not findings:
        yield (
            "Money, stock and parcels were not checked: `--load-dsn` names no database,"
            " or another run began."
        )
    for store, sentences in findings.items():
        yield from (f"- {store}: {sentence}" for sentence in sentences)
        if not sentences:
            yield f"- {store}: money, stock and parcels agree"


def _requests(run: EndedRun) -> Iterator[str]:
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


def _arrivals(run: EndedRun) -> Iterator[str]:
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


def _sagas(found: SagaReport) -> Iterator[str]:
    yield from ("", "## Saga", "")
    if not found.watched:
        yield "No order was watched."
        return
    unseen = f"{found.not_settled:,} were not settled when their customers left"
    beyond = f"{found.not_watched:,} more were not watched: too many others were"
    yield f"Customers watched {found.watched:,} orders; {unseen}; {beyond}."
    rows = {"checkout to settled": found.from_checkout, **found.outcomes}
    yield from _saga_table("outcome, from the last command", rows)
    yield from _saga_table("step, from the last command", found.steps)
    yield from ("", "| compensation | count |", "|---|---|")
    yield from (f"| {name} | {n:,} |" for name, n in found.compensations.items())


def _saga_table(title: str, rows: Mapping[str, Latency]) -> Iterator[str]:
    yield from ("", f"| {title} | count | p50 | p95 | p99 |", "|---|---|---|---|---|")
    for name, one in rows.items():
        times = " | ".join(map(_ms, (one.p50_ms, one.p95_ms, one.p99_ms)))
        yield f"| {name} | {one.count:,} | {times} |"


def _lags(run: EndedRun, has_plot: bool) -> Iterator[str]:  # noqa: FBT001 - one caller
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
    yield "| failure | count |"
    yield "|---|---|"
    for failure in stats.errors.values():
        reason = " ".join(str(failure.error).replace("|", "/").split())
        yield f"| {failure.method} {failure.name}: {reason} | {failure.occurrences:,} |"


def _at(entry: StatsEntry, share: float) -> float:
    return entry.get_response_time_percentile(share)


def _ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.0f} ms"


_ADDRESSES = ("cache-url", "search-url", "warehouse-url")


def facts_of(
    environment: Environment, began_at: datetime, elapsed_s: float
) -> dict[str, str]:
    """Return the time, shop, load, machine and options of a run, as text."""
    found = {
        "began": f"{began_at:%Y-%m-%d %H:%M:%S} UTC, and lasted {elapsed_s:.0f} s",
        "shop": without_password(environment.host or ""),
        "load": _load(environment),
        "machine": f"{summary()}, locust {locust.__version__}",
    }
    if options := _set_options(environment):
        found["options"] = options
    return found


def _load(environment: Environment) -> str:
    options, runner = options_of(environment), runner_of(environment)
    rate, users = options.load_rate, runner.target_user_count
    kind = f"open loop, {rate:g} arrivals per second" if rate else "closed loop"
    if options.load_shape:
        kind += f" in the shape {options.load_shape}"
    workers = ""
    if isinstance(runner, MasterRunner):
        workers = f", master and {len(runner.clients)} workers"
    return f"{kind}, {users} users{workers}"


def _set_options(environment: Environment) -> str:
    """List the options that differ from their defaults, without secrets."""
    shown = []
    for option in OPTIONS:
        value = getattr(environment.parsed_options, option.dest)
        if value == option.default or option.name in {"report", "progress"}:
            continue
        if option.is_secret:
            is_address = option.name in _ADDRESSES
            value = without_password(value) if is_address else "..."
        shown.append(f"`{option.flag} {value}`")
    return " ".join(shown)

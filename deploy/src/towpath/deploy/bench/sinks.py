"""
The benchmark of sinks: each case on its own stack, with empty targets.

A difference in any case voids the figures of all cases. The case ``checkout`` runs the
demo's shop, its sinks and its sampler at stated rates: shop, relay, drivers and the
sinks' settings are the demo's own. Each rate is maintained until its last sample has
arrived, so that every sample is taken under load. After each rate all sinks catch up;
after the last rate, each is compared with the source.
"""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console

from towpath.deploy.bench.cluster import (
    install_null_sink,
    master_part,
    master_url,
    worker_part,
)
from towpath.deploy.bench.runner import (
    BENCH_FOLDERS,
    bench_on,
    print_result,
    results,
)
from towpath.deploy.demo import compare, parts, platform, shop
from towpath.deploy.demo.screen import DemoScreen, PlainScreen
from towpath.deploy.demo.stage import DemoOptions, DemoPlan, OwnStage
from towpath.deploy.demo.table import SinkResult
from towpath.deploy.errors import StepError
from towpath.deploy.local import ports, process
from towpath.deploy.local.own_stack import own_stack, prepare
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.stack import NAMES, Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.loadtests.bench.context import Bench, BenchOptions, open_screen
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.sinks import catch_up, cluster
from towpath.loadtests.bench.sinks.cluster import RunningCluster
from towpath.loadtests.bench.sinks.result import (
    CACHE,
    CHECKOUT,
    CLUSTER,
    ROWS,
    SEARCH,
    SINKS,
    Checkout,
    Rate,
    Reading,
    SinkCase,
    Targets,
    draw,
    draw_case,
)
from towpath.schemas.failure import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkBenchOptions:
    """
    The options of a benchmark of sinks.

    Attributes:
        cases: The cases to measure.
        sinks: The sinks that catch up.
        rows: Rows of the backlog, and old orders of the shop (at most 50,000).
        rates: Checkouts per second; the rates run in this order.
        duration_s: The measured time of each rate.
        warm_up_s: How long each rate runs before it is measured.
    """

    cases: Sequence[str]
    sinks: Sequence[str] = SINKS
    rows: int = ROWS
    rates: Sequence[float] = (20.0,)
    duration_s: float = 60.0
    warm_up_s: float = 20.0


def rates_of(text: str) -> tuple[float, ...]:
    """
    Return the rates in a comma-separated string.

    Raises:
        UsageError: A rate is not a positive number.
    """
    try:
        rates = tuple(map(float, text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate < math.inf for rate in rates):
        message = f"{text!r} is not a list of rates such as 20,40,60"
        raise UsageError(message)
    return rates


# As in the demo. A smaller backlog lowers the number.
_MAX_OLD_ORDERS: Final = 50_000


def measure_checkout(
    stack: Stack, options: SinkBenchOptions, screen: DemoScreen
) -> tuple[Checkout, tuple[str, ...]]:
    """
    Run the shop at each rate; return the readers' latencies, and the differences.

    Raises:
        TowpathError: A part became unavailable, or did not finish in time.
    """
    orders = min(_MAX_OLD_ORDERS, options.rows)
    plan = (orders, options.duration_s, options.warm_up_s)
    with staged(stack, screen, *plan) as stage:
        platform.start_stack(stage)
        platform.start_drivers(stage)
        platform.fill_shop(stage)
        platform.start_relay(stage)
        platform.start_orders(stage)
        platform.fill_sinks(stage)
        rates = tuple(_rate(stage, options, rate) for rate in options.rates)
        found = compare.compare_sinks(stage)
    return Checkout(rates=rates), tuple(findings(CHECKOUT, found))


def findings(case: str, found: Sequence[SinkResult]) -> Iterator[str]:
    """
    Yield a sentence for each sink that differs from the source after a case.

    Raises:
        StepError: A sink could not be compared.
    """
    for one in found:
        if one.differences is None:
            message = f"{one.name} could not be compared: {one.failure}"
            raise StepError(message)
        if one.differences:
            noun = "difference" if one.differences == 1 else "differences"
            yield f"{case} {one.name}: {one.differences:,} {noun}"


@contextlib.contextmanager
def staged(
    stack: Stack, screen: DemoScreen, orders: int, duration_s: float, warm_up_s: float
) -> Iterator[OwnStage]:
    """
    Yield the demo's stage; its processes are stopped at the end of the block.

    Args:
        stack: The stack, not started yet.
        screen: Shows the steps.
        orders: Orders that exist before the relay starts.
        duration_s: How long the load's latency is sampled.
        warm_up_s: How long the load runs before the first sample.
    """
    with Supervisor(stack.state) as supervisor:
        yield parts.own_stage(
            (stack, supervisor),
            screen,
            options=DemoOptions(orders=orders, duration_s=duration_s),
            # No customer returns to an old order, and no other sink is added.
            plan=DemoPlan(
                settle_rate=0.0,
                new_sink_after_s=0.0,
                max_rows_per_second=0,
                wanted_changes=0,
                load_s=duration_s,
                sample_after_s=warm_up_s,
                sample_for_s=duration_s,
            ),
        )


def _rate(stage: OwnStage, options: SinkBenchOptions, rate_per_s: float) -> Rate:
    stage.set_rate(rate_per_s)
    restarts = stage.restarts()
    shop.open_shop(stage)
    stage.pause(options.warm_up_s)
    began_s, cpu_s = stage.elapsed_s(), used_s(stage.state)
    load = shop.load_report(stage)
    stage.pause(options.duration_s)
    elapsed_s = stage.elapsed_s() - began_s
    cpu = shares(cpu_s, used_s(stage.state), elapsed_s)
    sold = per_s(load, shop.load_report(stage))
    # On a busy machine the sampler's first report may be missing.
    placed = int(shop.sampler_report(stage).get("placed", 0))
    shop.wait_for_samples(stage)
    shop.close_shop(stage)
    platform.settle(stage)
    return Rate(
        rate_per_s=rate_per_s,
        reached_per_s=sold + placed / elapsed_s,
        failures=failures(shop.load_report(stage), shop.sampler_report(stage)),
        restarts=stage.restarts() - restarts,
        readings=readings(shop.sampler_report(stage)),
        cpu=cpu,
    )


def per_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Return the checkouts per second between two reports of the load."""
    elapsed_s = after["elapsed_s"] - before["elapsed_s"]
    return float((after["checkouts"] - before["checkouts"]) / max(1.0, elapsed_s))


def failures(load: Mapping[str, Any], sampler: Mapping[str, Any]) -> int:
    """Count requests that failed or were not sent, and failed reads of the sampler."""
    unserved = load["failures"] + load["not_started"]
    return int(unserved + sum(sampler["errors"].values()))


def readings(sampler: Mapping[str, Any]) -> dict[str, Reading]:
    """Return the sampler's latencies by sink; awaited samples count as lost."""
    return {
        name: Reading(
            samples=one["latency"]["count"],
            lost=one["lost"] + one["awaited"],
            p50_ms=one["latency"]["p50_ms"],
            p95_ms=one["latency"]["p95_ms"],
            p99_ms=one["latency"]["p99_ms"],
        )
        for name, one in sampler["sinks"].items()
    }


def used_s(state: StateFolder) -> dict[str, float]:
    """Return the CPU time of every part, including its child processes."""
    found: dict[str, float] = {}
    for name in state.parts():
        part = process.find(state.process_file(name))
        with contextlib.suppress(psutil.NoSuchProcess):
            if part is not None:
                family = [part, *part.children(recursive=True)]
                found[name] = sum(map(_cpu_s, family))
    return found


def shares(
    before: Mapping[str, float], after: Mapping[str, float], elapsed_s: float
) -> dict[str, float]:
    """Return each part's share of a core; parts that started or ended are left out."""
    names = before.keys() & after.keys()
    spent = {name: max(0.0, after[name] - before[name]) for name in names}
    return {name: spent[name] / elapsed_s for name in sorted(names)}


def _cpu_s(one: psutil.Process) -> float:
    try:
        times = one.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


_MERGE: Final = (sys.executable, "-m", "towpath.deploy.bench.merge")


def run_sink_benchmark(options: SinkBenchOptions, *, keep: bool, as_json: bool) -> int:
    """
    Run the cases and print their results; return 0 if all were verified, else 1.

    Raises:
        TowpathError: A case did not complete.
        KeyboardInterrupt: A case was interrupted.
    """
    console = Console(stderr=True)
    shown = console if as_json else results()
    prepare(BENCH_FOLDERS, console)
    cases: list[SinkCase] = []
    findings: list[str] = []
    for case in options.cases:
        with own_stack(BENCH_FOLDERS, console, keep=keep, parts=NAMES) as stack:
            measured, found = _case(case, options, stack, console)
        cases.append(measured)
        findings += found
        if not findings:
            shown.print(draw_case(measured))
    result: BenchResult[SinkCase] = BenchResult(
        rows=options.rows,
        rounds=1,
        machine=machine(),
        cases=tuple(cases),
        findings=tuple(findings),
    )
    return print_result(result, None if as_json else draw(result))


def _case(
    case: str, options: SinkBenchOptions, stack: Stack, console: Console
) -> tuple[SinkCase, Sequence[str]]:
    if case == CHECKOUT:
        return measure_checkout(stack, options, PlainScreen(console))
    with open_screen(console, console) as screen:
        bench = bench_on(stack, BenchOptions(rows=options.rows, rounds=1), screen)
        if case == CLUSTER:
            return _measure_cluster(bench, stack, options)
        return catch_up.measure_catch_up(bench, targets(stack), options.sinks)


def _measure_cluster(
    bench: Bench, stack: Stack, options: SinkBenchOptions
) -> tuple[SinkCase, Sequence[str]]:
    """Measure the cluster; only its processes have the sink kind ``null``."""
    packages = stack.state.root / "packages"
    install_null_sink(packages)
    command = ("env", f"PYTHONPATH={packages}", *bench.environment.towpath)
    environment = replace(bench.environment, towpath=command)
    return cluster.measure_cluster(
        replace(bench, environment=environment),
        targets(stack),
        options.sinks,
        partial(_spark_cluster, stack.state, packages),
    )


@contextlib.contextmanager
def _spark_cluster(
    state: StateFolder, packages: Path, workers: int
) -> Iterator[RunningCluster]:
    """Run a standalone cluster while the block runs."""
    port = ports.any_free()
    with Supervisor(state) as supervisor:
        supervisor.start(master_part(state, port))
        supervisor.wait_ready()
        names = [f"spark-worker-{number}" for number in range(1, workers + 1)]
        for name in names:
            supervisor.start(worker_part(state, name, port, packages))
        supervisor.wait_ready()
        found = [process.find(state.process_file(name)) for name in names]
        pids = [one.pid for one in found if one is not None]
        yield RunningCluster(master_url(port), pids)


def targets(stack: Stack) -> Targets:
    """Return the addresses of a stack's targets."""
    addresses = stack.addresses()
    pids = {part.name: part.pid for part in stack.status() if part.pid is not None}
    return Targets(
        redis_url=addresses.redis_url,
        opensearch_url=addresses.opensearch_url,
        catalog_dsn=addresses.dsn("warehouse"),
        pids={CACHE: pids["redis"], SEARCH: pids["opensearch"]},
        merge=_MERGE,
    )

"""
The case ``checkout``: the demo's shop, its sinks and its sampler, at stated rates.

The shop, relay and drivers are the demo's own; so are the sinks' settings. A rate goes
on until the last sample has come, so that the last waits under load like the first.
After each rate all sinks catch up; after the last, each is compared with the source.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import psutil

from towpath.deploy.bench.wishes import Wishes
from towpath.deploy.demo import parts
from towpath.deploy.demo.errors import StepError
from towpath.deploy.demo.plan import Options, Plan
from towpath.deploy.demo.screen import Screen
from towpath.deploy.demo.stage import OwnStage
from towpath.deploy.demo.steps import fill, judge, settle, shop, start
from towpath.deploy.demo.table import SinkResult
from towpath.deploy.local import process
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.stack import Stack
from towpath.deploy.local.supervisor import Supervisor
from towpath.loadtests.bench.sinks.result import Checkout, Rate, Reading

# The demo's; a smaller backlog asks for a smaller shop.
_MOST_OLD_ORDERS: Final = 50_000


def measure(
    stack: Stack, wishes: Wishes, screen: Screen
) -> tuple[Checkout, tuple[str, ...]]:
    """
    Have the shop sell at each rate; return what readers waited for, and what differs.

    Raises:
        TowpathError: A part was not there any more, or not done in time.
    """
    with _staged(stack, wishes, screen) as stage:
        start.start_stack(stage)
        start.start_drivers(stage)
        start.fill_shop(stage)
        start.start_relay(stage)
        fill.fill_sinks(stage)
        rates = tuple(_rate(stage, wishes, rate) for rate in wishes.rates)
        found = judge.compare(stage)
    return Checkout(rates=rates), tuple(findings(found))


def findings(found: Sequence[SinkResult]) -> Iterator[str]:
    """
    Name what differs.

    Raises:
        StepError: A sink could not be compared.
    """
    for one in found:
        if one.differences is None:
            message = f"{one.name} could not be compared: {one.failure}"
            raise StepError(message)
        if one.differences:
            yield f"checkout {one.name}: {one.differences:,} differences"


@contextlib.contextmanager
def _staged(stack: Stack, wishes: Wishes, screen: Screen) -> Iterator[OwnStage]:
    """Give the demo's stage; whatever it started ends with the block."""
    orders = min(_MOST_OLD_ORDERS, wishes.rows)
    with Supervisor(stack.state) as supervisor:
        yield parts.own_stage(
            (stack, supervisor),
            screen,
            options=Options(orders=orders, duration_s=wishes.duration_s),
            # Nobody comes back to an old order, and no further sink is added.
            plan=Plan(
                settle_rate=0.0,
                new_sink_after_s=0.0,
                max_rows_per_second=0,
                wanted_changes=0,
                load_s=wishes.duration_s,
                sample_after_s=wishes.warm_up_s,
                sample_for_s=wishes.duration_s,
            ),
        )


def _rate(stage: OwnStage, wishes: Wishes, rate_per_s: float) -> Rate:
    stage.options = replace(stage.options, rate=rate_per_s)
    restarts = stage.restarts()
    shop.open_shop(stage)
    stage.pause(wishes.warm_up_s)
    began_s, cpu_s, load = stage.elapsed_s(), used_s(stage.state), _load(stage)
    stage.pause(wishes.duration_s)
    elapsed_s = stage.elapsed_s() - began_s
    cpu = shares(cpu_s, used_s(stage.state), elapsed_s)
    sold = per_s(load, _load(stage))
    # On a busy machine it may have told nothing yet.
    placed = int(shop.sampler_report(stage).get("placed", 0))
    shop.wait_for_samples(stage)
    shop.close_shop(stage)
    settle.settle(stage)
    return Rate(
        rate_per_s=rate_per_s,
        reached_per_s=sold + placed / elapsed_s,
        failures=failures(shop.load_report(stage), shop.sampler_report(stage)),
        restarts=stage.restarts() - restarts,
        readings=readings(shop.sampler_report(stage)),
        cpu=cpu,
    )


def _load(stage: OwnStage) -> Mapping[str, Any]:
    return shop.load_report(stage)


def per_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Return the checkouts a second between two reports of the load."""
    elapsed_s = after["elapsed_s"] - before["elapsed_s"]
    return float((after["checkouts"] - before["checkouts"]) / max(1.0, elapsed_s))


def failures(load: Mapping[str, Any], sampler: Mapping[str, Any]) -> int:
    """Count requests without an answer or not sent, and the sampler's failed looks."""
    unserved = load["failures"] + load["not_started"]
    return int(unserved + sum(sampler["errors"].values()))


def readings(sampler: Mapping[str, Any]) -> dict[str, Reading]:
    """Read what the sampler saw, by sink; what it still waits for is lost."""
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
    """Return the processor time of every part, with all that it has started."""
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
    """Return how much of a core each part took; one that came or went, none."""
    names = before.keys() & after.keys()
    spent = {name: max(0.0, after[name] - before[name]) for name in names}
    return {name: spent[name] / elapsed_s for name in sorted(names)}


def _cpu_s(one: psutil.Process) -> float:
    try:
        times = one.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)

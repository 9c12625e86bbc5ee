"""
The benchmark of the whole shop: the highest rate that it sustains, and its bottleneck.

The case ``checkout`` runs the demo's platform: four services, relay, two drivers and
their three sinks, and the load's customers, who arrive at a fixed rate even if
responses are late. The rate is raised until it is no longer sustained; then rates
between the last two steps are tried. The case ``rows`` runs only relay and sinks, fed
by a process that writes rows with SQL. During the measured time the backlogs are read
every few seconds: unsettled orders, unconfirmed bytes of the log, and records that each
sink has not applied. After each rate the benchmark waits until the platform has
settled. After the last rate each sink is compared with the source; the case
``checkout`` also checks money, stock and parcels in all stores. A difference voids all
figures.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console

from towpath.deploy.bench.runner import (
    BENCH_FOLDERS,
    print_result,
    results,
)
from towpath.deploy.bench.sinks import (
    failures,
    findings,
    per_s,
    readings,
    shares,
    staged,
    used_s,
)
from towpath.deploy.demo import compare, parts, platform, shop
from towpath.deploy.demo.command import python_module
from towpath.deploy.demo.screen import DemoScreen, PlainScreen
from towpath.deploy.demo.stage import OwnStage
from towpath.deploy.demo.table import StoreResult
from towpath.deploy.errors import StepError
from towpath.deploy.local import process
from towpath.deploy.local.own_stack import own_stack, prepare
from towpath.deploy.local.part import Part
from towpath.deploy.local.stack import NAMES, Stack
from towpath.deploy.status import lag_records, progress_of, read_ends
from towpath.loadtests.bench.machine import machine
from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.sinks.result import CACHE, WAREHOUSE
from towpath.loadtests.bench.sustained import (
    CHECKOUT,
    RELAY,
    ROWS,
    SAGA,
    UNITS,
    BacklogTrend,
    Cores,
    SustainedCase,
    SustainedRate,
    draw,
    draw_rate,
    next_rate,
)
from towpath.loadtests.load.samples import Latency
from towpath.loadtests.load.shop import targets_of
from towpath.settings import Settings
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.progress_topic import ProgressReader
from towpath.sinks.postgres import connected

# The steps of each case: checkouts, or row writes, per second.
RATES: Final[Mapping[str, Sequence[float]]] = MappingProxyType(
    {CHECKOUT: (5.0, 10.0, 20.0, 40.0, 80.0), ROWS: (1_000.0, 2_500.0, 5_000.0)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutBenchOptions:
    """
    The options of a benchmark of the whole shop.

    Attributes:
        case: ``checkout`` or ``rows``.
        rates: The steps, in ascending order: checkouts, or row writes, per second.
        refine: Rates to measure between the best step and the next one.
        orders: Orders that exist before the relay starts.
        duration_s: The measured time of each rate.
        warm_up_s: How long each rate runs before it is measured.
    """

    case: str = CHECKOUT
    rates: Sequence[float] = RATES[CHECKOUT]
    refine: int = 1
    orders: int = 50_000
    duration_s: float = 300.0
    warm_up_s: float = 60.0


_SAMPLE_EVERY_S: Final = 5.0
_FEWEST_SAMPLES: Final = 4
_FIRST_ROW_WITHIN_S: Final = 60.0
_SAMPLE_ROWS_EVERY_S: Final = 0.25

# Orders that are waiting for a service, and not for their customer.
_SAGAS_UNDER_WAY: Final = """
select count(*)
from shop.unsettled_orders u join shop.orders o on o.id = u.order_id
where o.payment_method is not null or u.status <> 'placed'
"""
# The time from the checkout of a completed order to its last step.
_SAGA_TIMES: Final = """
select extract(epoch from max(at) - placed_at) * 1000
from shop.orders join shop.order_steps on order_id = id
where id >= %s and status = 'completed'
group by id
"""
_FIRST_PAYMENT: Final = """
insert into payments.payments values (0, 1, 'EUR', 'card', 'declined', null, 1, now())
"""
_RELAY_BYTES: Final = """
select pg_current_wal_lsn() - '0/0'::pg_lsn, pg_current_wal_lsn() - confirmed_flush_lsn
from pg_replication_slots where slot_name = %s
"""


class Totals(NamedTuple):
    """Totals at one moment: log, records, published changes, CPU time, load."""

    at_s: float
    log_bytes: float
    records: Mapping[str, float]
    published: compare.Published
    cpu_s: Mapping[str, float]
    machine_s: float
    load: Mapping[str, Any]


@dataclass(slots=True)
class BacklogSampler:
    """Reads the totals of a stage, and collects samples of its backlogs."""

    stage: OwnStage
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def read_totals(self) -> Totals:
        """Read all totals, and add a sample of each backlog."""
        stage = self.stage
        settings, at_s = stage.settings(), stage.elapsed_s()
        topics = Topics(settings.kafka)
        ends = stage.retried(lambda: read_ends(topics))
        records = {}
        with closing(ProgressReader(settings, stage.clock)) as published:
            found = [(one, progress_of(published, one)) for one in settings.sink]
        for sink, progress in found:
            self._add(sink.name, at_s, lag_records(sink, progress.applied, ends))
            records[sink.name] = float(lag_records(sink, {}, ends))
        log_bytes, unconfirmed = self._relay()
        self._add(RELAY, at_s, unconfirmed)
        [(sagas,)] = platform.read_rows(stage.shop_dsn, _SAGAS_UNDER_WAY)
        self._add(SAGA, at_s, sagas)
        return Totals(
            at_s=at_s,
            log_bytes=log_bytes,
            records=records,
            published=compare.published(stage),
            cpu_s=used_s(stage.state),
            machine_s=_machine_s(),
            load=shop.load_report(stage),
        )

    def backlogs(self, first: Totals, last: Totals) -> dict[str, BacklogTrend]:
        """Return each backlog with its incoming rate between two moments."""
        elapsed_s = last.at_s - first.at_s
        incoming = {
            name: (count - first.records.get(name, 0.0)) / elapsed_s
            for name, count in last.records.items()
        }
        incoming[RELAY] = (last.log_bytes - first.log_bytes) / elapsed_s
        incoming[SAGA] = per_s(first.load, last.load)
        return {
            name: BacklogTrend(tuple(samples), incoming[name])
            for name, samples in self.samples.items()
        }

    def _relay(self) -> tuple[float, float]:
        slot = self.stage.settings().database.slot
        rows = platform.read_rows(self.stage.shop_dsn, _RELAY_BYTES, slot)
        if not rows:
            message = f"the source has no slot {slot}"
            raise StepError(message)
        log_bytes, unconfirmed = rows[0]
        return float(log_bytes), float(unconfirmed)

    def _add(self, name: str, at_s: float, amount: float) -> None:
        self.samples.setdefault(name, []).append((at_s, float(amount)))


def _machine_s() -> float:
    """Return the CPU time of all processes on the machine."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # The user time includes the guest time, and the nice time includes the guest_nice
    # time.
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - guests)


def run_checkout_benchmark(
    options: CheckoutBenchOptions, *, keep: bool, as_json: bool
) -> int:
    """
    Run a case and print its result; return 0 if everything was verified, else 1.

    Raises:
        TowpathError: The case did not complete.
        KeyboardInterrupt: The case was interrupted.
    """
    console = Console(stderr=True)
    shown = console if as_json else results()
    prepare(BENCH_FOLDERS, console)
    with own_stack(BENCH_FOLDERS, console, keep=keep, parts=NAMES) as stack:
        rates, found = measure_rates(stack, options, PlainScreen(console), shown)
    result: BenchResult[SustainedCase] = BenchResult(
        rows=options.orders,
        rounds=1,
        machine=machine(),
        cases=(SustainedCase(name=options.case, rates=rates),),
        findings=found,
    )
    return print_result(result, None if as_json else draw(result))


def measure_rates(
    stack: Stack, options: CheckoutBenchOptions, screen: DemoScreen, shown: Console
) -> tuple[tuple[SustainedRate, ...], tuple[str, ...]]:
    """
    Run the platform at each rate; return the rates, and the differences at the end.

    Raises:
        TowpathError: A part became unavailable, or did not finish in time.
    """
    plan = (options.orders, options.duration_s, options.warm_up_s)
    with staged(stack, screen, *plan) as stage:
        _start(stage, options)
        first_order = platform.next_order(stage.shop_dsn)
        rates: list[SustainedRate] = []
        while (rate := next_rate(rates, options.rates, options.refine)) is not None:
            rates.append(_measure(stage, options, rate))
            shown.print(draw_rate(rates[-1], UNITS[options.case]))
        found = list(findings(options.case, compare.compare_sinks(stage)))
        if options.case == CHECKOUT:
            found += contradictions(compare.check_invariants(stage, first_order))
    return tuple(rates), tuple(found)


def contradictions(stores: Sequence[StoreResult]) -> Iterator[str]:
    """
    Yield a sentence for each invariant that a store violates.

    Raises:
        StepError: A store could not be read.
    """
    for store in stores:
        if store.failure is not None:
            message = f"{store.name} could not be read: {store.failure}"
            raise StepError(message)
        yield from (f"checkout {store.name}: {one}" for one in store.findings)


def _start(stage: OwnStage, options: CheckoutBenchOptions) -> None:
    platform.start_stack(stage)
    platform.start_drivers(stage)
    platform.fill_shop(stage)
    if options.case == ROWS:
        # A sink creates its table with the first row, and the sampler reads the table.
        with connected(stage.shop_dsn) as connection:
            connection.execute(_FIRST_PAYMENT)
    platform.start_relay(stage)
    if options.case == CHECKOUT:
        platform.start_services(stage)
    platform.fill_sinks(stage)


def _measure(
    stage: OwnStage, options: CheckoutBenchOptions, rate_per_s: float
) -> SustainedRate:
    stage.set_rate(rate_per_s)
    restarts = stage.restarts()
    _open(stage, options)
    stage.pause(options.warm_up_s)
    sampler = BacklogSampler(stage)
    first_order = platform.next_order(stage.shop_dsn)
    first = last = sampler.read_totals()
    every_s = min(_SAMPLE_EVERY_S, options.duration_s / _FEWEST_SAMPLES)
    while last.at_s - first.at_s < options.duration_s:
        stage.pause(every_s)
        last = sampler.read_totals()
    shop.wait_for_samples(stage)
    shop.close_shop(stage)
    if options.case == CHECKOUT:
        platform.wait_for_sagas(stage)
    platform.settle(stage)
    saga = saga_times(stage.shop_dsn, first_order)
    found = _summary(stage, sampler, first, last)
    return replace(found, saga=saga, restarts=stage.restarts() - restarts)


def saga_times(dsn: str, first_order: int) -> Latency:
    """Return how long the sagas of completed orders took, from ``first_order`` on."""
    rows = platform.read_rows(dsn, _SAGA_TIMES, first_order)
    return Latency.of(float(took_ms) for (took_ms,) in rows)


def _summary(
    stage: OwnStage, backlog_sampler: BacklogSampler, first: Totals, last: Totals
) -> SustainedRate:
    elapsed_s = last.at_s - first.at_s
    load, sampler = shop.load_report(stage), shop.sampler_report(stage)
    before, after = first.published, last.published
    return SustainedRate(
        rate_per_s=stage.options.rate,
        reached_per_s=per_s(first.load, last.load),
        rows_per_s=(after.row_changes - before.row_changes) / elapsed_s,
        events_per_s=(after.events - before.events) / elapsed_s,
        failures=failures(load, sampler),
        restarts=0,
        readings=readings(sampler),
        saga=Latency.of(()),
        backlogs=backlog_sampler.backlogs(first, last),
        cores=Cores(
            count=psutil.cpu_count() or 1,
            used=(last.machine_s - first.machine_s) / elapsed_s,
            parts=shares(first.cpu_s, last.cpu_s, elapsed_s),
        ),
    )


def _open(stage: OwnStage, options: CheckoutBenchOptions) -> None:
    """Start the customers, or the process that writes rows."""
    if options.case == CHECKOUT:
        shop.open_shop(stage)
        return
    parts.progress_of(stage).unlink(missing_ok=True)
    with stage.timed_step(f"write {stage.options.rate:g} rows per second"):
        process.start(_writer(stage), stage.state)
        stage.until(lambda: _writes(stage), "the first rows", _FIRST_ROW_WITHIN_S)


def _writes(stage: OwnStage) -> bool:
    if process.find(stage.state.process_file(parts.LOAD)) is None:
        log = stage.state.log(parts.LOAD)
        message = f"the writer has ended unexpectedly; log: {log}"
        raise StepError(message)
    return bool(shop.load_report(stage).get("checkouts", 0) > 0)


def _writer(stage: OwnStage) -> Part:
    """Describe the process that writes rows and samples their arrival in the sinks."""
    config = {
        "dsn": stage.shop_dsn,
        "rate_per_s": stage.options.rate,
        "progress": str(parts.progress_of(stage)),
        "targets": payment_targets(stage.settings()),
        "samples": {
            "interval_s": _SAMPLE_ROWS_EVERY_S,
            "after_s": stage.plan.sample_after_s,
            "for_s": stage.plan.sample_for_s,
        },
    }
    module = "towpath.loadtests.bench.row_writer"
    command = python_module(module, json.dumps(config))
    env = dict(stage.environment)
    return Part(name=parts.LOAD, command=command, folder=stage.state.root, env=env)


def payment_targets(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the sampler's targets for payments: the first sink of each kind."""
    variables = {
        **parts.targets(settings),
        "TOWPATH_LOAD_CACHE_KEY": f"{settings.database.prefix}:payments:{{}}",
        "TOWPATH_LOAD_SEARCH_INDEX": "payments",
        "TOWPATH_LOAD_WAREHOUSE_TABLE": "payments.payments",
    }
    names = {name.removeprefix("TOWPATH_").lower(): v for name, v in variables.items()}
    found = targets_of(argparse.Namespace(**names))
    for name in (CACHE, WAREHOUSE):
        found[name]["column"] = "order_id"
    return found

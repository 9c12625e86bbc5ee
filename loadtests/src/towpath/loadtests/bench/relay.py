"""
The benchmark of the relay: all cases, all rounds, all systems.

``measure_relay`` runs drains and steady loads, ``measure_kill`` the kills. A difference
in any run voids all figures. The caller stops the stack. The search for Debezium's best
settings runs the same measurements, before the first case.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Final

from towpath.loadtests.bench import measurements, publishers, result
from towpath.loadtests.bench.context import (
    BATCH,
    COMPRESSION,
    DEBEZIUM_TUNED,
    DRAINS,
    IN_FLIGHT,
    LIMIT,
    LINGER,
    POLL,
    RECVLOGICAL,
    RELAY,
    SAME_HEADERS,
    STEADIES,
    Bench,
    BenchRun,
    ConnectorSettings,
    RunRecords,
    Tuning,
    in_turn,
    translated,
)
from towpath.loadtests.bench.figures import CommittedEvent, EventCheck, Figures
from towpath.loadtests.bench.result import BenchResult, RelayCase
from towpath.loadtests.bench.source import BenchSource, bench_source

KILL: Final = "kill_1"
_BASE: Final = "base"
_TRUTH: Final = "truth"


def measure_relay(bench: Bench) -> BenchResult[RelayCase]:
    """
    Run the requested cases.

    Raises:
        BenchError: A system or a server ended, or did not finish in time.
    """
    records = RunRecords(bench)
    with translated():
        bench.broker.use_log_append_time()
        if bench.options.searches_settings:
            bench = _tuned(bench, records)
        for case in bench.options.cases:
            if case in DRAINS:
                _drain_case(bench, records, case)
            else:
                _steady_case(bench, records, case)
            _show(bench, records, case)
    return _result(records)


def measure_kill(bench: Bench) -> BenchResult[RelayCase]:
    """
    Kill each publisher in the middle of a drain, once per round.

    Raises:
        BenchError: A publisher ended, or did not finish in time.
    """
    records = RunRecords(bench)
    with translated():
        bench.broker.use_log_append_time()
        _kill_case(bench, records)
        _show(bench, records, KILL)
    return _result(records)


def _show(bench: Bench, records: RunRecords, name: str) -> None:
    """Print a case that has ended, unless there are findings."""
    if not records.findings:
        bench.screen.show(
            result.draw_case(RelayCase(name=name, rounds=records.case_figures(name)))
        )


def _result(records: RunRecords) -> BenchResult[RelayCase]:
    cases = tuple(
        RelayCase(name=name, rounds=found) for name, found in records.rounds()
    )
    return BenchResult(findings=records.findings, cases=cases, **records.facts())


def _record_check(records: RunRecords, run: BenchRun, verdict: EventCheck) -> None:
    records.add_findings(run.name, verdict.events, verdict.findings())


def _kill_case(bench: Bench, records: RunRecords) -> None:
    with _backlog(bench, KILL, 1) as (base, facts):
        for number in range(bench.options.rounds):
            for system in in_turn(bench.options.publishers, number):
                run = _run(KILL, system, number, base.source)
                with _copied(bench, run, base):
                    figures, verdict = measurements.kill(bench, run, facts)
                records.add(KILL, system, figures)
                # Losses and repeats are findings for the relay, but figures for other
                # systems.
                _record_check(
                    records,
                    run,
                    verdict if system == RELAY else _without_losses(verdict),
                )


def _drain_case(bench: Bench, records: RunRecords, case: str) -> None:
    options = bench.options
    systems = (LIMIT, RECVLOGICAL, *options.publishers)
    with _backlog(bench, case, DRAINS[case]) as (base, facts):
        for number in range(options.rounds):
            for system in in_turn(systems, number):
                run = _run(case, system, number, base.source)
                with _copied(bench, run, base):
                    records.add(case, system, _drain(bench, records, run, facts))


def _drain(
    bench: Bench,
    records: RunRecords,
    run: BenchRun,
    facts: Mapping[bytes, CommittedEvent],
) -> Figures:
    if run.system in {LIMIT, RECVLOGICAL}:
        return measurements.decode(bench, run, len(facts))
    figures, verdict = measurements.drain(bench, run, facts)
    _record_check(records, run, verdict)
    return figures


def _steady_case(bench: Bench, records: RunRecords, case: str) -> None:
    options = bench.options
    with _loaded(bench, case) as source:
        for number in range(options.rounds):
            for system in in_turn(options.publishers, number):
                run = replace(_run(case, system, number, source), is_steady=True)
                records.add(case, system, _follow(bench, records, run, STEADIES[case]))


def _follow(bench: Bench, records: RunRecords, run: BenchRun, rate: int) -> Figures:
    source, truth = run.source, f"{run.name}_{_TRUTH}"
    source.settle()
    source.make_slot(run.name)
    source.make_slot(truth)
    _register(bench, run)
    with _cleared(bench, run):
        figures, verdict = measurements.follow_load(bench, run, rate, truth)
    source.drop_slot(truth)
    _record_check(records, run, verdict)
    return figures


# Returns a figure; higher is better.
Measure = Callable[[ConnectorSettings], float]
# Receives the settings that differ from the initial ones, and the figure.
Report = Callable[[ConnectorSettings, float], None]

_THROUGHPUT_CHANGES: Final[Sequence[ConnectorSettings]] = (
    {"max.batch.size": "2048", "max.queue.size": "8192"},
    {"max.batch.size": "16384", "max.queue.size": "65536"},
    {POLL: "1"},
    {POLL: "100"},
    {LINGER: "0"},
    {LINGER: "20"},
    {BATCH: "131072"},
    {BATCH: "1000000"},
    {COMPRESSION: "none"},
    {COMPRESSION: "zstd"},
)
_LATENCY_CHANGES: Final[Sequence[ConnectorSettings]] = (
    {POLL: "5"},
    {LINGER: "0"},
    {LINGER: "3"},
    {IN_FLIGHT: "1"},
    {COMPRESSION: "none"},
    {"max.batch.size": "512"},
)

# A smaller gain may be noise.
_MIN_GAIN: Final = 1.03


def search(
    start: ConnectorSettings,
    changes: Sequence[ConnectorSettings],
    measure: Measure,
    report: Report,
) -> ConnectorSettings:
    """
    Try one change at a time, keep it if it is clearly better, and return the best.

    If a change was kept, the settings found and the initial ones are measured once more
    at the end, so that a lucky run does not decide the result.

    Args:
        start: The settings to begin with.
        changes: The changes to try, in this order.
        measure: Measures settings; a higher figure is better.
        report: Receives each measurement.
    """

    def measured(settings: ConnectorSettings) -> float:
        figure = measure(settings)
        report(dict(settings.items() - start.items()), figure)
        return figure

    best, figure = start, measured(start)
    for change in changes:
        changed = {**best, **change}
        found = measured(changed)
        if found >= figure * _MIN_GAIN:
            best, figure = changed, found
    if best is start:
        return start
    return best if measured(best) >= measured(start) else start


_SEARCHED_DRAIN: Final = "search_drain"
_SEARCHED_STEADY: Final = "search_steady"
_SEARCHED_RATE: Final = STEADIES["steady_2000"]
_MS: Final = 1000.0


def _tuned(bench: Bench, records: RunRecords) -> Bench:
    """Return the context with the best settings found for the kinds of cases in it."""
    throughput, latency = bench.tuning
    if any(case in DRAINS for case in bench.options.cases):
        throughput = _search_drain(bench, records)
    if any(case in STEADIES for case in bench.options.cases):
        latency = _search_steady(bench, records)
    return replace(bench, tuning=Tuning(throughput, latency))


def _search_drain(bench: Bench, records: RunRecords) -> ConnectorSettings:
    numbers = count()
    with _backlog(bench, _SEARCHED_DRAIN, 1) as (base, facts):

        def measure(settings: ConnectorSettings) -> float:
            run = _run(_SEARCHED_DRAIN, DEBEZIUM_TUNED, next(numbers), base.source)
            tried = replace(bench, tuning=Tuning(throughput=settings))
            with _copied(tried, run, base):
                return _drain(tried, records, run, facts)["events_per_s"]

        def report(changed: ConnectorSettings, rate: float) -> None:
            bench.screen.log(f"{_described(changed)}: {rate:,.0f} events/s")

        start, changes = bench.tuning.throughput, _THROUGHPUT_CHANGES
        return _found(bench, search(start, changes, measure, report))


def _search_steady(bench: Bench, records: RunRecords) -> ConnectorSettings:
    numbers = count()
    with _loaded(bench, _SEARCHED_STEADY) as source:

        def measure(settings: ConnectorSettings) -> float:
            run = _run(_SEARCHED_STEADY, DEBEZIUM_TUNED, next(numbers), source)
            tried = replace(bench, tuning=Tuning(latency=settings))
            steady = replace(run, is_steady=True)
            figures = _follow(tried, records, steady, _SEARCHED_RATE)
            return _MS / figures["p99_ms"] if figures else 0.0

        def report(changed: ConnectorSettings, figure: float) -> None:
            p99 = f"p99 {_MS / figure:,.1f} ms" if figure else "not verified"
            bench.screen.log(f"{_described(changed)}: {p99}")

        start, changes = bench.tuning.latency, _LATENCY_CHANGES
        return _found(bench, search(start, changes, measure, report))


def _found(bench: Bench, settings: ConnectorSettings) -> ConnectorSettings:
    bench.screen.log(f"Debezium tuned: {_described(settings)}")
    return settings


def _described(settings: ConnectorSettings) -> str:
    changes = (
        f"{name.removeprefix('producer.override.')}={value}"
        for name, value in settings.items()
    )
    return ", ".join(changes) or "the initial settings"


@contextmanager
def _loaded(bench: Bench, case: str) -> Iterator[BenchSource]:
    """Provide the source of a steady load."""
    with bench_source(bench.environment, f"bench_{case}", bench.clock) as source:
        base = _run(case, _BASE, 0, source)
        publishers.prepare_source(bench, base)
        source.prepare()
        source.drop_slot(base.name)
        yield source


@contextmanager
def _backlog(
    bench: Bench, case: str, per_transaction: int
) -> Iterator[tuple[BenchRun, dict[bytes, CommittedEvent]]]:
    """Commit a backlog after creating a slot; yield the slot's run and the events."""
    rows = bench.options.rows
    with bench_source(bench.environment, f"bench_{case}", bench.clock) as source:
        base = _run(case, _BASE, 0, source)
        publishers.prepare_source(bench, base)
        source.prepare()
        report = bench.screen.begin(f"{case}: writing the backlog", rows)
        source.fill(rows, per_transaction, report)
        truth = replace(base, system=_TRUTH, name=f"bench_{case}_{_TRUTH}")
        source.copy_slot(base.name, truth.name)
        bench.screen.begin(f"{case}: reading what was committed", 0)
        facts = source.facts(truth.name)
        source.drop_slot(truth.name)
        yield base, facts


@contextmanager
def _copied(bench: Bench, run: BenchRun, base: BenchRun) -> Iterator[None]:
    """Give the run a copy of the slot that begins before the backlog."""
    run.source.copy_slot(base.name, run.name)
    _register(bench, run)
    run.source.settle()
    with _cleared(bench, run):
        yield


def _register(bench: Bench, run: BenchRun) -> None:
    """Prepare the source for the run's relay before it is measured."""
    if run.system == RELAY:
        publishers.prepare_source(bench, run)


@contextmanager
def _cleared(bench: Bench, run: BenchRun) -> Iterator[None]:
    """Stop the run's process; remove its slot and topics if the block succeeded."""
    try:
        yield
    finally:
        bench.environment.launcher.stop(run.name)
    run.source.drop_slot(run.name)
    bench.broker.delete_topics(run.name)


def _run(case: str, system: str, number: int, source: BenchSource) -> BenchRun:
    name = f"bench_{case}_{system}_{number}"
    has_same_headers = case == SAME_HEADERS
    return BenchRun(
        system=system, name=name, source=source, has_same_headers=has_same_headers
    )


def _without_losses(verdict: EventCheck) -> EventCheck:
    """Return the check without lost and repeated events."""
    return verdict._replace(lost=0, duplicates=0)

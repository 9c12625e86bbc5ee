"""
The benchmark of the relay: all cases, all rounds, all systems.

``measure_relay`` runs drains and steady loads, ``measure_kill`` the kills. A difference
in any run voids all figures. The caller stops the stack.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from towpath.loadtests.bench import measurements, publishers, result
from towpath.loadtests.bench.context import (
    DRAINS,
    LIMIT,
    RECVLOGICAL,
    RELAY,
    STEADIES,
    Bench,
    BenchRun,
    RunRecords,
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
        BenchError: A system or a part ended, or did not finish in time.
    """
    records = RunRecords(bench)
    with translated():
        bench.broker.date_by_append()
        for case in bench.options.cases:
            if case in DRAINS:
                _drain_case(bench, records, case)
            else:
                _steady_case(bench, records, case)
            _show(bench, records, case)
    return _result(records)


def measure_kill(bench: Bench) -> BenchResult[RelayCase]:
    """
    Kill each publisher in the middle of a drain, once a round.

    Raises:
        BenchError: It did not finish in time.
    """
    records = RunRecords(bench)
    with translated():
        bench.broker.date_by_append()
        _kill_case(bench, records)
        _show(bench, records, KILL)
    return _result(records)


def _show(bench: Bench, records: RunRecords, name: str) -> None:
    """Print a case that has ended, unless there are findings."""
    if not records.findings:
        bench.screen.show(
            result.draw_case(RelayCase(name=name, rounds=records.of_case(name)))
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
                # Losses and repeats are findings for the relay; for others, figures.
                _record_check(
                    records,
                    run,
                    verdict if system == RELAY else _without_repeats(verdict),
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
    with bench_source(bench.environment, f"bench_{case}", bench.clock) as source:
        base = _run(case, _BASE, 0, source)
        publishers.prepare_source(bench, base)
        source.prepare()
        source.drop_slot(base.name)
        for number in range(options.rounds):
            for system in in_turn(options.publishers, number):
                run = replace(_run(case, system, number, source), is_steady=True)
                truth = f"{run.name}_{_TRUTH}"
                source.settle()
                source.make_slot(run.name)
                source.make_slot(truth)
                _register(bench, run)
                with _cleared(bench, run):
                    rate = STEADIES[case]
                    figures, verdict = measurements.follow_load(bench, run, rate, truth)
                source.drop_slot(truth)
                records.add(case, system, figures)
                _record_check(records, run, verdict)


@contextmanager
def _backlog(
    bench: Bench, case: str, per_transaction: int
) -> Iterator[tuple[BenchRun, dict[bytes, CommittedEvent]]]:
    """Commit a backlog behind a slot; yield the slot's run and the committed events."""
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
    """Copy a slot that begins before the backlog for the run."""
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
    """Remove the run's process, slot and topics after the block."""
    try:
        yield
    finally:
        bench.environment.launcher.stop(run.name)
    run.source.drop_slot(run.name)
    bench.broker.delete_topics(run.name)


def _run(case: str, system: str, number: int, source: BenchSource) -> BenchRun:
    name = f"bench_{case}_{system}_{number}"
    return BenchRun(system=system, name=name, source=source)


def _without_repeats(verdict: EventCheck) -> EventCheck:
    return verdict._replace(lost=0, duplicates=0)

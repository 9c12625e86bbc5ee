"""
Rates from the shop's reports, the differences afterwards, and the exit code.
"""

import json
from contextlib import nullcontext

import pytest

from towpath.deploy.bench import cluster, sinks
from towpath.deploy.bench.sinks import SinkBenchOptions, rates_of
from towpath.deploy.demo.table import SinkResult
from towpath.deploy.errors import NotReadyError, StepError
from towpath.deploy.local.part import StateFolder
from towpath.loadtests.bench.sinks.result import CatchUp, Reading
from towpath.schemas.failure import UsageError


def test_samples_still_awaited_at_the_end_count_as_lost():
    """
    A reader that never found its row must not count as a fast one.
    """
    latency = {"count": 9, "p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0}
    seen = {"sinks": {"cache": {"latency": latency, "lost": 1, "awaited": 2}}}
    reading = Reading(samples=9, lost=3, p50_ms=1.0, p95_ms=2.0, p99_ms=3.0)

    assert {"cache": reading} == sinks.readings(seen)


def test_the_rate_is_measured_between_two_reports():
    """
    Sales before the first report do not count.
    """
    before = {"checkouts": 100, "elapsed_s": 10.0}
    after = {"checkouts": 180, "elapsed_s": 14.0}

    assert sinks.per_s(before, after) == 20.0


def test_failed_requests_and_samples_are_counted():
    """
    Failed requests, checkouts that did not start, and failed samples all count.
    """
    sampled = {"errors": {"cache: X": 1, "Y": 2}}

    assert (9, 0) == (
        sinks.failures({"failures": 2, "not_started": 4}, sampled),
        sinks.failures({"failures": 0, "not_started": 0}, {"errors": {}}),
    )


def test_a_process_that_started_or_ended_has_no_share():
    """
    Only a process that ran the whole time has a share.
    """
    before = {"relay": 1.0, "gone": 5.0}
    after = {"relay": 3.0, "new": 7.0}

    assert {"relay": 0.5} == sinks.shares(before, after, 4.0)


@pytest.mark.parametrize("case", ["checkout", "rows"])
def test_a_difference_is_a_finding_with_its_case_and_sink(case):
    """
    A sink that equals the source yields no finding.
    """
    found = [
        SinkResult(name="cache", differences=0),
        SinkResult(name="search", differences=1_000),
    ]

    assert [f"{case} search: 1,000 differences"] == list(sinks.findings(case, found))


def test_a_sink_that_could_not_be_compared_ends_the_benchmark():
    """
    No figure is published without a comparison.
    """
    found = [SinkResult(name="search", failure="it went away")]

    with pytest.raises(StepError, match="it went away"):
        list(sinks.findings("checkout", found))


@pytest.mark.parametrize(
    ("findings", "code", "cases"),
    [((), 0, ["catch_up"]), (("catch_up cache: 1 differences",), 1, [])],
)
def test_one_difference_suppresses_all_figures(
    monkeypatch, capsys, findings, code, cases
):
    """
    The exit code is 0 with cases, or 1 with the differences and no case.
    """
    measured = CatchUp(rows=5, systems={"cache": {"rows_per_s": 1.0}})
    monkeypatch.setattr(sinks, "prepare", lambda *_: None)
    monkeypatch.setattr(sinks, "own_stack", lambda *_, **__: nullcontext())
    monkeypatch.setattr(sinks, "_case", lambda *_: (measured, findings))
    ended = sinks.run_sink_benchmark(
        SinkBenchOptions(cases=("catch_up",), rows=5), keep=False, as_json=True
    )
    report = json.loads(capsys.readouterr().out)

    assert (code, cases, list(findings)) == (
        ended,
        list(report["cases"]),
        report["findings"],
    )


def test_rates_are_separated_by_commas():
    """
    The benchmark runs them in the given order.
    """
    assert (20.0, 40.0, 2.5) == rates_of("20,40, 2.5")


@pytest.mark.parametrize("text", ["20,", "20;40", "0,20", "-1", "nan", "20,inf"])
def test_an_invalid_list_of_rates_is_refused(text):
    """
    An invalid list is reported before anything is started.
    """
    with pytest.raises(UsageError, match="is not a list of rates"):
        rates_of(text)


def test_a_worker_is_ready_once_it_has_registered_itself(tmp_path, monkeypatch):
    """
    An earlier cluster of the same run had a worker with this name and this log.
    """
    monkeypatch.setattr(cluster, "environment", lambda _: {})
    state = StateFolder(tmp_path)
    state.create()
    state.log("w").write_text("Successfully registered with master a\n")
    part = cluster.worker_part(state, "w", 7077, tmp_path)

    with pytest.raises(NotReadyError):
        part.probe()
    with state.log("w").open("a") as log:
        log.write("Successfully registered with master b\n")
    part.probe()

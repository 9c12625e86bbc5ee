"""The case of a million rows: its ratios, its JSON, and its table."""

import io
from array import array

import pytest
from rich.console import Console

from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.snapshot.check import (
    Moments,
    TableCheck,
    TopicTimes,
    live_figures,
    rate_figures,
)
from towpath.loadtests.bench.snapshot.result import (
    FillCase,
    draw,
    draw_load,
    large_table_cost,
)
from towpath.loadtests.bench.snapshot.source import CASE, Load

RELAY = {
    "rows_per_s": 100_000.0,
    "cpu_us_per_row": 10.0,
    "topic_bytes_per_row": 400.0,
    "process_peak_rss_bytes": 2.0**27,
    "idle_p99_ms": 4.0,
    "live_p99_ms": 6.0,
    "live_ratio": 1.5,
}


def rated(rows_per_s: float) -> tuple[dict[str, float], ...]:
    """Make the figures of one round of another system."""
    return ({"rows_per_s": rows_per_s},)


def case(**systems: float) -> FillCase:
    """Make a case; under updates the relay is half as fast as on a quiet server."""
    others = {name: rated(value) for name, value in systems.items()}
    quiet = RELAY | {"rows_per_s": 200_000.0, "cpu_us_per_row": 5.0}
    del quiet["live_p99_ms"]
    return FillCase(
        loads={
            Load.UPDATES: {"relay": (RELAY,), **others},
            Load.QUIET: {"relay": (quiet,), **others},
        }
    )


WHOLE = case(
    copy=1_000_000,
    debezium_stock=20_000,
    debezium_tuned=40_000,
    debezium_read_only=50_000,
    debezium_initial=80_000,
)


def result(one: FillCase, *findings: str) -> BenchResult[FillCase]:
    """Make a result of one case."""
    machine = {"cores": 2}
    return BenchResult(
        rows=9, rounds=1, machine=machine, cases=(one,), findings=findings
    )


def shown(found: BenchResult[FillCase]) -> str:
    """Draw the cases of a verified result, and its last lines."""
    console = Console(file=io.StringIO(), width=140)
    for one in found.cases if found.verified else ():
        for load in one.loads:
            console.print(draw_load(one, load))
    console.print(draw(found))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_ratio_is_the_lower_of_the_two_loads_against_the_faster_variant():
    """
    Debezium is represented by the faster of its two tuned variants.
    """
    document = result(WHOLE).as_json()["cases"][CASE]

    assert (
        (2.0, 5.0, 1.25, 0.1),
        (4.0, 10.0, 2.5, 0.2),
        (6.0, 4.0, 1.5, 10.0, 2**27, 100_000.0),
    ) == (
        tuple(document[name] for name in RATIOS),
        tuple(document["loads"]["quiet"][name] for name in RATIOS),
        tuple(document[name] for name in FIGURES),
    )


RATIOS = ("ratio_to_debezium", "ratio_to_stock", "ratio_to_initial", "share_of_copy")
FIGURES = (
    *("live_p99_ms", "idle_p99_ms", "live_ratio", "cpu_us_per_row"),
    *("peak_rss_bytes", "rows_per_s"),
)


def test_a_missing_measurement_has_no_ratio():
    """
    Without Debezium, the ratios to it are null, but the share of COPY is reported.
    """
    document = result(case(copy=1_000_000)).as_json()["cases"][CASE]

    assert (None, None, None, 0.1) == tuple(document[name] for name in RATIOS)


def test_the_cost_of_a_large_table_is_that_of_the_costlier_load():
    """
    Fifty million rows at 100,000 per second cost 10 us and 400 bytes each.
    """
    document = result(WHOLE).as_json()["cases"][CASE]["paper"]["relay"]
    paper = large_table_cost(100_000.0, 10.0, 400.0)

    assert (0.1389, 0.1389, 20_000_000_000, paper.as_json()) == (
        document["hours"],
        document["cpu_hours"],
        document["topic_bytes"],
        document,
    )


def test_a_finding_suppresses_all_figures():
    """
    Neither the JSON nor the table has figures.
    """
    found = result(WHOLE, "relay: 1 lost")

    assert ({}, False, True, False) == (
        found.as_json()["cases"],
        found.as_json()["verified"],
        "1 lost" in shown(found),
        "100,000" in shown(found),
    )


def test_every_ratio_and_the_extrapolated_costs_are_drawn():
    """
    Each load has a block, and each system's extrapolated cost has a line.
    """
    text = shown(result(WHOLE))
    wanted = (
        "200 updates/s",
        "quiet server",
        "relay / Debezium tuned, rows/s: 2.00",
        "relay / Debezium stock, rows/s: 10.00",
        "relay / bare COPY, rows/s: 0.20",
        "50,000,000 rows (extrapolated",
    )

    assert [] == [one for one in wanted if one not in text]


def test_a_rate_covers_the_table_from_the_first_append_to_the_last():
    """
    A system's start-up time before its first row is shown separately.
    """
    times = TopicTimes(array("q", (3000, 1000, 1500, 2000)), [])
    found = rate_figures(TableCheck(8), times, Moments(0.0, 500.0, 4500.0))

    assert {
        "rows_per_s": 4.0,
        "second_half_per_s": 2.0,
        "from_signal_per_s": 3.2,
        "first_row_s": 0.5,
        "completed_s": 4.0,
        "rows_read": 4.0,
        "stale_rows": 0.0,
        "stale_at_end": 0.0,
        "overtaken_updates": 0.0,
    } == found


def test_update_latency_is_shown_before_and_during_the_snapshot():
    """
    Commits in the warm-up, or after the last row, count toward neither.
    """
    updated_at = [(committed_ms * 1000, at_ms) for committed_ms, at_ms in UPDATES]
    times = TopicTimes(array("q", (1500, 2000)), updated_at)
    found = live_figures(times, Moments(500.0, 1000.0, 2500.0))

    assert pytest.approx((1.5, 1.0, 3.5, 1.0, 3.5 / 1.5)) == tuple(
        found[name]
        for name in (
            *("idle_p99_ms", "idle_samples", "live_p99_ms", "live_samples"),
            "live_ratio",
        )
    )


# Commit and append times in milliseconds.
UPDATES = ((100, 200), (600, 601), (1700, 1703), (2100, 2900))


def test_without_updates_there_is_no_latency():
    """
    A quiet server has no latency, and no ratio of latencies.
    """
    times = TopicTimes(array("q", (1500, 2000)), [])

    assert {} == live_figures(times, Moments(500.0, 1000.0, 2500.0))

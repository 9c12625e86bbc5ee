"""The results of the sink benchmark: the best rate, the ratios, and the output."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.sinks.result import (
    CatchUp,
    Checkout,
    Rate,
    Reading,
    draw,
    draw_case,
)

READING = Reading(samples=40, lost=0, p50_ms=100.0, p95_ms=400.0, p99_ms=900.0)
MET = Rate(
    rate_per_s=20.0,
    reached_per_s=24.0,
    failures=0,
    restarts=0,
    readings={
        "cache": READING,
        "search": replace(READING, p99_ms=2_000.0),
        "warehouse": replace(READING, p99_ms=30_000.0),
    },
    cpu={"relay": 0.25},
)
SLOW = replace(
    MET,
    rate_per_s=40.0,
    reached_per_s=44.0,
    readings={**MET.readings, "cache": replace(READING, p99_ms=1_000.1)},
)
CATCH_UP = CatchUp(
    rows=2_000_000,
    systems={
        "cache": {"rows_per_s": 60_000.0, "memory_bytes": 3.0 * 2**28},
        "hset": {"rows_per_s": 240_000.0},
        "search": {"rows_per_s": 12_000.0, "memory_bytes": 2.0**29},
        "bulk": {"rows_per_s": 16_000.0},
        "warehouse": {"rows_per_s": 90_000.0, "memory_bytes": 2.0**31},
    },
)


def result(*findings: str) -> BenchResult[Checkout | CatchUp]:
    """Make a result of both cases."""
    cases = (Checkout(rates=(SLOW, MET)), CATCH_UP)
    return BenchResult(
        rows=9, rounds=1, machine={"cores": 2}, cases=cases, findings=findings
    )


def shown(found: BenchResult[Checkout | CatchUp]) -> str:
    """Draw the cases of a verified result, and its last lines."""
    drawn = io.StringIO()
    console = Console(file=drawn, width=200)
    for one in found.cases if found.verified else ():
        console.print(draw_case(one))
    console.print(draw(found))
    return drawn.getvalue()


def test_the_highest_rate_that_met_all_budgets_is_the_result():
    """
    A rate that missed one budget is listed, but its figures are not the case's.
    """
    document = Checkout(rates=(MET, replace(MET, rate_per_s=15.0), SLOW)).as_json()

    assert ("checkout", 20.0, 20.0, 900.0, [20.0, 15.0, 40.0], True) == (
        document["name"],
        document["highest_met_rate"],
        document["rate_per_s"],
        document["cache_p99_ms"],
        [rate["rate_per_s"] for rate in document["rates"]],
        document["is_met"],
    )


def test_if_no_rate_met_all_budgets_the_lowest_is_shown():
    """
    Its figures are shown and marked as not met.
    """
    document = Checkout(rates=(replace(SLOW, rate_per_s=80.0), SLOW)).as_json()

    assert (None, 40.0, False, 1_000.1) == (
        document["highest_met_rate"],
        document["rate_per_s"],
        document["is_met"],
        document["cache_p99_ms"],
    )


@pytest.mark.parametrize(
    "flaw",
    [
        {"failures": 1},
        {"restarts": 1},
        {"reached_per_s": 19.9},
        {"readings": {**MET.readings, "search": replace(READING, lost=1)}},
        {"readings": {**MET.readings, "search": replace(READING, p99_ms=None)}},
        {"readings": {name: MET.readings[name] for name in ("cache", "warehouse")}},
    ],
)
def test_a_rate_that_was_not_fully_carried_out_is_not_met(flaw):
    """
    A failure, a restart, a slower load, and lost or missing samples prevent it.
    """
    assert (True, False) == (MET.is_met, replace(MET, **flaw).is_met)


def test_ratios_compare_two_systems_and_memory_is_the_largest():
    """
    A missing measurement has no ratio; each sink's rate has a name of its own.
    """
    document = CATCH_UP.as_json()

    assert (
        ("catch_up", 60_000.0, 12_000.0, 90_000.0),
        (0.25, 0.75, None),
        (2.0**31, 2_000_000),
    ) == (
        (
            document["name"],
            document["cache_rows_per_s"],
            document["search_rows_per_s"],
            document["warehouse_rows_per_s"],
        ),
        (
            document["cache_ratio_to_hset"],
            document["search_ratio_to_bulk"],
            document["warehouse_ratio_to_merge"],
        ),
        (document["memory_bytes"], document["rows"]),
    )


def test_rates_budgets_and_ratios_are_drawn():
    """
    Both cases are drawn, with met budgets and each available ratio.
    """
    text = shown(result())
    expected = (
        *("20 checkouts/s: 24.0 reached, met", "40 checkouts/s: 44.0 reached, not met"),
        "highest rate that met all budgets: 20 checkouts/s",
        *("cores at 20/s: relay 0.25", "backlog of 2,000,000 rows", "60,000"),
        "search / the client's bulk load, rows/s: 0.75",
        *("Verified", "cores 2"),
    )

    assert ([], False) == (
        [part for part in expected if part not in text],
        "one MERGE" in text,
    )


def test_a_difference_suppresses_all_figures():
    """
    After a finding in one case, neither case shows figures, in JSON or on the screen.
    """
    found = result("catch_up search: 1 differences")
    text, actual = shown(found), found.as_json()

    assert (False, {}, ["catch_up search: 1 differences"], True, False) == (
        actual["verified"],
        actual["cases"],
        actual["findings"],
        "catch_up search: 1 differences" in text,
        any(figure in text for figure in ("60,000", "checkouts/s", "0.75")),
    )

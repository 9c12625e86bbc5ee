"""The JSON of a benchmark, and the table for readers."""

import io

import pytest
from rich.console import Console

from towpath.loadtests.bench.context import CASES, chosen_cases, in_turn
from towpath.loadtests.bench.result import (
    PROCESSES,
    BenchResult,
    RelayCase,
    draw,
    draw_case,
)

MACHINE = {"processor": "p", "cores": 2}


def drains() -> RelayCase:
    """Make a case of two rounds."""
    return RelayCase(
        name="drain_1",
        rounds={
            "limit": ({"events_per_s": 200.0}, {"events_per_s": 400.0}),
            "relay": ({"events_per_s": 110.0}, {"events_per_s": 130.0}),
            "debezium_tuned": ({"events_per_s": 40.0}, {"events_per_s": 20.0}),
        },
    )


def steady() -> RelayCase:
    """Make a case of a steady load, without Debezium."""
    return RelayCase(
        name="steady_500", rounds={"relay": ({"p50_ms": 2.0, "p99_ms": 4.0},)}
    )


def result(*findings: str) -> BenchResult:
    """Make the result of both cases."""
    return BenchResult(
        rows=1000,
        rounds=2,
        machine=MACHINE,
        cases=(drains(), steady()),
        findings=findings,
    )


def shown(found: BenchResult) -> str:
    """Draw the cases of a verified result, and its last lines."""
    console = Console(file=io.StringIO(), width=140)
    for one in found.cases if found.verified else ():
        console.print(draw_case(one))
    console.print(draw(found))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_verified_result_has_every_figure_and_ratio():
    """
    Each system has its spreads, and the medians have ratios.
    """
    document = result().as_json()

    assert (
        (True, [], ["drain_1", "steady_500"], MACHINE),
        {"min": 110.0, "median": 120.0, "max": 130.0},
        ("events_per_s", 0.4, 4.0, None),
        ("p99_ms", None, None),
    ) == (
        (
            document["verified"],
            document["findings"],
            list(document["cases"]),
            document["machine"],
        ),
        document["cases"]["drain_1"]["systems"]["relay"]["events_per_s"],
        tuple(
            document["cases"]["drain_1"][name]
            for name in (
                "ratio_of",
                "ratio_to_limit",
                "ratio_to_debezium",
                "ratio_to_debezium_stock",
            )
        ),
        tuple(
            document["cases"]["steady_500"][name]
            for name in ("ratio_of", "ratio_to_limit", "ratio_to_debezium")
        ),
    )


def test_a_result_with_a_finding_has_no_figures():
    """
    Neither the JSON nor the screen has figures, and both name the finding.
    """
    found = result("bench_drain_1_relay_0: 3 lost")
    text = shown(found)

    assert (
        (False, {}, ["bench_drain_1_relay_0: 3 lost"]),
        (True, False, False),
    ) == (
        tuple(found.as_json()[name] for name in ("verified", "cases", "findings")),
        ("3 lost" in text, "120" in text, "events/s" in text),
    )


def test_the_table_shows_medians_and_ratios():
    """
    It has medians with minimum and maximum, and the relay's ratios to other systems.
    """
    text = shown(result())

    assert [] == [
        text_part
        for text_part in (
            "120 110..130",
            "relay / the limit, events_per_s: 0.40",
            "4.0",
        )
        if text_part not in text
    ]


def test_a_kill_has_no_ratios():
    """
    It has no figure that a ratio could compare.
    """
    figures = ({"killed_at_events": 10.0, "lost": 0.0},)
    document = RelayCase(name="kill_1", rounds={"relay": figures}).as_json()

    assert {None} == {value for name, value in document.items() if name != "systems"}


def test_the_columns_of_processes_have_different_titles():
    """
    Each memory column names its process.
    """
    titles = [column.title for column in PROCESSES]

    assert sorted(set(titles)) == sorted(titles)


def test_the_cases_have_stable_names():
    """
    Scripts read the figures by these names.
    """
    assert (
        "drain_1",
        "drain_1_headers",
        "drain_100",
        "steady_500",
        "steady_2000",
        "steady_5000",
    ) == CASES


def test_the_order_of_systems_alternates():
    """
    No system always runs first on a cold machine.
    """
    assert [("a", "b"), ("b", "a"), ("a", "b")] == [
        in_turn(("a", "b"), number) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("named", "with_debezium", "runs"),
    [
        ((), False, set(CASES) - {"drain_1_headers"}),
        ((), True, set(CASES)),
        (("drain_1_headers", "drain_1"), False, {"drain_1", "drain_1_headers"}),
    ],
)
def test_a_case_for_debezium_runs_with_it_or_by_name(named, with_debezium, runs):
    """
    Without Debezium, drain_1 already measures the relay's own headers.
    """
    assert chosen_cases(named, with_debezium=with_debezium) == tuple(
        case for case in CASES if case in runs
    )

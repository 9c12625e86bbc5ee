"""The verdict on a rate: rising backlogs, the bottleneck, and the next rate."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from towpath.loadtests.bench.result import BenchResult
from towpath.loadtests.bench.sinks.result import Reading
from towpath.loadtests.bench.sustained import (
    CHECKOUT,
    RISING_SHARE,
    BacklogTrend,
    Cores,
    SustainedCase,
    SustainedRate,
    draw,
    draw_rate,
    next_rate,
)
from towpath.loadtests.load.samples import Latency

FLAT = BacklogTrend(((0.0, 50.0), (5.0, 50.0), (10.0, 50.0)), 100.0)
READING = Reading(samples=9, lost=0, p50_ms=300.0, p95_ms=700.0, p99_ms=900.0)


def rate(per_s=20.0, **changed):
    """Make a rate that is sustained unless something is changed."""
    usual = SustainedRate(
        rate_per_s=per_s,
        reached_per_s=per_s,
        rows_per_s=per_s * 15,
        events_per_s=per_s * 8,
        failures=0,
        restarts=0,
        readings={"cache": READING},
        saga=Latency(40, 800.0, 1_900.0, 2_500.0),
        backlogs={"saga": FLAT, "warehouse": FLAT},
        cores=Cores(count=2, used=1.2, parts={"relay": 0.2, "serving": 0.7}),
    )
    return replace(usual, **changed)


def test_the_slope_is_that_of_the_least_squares_line():
    """
    A rise of three units per second, of a hundred that arrive, is 3 %.
    """
    backlog = BacklogTrend(((0.0, 10.0), (5.0, 25.0), (10.0, 40.0)), 100.0)

    assert (3.0, 0.03, False) == (backlog.slope, backlog.growth, backlog.is_rising)


def test_a_sawtooth_does_not_count_as_rising():
    """
    A sink that commits every ten seconds has a backlog of up to ten seconds' records.
    """
    teeth = tuple((float(at_s), 100.0 * (at_s % 10)) for at_s in range(0, 300, 5))

    assert not BacklogTrend(teeth, 100.0).is_rising


def test_a_rise_within_the_scatter_does_not_count():
    """
    The measured minute begins in a trough of the sawtooth and ends on a peak.
    """
    teeth = tuple((float(at_s), 100.0 * (at_s % 18)) for at_s in range(0, 60, 5))
    backlog = BacklogTrend(teeth, 100.0)

    assert backlog.growth > RISING_SHARE
    assert not backlog.is_rising


def test_a_part_that_falls_behind_by_a_tenth_cannot_keep_up():
    """
    The rise is found even under the same sawtooth.
    """
    rising = tuple(
        (float(at_s), 100.0 * (at_s % 10) + 10.0 * at_s) for at_s in range(0, 300, 5)
    )
    backlog = BacklogTrend(rising, 100.0)

    assert backlog.is_rising
    assert 0.1 == pytest.approx(backlog.growth, abs=0.02)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"reached_per_s": 18.0}, "only 18.0/s was reached"),
        ({"failures": 1}, "1 request or read failed"),
        ({"failures": 3}, "3 requests or reads failed"),
        ({"restarts": 1}, "restarts of parts: 1"),
        ({"readings": {"cache": replace(READING, lost=1)}}, "1 sample was lost"),
        ({"readings": {"cache": replace(READING, lost=2)}}, "2 samples were lost"),
        (
            {"backlogs": {"saga": BacklogTrend(((0.0, 0.0), (10.0, 20.0)), 20.0)}},
            "the backlog of saga rose by 10% of its input",
        ),
    ],
)
def test_a_rate_with_one_reason_is_not_sustained(changed, reason):
    """
    Each reason alone is enough, and is named.
    """
    found = rate(**changed)

    assert (False, [reason]) == (found.is_sustained, list(found.reasons()))


def test_a_rate_without_a_reason_is_sustained():
    """
    An arrival just after the measured time does not count as missing.
    """
    assert (True, []) == (rate().is_sustained, list(rate(reached_per_s=19.6).reasons()))


@pytest.mark.parametrize(
    ("cores", "backlogs", "bound"),
    [
        (1.95, {}, "the CPU: 1.95 of 2 cores used, most of them by serving 0.70"),
        (
            1.2,
            {"saga": BacklogTrend(((0.0, 0.0), (10.0, 90.0)), 20.0), "search": FLAT},
            "saga, with 1.20 of 2 cores used",
        ),
        (1.2, {"search": FLAT}, "nothing yet: 1.20 of 2 cores used"),
    ],
)
def test_the_bottleneck_is_the_processor_or_a_part_that_falls_behind(
    cores, backlogs, bound
):
    """
    Full cores take precedence, because they slow down every part.
    """
    parts = {"relay": 0.2, "serving": 0.7}
    used = Cores(count=2, used=cores, parts=parts)
    found = rate(cores=used, backlogs=backlogs).bound()

    assert found.startswith(bound)


def test_other_processes_are_counted_separately():
    """
    Their processor time is the machine's without that of the parts.
    """
    assert 0.3 == pytest.approx(rate().cores.others)


STEPS = (10.0, 20.0, 40.0)


@pytest.mark.parametrize(
    ("outcomes", "following"),
    [
        ([], 10.0),
        ([(10.0, True)], 20.0),
        ([(10.0, True), (20.0, True), (40.0, True)], None),
        ([(10.0, True), (20.0, False)], 15.0),
        ([(10.0, True), (20.0, False), (15.0, True)], 17.5),
        ([(10.0, True), (20.0, False), (15.0, False)], 12.5),
        ([(10.0, True), (20.0, False), (15.0, True), (17.5, False)], None),
        ([(10.0, False)], None),
    ],
)
def test_rates_step_up_and_then_bisect(outcomes, following):
    """
    The search bisects at most twice, and stops if the first step was not sustained.
    """
    found = [rate(per_s, failures=0 if good else 1) for per_s, good in outcomes]

    assert following == next_rate(found, STEPS, refine=2)


def test_the_highest_sustained_rate_is_the_figure_of_the_case():
    """
    A higher rate that was not sustained is listed with its reasons.
    """
    rates = (rate(10.0), rate(20.0), rate(40.0, failures=1))
    case = SustainedCase(name=CHECKOUT, rates=rates)
    document = case.as_json()

    assert (20.0, 300.0) == (
        document["sustained_rate"],
        document["sustained_rows_per_s"],
    )
    assert [True, True, False] == [one["is_sustained"] for one in document["rates"]]
    assert (True, True) == tuple(
        document["rates"][0][f"cache_is_{budget}"] for budget in ("required", "wanted")
    )
    assert {"first": 50.0, "last": 50.0, "growth": 0.0} == document["rates"][0][
        "backlogs"
    ]["saga"]


def drawn(found):
    """Draw a renderable as text."""
    console = Console(width=140, file=io.StringIO())
    console.print(found)
    return console.file.getvalue()


def test_a_rate_is_drawn_with_its_backlogs_and_its_bottleneck():
    """
    The text shows the lags, the saga's times, the used cores and the reasons.
    """
    text = drawn(draw_rate(rate(failures=1), "checkouts/s"))

    assert "20 checkouts/s: 20.0 reached, 300 row changes/s, 160 events/s" in text
    assert "not sustained" in text
    assert "1 request or read failed" in text
    assert "checkout to settled: p50 800 ms, p95 1,900 ms, 40 orders" in text
    assert "bound: nothing yet" in text


def test_the_last_lines_have_the_highest_rate_unless_there_is_a_finding():
    """
    A result with a finding has no figures.
    """
    case = SustainedCase(name=CHECKOUT, rates=(rate(),))
    machine = {"cores": 2}
    good = BenchResult(rows=5, rounds=1, machine=machine, cases=(case,))
    bad = replace(good, findings=("checkout cache: 1 orders are not final",))

    assert "highest sustained rate: 20 checkouts/s, 300 row changes/s" in drawn(
        draw(good)
    )
    assert "highest sustained rate" not in drawn(draw(bad))
    assert {} == bad.as_json()["cases"]

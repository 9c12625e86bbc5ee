"""A run over time, from cumulative statistics."""

from towpath.loadtests.load.series import (
    Series,
    Step,
    Totals,
    percentile,
    step_width_s,
)

ROW = ("checkout", "POST")


def test_a_step_is_what_was_added_since_the_one_before():
    """
    Rates and percentiles are those of the step, not of the whole run until then.
    """
    series = Series()
    series.add(1.0, {ROW: Totals(2, 0, {10: 2})})
    series.add(2.0, {ROW: Totals(6, 1, {10: 2, 90: 4})})

    assert [
        Step(1.0, ROW, 2.0, 0.0, 10.0, 10.0, 10.0),
        Step(2.0, ROW, 4.0, 1.0, 90.0, 90.0, 90.0),
    ] == series.steps()


def test_statistics_that_were_reset_begin_again():
    """
    Earlier counts stay; no count is negative.
    """
    series = Series()
    series.add(1.0, {ROW: Totals(5, 0, {10: 5})})
    series.add(2.0, {ROW: Totals(3, 0, {20: 3})})

    assert [5.0, 3.0] == [step.per_s for step in series.steps()]


def test_a_long_run_has_wide_steps():
    """
    A plot has some forty steps, of whole seconds.
    """
    assert (1.0, 2.0, 90.0) == tuple(map(step_width_s, (8.0, 61.0, 3_600.0)))


def test_percentiles_of_counted_times_are_times_that_were_seen():
    """
    By nearest rank, as those of single samples.
    """
    times_ms = {1: 50, 7: 45, 30: 5}

    assert (1.0, 7.0, 30.0, None) == (
        percentile(times_ms, 0.50),
        percentile(times_ms, 0.95),
        percentile(times_ms, 0.99),
        percentile({}, 0.5),
    )

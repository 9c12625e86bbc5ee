"""A run over time, computed from cumulative statistics."""

from towpath.loadtests.load.series import (
    Series,
    Step,
    Totals,
    percentile,
    step_width_s,
)

ROW = ("checkout", "POST")


def test_a_step_contains_what_was_added_since_the_previous_one():
    """
    Its rates and percentiles cover only the step, not the whole run so far.
    """
    series = Series()
    series.add(1.0, {ROW: Totals(2, 0, {10: 2})})
    series.add(2.0, {ROW: Totals(6, 1, {10: 2, 90: 4})})

    assert [
        Step(1.0, ROW, 2.0, 0.0, 10.0, 10.0, 10.0),
        Step(2.0, ROW, 4.0, 1.0, 90.0, 90.0, 90.0),
    ] == series.steps(2.0)


def test_statistics_continue_after_a_reset():
    """
    Earlier counts are kept, and no count is negative.
    """
    series = Series()
    series.add(1.0, {ROW: Totals(5, 0, {10: 5})})
    series.add(2.0, {ROW: Totals(3, 0, {20: 3})})

    assert [5.0, 3.0] == [step.per_s for step in series.steps(2.0)]


def test_a_step_without_requests_has_a_rate_of_0():
    """
    A plot then shows outages, and the true rates of rare requests.
    """
    series = Series()
    for at_s, requests in ((1.0, 4), (2.0, 4), (3.0, 6), (4.0, 6)):
        series.add(at_s, {ROW: Totals(requests, 0, {10: requests})})
    steps = series.steps(4.0)

    assert [(1.0, 4.0), (2.0, 0.0), (3.0, 2.0), (4.0, 0.0)] == [
        (step.at_s, step.per_s) for step in steps
    ]
    assert (None, None, None) == steps[1][4:]


def test_an_outage_at_the_end_of_a_run_is_shown():
    """
    The last sample may be later than the run's end, as may the last response.
    """
    series = Series()
    for at_s in (1.0, 2.0, 3.0, 60.0):
        series.add(at_s, {ROW: Totals(2, 0, {10: 2})})
    late = Series()
    late.add(1.0, {ROW: Totals(4, 0, {10: 4})})
    late.add(3.0, {ROW: Totals(6, 0, {10: 6})})

    assert [(1.0, 2.0), (2.0, 0.0), (3.0, 0.0), (4.0, 0.0)] == [
        (step.at_s, step.per_s) for step in series.steps(3.5)
    ]
    assert [(1.0, 4.0), (3.0, 1.0)] == [
        (step.at_s, step.per_s) for step in late.steps(1.5)
    ]


def test_a_rate_is_computed_over_the_sampled_time():
    """
    The last step is shorter than the others, and a late sample covers more time.
    """
    series = Series()
    for at_s in (*range(1, 95), 95):
        series.add(float(at_s), {ROW: Totals(10 * at_s, 0, {10: 10 * at_s})})
    late = Series()
    late.add(1.25, {ROW: Totals(10, 0, {10: 10})})

    assert {10.0} == {step.per_s for step in series.steps(95.0)}
    assert [(2.0, 8.0)] == [(step.at_s, step.per_s) for step in late.steps(1.25)]


def test_a_long_run_has_wide_steps():
    """
    A plot has about forty steps of whole seconds.
    """
    assert (1.0, 2.0, 90.0) == tuple(map(step_width_s, (8.0, 61.0, 3_600.0)))


def test_percentiles_of_counted_times_are_observed_times():
    """
    They are nearest-rank values, like those of single samples.
    """
    times_ms = {1: 50, 7: 45, 30: 5}

    assert (1.0, 7.0, 30.0, None) == (
        percentile(times_ms, 0.50),
        percentile(times_ms, 0.95),
        percentile(times_ms, 0.99),
        percentile({}, 0.5),
    )

"""The schedule of an open loop."""

from towpath.loadtests.load.shapes import Schedule


def test_due_times_depend_only_on_the_rate():
    """
    A late arrival does not delay the following ones: those due begin at once.
    """
    schedule = Schedule(100.0)
    waits = [schedule.next_in_s(now_s, 0.5) for now_s in (100.0, 101.4, 101.4, 101.4)]

    assert [0.5, 0.0, 0.1, 0.6] == [round(wait_s, 3) for wait_s in waits]


def test_lateness_is_reported_beyond_the_jitter_of_the_scheduler():
    """
    It is measured from the due time, and ignored below a few milliseconds.
    """
    schedule = Schedule(100.0)
    schedule.next_in_s(100.0, 1.0)

    assert (0.0, 0.25) == (schedule.lateness_s(101.02), schedule.lateness_s(101.25))

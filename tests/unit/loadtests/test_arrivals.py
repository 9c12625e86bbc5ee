"""The schedule of an open loop."""

from towpath.loadtests.load.shapes import Schedule


def test_due_moments_follow_from_the_rate_alone():
    """
    An arrival that begins late moves none behind it: those that are due come at once.
    """
    schedule = Schedule(100.0)
    waits = [schedule.next_in_s(now_s, 0.5) for now_s in (100.0, 101.4, 101.4, 101.4)]

    assert [0.5, 0.0, 0.1, 0.6] == [round(wait_s, 3) for wait_s in waits]


def test_lateness_is_reported_beyond_a_schedulers_jitter():
    """
    It counts from the due moment, above a few milliseconds.
    """
    schedule = Schedule(100.0)
    schedule.next_in_s(100.0, 1.0)

    assert (0.0, 0.25) == (schedule.lateness_s(101.02), schedule.lateness_s(101.25))

"""The processor time and memory of processes, as reported by the kernel."""

import os

from towpath.loadtests.bench.machine import ProcessWatch, per_event_us

UNUSED_PID = 2**22 + 1


def test_a_process_has_its_cpu_time_and_its_peak_memory():
    """
    A new process counts in full; a missing one has no figures.
    """
    watch = ProcessWatch()
    watch.add("process", os.getpid(), is_new=True)
    watch.add("walsender", UNUSED_PID, is_new=True)
    watch.add("nobody", None, is_new=True)
    watch.sample()
    figures = watch.figures()

    assert (
        {
            *("observer_cpu_s", "observer_peak_rss_bytes"),
            *("process_cpu_s", "process_peak_rss_bytes"),
        },
        True,
        True,
    ) == (
        set(figures),
        figures["process_cpu_s"] > figures["observer_cpu_s"],
        figures["process_peak_rss_bytes"] > 1024 * 1024,
    )


def test_after_a_restart_of_the_watch_only_later_time_counts():
    """
    A process that has used no time since then has a CPU time of zero.
    """
    watch = ProcessWatch()
    watch.add("process", os.getpid(), is_new=True)
    watch.sample()
    watch.restart()
    figures = watch.figures()

    assert (0.0, True) == (
        figures["process_cpu_s"],
        figures["process_peak_rss_bytes"] > 0,
    )


def test_time_per_event_is_in_microseconds():
    """
    Two seconds for a million events are two microseconds each; no events cost none.
    """
    assert (2.0, 0.0) == (per_event_us(2.0, 1_000_000), per_event_us(2.0, 0))

"""The summary of all benchmarks: each figure beside another one from its run."""

import pytest

from towpath.loadtests.bench import summary


def spread(median):
    """Return the spread of three rounds."""
    return {"min": 0.9 * median, "median": median, "max": 1.1 * median}


def drained(rate, cpu=None):
    """Return the spreads of a drain."""
    found = {"events_per_s": spread(rate)}
    return found if cpu is None else found | {"cpu_us_per_event": spread(cpu)}


DOCUMENTS = {
    "relay": {
        "cases": {
            "drain_100": {
                "systems": {
                    "relay": drained(90_000.0, 14.0),
                    "limit": drained(450_000.0),
                    "debezium_tuned": drained(30_000.0, 70.0),
                }
            },
            "steady_2000": {
                "systems": {
                    "relay": {"p99_ms": spread(8.0)},
                    "debezium_tuned": {"p99_ms": spread(32.0)},
                }
            },
        }
    },
    "snapshot": {
        "cases": {
            "million_rows": {
                "loads": {
                    "quiet": {
                        "systems": {
                            "relay": {"rows_per_s": spread(100_000.0)},
                            "copy": {"rows_per_s": spread(1_000_000.0)},
                        }
                    }
                },
                "live_p99_ms": 24.0,
                "idle_p99_ms": 4.0,
            }
        }
    },
    "outbox": {
        "cases": {
            "commits": {
                "systems": {
                    "none": {"commits_per_s": spread(5_000.0)},
                    "keep": {"commits_per_s": spread(3_000.0)},
                }
            }
        }
    },
    "sinks": {
        "cases": {
            "catch_up": {
                "systems": {
                    "cache": {"rows_per_s": 80_000.0},
                    "hset": {"rows_per_s": 200_000.0},
                }
            }
        }
    },
    "checkout": {
        "cases": {
            "checkout": {
                "name": "checkout",
                "wanted_ms": {"cache": 1_000.0},
                "rates": [{"rate_per_s": 10.0, "cache_p99_ms": 500.0}],
            }
        }
    },
}


def test_each_figure_is_compared_with_others_from_its_run():
    """
    A ratio above 1 is an advantage: ours/theirs for rates, theirs/ours for times.
    """
    found = [
        (line.measure, line.other, round(line.ratio, 2))
        for line in summary.lines(DOCUMENTS)
    ]

    drain = "drain, rows per transaction: 100, "
    assert found == [
        (f"{drain}events/s", "the server's decoding alone", 0.2),
        (f"{drain}events/s", "Debezium tuned", 3.0),
        (f"{drain}CPU us per event", "Debezium tuned", 5.0),
        ("2,000 transactions/s, commit to append p99 ms", "Debezium tuned", 4.0),
        ("snapshot, quiet, rows/s", "a bare COPY", 0.1),
        (
            "snapshot, updates meanwhile, commit to append p99 ms",
            "no snapshot",
            0.17,
        ),
        ("outbox, keep, commits/s", "the transaction without an event", 0.6),
        ("cache, backlog, rows/s", "HSET without a guard", 0.4),
        ("10 checkouts/s, cache, p99 ms", "the goal", 2.0),
    ]


def test_the_table_has_a_row_for_each_line():
    """
    Rates have no decimals; times have one.
    """
    first, _, *rows = summary.markdown(summary.lines(DOCUMENTS)).splitlines()

    assert len(rows) == len(summary.lines(DOCUMENTS))
    assert first == f"| {' | '.join(summary.HEADER)} |"
    assert rows[1].endswith("| 90,000 | Debezium tuned | 30,000 | 3.00 |")
    assert rows[3].endswith("| 8.0 | Debezium tuned | 32.0 | 4.00 |")


# The plot's engine takes seconds to start on a busy machine.
@pytest.mark.timeout(60)
def test_the_plot_names_each_line():
    """
    The plot is an SVG with the measure of each line as text.
    """
    drawn = summary.plot(summary.lines(DOCUMENTS))

    assert drawn.startswith("<svg")
    for line in summary.lines(DOCUMENTS):
        assert line.measure in drawn


@pytest.mark.parametrize("name", summary.BENCHMARKS)
def test_a_benchmark_with_findings_has_no_line(name):
    """
    Its document has no cases, so only the other benchmarks have lines.
    """
    assert summary.lines({name: {"verified": False, "cases": {}}}) == []
    assert summary.lines({name: {}}) == []

"""Debezium's settings: its defaults, or tuned for the measurement."""

from types import SimpleNamespace

import pytest

from towpath.loadtests.bench.context import DEBEZIUM_STOCK, DEBEZIUM_TUNED, BenchRun
from towpath.loadtests.bench.publishers import connector

SOURCE = SimpleNamespace(dsn="postgresql://postgres@127.0.0.1:20001/bench_drain_1")
TUNED = {"max.batch.size", "poll.interval.ms", "producer.override.linger.ms"}


def told(system: str, *, is_steady: bool = False) -> dict[str, str]:
    """Return the settings of a run."""
    return connector(
        BenchRun(system=system, name="bench_x_0", source=SOURCE, is_steady=is_steady)
    )


def test_the_connector_reads_the_runs_slot_and_writes_its_topic():
    """
    Address, slot and topic are the run's own.
    """
    settings = told(DEBEZIUM_STOCK)

    assert (
        ("127.0.0.1", "20001", "postgres", "bench_drain_1"),
        "bench_x_0",
        "bench_x_0.event.${routedByValue}",
    ) == (
        tuple(
            settings[f"database.{n}"] for n in ("hostname", "port", "user", "dbname")
        ),
        settings["slot.name"],
        settings["transforms.outbox.route.topic.replacement"],
    )


@pytest.mark.parametrize(
    ("system", "is_steady", "tuned"),
    [
        (DEBEZIUM_STOCK, False, set()),
        (DEBEZIUM_STOCK, True, set()),
        (DEBEZIUM_TUNED, False, TUNED),
        (DEBEZIUM_TUNED, True, TUNED - {"max.batch.size"}),
    ],
)
def test_stock_settings_are_defaults_and_tuned_ones_fit_the_case(
    system, is_steady, tuned
):
    """
    A drain uses large batches; a steady load uses no linger.
    """
    assert tuned == TUNED & set(told(system, is_steady=is_steady))

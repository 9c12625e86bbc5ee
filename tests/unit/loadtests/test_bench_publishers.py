"""Debezium's settings: its defaults, or tuned for the measurement."""

from types import SimpleNamespace

import pytest

from towpath.loadtests.bench.context import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    BenchRun,
    Tuning,
)
from towpath.loadtests.bench.publishers import connector

SOURCE = SimpleNamespace(dsn="postgresql://postgres@127.0.0.1:20001/bench_drain_1")
TUNED = {"max.batch.size", "poll.interval.ms", "producer.override.linger.ms"}


def settings_of(system: str, **run: bool) -> dict[str, str]:
    """Return the settings of a run."""
    return connector(
        BenchRun(system=system, name="bench_x_0", source=SOURCE, **run), Tuning()
    )


def test_the_connector_reads_the_runs_slot_and_writes_its_topics():
    """
    Address, slot and topics are those of the run.
    """
    settings = settings_of(DEBEZIUM_STOCK)

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
    A drain uses large batches; a steady load lingers for a millisecond.
    """
    assert tuned == TUNED & set(settings_of(system, is_steady=is_steady))


def test_debezium_sends_the_relays_headers_in_a_single_case():
    """
    It sends the event id, as always, and four placed headers, but no others.
    """
    placement = "transforms.outbox.table.fields.additional.placement"
    usual, same = (
        settings_of(DEBEZIUM_TUNED, has_same_headers=is_same)
        for is_same in (False, True)
    )

    assert [1, 4] == [len(one[placement].split(",")) for one in (usual, same)]
    assert "false" == same["extended.headers.enabled"]
    assert "extended.headers.enabled" not in usual


def test_found_settings_replace_the_default_tuning():
    """
    Tuned Debezium runs with the result of a search.
    """
    found = Tuning(throughput={"max.batch.size": "16384"}, latency={})
    run = BenchRun(system=DEBEZIUM_TUNED, name="bench_x_0", source=SOURCE)
    settings = connector(run, found)

    assert settings["max.batch.size"] == "16384"
    assert not TUNED - {"max.batch.size"} & set(settings)

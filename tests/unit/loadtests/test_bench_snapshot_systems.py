"""Debezium's settings for a snapshot: its defaults, or tuned ones."""

from types import SimpleNamespace

import pytest

from towpath.loadtests.bench.context import DEBEZIUM_STOCK, DEBEZIUM_TUNED
from towpath.loadtests.bench.snapshot.source import (
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
    FillRun,
    Load,
    snapshot_systems,
)
from towpath.loadtests.bench.snapshot.systems import connector

SOURCE = SimpleNamespace(dsn="postgresql://postgres@127.0.0.1:20001/bench_fill")


def run(system: str) -> FillRun:
    """Make a run of a system."""
    return FillRun(system=system, name="x", source=SOURCE, load=Load.QUIET)


@pytest.mark.parametrize(
    ("system", "chunk", "batch", "read_only", "mode", "threads"),
    [
        (DEBEZIUM_STOCK, None, None, None, "no_data", None),
        (DEBEZIUM_TUNED, "20000", "8192", None, "no_data", None),
        (DEBEZIUM_READ_ONLY, "20000", "8192", "true", "no_data", None),
        (DEBEZIUM_INITIAL, None, "8192", None, "initial", "4"),
    ],
)
def test_stock_keeps_the_defaults_and_the_other_variants_are_tuned(
    system, chunk, batch, read_only, mode, threads
):
    """
    All variants write decimals as strings.
    """
    found = connector(run(system))

    assert (chunk, batch, read_only, mode, threads, "string", "x", "bench_fill") == (
        found.get("incremental.snapshot.chunk.size"),
        found.get("max.batch.size"),
        found.get("read.only"),
        found["snapshot.mode"],
        found.get("snapshot.max.threads"),
        found["decimal.handling.mode"],
        found["slot.name"],
        found["database.dbname"],
    )


def test_every_system_writes_the_same_table_topic():
    """
    The topic's name does not depend on the system.
    """
    systems = snapshot_systems(with_debezium=True)

    assert ({"x.bench.item"}, ["copy", "relay"], 6) == (
        {run(system).topic for system in systems},
        list(snapshot_systems(with_debezium=False)),
        len(systems),
    )

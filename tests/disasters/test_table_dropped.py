"""Somebody drops a warehouse table: docs/disasters/sink-lost.md."""

import pytest

from support.disaster import print_lines
from towpath.settings import load
from towpath.sinks.targets.warehouse.client import open_catalog

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_dropped_table_is_recreated_and_filled(disaster):
    """
    The sink detects the loss at its next batch, and requests the rows.
    """
    with disaster.running("warehouse"):
        (sink,) = load(disaster.config, {}).sink
        table = sink.route[0].name
        disaster.step("drop the table of the orders")
        catalog = open_catalog(sink)
        catalog.drop_table(table)
        catalog.close()
        print_lines(f"DROP TABLE {table}")
        disaster.wait_for_driver_log(
            "warehouse table lost rows: a snapshot of them is requested"
        )
        disaster.towpath("sink", "list")
        disaster.wait_for_snapshots()
        disaster.towpath("snapshot", "list")
        disaster.verify("warehouse")

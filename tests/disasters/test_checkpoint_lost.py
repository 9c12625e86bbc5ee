"""A sink loses its checkpoint: docs/disasters/sink-lost.md."""

import shutil

import pytest

from support.disaster import print_lines

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_driver_without_its_checkpoint_converges(disaster):
    """
    The driver rereads all records that the topics retain; guards reject the old ones.
    """
    with disaster.running():
        folder = disaster.folder / "state" / "sinks" / "cache"
        disaster.step("the driver dies, and the sink's checkpoint is lost")
        disaster.stop_driver()
        print_lines("rm -r state/sinks/cache/checkpoint")
        shutil.rmtree(folder / "checkpoint")
        disaster.start_driver()
        disaster.wait_for_driver_log("sink query recovers before it starts")
        disaster.verify()

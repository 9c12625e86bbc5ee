"""Relay and driver move to this release in turn: docs/disasters/rolling-upgrade.md."""

import json
import signal
from collections import defaultdict
from itertools import pairwise

import pytest

from support.disaster import PATIENCE_S, print_lines
from support.older_release import OlderRelease
from support.topics import headers_of
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]

# Deletes no longer have tombstones.
NO_TOMBSTONES = """
[relay.rows]
tombstones = false
"""


@pytest.fixture
def older(tmp_path_factory) -> OlderRelease:
    """Provide the code of version 0.1.0."""
    return OlderRelease(tmp_path_factory.mktemp("older"))


def await_progress(disaster, part):
    """Wait until a relay has published events that are written from now on."""
    written = len(disaster.writer.events)
    until(
        lambda: len(set(disaster.published_events())) > written,
        f"the {part} publishes events written now",
        timeout_s=PATIENCE_S,
    )


def await_applied(disaster, part):
    """Wait until a driver has applied more records than before the call."""
    before = disaster.applied_offsets("cache")
    until(
        lambda: disaster.applied_offsets("cache") > before,
        f"the {part} applies more records",
        timeout_s=PATIENCE_S,
    )


def has_tombstones(disaster):
    """Return whether the newest delete before a partition's end has a tombstone."""
    partitions = defaultdict(list)
    for record in disaster.records("shop.orders"):
        partitions[record.partition()].append(record)
    deletes = [
        followed
        for records in partitions.values()
        for followed in pairwise(sorted(records, key=lambda each: each.offset()))
        if followed[0].value() and json.loads(followed[0].value())["op"] == "d"
    ]
    newest = max(deletes, key=lambda pair: headers_of(pair[0])["position"])
    return newest[1].value() is None


def test_an_upgrade_of_the_relay_and_then_the_driver_loses_nothing(disaster, older):
    """
    The older driver reads the newer relay's records; then their format is changed.
    """
    with disaster.running(release=older):
        await_progress(disaster, "older relay")
        disaster.upgrade()
        disaster.step("the relay: stop it, prepare the source, start this release")
        assert 0 == disaster.stop()
        assert 0 == disaster.towpath("config", "check").code
        assert 0 == disaster.towpath("relay", "init").code
        disaster.start()
        await_progress(disaster, "newer relay")
        disaster.step("the driver of 0.1.0 reads the records of this relay")
        await_applied(disaster, "older driver")

        disaster.step("the driver: stop it, start this release")
        disaster.driver.send_signal(signal.SIGTERM)
        print_lines(f"the driver of 0.1.0 exits with {disaster.driver.wait(60)}")
        disaster.start_driver()
        await_applied(disaster, "newer driver")
        disaster.towpath("sink", "list")
        disaster.verify()

        assert has_tombstones(disaster)
        disaster.step("change the format of the records, and restart the relay")
        with disaster.config.open("a", encoding="utf-8") as file:
            file.write(NO_TOMBSTONES)
        assert 0 == disaster.stop()
        disaster.start()
        until(
            lambda: not has_tombstones(disaster),
            "records have the new format",
            timeout_s=PATIENCE_S,
        )
        await_applied(disaster, "driver")
        disaster.verify_events()
        disaster.verify()

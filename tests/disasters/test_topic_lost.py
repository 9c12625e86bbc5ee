"""A table's topic is deleted while everything runs: docs/disasters/topic-lost.md."""

import pytest
from confluent_kafka.admin import AdminClient

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

EXIT_HALTED = 3


def test_a_lost_topic_is_recreated_and_filled(disaster):
    """
    The relay halts; the repair creates the topic and requests its rows.
    """
    with disaster.running():
        topic = disaster.topic("shop.orders")
        disaster.step(f"somebody deletes the topic {topic}")
        admin = AdminClient({"bootstrap.servers": disaster.kafka})
        admin.delete_topics([topic])[topic].result()
        disaster.wait_for_relay_log("relay halted")
        assert EXIT_HALTED == disaster.ended()
        disaster.towpath("relay", "status")
        disaster.step("repair the relay's state, and start the relay")
        done = disaster.towpath("relay", "state", "repair", "--yes")
        assert 0 == done.code
        disaster.start()
        disaster.wait_for_relay_log("relay streaming", more_than=1)
        disaster.wait_for_driver_log("sink query recovers before it starts")
        disaster.wait_for_snapshots()
        disaster.towpath("snapshot", "list")
        disaster.verify_events()
        disaster.verify()

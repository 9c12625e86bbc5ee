"""Postgres removes WAL that the slot still needs: docs/disasters/slot-lost.md."""

import pytest

from support.disaster import PATIENCE_S, print_lines
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LIMIT = "alter system set max_slot_wal_keep_size = '{}'"


def test_a_lost_slot_is_replaced_and_its_gap_closed(disaster):
    """
    A snapshot with a sweep delivers the changes of the gap and removes deleted rows.
    """
    with disaster.running():
        disaster.step("the relay is down, and the WAL outgrows the slot's limit")
        disaster.kill()
        gone = disaster.one("select min(id) from shop.orders")
        disaster.execute("delete from shop.orders where id = %s", gone)
        print_lines(*(LIMIT.format("1MB"),))
        disaster.execute(LIMIT.format("1MB"))
        disaster.execute("select pg_reload_conf()")

        def is_lost() -> bool:
            disaster.execute(
                "update shop.orders set note = note || repeat('x', 100) where id < 200"
            )
            disaster.execute("select pg_switch_wal()")
            disaster.execute("checkpoint")
            return disaster.one("select wal_status from pg_replication_slots") == "lost"

        until(is_lost, "the slot is lost", timeout_s=PATIENCE_S)
        disaster.towpath("doctor")
        disaster.towpath("relay", "status")
        disaster.step("repair: raise the limit, start the relay, close the gap")
        disaster.execute(LIMIT.format("-1"))
        disaster.execute("select pg_reload_conf()")
        disaster.start()
        disaster.wait_for_relay_log("gap in the source's history")
        disaster.wait_for_relay_log("relay streaming", more_than=1)
        disaster.towpath("relay", "state", "show")
        done = disaster.towpath("snapshot", "start", "--sweep", "--wait")
        assert 0 == done.code
        disaster.step("events of the gap are still in the outbox, but not in Kafka")
        lost, twice = disaster.count_lost_events()
        assert (True, 0) == (lost > 0, twice)
        disaster.verify()

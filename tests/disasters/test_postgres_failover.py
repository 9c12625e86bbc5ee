"""The source dies and its standby is promoted: docs/disasters/postgres-failover.md."""

import psycopg
import pytest

from support.disaster import PATIENCE_S, print_lines
from support.standby import start_standby
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

# The standby receives changes before the relay publishes them, and before their
# commits are confirmed.
SYNCHRONIZED = (
    "alter system set synchronized_standby_slots = 'standby'",
    "alter system set synchronous_standby_names = 'standby'",
    "select pg_reload_conf()",
)
# Whether the failover slot has been copied, and can be used after a promotion.
IS_COPIED = """
select exists (select from pg_replication_slots
where slot_name = %s and synced and not temporary)
"""


@pytest.fixture
def standby(disaster, tmp_path_factory, request):
    """Provide a standby, and configure all clients with both servers' addresses."""
    folder = tmp_path_factory.mktemp("standby")
    made = start_standby(disaster.own, folder, copies_slots=request.param)
    both = [stack.addresses().postgres_port for stack in (disaster.own, made)]
    hosts = ",".join(f"127.0.0.1:{port}" for port in both)
    dsn = f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write"
    disaster.reconnect(dsn)
    try:
        yield made
    finally:
        made.purge()


def promote(disaster, standby):
    """Kill the primary, and promote the standby."""
    disaster.step("kill the primary, and promote the standby: select pg_promote()")
    disaster.own.down(within_s=0.1)
    with psycopg.connect(standby.addresses().dsn("shop")) as connection:
        connection.execute("select pg_promote()")
    disaster.reconnect(disaster.dsn)


@pytest.mark.parametrize("standby", [True], indirect=True, ids=["copied"])
def test_a_synchronized_slot_survives_a_failover(disaster, standby):
    """
    There is no gap: no event is lost or published twice, and no snapshot is needed.
    """
    with disaster.running():
        for statement in SYNCHRONIZED:
            print_lines(f"{statement};")
            disaster.execute(statement)
        with psycopg.connect(
            standby.addresses().dsn("shop"), autocommit=True
        ) as connection:

            def is_copied() -> bool:
                row = connection.execute(IS_COPIED, (disaster.prefix,)).fetchone()
                return bool(row and row[0])

            until(is_copied, "the slot is copied", timeout_s=PATIENCE_S)
        disaster.towpath("doctor")
        count = len(disaster.logged("relay streaming"))
        promote(disaster, standby)
        streaming = disaster.wait_for_relay_log("relay streaming", more_than=count)
        assert (1, []) == (
            streaming["lineage"],
            disaster.logged("gap in the source's history"),
        )
        disaster.verify_events()
        disaster.verify()


@pytest.mark.parametrize("standby", [False], indirect=True, ids=["none"])
def test_a_failover_without_the_slot_causes_a_gap_that_snapshots_close(
    disaster, standby
):
    """
    Rows that only the dead primary had are removed from the sinks.
    """
    with disaster.running():
        disaster.step("stop the standby: it misses the following changes")
        standby.down()
        count = len(disaster.writer.events)
        until(
            lambda: len(set(disaster.published_events())) > count,
            "more events are published",
            timeout_s=PATIENCE_S,
        )
        disaster.own.down(within_s=0.1)
        standby.up(["postgres"])
        promote(disaster, standby)
        disaster.wait_for_relay_log("gap in the source's history")
        disaster.wait_for_relay_log("slot recreated")
        disaster.towpath("relay", "status")
        done = disaster.towpath("snapshot", "start", "--sweep", "--wait")
        assert 0 == done.code
        disaster.verify()

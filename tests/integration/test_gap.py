"""A gap in the source's history, as consumers and the operator see it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rig import Rig
from support.topics import headers_of, position_of
from support.waiting import until
from towpath.relay.__main__ import status
from towpath.relay.encode.record import partition_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

# The key of the first gap's notifications, and a partition count for which the default
# partitioners of Java clients and librdkafka place that key differently.
GAP_KEY = b"gap-2"
PARTITIONS = 5


class Relay(Rig):
    """A database with one table, and the relay process that follows it."""

    def prepare(self, on_gap: str, partitions: int = 1) -> None:
        """Write the configuration, prepare the database, and start the relay."""
        self.configure(
            f'on_gap = "{on_gap}"\nheartbeat_interval_s = 0.3',
            tables=("public.note",),
            partitions=partitions,
        )
        self.init()
        self.start()

    def write(self, first: int, last: int) -> None:
        """Insert notes, each in its own transaction."""
        for number in range(first, last + 1):
            self.connection.execute(
                "insert into public.note values (%s, 'x')", [number]
            )

    def ids(self, kind: str) -> set[int]:
        """Return the ids of the notes whose records have the given operation."""
        values = [
            json.loads(m.value()) for m in self.records("public.note") if m.value()
        ]
        return {value["after"]["id"] for value in values if value["op"] == kind}


@pytest.fixture
def relay(database: str, stack, unique: str, tmp_path: Path) -> Iterator[Relay]:
    """Provide a relay and its table; nothing is prepared or started."""
    made = Relay(database, stack.kafka, unique, tmp_path)
    made.execute("create table public.note (id int primary key, note text)")
    yield made
    made.close()


def test_a_lost_slot_is_announced_and_its_gap_filled(relay: Relay, capsys):
    """
    A snapshot publishes the rows of the gap, and streamed positions rise (X-06).
    """
    relay.prepare("snapshot")
    relay.write(1, 5)
    until(lambda: relay.ids("c") == {1, 2, 3, 4, 5}, "the first five are published")
    assert relay.stop() == 0
    relay.connection.execute("select pg_drop_replication_slot(%s)", [relay.prefix])
    relay.write(6, 9)
    relay.start()
    until(lambda: relay.ids("r") == set(range(1, 10)), "all rows are read")
    relay.write(10, 10)
    until(lambda: 10 in relay.ids("c"), "the stream continues")
    capsys.readouterr()
    status(relay.config, as_json=True)
    report = json.loads(capsys.readouterr().out)
    gaps = [json.loads(m.value()) for m in relay.records("notifications")]
    positions = [
        position_of(m)
        for m in relay.records("public.note")
        if "snapshot" not in headers_of(m)
    ]

    assert (1, 2, True) == (
        len([gap for gap in gaps if gap["type"] == "GAP"]),
        report["lineage"],
        "no longer exists" in report["gap"],
    )
    assert sorted(positions) == positions


def test_a_gap_is_notified_before_the_snapshot_that_fills_it(relay: Relay):
    """
    Both notifications have the same key, so one partition has them in order.
    """
    relay.prepare("snapshot", partitions=PARTITIONS)
    relay.write(1, 1)
    until(lambda: relay.ids("c") == {1}, "the row is published")
    assert relay.stop() == 0
    relay.connection.execute("select pg_drop_replication_slot(%s)", [relay.prefix])
    relay.start()

    def found() -> list[tuple[str, int]]:
        records = [m for m in relay.records("notifications") if m.key() == GAP_KEY]
        return [(json.loads(m.value())["type"], m.partition()) for m in records]

    until(lambda: "COMPLETED" in dict(found()), "the snapshot has ended")

    assert {partition_of(GAP_KEY, PARTITIONS)} == {
        partition for _, partition in found()
    }
    assert "GAP" == found()[0][0]


def test_a_gap_halts_the_relay_with_on_gap_halt(relay: Relay):
    """
    The log has the reason and the remedy (X-03).
    """
    relay.prepare("halt")
    relay.write(1, 1)
    until(lambda: relay.ids("c") == {1}, "the row is published")
    relay.stop()
    relay.connection.execute("select pg_drop_replication_slot(%s)", [relay.prefix])
    relay.start()
    code = relay.ended()
    (halted,) = relay.logged("relay halted")

    assert (3, True, True) == (
        code,
        "no longer exists" in halted["reason"],
        "on_gap" in halted["remedy"],
    )


def test_a_database_that_goes_back_in_time_is_detected_while_running(relay: Relay):
    """
    The slot monitor detects the lower heartbeat, and the relay starts a new lineage.
    """
    relay.prepare("plan")
    relay.write(1, 1)
    until(lambda: relay.ids("c") == {1}, "the row is published")
    counter = "select counter > 3 from towpath.heartbeat"
    until(
        lambda: relay.connection.execute(counter).fetchone() == (True,),
        "heartbeats are written",
    )
    relay.connection.execute("update towpath.heartbeat set counter = 0")
    until(
        lambda: bool(relay.logged("gap in the source's history")), "the gap is reported"
    )
    relay.write(2, 2)
    until(lambda: 2 in relay.ids("c"), "the stream continues")
    log_records = relay.logged("gap in the source's history")

    assert (1, 2, ["public.note"]) == (
        len(log_records),
        log_records[0]["lineage"],
        log_records[0]["plan"],
    )

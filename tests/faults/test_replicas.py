"""
Records that a dead relay left only on the leader are published once.

The test has its own cluster of two brokers. The first leads every partition; the second
is frozen while the relay writes, so that the leader has records that no consumer sees.
"""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.deploy.local import lifecycle, ports, process, servers
from towpath.deploy.local.part import Part, StateFolder
from towpath.schemas.clock import SystemClock

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CLOCK = SystemClock()
# A frozen broker must remain an in-sync replica during the test: otherwise the leader
# would show records that the follower lacks.
LONG_TIMEOUTS = "broker.session.timeout.ms=60000\nreplica.lag.time.max.ms=60000\n"


class Brokers:
    """Two brokers; the first is also the controller."""

    def __init__(self, folder: Path) -> None:
        names = ("first", "second", "controller")
        self.port, port, controller = ports.free_ports_for(names).values()
        self._states = [StateFolder(folder / name) for name in ("first", "second")]
        for state in self._states:
            state.create()
        first = servers.kafka_part(self._states[0], self.port, controller)
        second = servers.kafka_part(self._states[1], port, controller)
        own = (
            "process.roles=broker\nnode.id=2\n"
            f"controller.quorum.voters=1@{ports.LOOPBACK}:{controller}\n"
            f"listeners=PLAINTEXT://{ports.LOOPBACK}:{second.port}\n"
        )
        self._parts = [
            replace(first, prepare=lambda: amend(first, LONG_TIMEOUTS)),
            replace(second, prepare=lambda: join(second, first, own + LONG_TIMEOUTS)),
        ]

    def up(self) -> None:
        """Start both brokers."""
        for part, state in zip(self._parts, self._states, strict=True):
            lifecycle.bring_up(part, state)

    def down(self) -> None:
        """Stop both brokers."""
        self.signal_second(signal.SIGCONT)
        for part, state in reversed(list(zip(self._parts, self._states, strict=True))):
            lifecycle.take_down(replace(part, stop_within_s=0.1), state)

    def signal_second(self, number: signal.Signals) -> None:
        """Send a signal to the follower, to freeze or resume it."""
        found = process.find(self._states[1].process_file("kafka"))
        if found is not None:
            os.kill(found.pid, number)

    @property
    def address(self) -> str:
        return f"{ports.LOOPBACK}:{self.port}"


def amend(part: Part, text: str) -> None:
    """Write a broker's settings, and append more: the last value of a setting wins."""
    part.prepare()
    with (part.folder / "server.properties").open("a", encoding="utf-8") as settings:
        settings.write(text)


def join(part: Part, first: Part, text: str) -> None:
    """Make a broker the second member of the first broker's cluster."""
    amend(part, text)
    ours = part.folder / "data" / "meta.properties"
    theirs = (first.folder / "data" / "meta.properties").read_text(encoding="utf-8")
    cluster = re.search("cluster.id=.*", theirs)[0]
    settings = re.sub("cluster.id=.*", cluster, ours.read_text(encoding="utf-8"))
    ours.write_text(settings.replace("node.id=1", "node.id=2"), encoding="utf-8")


def topics_led_by_the_first(prefix: str) -> Iterator[NewTopic]:
    """Yield the topics of a relay; the first broker leads each partition."""
    compacted = ("relations", "relay-state")
    others = ("dead.relay", "notifications", "shop.line", "shop.bare", "order", "end")
    names = [f"__debezium-heartbeat.{prefix}", *(f"{prefix}.{n}" for n in compacted)]
    for name in names:
        yield NewTopic(
            name, 1, replica_assignment=[[1, 2]], config={"cleanup.policy": "compact"}
        )
    for name in others:
        yield NewTopic(f"{prefix}.{name}", 3, replica_assignment=[[1, 2]] * 3)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    """Provide two brokers."""
    made = Brokers(tmp_path)
    try:
        made.up()
        yield made
    finally:
        made.down()


def test_unreplicated_records_of_a_dead_relay_are_published_once(brokers, make_faults):
    """
    A relay that restarts while the follower lacks records waits until they are visible.
    """
    faults = make_faults(brokers.address)
    relay = faults.relay
    relay.configure(replicas=2)
    relay.prepare()
    admin = AdminClient({"bootstrap.servers": brokers.address})
    while len(admin.list_topics(timeout=10).brokers) < 2:
        CLOCK.wait(0.1)
    new = list(topics_led_by_the_first(relay.prefix))
    for made in admin.create_topics(new).values():
        made.result()
    relay.start()
    faults.writer.insert_events(40)
    faults.await_confirmed(relay, faults.end())
    relay.stop()
    for _ in range(2):
        relay.start()
        faults.writer.insert_events(20)
        faults.await_confirmed(relay, faults.end())
        brokers.signal_second(signal.SIGSTOP)
        faults.writer.insert_events(40)
        CLOCK.wait(0.7)
        relay.kill()
        relay.start()
        CLOCK.wait(2.5)
        brokers.signal_second(signal.SIGCONT)
        faults.await_confirmed(relay, faults.end())
        relay.stop()
    events = relay.streamed("order")
    positions = {record.position for record in events}

    assert (160, 160) == (len(positions), len(events))

"""
Kafka clusters for single tests that kill brokers or use unsafe settings.

The first node is the controller and, unless configured otherwise, also a broker; each
other node is a broker. A node's settings are those of the local stack, with lines
added. ``start`` waits until a node listens; a test waits until the cluster lists it.
"""

import dataclasses
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import until
from towpath.deploy.local import lifecycle, ports, servers
from towpath.deploy.local.part import Part, StateFolder

# If two lines have the same name, the later one applies.
_NODE = """
process.roles={roles}
node.id={number}
controller.quorum.voters=1@{host}:{controller}
listeners={listeners}
"""
_BROKER = "broker"
_CONTROLLER = "controller"
_BOTH = f"{_CONTROLLER},{_BROKER}"
_IDENTITY = "version=1\ncluster.id={cluster}\nnode.id={number}\n"
# Any 16 bytes, in Kafka's form.
_CLUSTER = "dG93cGF0aC1kb2N0b3ItMQ"


class KafkaCluster:
    """The nodes of one cluster, numbered from 1."""

    def __init__(self, folder: Path, count: int, first: str = _BOTH) -> None:
        """
        Describe a cluster; nothing is started.

        Args:
            folder: The folder of all nodes' data and logs.
            count: The number of nodes.
            first: The roles of the first node.
        """
        self._first = first
        names = [f"{number}" for number in range(1, count + 1)]
        self._ports = ports.free_ports_for([_CONTROLLER, *names])
        self._states = {}
        for name in names:
            state = StateFolder(folder / name)
            state.create()
            self._states[int(name)] = state

    def start(self, *numbers: int, more: str = "") -> None:
        """Start nodes, by default all; ``more`` is further lines of their settings."""
        for number in numbers or self._states:
            lifecycle.bring_up(self._part(number, more), self._states[number])

    def kill(self, number: int) -> None:
        """Kill a node."""
        part = dataclasses.replace(self._part(number), stop_within_s=0.0)
        lifecycle.take_down(part, self._states[number])

    def close(self) -> None:
        """Kill all nodes."""
        for number in self._states:
            self.kill(number)

    def address(self, number: int) -> str:
        """Return the address of a broker."""
        return f"{ports.LOOPBACK}:{self._ports[str(number)]}"

    @property
    def kafka(self) -> str:
        """The addresses of all brokers, in the form of the stack's address."""
        return ",".join(self.address(number) for number in self._states)

    def admin(self) -> AdminClient:
        """Return a client that prints nothing."""
        return AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})

    def wait_for_brokers(self, count: int) -> None:
        """Wait until the cluster lists this many brokers."""
        admin = self.admin()

        def has_count() -> bool:
            with suppress(KafkaException):
                return len(admin.list_topics(timeout=10).brokers) == count
            return False

        until(has_count, f"the cluster lists {count} brokers")

    def create(self, name: str, replicas: list[list[int]], **settings: str) -> None:
        """Create a topic whose partitions have their replicas on the given brokers."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        topic = NewTopic(
            name, len(replicas), replica_assignment=replicas, config=config
        )
        admin = self.admin()
        admin.create_topics([topic])[name].result(10)

    def _part(self, number: int, more: str = "") -> Part:
        port = self._ports[str(number)]
        roles = self._first if number == 1 else _BROKER
        listening = port if _BROKER in roles else self._ports[_CONTROLLER]
        part = servers.kafka_part(self._states[number], port, self._ports[_CONTROLLER])
        return dataclasses.replace(
            part,
            prepare=lambda: self._prepare(part, number, roles, more),
            probe=lambda: ports.check_listens(listening),
        )

    def _prepare(self, part: Part, number: int, roles: str, more: str) -> None:
        part.prepare()
        listeners = {
            _BROKER: f"PLAINTEXT://{self.address(number)}",
            _CONTROLLER: f"CONTROLLER://{ports.LOOPBACK}:{self._ports[_CONTROLLER]}",
        }
        lines = _NODE.format(
            roles=roles,
            number=number,
            host=ports.LOOPBACK,
            controller=self._ports[_CONTROLLER],
            listeners=",".join(listeners[role] for role in roles.split(",")),
        )
        with (part.folder / "server.properties").open("a", encoding="utf-8") as file:
            file.write(lines + more)
        identity = part.folder / "data" / "meta.properties"
        if _CLUSTER not in identity.read_text(encoding="utf-8"):
            text = _IDENTITY.format(cluster=_CLUSTER, number=number)
            identity.write_text(text, encoding="utf-8")

"""
Kafka: one broker that is its own controller (KRaft), formatted by a file of our own.

The broker's registration lapses quickly, so that a broker that was killed is back in
two seconds instead of ten; message sizes and all else that applications see are
defaults.
"""

import base64
import uuid
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from towpath.deploy import java
from towpath.deploy.errors import NotReadyError
from towpath.deploy.jars import store
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part, StateFolder
from towpath.deploy.local.ports import ANSWER_WITHIN_S, LOOPBACK, port_open

_HEAP_MB: Final = 384
_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
num.recovery.threads.per.data.dir=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
auto.create.topics.enable=false
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""
_LOGGING: Final = """\
status=WARN
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""


def part(state: StateFolder, port: int, controller_port: int) -> Part:
    """Describe the Kafka part."""
    folder = state.data("kafka")
    settings = folder / "server.properties"
    return Part(
        name="kafka",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_HEAP_MB, store.folder() / "kafka.jsa"),
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            *("-cp", f"{store.folder() / 'kafka'}/*", "kafka.Kafka", str(settings)),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare(folder, port, controller_port),
        probe=lambda: ask(port),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def _prepare(folder: Path, port: int, controller_port: int) -> None:
    store.of("kafka")
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    text = _SETTINGS.format(
        host=LOOPBACK, port=port, controller=controller_port, data=data
    )
    (folder / "server.properties").write_text(text, encoding="utf-8")
    (folder / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    identity = data / "meta.properties"
    if not identity.exists():
        lines = (
            "version=1",
            f"cluster.id={_id()}",
            "node.id=1",
            f"directory.id={_id()}",
        )
        scratch = folder / "meta.properties.new"
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch.replace(identity)


def _id() -> str:
    """Make an identifier as Kafka writes them: 16 random bytes in 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


def ask(port: int) -> None:
    """
    Ask the broker for its metadata.

    Raises:
        NotReadyError: It does not answer, or knows of no broker yet.
    """
    port_open(port)
    # librdkafka prints what it meets on the way; the answer below says it all.
    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0})
    try:
        brokers = client.list_topics(timeout=ANSWER_WITHIN_S).brokers
    except KafkaException as error:
        message = f"the broker gives no metadata: {error}"
        raise NotReadyError(message) from error
    if not brokers:
        message = "the broker has not joined its cluster yet"
        raise NotReadyError(message)

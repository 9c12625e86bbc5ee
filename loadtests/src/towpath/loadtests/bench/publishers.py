"""
The systems that write to Kafka: the relay, and Debezium on Kafka Connect.

Each reads a slot that is there already and publishes to ``<name>.event.bench``, keyed
by aggregate id, with the event's id and type as headers. Debezium runs as its makers
ship it, and tuned: for throughput in a drain, for latency under a steady load.
"""

import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import psutil
from psycopg.conninfo import conninfo_to_dict

from towpath.loadtests.bench.broker import PARTITIONS
from towpath.loadtests.bench.clients import Client, told
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.plan import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    RELAY,
    Bench,
    Run,
)
from towpath.loadtests.bench.source import PUBLICATION

_INIT_WITHIN_S: Final = 60.0
_CONFIGURATION: Final = """\
version = 1
state_folder = "{folder}"

[[source]]
dsn = "{dsn}"
prefix = "{name}"
slot = "{slot}"

[kafka]
bootstrap_servers = "{kafka}"

[registry]
url = "http://127.0.0.1:1"

[topics]
partitions = {partitions}

[relay.outbox]
topic = "{name}.event.{{aggregate_type}}"
"""
_WORKER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        # All archives lie on the one class path, named in their own lists.
        "plugin.discovery": "hybrid_warn",
    }
)
_CONNECTOR: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "bench",
        "tasks.max": "1",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "slot.drop.on.stop": "false",
        "snapshot.mode": "no_data",
        "table.include.list": "towpath.outbox",
        "tombstones.on.delete": "false",
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.table.field.event.key": "aggregate_id",
        "transforms.outbox.route.by.field": "aggregate_type",
        "transforms.outbox.table.fields.additional.placement": "type:header",
    }
)
# Four times the batches and queues of the defaults, and a producer that fills batches.
_THROUGHPUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max.batch.size": "8192",
        "max.queue.size": "32768",
        "poll.interval.ms": "10",
        "producer.override.linger.ms": "5",
        "producer.override.batch.size": "524288",
        "producer.override.compression.type": "lz4",
        "producer.override.buffer.memory": "134217728",
    }
)
# What waits by default for half a second waits for a millisecond; no less, or each
# event would be a request of its own and the connector fall behind at 2,000 a second.
_LATENCY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "poll.interval.ms": "1",
        "producer.override.linger.ms": "1",
        "producer.override.max.in.flight.requests.per.connection": "5",
        "producer.override.compression.type": "lz4",
    }
)


def prepare_source(bench: Bench, run: Run) -> None:
    """Have the relay prepare the source: outbox, publications, and the run's slot."""
    config = _configure(bench, run)
    words = (*bench.place.towpath, "relay", "init", "--config", config)
    with Client(bench.place, "init", words) as client:
        client.wait(_INIT_WITHIN_S)


def start(bench: Bench, run: Run) -> int:
    """Start the run's system and return its process."""
    launcher = bench.place.launcher
    if run.system == RELAY:
        config = _configure(bench, run)
        words = (*bench.place.towpath, "relay", "run", "--config", config)
        return launcher.start(run.name, words)
    bench.broker.make_topic(run.topic)
    if bench.place.connect is None:
        message = "Kafka Connect was not fetched"
        raise BenchError(message)
    files = _properties(bench, run)
    return launcher.start(run.name, (*bench.place.connect, *files))


def check(bench: Bench, run: Run, pid: int) -> None:
    """
    Make sure that the system is still there, and the source that it reads.

    Raises:
        BenchError: It has ended; the message ends with its last lines.
        psycopg.Error: The source does not answer.
    """
    run.source.end_lsn()
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return
    raise BenchError(told(run.name, "it ended", bench.place.launcher.log(run.name)))


def connector(run: Run) -> dict[str, str]:
    """Return the connector's settings for a run."""
    address = conninfo_to_dict(run.source.dsn)
    tuned = _LATENCY if run.is_steady else _THROUGHPUT
    return {
        **_CONNECTOR,
        "topic.prefix": run.name,
        "slot.name": run.name,
        "database.hostname": str(address["host"]),
        "database.port": str(address["port"]),
        "database.user": str(address["user"]),
        "database.password": str(address.get("password", "")),
        "database.dbname": str(address["dbname"]),
        "transforms.outbox.route.topic.replacement": (
            f"{run.name}.event.${{routedByValue}}"
        ),
        **({DEBEZIUM_STOCK: {}, DEBEZIUM_TUNED: tuned}[run.system]),
    }


def _properties(bench: Bench, run: Run) -> tuple[str, str]:
    folder = bench.place.folder
    worker = {
        **_WORKER,
        "bootstrap.servers": bench.place.kafka,
        "listeners": f"http://127.0.0.1:{bench.place.connect_port}",
        "offset.storage.file.filename": str(folder / f"{run.name}.offsets"),
    }
    files = (folder / f"{run.name}.worker", folder / f"{run.name}.connector")
    for path, settings in zip(files, (worker, connector(run)), strict=True):
        lines = (f"{name}={value}\n" for name, value in settings.items())
        path.write_text("".join(lines), encoding="utf-8")
    return str(files[0]), str(files[1])


def _configure(bench: Bench, run: Run) -> str:
    path = bench.place.folder / f"{run.name}.toml"
    text = _CONFIGURATION.format(
        folder=bench.place.folder,
        dsn=run.source.dsn,
        name=run.name,
        slot=run.name,
        kafka=bench.place.kafka,
        partitions=PARTITIONS,
    )
    path.write_text(text, encoding="utf-8")
    return str(path)

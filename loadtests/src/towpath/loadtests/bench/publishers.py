"""
The systems that write to Kafka: the relay, and Debezium on Kafka Connect.

Each reads a slot that is there already and publishes to ``<name>.event.bench``, keyed
by aggregate id, with the event's id and type as headers. Debezium runs as its makers
ship it, and tuned: for throughput in a drain, for latency under a steady load.
"""

import contextlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import psutil

from towpath.loadtests.bench import connect
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
tables = {tables}

[kafka]
bootstrap_servers = "{kafka}"

[registry]
url = "http://127.0.0.1:1"

[topics]
partitions = {partitions}

[relay.outbox]
topic = "{name}.event.{{aggregate_type}}"
"""
_CONVERTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{what}.converter": "org.apache.kafka.connect.storage.StringConverter"
        for what in ("key", "value", "header")
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


def prepare_source(bench: Bench, run: Run, tables: tuple[str, ...] = ()) -> None:
    """Have the relay prepare the source: outbox, publications, and the run's slot."""
    config = _configure(bench, run, tables)
    words = (*bench.place.towpath, "relay", "init", "--config", config)
    with Client(bench.place, "init", words) as client:
        client.wait(_INIT_WITHIN_S)


def start(bench: Bench, run: Run) -> int:
    """Start the run's system and return its process."""
    if run.system == RELAY:
        return start_relay(bench, run)
    bench.broker.make_topic(run.topic)
    return connect.start(bench, run.name, _CONVERTERS, connector(run))


def start_relay(bench: Bench, run: Run, tables: tuple[str, ...] = ()) -> int:
    """Start the relay and return its process."""
    config = _configure(bench, run, tables)
    words = (*bench.place.towpath, "relay", "run", "--config", config)
    return bench.place.launcher.start(run.name, words)


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
    tuned = _LATENCY if run.is_steady else connect.THROUGHPUT
    return {
        **_CONNECTOR,
        "topic.prefix": run.name,
        "slot.name": run.name,
        **connect.address(run.source.dsn),
        "transforms.outbox.route.topic.replacement": (
            f"{run.name}.event.${{routedByValue}}"
        ),
        **({DEBEZIUM_STOCK: {}, DEBEZIUM_TUNED: tuned}[run.system]),
    }


def configuration(bench: Bench, run: Run, tables: tuple[str, ...] = ()) -> str:
    """Return the relay's configuration for a run."""
    return _CONFIGURATION.format(
        folder=bench.place.folder,
        dsn=run.source.dsn,
        name=run.name,
        slot=run.name,
        tables=json.dumps(tables),
        kafka=bench.place.kafka,
        partitions=PARTITIONS,
    )


def _configure(bench: Bench, run: Run, tables: tuple[str, ...]) -> str:
    path = bench.place.folder / f"{run.name}.toml"
    path.write_text(configuration(bench, run, tables), encoding="utf-8")
    return str(path)

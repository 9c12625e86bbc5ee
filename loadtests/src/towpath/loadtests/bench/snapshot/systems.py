"""
The systems that fill a topic: the relay, and Debezium on Kafka Connect in four ways.

Stock is as its makers ship it: chunks of 1,024 rows and signal rows as watermarks.
Tuned has chunks of 20,000 and the batches, queues and producer of a tuned drain; beside
it the same without watermarks in the source, and the initial snapshot, which 3.7 splits
into chunks for several threads. All write the plain envelope, without schemas.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from towpath.loadtests.bench import connect, publishers
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.plan import DEBEZIUM_STOCK, DEBEZIUM_TUNED, RELAY, Bench
from towpath.loadtests.bench.snapshot import topic
from towpath.loadtests.bench.snapshot.plan import (
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
    TABLE,
    FillRun,
)
from towpath.loadtests.bench.snapshot.source import PUBLICATION, SIGNALS, ItemSource

_RELAY_SIGNALS: Final = "towpath.signal"
_ENDED_BADLY: Final = ("incomplete", "failed", "rejected", "stopped")
_CONVERTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
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
        "table.include.list": f"{TABLE},{SIGNALS}",
        "signal.data.collection": SIGNALS,
        "notification.enabled.channels": "sink",
        # The content of a number in the table's own words, as the relay has it.
        "decimal.handling.mode": "string",
    }
)
_CHUNKS: Final = {"incremental.snapshot.chunk.size": "20000"}
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        DEBEZIUM_STOCK: {},
        DEBEZIUM_TUNED: {**connect.THROUGHPUT, **_CHUNKS},
        DEBEZIUM_READ_ONLY: {**connect.THROUGHPUT, **_CHUNKS, "read.only": "true"},
        DEBEZIUM_INITIAL: {
            **connect.THROUGHPUT,
            "snapshot.mode": "initial",
            "snapshot.max.threads": "4",
            "table.include.list": TABLE,
        },
    }
)


def start(bench: Bench, run: FillRun, source: ItemSource) -> int:
    """Start the run's system and return its process."""
    if run.system == RELAY:
        publishers.prepare_source(bench, run, (TABLE,))
        return publishers.start_relay(bench, run, (TABLE,))
    for name in (run.topic, f"{run.name}.{SIGNALS}", _notifications(run)):
        bench.broker.make_topic(name)
    if not run.is_initial:
        source.make_slot(run.name)
    return connect.start(bench, run.name, _CONVERTERS, connector(run))


def connector(run: FillRun) -> dict[str, str]:
    """Return the connector's settings for a run."""
    return {
        **_CONNECTOR,
        **_SETTINGS[run.system],
        **connect.address(run.source.dsn),
        "topic.prefix": run.name,
        "slot.name": run.name,
        "notification.sink.topic.name": _notifications(run),
    }


def ask(run: FillRun, source: ItemSource) -> None:
    """Have the run's system read the table, unless that begins by itself."""
    source.ask(_RELAY_SIGNALS if run.system == RELAY else SIGNALS)


def has_completed(bench: Bench, run: FillRun, source: ItemSource) -> bool:
    """
    Tell whether the run's system says that it has read the table.

    Raises:
        BenchError: It says that it has not.
    """
    if run.system != RELAY:
        return topic.has_completed(bench, _notifications(run))
    answer = source.answer()
    if answer.status in _ENDED_BADLY:
        message = f"{run.name}: the snapshot is {answer.status}: {answer.detail}"
        raise BenchError(message)
    return answer.status == "completed"


def _notifications(run: FillRun) -> str:
    return f"{run.name}.notifications"

"""
The systems that fill a topic: the relay, and Debezium on Kafka Connect in four setups.

Stock has Debezium's defaults: chunks of 1,024 rows and signal rows as watermarks. Tuned
has chunks of 20,000 and the batches, queues and producer of a tuned drain. Read-only is
the same without watermarks in the source. Initial is the initial snapshot, which
Debezium 3.7 splits into chunks for several threads. All write the plain envelope,
without schemas. The records of a topic are read back, and its size on disk is measured.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from towpath.loadtests.bench import publishers
from towpath.loadtests.bench.context import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    RELAY,
    THROUGHPUT,
    Bench,
)
from towpath.loadtests.bench.snapshot.check import Delivered
from towpath.loadtests.bench.snapshot.source import (
    DEBEZIUM_INITIAL,
    DEBEZIUM_READ_ONLY,
    PUBLICATION,
    SIGNALS,
    TABLE,
    FillRun,
    ItemSource,
    content,
)
from towpath.loadtests.errors import BenchError
from towpath.schemas import headers
from towpath.schemas.envelope import Operation
from towpath.schemas.position import parse_position

_COMPLETED: Final = "COMPLETED"


def delivered(bench: Bench, topic: str) -> Iterator[Delivered]:
    """
    Yield a topic's records, each partition's in order.

    Raises:
        BenchError: The topic or one of its records could not be read.
    """
    for record in bench.broker.records(topic):
        try:
            yield _delivered(record)
        except (KeyError, TypeError, ValueError) as error:
            where = f"{topic} [{record.partition()}] @ {record.offset()}"
            message = f"{where} is not a change of the table: {error!r}"
            raise BenchError(message) from error


def size_bytes(log_folder: Path, topic: str) -> int:
    """Return the size of a topic on the broker's disk."""
    files = log_folder.glob(f"{topic}-*/*.log")
    return sum(path.stat().st_size for path in files)


def notifies_completion(bench: Bench, topic: str) -> bool:
    """
    Return whether Debezium's notifications report a completed snapshot.

    Raises:
        BenchError: The notifications report an aborted snapshot.
    """
    if not any(bench.broker.ends(topic).values()):
        return False
    kinds = [
        json.loads(record.value())["type"] for record in bench.broker.records(topic)
    ]
    if "ABORTED" in kinds:
        message = f"{topic} reports a snapshot that was aborted"
        raise BenchError(message)
    return _COMPLETED in kinds


def _delivered(record: Any) -> Delivered:  # noqa: ANN401 - the client's object
    envelope = json.loads(record.value())
    held = content(envelope["after"])
    named = dict(record.headers() or ())
    position = named.get(headers.POSITION)
    return Delivered(
        partition=record.partition(),
        key=int(json.loads(record.key())["id"]),
        version=held.version,
        digest=held.digest,
        is_read=envelope["op"] == Operation.READ,
        appended_ms=record.timestamp()[1],
        log_lsn=parse_position(position.decode()).log_lsn if position else 0,
    )


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
        **publishers.CONNECTOR,
        "publication.name": PUBLICATION,
        "table.include.list": f"{TABLE},{SIGNALS}",
        "signal.data.collection": SIGNALS,
        "notification.enabled.channels": "sink",
        # Numbers in the server's text form, as the relay writes them.
        "decimal.handling.mode": "string",
    }
)
_CHUNKS: Final = {"incremental.snapshot.chunk.size": "20000"}
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        DEBEZIUM_STOCK: {},
        DEBEZIUM_TUNED: {**THROUGHPUT, **_CHUNKS},
        DEBEZIUM_READ_ONLY: {**THROUGHPUT, **_CHUNKS, "read.only": "true"},
        DEBEZIUM_INITIAL: {
            **THROUGHPUT,
            "snapshot.mode": "initial",
            "snapshot.max.threads": "4",
            "table.include.list": TABLE,
        },
    }
)


def start(bench: Bench, run: FillRun, source: ItemSource) -> int:
    """Start the run's system and return its process id."""
    if run.system == RELAY:
        publishers.prepare_source(bench, run, (TABLE,))
        return publishers.start_relay(bench, run, (TABLE,))
    for name in (run.topic, f"{run.name}.{SIGNALS}", _notifications(run)):
        bench.broker.make_topic(name)
    if not run.is_initial:
        source.make_slot(run.name)
    return publishers.start_connect(bench, run.name, _CONVERTERS, connector(run))


def connector(run: FillRun) -> dict[str, str]:
    """Return the connector's settings for a run."""
    return {
        **_CONNECTOR,
        **_SETTINGS[run.system],
        **publishers.connector_address(run.source.dsn),
        "topic.prefix": run.name,
        "slot.name": run.name,
        "notification.sink.topic.name": _notifications(run),
    }


def request_snapshot(run: FillRun, source: ItemSource) -> None:
    """Request the snapshot from the run's system."""
    source.request_snapshot(_RELAY_SIGNALS if run.system == RELAY else SIGNALS)


def has_completed(bench: Bench, run: FillRun, source: ItemSource) -> bool:
    """
    Return whether the run's system reports a completed snapshot.

    Raises:
        BenchError: The system reports a failed snapshot.
    """
    if run.system != RELAY:
        return notifies_completion(bench, _notifications(run))
    answer = source.answer()
    if answer.status in _ENDED_BADLY:
        ended = f"the snapshot did not complete ({answer.status})"
        message = f"{run.name}: {ended}: {answer.detail}"
        raise BenchError(message)
    return answer.status == "completed"


def _notifications(run: FillRun) -> str:
    return f"{run.name}.notifications"

"""Kafka Connect with one connector: its two files, and what tunes its producer."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.plan import Bench

# Four times the batches and queues of the defaults, and a producer that fills batches.
THROUGHPUT: Final[Mapping[str, str]] = MappingProxyType(
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


def address(dsn: str) -> dict[str, str]:
    """Return a connector's settings that say where its database is."""
    parts = conninfo_to_dict(dsn)
    return {
        "database.hostname": str(parts["host"]),
        "database.port": str(parts["port"]),
        "database.user": str(parts["user"]),
        "database.password": str(parts.get("password", "")),
        "database.dbname": str(parts["dbname"]),
    }


def start(
    bench: Bench, name: str, converters: Mapping[str, str], connector: Mapping[str, str]
) -> int:
    """
    Start Connect with a connector and return its process.

    Raises:
        BenchError: Its archives were not asked for.
    """
    place = bench.place
    if place.connect is None:
        message = "Kafka Connect was not fetched"
        raise BenchError(message)
    worker = {
        **converters,
        # All archives lie on the one class path, named in their own lists.
        "plugin.discovery": "hybrid_warn",
        "bootstrap.servers": place.kafka,
        "listeners": f"http://127.0.0.1:{place.connect_port}",
        "offset.storage.file.filename": str(place.folder / f"{name}.offsets"),
    }
    files = (place.folder / f"{name}.worker", place.folder / f"{name}.connector")
    for path, settings in zip(files, (worker, connector), strict=True):
        lines = (f"{key}={value}\n" for key, value in settings.items())
        path.write_text("".join(lines), encoding="utf-8")
    words = (*place.connect, *(str(path) for path in files))
    return place.launcher.start(name, words)

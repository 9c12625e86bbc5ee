"""What a topic of row changes holds: its records, read back, and its size on disk."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.plan import Bench
from towpath.loadtests.bench.snapshot.source import content
from towpath.loadtests.bench.snapshot.verdict import Delivered
from towpath.schemas import headers
from towpath.schemas.envelope import Operation
from towpath.schemas.position import parse_position

_COMPLETED: Final = "COMPLETED"


def delivered(bench: Bench, topic: str) -> Iterator[Delivered]:
    """
    Read a topic's records, each partition's in order.

    Raises:
        BenchError: It could not be read, or a record of it could not.
    """
    for record in bench.broker.records(topic):
        try:
            yield _delivered(record)
        except (KeyError, TypeError, ValueError) as error:
            where = f"{topic} [{record.partition()}] @ {record.offset()}"
            message = f"{where} is no change of the table: {error!r}"
            raise BenchError(message) from error


def size_bytes(log_folder: Path, topic: str) -> int:
    """Return how much of the broker's disk a topic's records take."""
    files = log_folder.glob(f"{topic}-*/*.log")
    return sum(path.stat().st_size for path in files)


def has_completed(bench: Bench, topic: str) -> bool:
    """
    Tell whether a topic of Debezium's notifications tells of a snapshot's end.

    Raises:
        BenchError: It tells of a snapshot that went wrong.
    """
    if not any(bench.broker.ends(topic).values()):
        return False
    kinds = [
        json.loads(record.value())["type"] for record in bench.broker.records(topic)
    ]
    if "ABORTED" in kinds:
        message = f"{topic} tells of a snapshot that was aborted"
        raise BenchError(message)
    return _COMPLETED in kinds


def _delivered(record: Any) -> Delivered:  # noqa: ANN401 - a driver's object
    envelope = json.loads(record.value())
    held = content(envelope["after"])
    named = dict(record.headers() or ())
    place = named.get(headers.POSITION)
    return Delivered(
        partition=record.partition(),
        key=int(json.loads(record.key())["id"]),
        version=held.version,
        digest=held.digest,
        is_read=envelope["op"] == Operation.READ,
        appended_ms=record.timestamp()[1],
        log_lsn=parse_position(place.decode()).log_lsn if place else 0,
    )

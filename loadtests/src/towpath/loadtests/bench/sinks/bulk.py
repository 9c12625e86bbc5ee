"""
Beside the index: the client's own bulk load of the same documents, without versions.

An index with the sink's own fields and settings; bodies that lie ready in a file; some
threads that read and send them with the client that all of Python uses. The server is
asked to leave out of its answers what nobody reads, so that nothing is left to do
between two calls.
"""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException, TransportError

from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.plan import Bench
from towpath.loadtests.bench.sinks.configuration import ROUTE
from towpath.loadtests.bench.sinks.rows import A_POSITION, COLUMNS, POSITION, pieces
from towpath.loadtests.bench.snapshot.source import ItemSource
from towpath.schemas.clock import Clock, Deadline

_INDEX: Final = "bulk"
_ROWS_AT_ONCE: Final = 2_000
_THREADS: Final = 3
_ANSWER_WITHIN_S: Final = 120.0
# A server that asks for a pause gets it, as any careful client gives it.
_BUSY: Final = 429
_PAUSE_S: Final = 0.1
_BUSY_WITHIN_S: Final = 600.0
# Of an index, what says how it is written; the rest says who it is.
_SETTINGS: Final = ("number_of_shards", "number_of_replicas", "refresh_interval")


class _Piece(NamedTuple):
    first_byte: int
    size_bytes: int


def measure(bench: Bench, source: ItemSource, url: str) -> Figures:
    """
    Load the whole table into an index of its own, and return how fast that went.

    Raises:
        BenchError: The server refuses, or does not answer.
    """
    rows = bench.options.rows
    path = bench.place.folder / "bulk.ndjson"
    bench.screen.begin("writing documents", 0)
    prepared = _prepare(path, source)
    bench.screen.begin("bulk load", 0)
    with OpenSearch(url, timeout=_ANSWER_WITHIN_S, max_retries=0) as client:
        try:
            client.indices.create(index=_INDEX, body=_like(client, ROUTE))
            began_s = bench.clock.monotonic_s()
            _send(client, path, prepared, bench.clock)
            elapsed_s = bench.clock.monotonic_s() - began_s
            client.indices.refresh(index=_INDEX)
            there = client.count(index=_INDEX)["count"]
            client.indices.delete(index=_INDEX)
        except OpenSearchException as error:
            message = f"the index takes no bulk load: {error}"
            raise BenchError(message) from error
    path.unlink()
    if there != rows:
        message = f"the bulk load has left {there:,} of {rows:,} documents"
        raise BenchError(message)
    return {"rows_per_s": rows / elapsed_s}


def lines(row: Sequence[str]) -> str:
    """Write one row as an item of a bulk call."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    values |= {name: int(values[name]) for name in ("id", "version")}
    values["changed_at"] = instant(values["changed_at"])
    document = json.dumps({**values, POSITION: A_POSITION}, separators=(",", ":"))
    return f'{{"index":{{"_id":"{row[0]}"}}}}\n{document}\n'


def instant(text: str) -> str:
    """Return a time of the server's as ISO 8601 in UTC."""
    return text.replace(" ", "T").removesuffix("+00") + "Z"


def _prepare(path: Path, source: ItemSource) -> list[_Piece]:
    """Write all bodies into one file, and say where each is."""
    found: list[_Piece] = []
    with path.open("wb") as file:
        for piece in pieces(source.texts(), _ROWS_AT_ONCE):
            first_byte = file.tell()
            size_bytes = file.write("".join(map(lines, piece)).encode())
            found.append(_Piece(first_byte, size_bytes))
    return found


def _like(client: OpenSearch, alias: str) -> dict[str, Any]:
    """Describe an index as the sink has made its own."""
    ((_, told),) = client.indices.get(index=alias).items()
    settings = told["settings"]["index"]
    kept = {name: settings[name] for name in _SETTINGS if name in settings}
    return {"settings": {"index": kept}, "mappings": told["mappings"]}


def _send(
    client: OpenSearch, path: Path, prepared: Sequence[_Piece], clock: Clock
) -> None:
    deadline = Deadline(clock, _BUSY_WITHIN_S)
    with path.open("rb") as file, ThreadPoolExecutor(_THREADS) as threads:

        def send(piece: _Piece) -> bool:
            body = os.pread(file.fileno(), piece.size_bytes, piece.first_byte)
            while True:
                try:
                    answer = client.bulk(body=body, index=_INDEX, filter_path="errors")
                except TransportError as error:
                    if error.status_code != _BUSY or deadline.passed():
                        raise
                    clock.wait(_PAUSE_S)
                else:
                    return bool(answer["errors"])

        answers: Iterator[bool] = threads.map(send, prepared)
        if any(answers):
            message = "the index refuses documents of a bulk load"
            raise BenchError(message)

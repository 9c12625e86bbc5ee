"""
Baselines for the sinks: the same rows, written without a sink.

- Index: the client's own bulk load of the same documents, without versions, into an
  index with the sink's own fields and settings. The bodies are prepared in a file;
  several threads read and send them with the usual Python client. The server's
  responses are filtered, so that the client has almost nothing to parse between calls.
- Cache: plain pipelined writes of the same hashes, without a guard. The rate is a
  ceiling, not a goal: commands are packed before the clock starts, and responses are
  counted, not parsed. The rate is the server's speed, including its append-only file.
- Warehouse: one MERGE of the same rows from Parquet, in a separate session. The rows
  of the sink's table are written as Parquet, then merged into an empty table with the
  same columns and properties, by an engine with the same settings.
"""

import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException, TransportError

from towpath.loadtests.bench.context import Bench
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.publishers import ClientProgram
from towpath.loadtests.bench.sinks.backlog import ROUTE, Backlog
from towpath.loadtests.bench.sinks.result import WAREHOUSE, Targets
from towpath.loadtests.bench.snapshot.source import ItemSource
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock, Deadline

# A busy machine takes minutes to start the engine.
_MIN_TIMEOUT_S: Final = 600.0
_SLOWEST_PER_S: Final = 2_000


def measure_merge(bench: Bench, backlog: Backlog, targets: Targets) -> Figures:
    """
    Run the MERGE, and return its rate.

    Raises:
        BenchError: The MERGE failed, or its table has a different number of rows.
    """
    report = bench.environment.folder / "merge.json"
    command_line = (*targets.merge, str(backlog.config), WAREHOUSE, str(report))
    bench.screen.begin("one MERGE", 0)
    with ClientProgram(bench.environment, "merge", command_line) as client:
        client.wait(_MIN_TIMEOUT_S + backlog.rows / _SLOWEST_PER_S)
    measured = json.loads(report.read_text(encoding="utf-8"))
    if measured["rows"] != backlog.rows:
        message = f"the MERGE wrote {measured['rows']:,} of {backlog.rows:,} rows"
        raise BenchError(message)
    return {"rows_per_s": measured["rows"] / measured["elapsed_s"]}


COLUMNS: Final = ("id", "version", "amount", "state", "changed_at", "note")
POSITION: Final = "_position"

# Has the length of a READ row's position; all rows of a chunk share a position.
A_POSITION: Final = f"{0:016x}.-"

Item = TypeVar("Item")


def slices(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Split items into lists of a given size; the last may be shorter."""
    rest = iter(items)
    while items_of_slice := list(islice(rest, size)):
        yield items_of_slice


_BULK_INDEX: Final = "bulk"
_DOCUMENTS_AT_ONCE: Final = 2_000
_THREADS: Final = 3
_BULK_TIMEOUT_S: Final = 120.0
# The client pauses when the server is busy, as any careful client does.
_BUSY: Final = 429
_PAUSE_S: Final = 0.1
_BUSY_WITHIN_S: Final = 600.0
# The settings that affect writes; the others identify the index.
_SETTINGS: Final = ("number_of_shards", "number_of_replicas", "refresh_interval")


class _BulkBody(NamedTuple):
    first_byte: int
    size_bytes: int


def measure_bulk_load(bench: Bench, source: ItemSource, url: str) -> Figures:
    """
    Load the whole table into a new index, and return the rate.

    Raises:
        BenchError: The server refuses, or does not answer, or the index has a different
            number of documents.
    """
    rows = bench.options.rows
    path = bench.environment.folder / "bulk.ndjson"
    bench.screen.begin("writing documents", 0)
    prepared = _prepare(path, source)
    bench.screen.begin("bulk load", 0)
    with OpenSearch(url, timeout=_BULK_TIMEOUT_S, max_retries=0) as client:
        try:
            client.indices.create(index=_BULK_INDEX, body=_index_body(client, ROUTE))
            began_s = bench.clock.monotonic_s()
            _send(client, path, prepared, bench.clock)
            elapsed_s = bench.clock.monotonic_s() - began_s
            client.indices.refresh(index=_BULK_INDEX)
            written = client.count(index=_BULK_INDEX)["count"]
            client.indices.delete(index=_BULK_INDEX)
        except OpenSearchException as error:
            message = f"the index refuses the bulk load: {error}"
            raise BenchError(message) from error
    path.unlink()
    if written != rows:
        message = f"the bulk load wrote {written:,} of {rows:,} documents"
        raise BenchError(message)
    return {"rows_per_s": rows / elapsed_s}


def lines(row: Sequence[str]) -> str:
    """Return one row as an item of a bulk call."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    values |= {name: int(values[name]) for name in ("id", "version")}
    values["changed_at"] = instant(values["changed_at"])
    document = json.dumps({**values, POSITION: A_POSITION}, separators=(",", ":"))
    return f'{{"index":{{"_id":"{row[0]}"}}}}\n{document}\n'


def instant(text: str) -> str:
    """Convert a UTC time from the server's text form to ISO 8601."""
    return text.replace(" ", "T").removesuffix("+00") + "Z"


def _prepare(path: Path, source: ItemSource) -> list[_BulkBody]:
    """Write all bodies into one file, and return their byte ranges."""
    found: list[_BulkBody] = []
    with path.open("wb") as file:
        for part in slices(source.texts(), _DOCUMENTS_AT_ONCE):
            first_byte = file.tell()
            size_bytes = file.write("".join(map(lines, part)).encode())
            found.append(_BulkBody(first_byte, size_bytes))
    return found


def _index_body(client: OpenSearch, alias: str) -> dict[str, Any]:
    """Return the settings and mappings of the sink's own index."""
    ((_, found),) = client.indices.get(index=alias).items()
    settings = found["settings"]["index"]
    kept = {name: settings[name] for name in _SETTINGS if name in settings}
    return {"settings": {"index": kept}, "mappings": found["mappings"]}


def _send(
    client: OpenSearch, path: Path, prepared: Sequence[_BulkBody], clock: Clock
) -> None:
    deadline = Deadline(clock, _BUSY_WITHIN_S)
    with path.open("rb") as file, ThreadPoolExecutor(_THREADS) as threads:

        def send(part: _BulkBody) -> bool:
            body = os.pread(file.fileno(), part.size_bytes, part.first_byte)
            while True:
                try:
                    response = client.bulk(
                        body=body, index=_BULK_INDEX, filter_path="errors"
                    )
                except TransportError as error:
                    if error.status_code != _BUSY or deadline.passed():
                        raise
                    clock.wait(_PAUSE_S)
                else:
                    return bool(response["errors"])

        refusals: Iterator[bool] = threads.map(send, prepared)
        if any(refusals):
            message = "the index refuses documents of a bulk load"
            raise BenchError(message)


_ROWS_AT_ONCE: Final = 10_000
# Enough for a ceiling; each row takes as much memory as the sink's own.
_MAX_ROWS: Final = 500_000
_TIMEOUT_S: Final = 30.0
# Only the last byte: a read may end between the two bytes that end a response.
_RESPONSE_END: Final = b"\n"


def measure_plain_writes(bench: Bench, source: ItemSource, url: str) -> Figures:
    """
    Write the table's first rows next to the sink's rows, and return the rate.

    Raises:
        BenchError: The server refuses a write, or does not answer.
    """
    rows = min(bench.options.rows, _MAX_ROWS)
    report = bench.screen.begin("plain HSET", rows)
    address = urlsplit(url)
    elapsed_s, done = 0.0, 0
    server = (address.hostname or "", address.port or 0)
    with socket.create_connection(server, _TIMEOUT_S) as connection:
        for part in slices(source.texts(), _ROWS_AT_ONCE):
            packed = b"".join(map(command, part))
            began_s = bench.clock.monotonic_s()
            connection.sendall(packed)
            _read_responses(connection, len(part))
            elapsed_s += bench.clock.monotonic_s() - began_s
            done += len(part)
            report(done)
            if done >= rows:
                break
    return {"rows_per_s": done / elapsed_s}


def command(row: Sequence[str]) -> bytes:
    """Return the HSET of one row in Redis's wire format."""
    named = zip((*COLUMNS, POSITION), (*row, A_POSITION), strict=True)
    fields = (text for pair in named for text in pair)
    return packed(("HSET", f"plain:{row[0]}", *fields))


def packed(arguments: Iterable[str]) -> bytes:
    """Return one command in Redis's wire format."""
    raw = [argument.encode() for argument in arguments]
    body = b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in raw)
    return b"*%d\r\n%b" % (len(raw), body)


def _read_responses(connection: socket.socket, count: int) -> None:
    while count:
        try:
            response = connection.recv(1 << 16)
        except TimeoutError:
            response = b""
        if not response or b"-" in response:
            message = f"the cache refuses plain writes: {response[:200]!r}"
            raise BenchError(message)
        count -= response.count(_RESPONSE_END)

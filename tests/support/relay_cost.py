"""
The relay's CPU time per event, from a replayed frame to its acknowledgement.

``python -m support.relay_cost`` runs the relay's own loop over replayed frames of the
outbox and of a table, with the real client and the broker that the client simulates in
its process: compiled if ``towpath relay run`` would be, as Python with
``TOWPATH_COMPILED=off``. It prints the CPU time of the loop's thread per event: the
client's own threads, and with them the broker, are left out. Rows of a snapshot are
measured only from COPY lines to their records. CPU time hardly depends on what else
the machine does, so two versions are compared by running each in turn, several times,
and taking the lowest time of each::

    for n in 1 2 3; do for tree in before after; do (cd $tree; ...); done; done
"""

import gc
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from towpath.loadtests.bench import interpreter
from towpath.relay.commands import compiled

if __name__ == "__main__":
    # This must precede the imports below, which import the same modules.
    compiled.import_modules(os.environ)  # noqa: TID251 - a root

from support.relay_bench import (
    OUTBOX_COLUMNS,
    START,
    Bench,
    Column,
    Producer,
    inserted,
    relation,
    transaction,
)
from support.table_rows import READ_SLICE, make_codec_and_route
from towpath.relay.encode.codecs.codec import Codec, EnvelopeFacts
from towpath.relay.encode.relations import NOTHING_KNOWN
from towpath.relay.encode.table import TableRoute
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.ports import Outgoing
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.wal.messages import Column as TableColumn
from towpath.relay.wal.messages import Relation
from towpath.settings import Kafka
from towpath.settings.logs import configure_logs
from towpath.settings.relay import Relay

EVENTS: Final = 5_000
ROWS: Final = (1, 100)
_ROUNDS: Final = 20
TABLE: Final = 4711
_ITEMS: Final = 4712
_ITEM_COLUMNS: Final = (
    Column(b"id", 20, is_key=True),
    Column(b"name", 25),
    Column(b"amount", 1700),
    Column(b"is_open", 16),
    Column(b"changed_at", 1184),
    Column(b"note", 25),
)
# About as many rows as a slice of a snapshot has.
_SLICE_ROWS: Final = 1000
_AGGREGATES: Final = 1000
# The partition count of a simulated broker's new topics.
_PARTITIONS: Final = 4
# About as many frames as one read of a backlog returns.
_READ_FRAMES: Final = 1500
# Longer than the shortest time between two updates of the gauges.
_TURN_S: Final = 0.05
_FORMS: Final = ("json", "avro")
_INSERT: Final = EnvelopeFacts(
    operation=b"c",
    committed_us=1_767_323_045_678_901,
    now_us=1_767_323_045_679_901,
    snapshot=b"false",
    xid=815,
    lsn=START,
    commit_lsn=START + 8,
    origin=None,
    origin_lsn=None,
    transaction=None,
)
_PAYLOAD: Final = b'{"order":%10d,"note":"' + b"x" * 214 + b'"}'


class ClientProducer(Producer):
    """Hands records to the client, which delivers them to a simulated broker."""

    def __init__(self) -> None:
        self.event_count = 0
        self._client = KafkaProducer(
            Kafka(
                bootstrap_servers="simulated:9092",
                client={
                    "test.mock.num.brokers": "1",
                    # No request creates a topic of the simulated broker.
                    "allow.auto.create.topics": "true",
                },
            ),
            max_in_flight_bytes=16 * 1024 * 1024,
            batch_bytes=1_000_000,
            record_bytes=1_000_000,
        )

    def produce(self, outgoing: Sequence[Outgoing]) -> int:
        taken = self._client.produce(outgoing)
        self.event_count += taken
        return taken

    def poll(self, timeout_s: float) -> None:
        self._client.poll(timeout_s)

    def flush(self, timeout_s: float) -> None:
        self._client.flush(timeout_s)

    def close(self) -> None:
        self._client.close()


def row(number: int) -> bytes:
    """Make the insert message of an outbox row."""
    texts = (
        b"018f0000-0000-7000-8000-%012d" % number,
        b"order",
        b"%d" % (number % _AGGREGATES),
        b"OrderPlaced",
        _PAYLOAD % number,
        None,
        None,
        b"2026-01-02 03:04:05.678901+00",
    )
    return inserted(TABLE, texts)


def shape() -> bytes:
    """Make the relation message of the outbox."""
    return relation(TABLE, b"towpath", b"outbox", OUTBOX_COLUMNS)


def item_values(number: int) -> tuple[bytes | None, ...]:
    """Make the values of a table's row."""
    amount, note = b"%d.50" % number, b"a note of some words, as people write them"
    at = b"2026-01-02 03:04:05.678901+00"
    return b"%d" % number, b"item %d" % number, amount, b"t", at, note


def item(number: int) -> bytes:
    """Make the insert message of a table's row."""
    return inserted(_ITEMS, item_values(number))


def item_shape() -> bytes:
    """Make the relation message of the table."""
    return relation(_ITEMS, b"rec", b"item", _ITEM_COLUMNS)


class Rows(NamedTuple):
    """The rows to replay: their relation message, and the insert message of each."""

    shape: Callable[[], bytes]
    row: Callable[[int], bytes]


OUTBOX: Final = Rows(shape, row)
TABLE_ROWS: Final = Rows(item_shape, item)


def backlog(events: int, rows: int, replayed: Rows) -> Iterator[list[bytes]]:
    """Make the frames of each read of a backlog; transactions have ``rows`` rows."""
    frames: list[bytes] = []
    for first in range(0, events, rows):
        messages = map(replayed.row, range(first, min(first + rows, events)))
        frames += transaction(START + 1000 + 8 * first, *messages)
    for at in range(0, len(frames), _READ_FRAMES):
        yield frames[at : at + _READ_FRAMES]


def cost_us(rows: int, events: int = EVENTS, replayed: Rows = OUTBOX) -> float:
    """Return the CPU time per event of the loop's thread, in microseconds."""
    producer = ClientProducer()
    bench = Bench(producer=producer, partitions=_PARTITIONS)
    first = transaction(START + 8, replayed.shape(), replayed.row(0))
    bench.stream.reads.append(first)
    _drain(bench, producer)
    bench.stream.reads = deque(backlog(events, rows, replayed))
    produced, before = producer.event_count, bench.stats.records
    gc.collect()
    began_s = time.thread_time()
    _drain(bench, producer)
    spent_s = time.thread_time() - began_s
    producer.close()
    # Checkpoints are produced too: hence "at least".
    assert producer.event_count - produced >= events
    assert bench.stats.records == events + before
    return spent_s / events * 1e6


def copied_cost_us(form: str, rows: int = EVENTS) -> float:
    """Return the CPU time per row of a snapshot, from its COPY line to its record."""
    _, route = _item_codec_and_route(form)
    lines = [b"\t".join(map(_text, item_values(at))) + b"\n" for at in range(rows)]
    gc.collect()
    began_s = time.thread_time()
    written = sum(
        len(route.reads(decode_lines(lines[at : at + _SLICE_ROWS]), READ_SLICE))
        for at in range(0, rows, _SLICE_ROWS)
    )
    spent_s = time.thread_time() - began_s
    assert written == rows
    return spent_s / rows * 1e6


def encoded_cost_us(form: str, rows: int = EVENTS) -> float:
    """Return the CPU time per insert of a table's codec: its key and its value."""
    codec, _ = _item_codec_and_route(form)
    values = [item_values(at) for at in range(rows)]
    gc.collect()
    began_s = time.thread_time()
    for row in values:
        codec.key(row)
        codec.value(None, row, _INSERT, is_full=True)
    return (time.thread_time() - began_s) / rows * 1e6


def _text(value: bytes | None) -> bytes:
    return rb"\N" if value is None else value


def _item_codec_and_route(form: str) -> tuple[Codec, TableRoute]:
    columns = tuple(
        TableColumn(column.name.decode(), column.type_oid, column.typmod)
        for column in _ITEM_COLUMNS
    )
    table = Relation(_ITEMS, "rec", "item", columns, (0,))
    relay = Relay.model_validate({"rows": {"format": form}})
    return make_codec_and_route(relay, table, NOTHING_KNOWN)


def _drain(bench: Bench, producer: ClientProducer) -> None:
    """Run turns until every frame is read and everything is acknowledged."""
    while bench.stream.reads:
        bench.clock.now_s += _TURN_S
        bench.turn()
    while bench.stats.in_flight_bytes:
        producer.flush(1)
        bench.clock.now_s += _TURN_S
        bench.turn()


def main() -> None:
    """Print the lowest CPU time of several rounds, for each kind and number of rows."""
    configure_logs()
    print(f"Python {interpreter.describe()}, {compiled.running()}")  # noqa: T201 - its output
    for rows in ROWS:
        _report(f"outbox, {rows} rows", partial(cost_us, rows))
        _report(f"table, {rows} rows", partial(cost_us, rows, replayed=TABLE_ROWS))
    for form in _FORMS:
        _report(f"codec, {form}", partial(encoded_cost_us, form))
        _report(f"snapshot, {form}", partial(copied_cost_us, form))


def _report(name: str, cost: Callable[[], float]) -> None:
    costs = [cost() for _ in range(_ROUNDS)]
    lowest, median = min(costs), statistics.median(costs)
    print(f"{name:18} {lowest:6.2f} us, median {median:6.2f} us")  # noqa: T201


if __name__ == "__main__":
    main()

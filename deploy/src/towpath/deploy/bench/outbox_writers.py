"""
Writers of the outbox benchmark: processes that commit items, with or without events.

The systems differ only in the event:

===========  =======================================================================
none         no event: the cost of a commit
sql          a handwritten insert into the outbox, without the library and its checks
keep         ``Outbox(way="keep")``
delete       ``Outbox(way="delete")``
message      ``Outbox(way="message")``
===========  =======================================================================
"""

import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import psycopg

from towpath.outbox import Events, Outbox
from towpath.schemas import source_tables
from towpath.schemas.clock import Deadline, SystemClock

NONE: Final = "none"
SQL: Final = "sql"
SYSTEMS: Final = (NONE, SQL, "keep", "delete", "message")

TABLES: Final = (
    "create table item (id text primary key, amount bigint, note text)",
    source_tables.schema_statement(),
    source_tables.outbox().create_statement(),
)
# The writers wait for this advisory lock, so that all begin at the same time.
START_LOCK: Final = 7_042

_NOTE: Final = "x" * 120
_SCHEMA: Final = {
    "type": "record",
    "name": "ItemPlaced",
    "namespace": "bench",
    "fields": [
        {"name": "item_id", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "note", "type": "string"},
    ],
}
_ITEM: Final = "insert into item (id, amount, note) values (%s, %s, %s)"
_EVENT: Final = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload,"
    " headers) values (gen_random_uuid(), 'item', %s, 'ItemPlaced', %s, '{}')"
)

_Connection = psycopg.Connection[Any]
_WriteEvent = Callable[[_Connection, "ItemPlaced"], object]


class WriterOptions(NamedTuple):
    """The options of one writer; each writer has a different ``number``."""

    dsn: str
    system: str
    number: int
    warm_up_s: float
    duration_s: float


class Written(NamedTuple):
    """The measured commits of one writer."""

    elapsed_s: float
    latencies_s: tuple[float, ...]


@dataclass
class ItemPlaced:
    """The event that a writer records for each item."""

    item_id: str
    amount: int
    note: str


def start(options: list[WriterOptions]) -> "Writers":
    """Start a process for each writer; they wait for ``START_LOCK``."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(len(options), mp_context=context)
    return Writers(pool, options)


class Writers:
    """Running writers; leaving the ``with`` block waits for them."""

    def __init__(self, pool: ProcessPoolExecutor, options: list[WriterOptions]) -> None:
        self._pool = pool
        self._runs = [pool.submit(write, each) for each in options]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def results(self) -> list[Written]:
        """Wait for all writers, and return their measurements."""
        return [run.result() for run in self._runs]


def write(options: WriterOptions) -> Written:
    """Commit items, one after the other, until the time is up."""
    clock, write_event = SystemClock(), _event_writer(options.system)
    latencies: list[float] = []
    with psycopg.connect(options.dsn) as connection:
        connection.execute("select pg_advisory_lock_shared(%s)", [START_LOCK])
        connection.commit()
        warm_up = Deadline(clock, options.warm_up_s)
        deadline = Deadline(clock, options.warm_up_s + options.duration_s)
        began_s, number = clock.monotonic_s(), 0
        while not deadline.passed():
            if latencies or warm_up.passed():
                began_s = began_s if latencies else clock.monotonic_s()
                latencies.append(0.0)
            at_s = clock.monotonic_s()
            item = ItemPlaced(f"{options.number}-{number}", number, _NOTE)
            connection.execute(_ITEM, (item.item_id, item.amount, item.note))
            write_event(connection, item)
            connection.commit()
            number += 1
            if latencies:
                latencies[-1] = clock.monotonic_s() - at_s
        return Written(clock.monotonic_s() - began_s, tuple(latencies))


def _event_writer(system: str) -> _WriteEvent:
    if system == NONE:
        return lambda _connection, _item: None
    if system == SQL:
        return _write_sql
    events = Events()
    events.event(aggregate_type="item", key="item_id", schema=_SCHEMA)(ItemPlaced)
    return Outbox(events, way=system).record  # type: ignore[arg-type]


def _write_sql(connection: _Connection, item: ItemPlaced) -> None:
    connection.execute(_EVENT, (item.item_id, json.dumps(vars(item))))

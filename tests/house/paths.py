"""
The main paths, each walked once, after a warm-up, with fakes at its edges.

The relay's own wiring and loop run the relay's paths: one turn is the work between two
reads of the socket. The sinks' path ends at a Redis that responds immediately.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Final, TypeAlias

from house.hops import Call, traced
from support.cache_bench import CacheBench
from support.relay_bench import (
    OUTBOX_COLUMNS,
    START,
    Bench,
    Column,
    inserted,
    relation,
    transaction,
)
from towpath.relay.commands import compiled

# A row's own path in a turn begins here; the calls around it belong to the loop.
CONSUMER: Final = "relay/stream/consumer.py"
# Modules that an idle turn queries for an active snapshot. Of these, ``visibility``
# does not count, because the stream uses it.
_SNAPSHOT: Final = ("relay/snapshot/", "relay/stream/snapshot_runner.py")
_VISIBILITY: Final = "relay/snapshot/visibility.py"
_TURN: Final = "turn"

_EVENT: Final = (
    b"1" * 36, b"order", b"7", b"OrderPlaced", b'{"a":1}', b'{"s":"x"}', None,
    b"2026-01-02 03:04:05.6+00",
)  # fmt: skip
_ORDERS: Final = (
    Column(b"id", 23, is_key=True), Column(b"note", 25), Column(b"price", 1700),
)  # fmt: skip
_TABLE: Final = 4711
_PAUSE_S: Final = 1.0

_Path: TypeAlias = Callable[[], tuple[Call, ...]]


def _as_python(walk: _Path) -> _Path:
    """
    Walk once; if this process runs compiled modules, walk in a process that does not.
    """
    _WALKS.append(walk.__name__)

    @cache
    @wraps(walk)
    def walked() -> tuple[Call, ...]:
        if compiled.running() is compiled.Code.PYTHON:
            return walk()
        return _walked_as_python()[walk.__name__]

    return walked


_WALKS: Final[list[str]] = []
_PRINT_WALKS: Final = (
    "import json; from house import paths; "
    "print(json.dumps({name: getattr(paths, name)() for name in paths._WALKS}))"
)


@cache
def _walked_as_python() -> dict[str, tuple[Call, ...]]:
    """
    Walk all paths in a new process, because calls in compiled modules are not traced.
    """
    path = {"PYTHONPATH": os.pathsep.join(sys.path), compiled.VARIABLE: "off"}
    environ = os.environ | path  # noqa: TID251 - a root
    found = subprocess.check_output([sys.executable, "-c", _PRINT_WALKS], env=environ)
    walks: dict[str, list[list[object]]] = json.loads(found)
    return {name: tuple(Call(*call) for call in walks[name]) for name in walks}


@_as_python
def outbox_row() -> tuple[Call, ...]:
    """Walk the turn that reads one outbox row and hands it to the producer."""
    return _walked_to_producer(_bench_with_outbox_row())


@_as_python
def acknowledgement() -> tuple[Call, ...]:
    """Walk the turn that processes the acknowledgement of one outbox row."""
    bench = _bench_with_outbox_row()
    bench.turn()
    bench.clock.now_s += _PAUSE_S
    return _walked(bench.turn)


@_as_python
def table_row() -> tuple[Call, ...]:
    """Walk the turn that reads one row of a table and hands it to the producer."""
    shape = relation(_TABLE, b"shop", b"orders", _ORDERS)
    first, second = (inserted(_TABLE, (n, b"a", b"1.5")) for n in (b"1", b"2"))
    return _walked_to_producer(_warm(shape, first, second))


@_as_python
def idle_turn() -> tuple[Call, ...]:
    """Walk an idle turn."""
    bench = Bench()
    bench.turn(20)
    return _walked(bench.turn)


def snapshot_queries(calls: tuple[Call, ...]) -> list[Call]:
    """Return the calls that query the snapshots, except for the snapshots' own turn."""
    return [
        call
        for call in calls
        if call.module.startswith(_SNAPSHOT)
        and call.module != _VISIBILITY
        and not call.function.endswith(f".{_TURN}")
    ]


@_as_python
def cache_record() -> tuple[Call, ...]:
    """Walk one record from a batch to Redis."""
    bench = CacheBench()
    bench.write(1)
    calls = _walked(lambda: bench.write(2))
    assert bench.call_count == 2
    return calls


def _bench_with_outbox_row() -> Bench:
    """Return a warm loop that has an outbox row to read."""
    shape = relation(_TABLE, b"towpath", b"outbox", OUTBOX_COLUMNS)
    row = inserted(_TABLE, _EVENT)
    return _warm(shape, row, row)


def _warm(shape: bytes, first: bytes, second: bytes) -> Bench:
    bench = Bench()
    bench.stream.reads.append(transaction(START + 8, shape, first))
    bench.turn(3)
    bench.stream.reads.append(transaction(START + 808, second))
    return bench


def _walked_to_producer(bench: Bench) -> tuple[Call, ...]:
    before = len(bench.producer.records)
    calls = _walked(bench.turn)
    assert len(bench.producer.records) == before + 1
    return calls


def _walked(work: Callable[[], object]) -> tuple[Call, ...]:
    with traced() as calls:
        work()
    return tuple(calls)

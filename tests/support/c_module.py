"""
The C module of the relay's hot path, beside the Python module that it replaces.

``load`` imports the C module from a folder, without replacing the Python module, and
``compile_into`` compiles it on its own. ``python -m support.c_module FOLDER SEED
COUNT`` compares both forms on random frames and batches; a test runs it with the
compiler's sanitizers.
"""

import os
import random
import shlex
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from support.relay_bench import Acknowledged, inserted
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.outbox import OutboxRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import ANY_PARTITION, Record, partition_of
from towpath.relay.publish.in_flight import (
    Delivery,
    DeliveryLedger,
    PartitionBatch,
    Queued,
)
from towpath.relay.wal.messages import UNCHANGED, Column, Relation, Row
from towpath.relay.wal.transactions import Transaction
from towpath.settings.outbox import Outbox

CLONE: Final = Path(__file__).parents[2]
_NAME: Final = "towpath.relay.publish.hot_path"
_SOURCE: Final = CLONE / "relay" / "src" / f"{_NAME.replace('.', '/')}.py"
_NAMES: Final = (
    "occurred_at",
    "id",
    "aggregate_type",
    "tenant",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
)
OUTBOX: Final = Relation(
    oid=4711,
    schema="towpath",
    table="outbox",
    columns=tuple(Column(name, 25) for name in _NAMES),
    key=(),
)
TIMES: Final = (
    b"2026-01-02 03:04:05.678901+00",
    b"2026-01-02 03:04:05.6789+00",
    b"2026-01-02 03:04:05.+00",
    b"2026-01-02 03:04:05+00",
    b"2026-01-02T03:04:05.678901+00",
    b"2026-01-02 03:04:05.678901+01",
    b"2026/01-02 03:04:05.6789+00",
    b"12026-01-02 03:04:05.6789+00",
    b"0044-03-15 12:00:00.5 BC+00",
    b"0044-03-15 12:00:00+00 BC",
    b"2026-01-02 03:04:05?6+00",
    b"infinity",
    b"+00",
    b"",
    None,
)
TEXTS: Final = (b"1", b"OrderPlaced", b"", b"\xff\0", b"x" * 300, None)
TYPES: Final = (b"order", "käse".encode(), b"", b"\xff", None)
HEADERS: Final = (
    None,
    b"{}",
    b'{"tenant": "a", "region": 7}',
    b'{"traceparent": "00-0af7-01"}',
    b'{"id": "b"}',
    b"[]",
)
_VALUES: Final = (TIMES, TEXTS, TYPES, TEXTS, TEXTS, TEXTS, TEXTS, HEADERS, TEXTS)
TOPICS: Final = {"outbox.event.order": 4, "käse": 1, "shop.public.item": 1000}
_MAX_TEXT: Final = 40
_MAX_RECORDS: Final = 40


def load(folder: Path) -> ModuleType:
    """Import the C module from a folder of compiled modules."""
    return _loaded(_path(folder))


def _loaded(path: Path) -> ModuleType:
    spec = spec_from_file_location(_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    imported = sys.modules.get(_NAME)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    # A C module registers itself in ``sys.modules``.
    if imported is not None:
        sys.modules[_NAME] = imported
    return module


def _path(folder: Path) -> Path:
    return folder / (_NAME.replace(".", "/") + EXTENSION_SUFFIXES[0])


def compiler() -> list[str]:
    """Return the command of the C compiler that the setup uses."""
    words = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"  # noqa: TID251 - as the set-up
    return shlex.split(words)


def compile_into(folder: Path, *options: str) -> None:
    """Compile the C module into a folder, with further options for the compiler."""
    include = f"-I{sysconfig.get_path('include')}"
    made = _path(folder)
    made.parent.mkdir(parents=True, exist_ok=True)
    source = _SOURCE.with_suffix(".c")
    linked = ("-shared", "-fPIC", include, str(source), "-o", str(made))
    subprocess.run([*compiler(), *options, *linked], check=True)


# The reference, even if this process has imported the C module.
PYTHON: Final = _loaded(_SOURCE)


class EventCase(NamedTuple):
    """A row's frame, its transaction and its ordinal."""

    frame: bytes
    transaction: Transaction
    ordinal: int


class EventOutcome(NamedTuple):
    """An error's or a result's type, the result, and the number of dropped headers."""

    kind: type
    made: object
    dropped: int


class EventRoute:
    """A route of the outbox, and its events in each form; all use the same caches."""

    def __init__(self, forms: Sequence[ModuleType], *, parks: bool = False) -> None:
        self.skipped: list[str] = []
        parked = ParkedAggregates(10)
        if parks:
            parked.park("order", b"1", b"")
        dead = DeadLetters("towpath", lambda _: None, parked)
        route = OutboxRoute(
            OUTBOX, Outbox(), dead, parked, frozenset(), self.skipped.append
        )
        width = len(OUTBOX.columns)
        self.layout = route.layout
        self._events = [
            form.PlainEvents(width, route.event, route.layout) for form in forms
        ]

    def outcomes(self, case: EventCase) -> list[EventOutcome]:
        """Return each form's outcome."""
        found = []
        for events in self._events:
            self.skipped.clear()
            kind, made = outcome(events.record, *case)
            found.append(EventOutcome(kind, made, len(self.skipped)))
        return found


def outcome(call: Callable[..., object], *given: object) -> tuple[type, object]:
    """Return what a call returns, with its type, or the type of its error."""
    try:
        made = call(*given)
    except Exception as error:  # noqa: BLE001 - its type is compared
        return type(error), None
    return type(made), made


def batch_outcome(
    form: ModuleType, queued: list[Queued], ledger: DeliveryLedger
) -> object:
    """Return the batches of queued records, without the identity of callbacks."""
    outgoing, partitions = form.batched(queued, ledger, TOPICS, _partition)
    found = []
    for record, partition, callback in outgoing:
        batch = callback.__self__ if callback else None
        facts = batch and (
            sorted(map(id, batch.deliveries)),
            batch.size_bytes,
            batch.position,
            *_acknowledged(batch, ledger),
        )
        found.append((id(record), partition, facts))
    return found, sorted(partitions)


def _acknowledged(batch: PartitionBatch, ledger: DeliveryLedger) -> tuple[object, ...]:
    """Acknowledge a batch; return the partitions that the ledger then knows."""
    ledger.ordered_acks, ledger.unordered_acks = {}, {}
    batch.acknowledge(None, Acknowledged())
    return tuple(ledger.ordered_acks), tuple(ledger.unordered_acks)


def _partition(
    _topic: None, key: bytes, _length: int, count: int, _rkt: None, _message: None
) -> int:
    return partition_of(key, count)


def begun(log_lsn: int, committed_us: int) -> Transaction:
    """Make an open transaction."""
    return Transaction(7, log_lsn, log_lsn, committed_us, b"%016x." % log_lsn)


def wrapped(message: bytes) -> bytes:
    """Make the frame of a message."""
    return b"w" + bytes(24) + message


class _Cases:
    """Random cases: most frames are valid, the others are damaged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test's
        self._ledger = DeliveryLedger(0)

    def event(self) -> EventCase:
        """Make a row's frame."""
        pick = self._random
        usual = pick.random() < 0.5
        values: Row = tuple(each[0] if usual else pick.choice(each) for each in _VALUES)
        if pick.random() < 0.1:
            values = (*values[:-1], UNCHANGED)
        frame = self._damaged(wrapped(inserted(OUTBOX.oid, values)))
        lsn, committed_us = pick.randrange(2**64), pick.randrange(-(10**15), 10**16)
        ordinal = pick.choice((0, 7, 10**9, 10**10 - 1, 10**10, 10**20))
        return EventCase(frame, begun(lsn, committed_us), ordinal)

    def transaction(self) -> tuple[bytes, bytes, int]:
        """Make the frames of a begin and a commit, and a lineage's offset."""
        pick = self._random
        numbers = [pick.choice((0, 7, 2**63, 2**64 - 1)) for _ in range(3)]
        begin = wrapped(
            b"B" + struct.pack(">QqI", numbers[0], pick.randrange(-9, 9), 5)
        )
        flags = bytes([pick.randrange(2)])
        commit = b"C" + flags + struct.pack(">QQq", numbers[0], numbers[1], 0)
        offset = pick.choice((0, 1, 2**32, 2**62))
        return self._damaged(begin), self._damaged(wrapped(commit)), offset

    def queue(self) -> tuple[list[Queued], DeliveryLedger]:
        """Make queued records."""
        pick, ledger = self._random, self._ledger
        deliveries = [Delivery(ledger) for _ in range(3)]
        return [
            (
                self._record(),
                pick.choice(deliveries),
                pick.choice((b"", b"1.0", b"2.0")),
            )
            for _ in range(pick.randrange(_MAX_RECORDS))
        ], ledger

    def keys(self) -> tuple[list[bytes | None], int]:
        """Make keys and a partition count; in rare cases, a key is missing."""
        pick = self._random
        keys: list[bytes | None] = [
            pick.randbytes(pick.randrange(_MAX_TEXT)) for _ in range(pick.randrange(9))
        ]
        missing = [None] if pick.random() < 0.1 else []
        return keys + missing, pick.choice((1, 6, 1000))

    def _record(self) -> Record:
        pick = self._random
        topic = "".join(pick.choice(list(TOPICS)))
        key = pick.choice((None, pick.randbytes(pick.randrange(_MAX_TEXT))))
        value = pick.choice((None, pick.randbytes(pick.randrange(_MAX_TEXT))))
        partition = pick.choice((ANY_PARTITION, ANY_PARTITION, 0, 3, 100_000))
        return Record(topic, key, value, [], b"1.0", 0, 512, partition)

    def _damaged(self, frame: bytes) -> bytes:
        pick = self._random
        if pick.random() < 0.6:
            return frame
        at = pick.randrange(len(frame))
        altered = frame[:at] + pick.randbytes(1) + frame[at + 1 :]
        return pick.choice((frame[:at], frame + b"n", altered, frame[at:], b""))


def compare(forms: Sequence[ModuleType], seed: int, count: int) -> int:
    """Compare the forms on random cases; return how many rows became events."""
    cases, events = _Cases(seed), 0
    for number in range(count):
        if number % 1000 == 0:
            # The form that comes first finds the caches empty.
            ordered = forms[:: 1 if number % 2000 else -1]
            route = EventRoute(ordered, parks=number % 5000 == 0)
        found = route.outcomes(case := cases.event())
        assert found[1:] == found[:-1], (case, found)
        events += found[0].made is not None
        begin, commit, offset = cases.transaction()
        begins = [outcome(each.parse_begin, begin, offset) for each in forms]
        assert begins[1:] == begins[:-1], (begin, offset, begins)
        opened = begins[0][1] if number % 2 else begun(7, 0)
        ends = [outcome(each.parse_commit, commit, opened) for each in forms]
        assert ends[1:] == ends[:-1], (commit, opened, ends)
        queue = cases.queue()
        batched = [batch_outcome(each, *queue) for each in forms]
        assert batched[1:] == batched[:-1], (queue, batched)
        keys = cases.keys()
        placed = [outcome(each.partitions_of, *keys, _partition) for each in forms]
        assert placed[1:] == placed[:-1], (keys, placed)
    return events


def main(folder: str, seed: str, count: str) -> None:
    """Compare C with Python; print how many random rows became events."""
    forms = [PYTHON, load(Path(folder))]
    print(compare(forms, int(seed), int(count)))  # noqa: T201 - its output


if __name__ == "__main__":
    main(*sys.argv[1:])

"""
Random histories of a database, a relay and a broker, with the real snapshot driver.

The model assumes only Postgres's guarantees: a commit is in the WAL before it becomes
visible, and keeps its row locks until then. Transactions commit, abort, change keys,
leave columns out and truncate; the relay's stream, its reader, its signal writer and
the broker each run at their own pace; the relay is killed at any moment, and
unacknowledged records may be lost. Chunks are emitted in slices of any size, with the
stream in between; in some histories a slice has rows of only one partition. Half of the
signals request a whole table, half request keys.

Each history asserts that no read is older than an earlier delivery of its key, and that
no key whose row was delivered is read as absent. A sink that was empty, or wrong in
the requested keys, equals the table in the end; so does a sink that followed from the
start and missed rows that moved with columns left out. The signal ends as
``completed``, and nothing is requested twice. Wrong variants must be refuted.
"""

import copy
import dataclasses
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.copying import replace
from towpath.relay.snapshot import protocol
from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.driver import SnapshotDriver, SnapshotScope
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.range_reader import EmittedSlice, RangeReader
from towpath.relay.snapshot.run import SnapshotLimits
from towpath.relay.snapshot.scan_context import ConsistentPoints
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    RowValues,
    ScanPlan,
    TableShape,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.table_scan import ScanStage, TableScan
from towpath.relay.snapshot.visibility import InvisibleTransactions, XidSnapshot
from towpath.relay.snapshot.window import DeduplicatedRows, RemainingRows, Window
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.position import Position

KEYS = 9
# Used instead of a key: every row below the position is removed.
SWEPT = -1
# One of these per history, by its seed; with several, rows are emitted by partition.
PARTITION_COUNTS = (1, 1, 1, 2, 1, 3, 2)
OID = 4711
COLUMNS = (Column("id", 20), Column("tag", 20), Column("large", 25))
SHAPE = TableShape(Relation(OID, "s", "a", COLUMNS, (0,)), ("bigint",))
# The 32-bit ids wrap around within the history.
FIRST_XID = (1 << 32) - 12


class Version(NamedTuple):
    """A row's columns other than its key; the stream may leave out ``large``."""

    tag: int
    large: int | None


@dataclass(slots=True)
class Transaction:
    """
    A transaction; each of its changes is a kind and its arguments, as in the stream.
    """

    xid: int
    changes: list[tuple] = field(default_factory=list)
    view: dict = field(default_factory=dict)
    truncates: bool = False
    is_slow: bool = False


class Record(NamedTuple):
    """A record in the broker."""

    position: Position
    key: int
    version: Version | None
    is_read: bool
    target: str | None
    tag: int


class RefutedError(AssertionError):
    """A history that breaks a guarantee."""


class Model:
    """The database and the broker: the state that survives the relay."""

    early_maximum = False
    maximum_at_mark: int | None = None

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a history, not a secret
        self.partition_count = PARTITION_COUNTS[seed % len(PARTITION_COUNTS)]
        self.rows: dict[int, Version] = {}
        self.tag = 0
        self.log: list[Transaction | str] = []
        self.open: list[Transaction] = []
        self.unseen: list[Transaction] = []
        self.next_xid = FIRST_XID
        self.stored: dict[str, StoredTable] = {}
        self.asked_until: str | None = None
        self.answers: dict[str, str] = {}
        self.topic: list[Record] = []
        self.acknowledged = self.start_of_sink = 0
        self.confirmed_lsn = 8
        self.target = self.random.choice([None, "new"])
        # In a smaller chunk, no slice would pass over a row.
        sizes = [1, 2, 3, 20] if self.partition_count == 1 else [4, 20]
        self.chunk_rows = self.random.choice(sizes)
        self.max_changed_keys = self.random.choice([3, 8, 1000])
        self.batch_keys = self.random.choice([1, 2, 1000])
        self.slow = self.random.choice([0, 0.1, 0.4])
        self.readers = self.random.choice([1, 2, 3, 3])
        self.is_blocking = self.random.random() < 0.3
        self.sweeps = self.random.random() < 0.3
        self.listed: list[int] = []
        if self.random.random() < 0.5:
            self.listed = self.random.sample(range(KEYS), self.random.randint(1, 5))
            self.is_blocking = self.sweeps = False
        for key in self.random.sample(range(KEYS), self.random.randrange(KEYS)):
            self.rows[key] = self.version()
        self.first_rows = dict(self.rows)

    # The database ----------------------------------------------------------------

    def version(self) -> Version:
        self.tag += 1
        return Version(self.tag, self.tag)

    @property
    def locked(self) -> set[int]:
        holders = self.open + self.unseen
        if any(holder.truncates for holder in holders):
            return set(range(KEYS))
        return {key for holder in holders for key in holder.view}

    def begin(self) -> None:
        transaction = Transaction(self.take_xid())
        transaction.is_slow = self.random.random() < self.slow
        self.open.append(transaction)
        for _ in range(self.random.randint(1, 3)):
            self.change(transaction)

    def take_xid(self) -> int:
        """Return the next transaction's id; the lowest three are reserved."""
        xid = self.next_xid
        self.next_xid += 1 if (xid + 1) % (1 << 32) else 4
        return xid

    def change(self, transaction: Transaction) -> None:
        others = [t for t in self.open + self.unseen if t is not transaction]
        if any(t.truncates for t in others):
            return
        taken = {key for t in others for key in t.view}
        if self.random.random() < 0.03 and not taken:
            transaction.truncates = True
            transaction.view = dict.fromkeys(range(KEYS))
            transaction.changes.append(("truncate", self.version().tag))
            return
        key = self.random.randrange(KEYS)
        if key not in taken:
            self.change_row(transaction, key, taken)

    def change_row(self, transaction: Transaction, key: int, taken: set) -> None:
        now = transaction.view.get(key, self.rows.get(key))
        if key in transaction.view:
            now = transaction.view[key]
        if now is None:
            transaction.view[key] = self.version()
            transaction.changes.append(("write", key, transaction.view[key]))
            return
        kind = self.random.choice(["update", "partial", "delete", "move", "move"])
        new = self.version()
        if kind in {"partial", "move"} and self.random.random() < 0.7:
            kept, streamed = Version(new.tag, now.large), Version(new.tag, None)
        else:
            kept = streamed = new
        if kind == "delete":
            transaction.view[key] = None
            transaction.changes.append(("delete", key, new.tag))
        elif kind == "move":
            self.move(transaction, key, kept, streamed, taken)
        else:
            transaction.view[key] = kept
            transaction.changes.append(("write", key, streamed))

    def move(self, transaction, key, kept, streamed, taken) -> None:
        other = self.random.randrange(KEYS)
        view = transaction.view
        there = view[other] if other in view else self.rows.get(other)
        if other in taken or there is not None:
            return
        view[key], view[other] = None, kept
        transaction.changes.append(("move", key, other, streamed, kept))

    def commit(self, transaction: Transaction) -> None:
        self.open.remove(transaction)
        self.unseen.append(transaction)
        self.log.append(transaction)

    def show(self, transaction: Transaction) -> None:
        if transaction.is_slow and self.random.random() < 0.95:
            return
        self.unseen.remove(transaction)
        for key, version in transaction.view.items():
            if version is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = version

    def signal(self) -> None:
        self.start_of_sink = self.acknowledged
        data = {"data-collections": ["s.a"], "target": self.target}
        if self.listed:
            data["keys"] = [[key] for key in self.listed]
        if self.is_blocking:
            data["type"] = "blocking"
        if self.sweeps:
            data["sweep"] = True
        self.send("signal", "execute-snapshot", json.dumps(data))

    def send(self, signal_id: str, kind: str, data: str = "{}") -> None:
        change = ("signal", signal_id, kind, data)
        transaction = Transaction(self.take_xid(), [change])
        self.open.append(transaction)
        self.commit(transaction)

    @property
    def is_paused(self) -> bool:
        return any(table.state == "paused" for table in self.stored.values())

    def unfinished(self) -> protocol.UnfinishedRead:
        tables = []
        for table in self.stored.values():
            is_signal = table.snapshot_id == "signal"
            has_ended = _has_ended(self) if is_signal else table.has_ended
            if not has_ended:
                is_listed = table.asked_keys is not None
                keys = None if is_listed else table.pending_keys
                tables.append(replace(table, pending_keys=keys))
        return protocol.UnfinishedRead(tuple(tables), self.asked_until)

    def partitions_of(
        self, _target: str | None, _relation: Relation, rows: Sequence[RowValues]
    ) -> Sequence[int]:
        """Return each row's partition; with one partition, and at random, nothing."""
        if self.partition_count == 1 or self.random.random() < 0.1:
            return ()
        return [int(row[0]) % self.partition_count for row in rows]

    def snapshot(self) -> XidSnapshot:
        running = frozenset(t.xid for t in self.open + self.unseen)
        xmin = min(running, default=self.next_xid)
        return XidSnapshot(xmin, self.next_xid, running)

    # The broker ------------------------------------------------------------------

    def kill_relay(self) -> "Relay":
        """Kill the relay, lose unacknowledged records at random, and start another."""
        kept = self.random.randint(self.acknowledged, len(self.topic))
        while 0 < kept < len(self.topic) and self.are_twins(kept - 1, kept):
            kept += 1
        del self.topic[kept:]
        self.acknowledged = kept
        return Relay(self)

    def are_twins(self, *indexes: int) -> bool:
        """Return whether records belong to one change; a resume skips them together."""
        one, other = (self.topic[index] for index in indexes)
        return one.position == other.position and not (one.is_read or other.is_read)


class Relay:
    """The loop, the reader and the signal writer around the real driver."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.invisible = InvisibleTransactions(model.confirmed_lsn)
        self.driver = SnapshotDriver(
            self.invisible,
            scope=SnapshotScope(["s.a"], lambda: ["new"]),
            run_id=str(model.random.random()),
            limits=SnapshotLimits(
                ChunkSize(model.chunk_rows),
                model.readers,
                model.max_changed_keys,
                model.batch_keys,
            ),
            throttle=Throttle(10.0, 0),
        )
        self.at = model.confirmed_lsn // 8 - 1
        self.sequence = 0
        self.now_s = 0.0
        self.facts: deque[protocol.Fact] = deque()
        self.commands: deque[protocol.Effect] = deque()
        self.read_effects: deque[protocol.Effect] = deque()
        self.readers: list[Iterator[None] | None] = [None] * model.readers
        self.exported: dict[str, tuple[XidSnapshot, dict[int, Version]]] = {}
        self.emitted: dict[int, int] = {}
        self.settled: deque[tuple[int, int, list[str]]] = deque()
        self.holds: list[str] = []
        self.released: set[str] = set()
        self.acknowledged_lsn = model.confirmed_lsn
        streamed = [r.position for r in model.topic if not r.is_read]
        self.published = max(streamed, default=Position(0, 0))
        self.newest: dict[int, int] = {}
        self.present: dict[int, bool] = {}
        for record in model.topic:
            if not record.is_read:
                self.newest[record.key] = record.tag
                self.present[record.key] = record.version is not None
        self.drive(model.unfinished())

    def drive(self, fact: protocol.Fact) -> None:
        for effect in self.driver.on(fact):
            match effect:
                case protocol.EmitRows():
                    self.emit(effect)
                case protocol.EmitSweep():
                    self.sweep(effect)
                case protocol.Notify():
                    pass
                case (
                    protocol.WriteWatermark()
                    | protocol.ReadPlan()
                    | protocol.ReadChunk()
                ):
                    self.read_effects.append(effect)
                case _:
                    self.commands.append(effect)

    def is_idle(self) -> bool:
        waits = self.driver.is_busy or self.facts or self.commands or self.read_effects
        is_read = self.at == len(self.model.log) and not any(self.readers)
        return is_read and not waits

    # The stream ------------------------------------------------------------------

    def stream(self) -> None:
        model = self.model
        if self.at == len(model.log):
            return
        # Frames that arrived together with the mark are still processed; then the
        # stream waits.
        if self.driver.blocks_stream and model.random.random() < 0.9:
            return
        entry = model.log[self.at]
        lsn, end_lsn = 8 * (self.at + 1), 8 * (self.at + 2)
        self.at += 1
        if isinstance(entry, str):
            self.sequence += 1
            self.drive(protocol.WatermarkSeen(entry, end_lsn, self.sequence))
        else:
            self.take(entry, lsn)
            self.invisible.add(entry.xid % (1 << 32), end_lsn)
        self.settled.append((len(model.topic), end_lsn, self.holds))
        self.holds = []

    def take(self, transaction: Transaction, lsn: int) -> None:
        xid = transaction.xid % (1 << 32)
        for ordinal, change in enumerate(transaction.changes):
            self.sequence += 1
            self.record_changed_key(change, xid)
            self.complete(change, Position(lsn, ordinal))
            self.publish(change, Position(lsn, ordinal))
            if change[0] == "signal":
                _, signal_id, kind, data = change
                self.holds.append(signal_id)
                self.drive(protocol.SignalSeen(signal_id, kind, data, xid))

    def complete(self, change: tuple, position: Position) -> None:
        if change[0] == "move" and change[3].large is None:
            key = _key(change[2])
            request = self.driver.requests.add(SHAPE.relation, key, position)
            self.holds += [request] if request else []

    def record_changed_key(self, change: tuple, xid: int) -> None:
        feed = self.driver.changed_keys.tables.get(OID)
        if feed is None:
            return
        match change:
            case ("write", key, version):
                partial = version is not None and version.large is None
                feed.record(_key(key), xid, self.sequence, partial=partial)
            case ("move", old, new, version, _):
                partial = version.large is None
                feed.record_move(
                    _key(old), _key(new), xid, self.sequence, partial=partial
                )
            case ("delete", key, _):
                feed.record(_key(key), xid, self.sequence)
            case ("truncate", _):
                feed.record_truncate(xid, self.sequence)

    def publish(self, change: tuple, position: Position) -> None:
        if position <= self.published:
            return
        match change:
            case ("write", key, version):
                self.append(position, key, version)
            case ("move", old, new, version, _):
                self.append(position, old, None, version.tag)
                self.append(position, new, version)
            case ("delete", key, tag):
                self.append(position, key, None, tag)
            case ("truncate", tag):
                for key in range(KEYS):
                    self.append(position, key, None, tag)

    def append(self, position, key, version, tag=None) -> None:
        tag = tag or version.tag
        self.newest[key] = tag
        self.present[key] = version is not None
        self.model.topic.append(Record(position, key, version, False, None, tag))

    def emit(self, effect: protocol.EmitRows) -> None:
        position = Position(effect.log_lsn, -1)
        for (key,) in effect.absent:
            if effect.target is None and self.present.get(int(key)):
                message = f"{key!r} is reported as absent, but was delivered"
                raise RefutedError(message)
            record = Record(position, int(key), None, True, effect.target, 0)
            self.model.topic.append(record)
        for row in effect.rows:
            key, tag, large = map(int, row)
            if effect.target is None and tag < self.newest.get(key, 0):
                message = f"READ of {key} at {tag}, after {self.newest[key]}"
                raise RefutedError(message)
            record = Record(
                position, key, Version(tag, large), True, effect.target, tag
            )
            self.model.topic.append(record)
        if effect.is_last:
            self.emitted[effect.chunk_id] = len(self.model.topic)

    def sweep(self, effect: protocol.EmitSweep) -> None:
        floor = Position(effect.floor, -1)
        sweep = Record(floor, SWEPT, None, True, effect.target, 0)
        self.model.topic.append(sweep)
        self.emitted[effect.chunk_id] = len(self.model.topic)

    def turn(self) -> None:
        """Emit some rows, or all of them."""
        # A slice of one row passes over none, and a large one over few.
        sizes = [1, 1, 2, 20] if self.model.partition_count == 1 else [1, 2, 2, 2, 3]
        rows = self.model.random.choice(sizes)
        self.drive(protocol.EmitAllowed(rows, self.model.partitions_of))

    # The broker and the confirmation ---------------------------------------------

    def acknowledge(self) -> None:
        model = self.model
        model.acknowledged = model.random.randint(model.acknowledged, len(model.topic))
        for chunk_id, length in list(self.emitted.items()):
            if length <= model.acknowledged:
                del self.emitted[chunk_id]
                self.facts.append(protocol.Delivered(chunk_id))

    def confirm(self) -> None:
        while self.settled and self.settled[0][0] <= self.model.acknowledged:
            _, end_lsn, holds = self.settled[0]
            if not self.released.issuperset(holds):
                break
            self.settled.popleft()
            self.acknowledged_lsn = end_lsn
        lsn = self.invisible.confirmable(self.acknowledged_lsn)
        self.model.confirmed_lsn = max(self.model.confirmed_lsn, lsn)

    def is_vulnerable(self) -> bool:
        """Return whether the WAL is confirmed while progress waits to be stored."""
        kinds = (protocol.SaveProgress, protocol.StoreKeys)
        waits = any(isinstance(effect, kinds) for effect in self.commands)
        waits = waits or not self.driver.requests.is_empty
        is_confirmed = self.model.confirmed_lsn == 8 * (self.at + 1)
        return waits and is_confirmed and self.model.random.random() < 0.05

    def has_unacknowledged_sweep(self) -> bool:
        """Return whether the broker lacks the sweep that was sent last."""
        topic = self.model.topic
        is_sent = bool(topic) and topic[-1].key == SWEPT
        return is_sent and self.model.acknowledged < len(topic)

    # The worker ------------------------------------------------------------------

    def write(self) -> None:
        """Make the signal writer execute one effect."""
        if not self.commands:
            return
        model = self.model
        match self.commands.popleft():
            case protocol.ProbeVisibility():
                self.facts.append(protocol.VisibilityRead(model.snapshot()))
            case protocol.InspectTables() as request:
                fact = protocol.TablesInspected(
                    request.signal_id, {"s.a": SHAPE}, {}, request.keys
                )
                self.facts.append(fact)
            case protocol.StoreSignal() as answer:
                self.store_signal(answer)
            case protocol.StoreKeys() as request:
                self.store_keys(request)
            case protocol.SaveProgress() as save:
                self.save(save)
            case protocol.AnswerSignal() | protocol.ReleaseSnapshot() as effect:
                self.end(effect)

    def end(self, effect: protocol.AnswerSignal | protocol.ReleaseSnapshot) -> None:
        if isinstance(effect, protocol.ReleaseSnapshot):
            self.exported.pop(effect.view, None)
        else:
            self.model.answers[effect.signal_id] = effect.status

    def store_signal(self, answer: protocol.StoreSignal) -> None:
        model = self.model
        is_new = answer.signal_id not in model.answers
        if is_new:
            model.answers[answer.signal_id] = answer.status
            model.stored.update({t.snapshot_id: t for t in answer.tables})
            for table in answer.changed:
                self.change(table)
        self.facts.append(protocol.SignalStored(answer.signal_id, is_new))

    def change(self, table: StoredTable) -> None:
        """Apply the conditions of the SQL statement: ended tables are not changed."""
        stored = self.model.stored
        known = stored[table.snapshot_id]
        from_states = {"queued", "running", "paused"}
        if table.state == "queued":
            from_states = {"paused", "failed", "stopped"}
        if known.state in from_states:
            stored[table.snapshot_id] = replace(known, state=table.state)

    def store_keys(self, request: protocol.StoreKeys) -> None:
        model = self.model
        [table] = request.tables
        if (model.asked_until or "") >= (table.asked_until or ""):
            message = f"{table.asked_until} is requested twice"
            raise RefutedError(message)
        model.asked_until = table.asked_until
        model.stored[request.snapshot_id] = table
        self.facts.append(protocol.KeysStored(request.snapshot_id))

    def save(self, save: protocol.SaveProgress) -> None:
        table = save.table
        stored = self.model.stored
        if table.pending_keys is None:
            keys = stored[table.snapshot_id].pending_keys
            table = replace(table, pending_keys=keys)
        known = stored[table.snapshot_id]
        if known.state == "paused" and table.state == "running":
            table = replace(table, state="paused")
        stored[table.snapshot_id] = table
        self.facts.append(protocol.ProgressSaved(save.request_id))

    def read(self) -> None:
        """Make one of the readers execute one step."""
        index = self.model.random.randrange(len(self.readers))
        reader = self.readers[index]
        if reader is None and self.read_effects:
            reader = self.steps(self.read_effects.popleft())
        if reader is not None and next(reader, "end") == "end":
            reader = None
        self.readers[index] = reader

    def steps(self, effect: protocol.Effect) -> Iterator[None]:
        fails = not isinstance(effect, protocol.ReadChunk)
        if fails and self.model.random.random() < 0.05:
            failure = protocol.ReadFailed(effect.request_id, "away", may_recover=True)
            self.facts.append(failure)
            return
        match effect:
            case protocol.WriteWatermark():
                if self.model.early_maximum:
                    self.model.maximum_at_mark = max(self.model.rows, default=None)
                self.model.log.append(effect.token)
                yield
                self.facts.append(protocol.WatermarkWritten(effect.request_id))
            case protocol.ReadPlan():
                yield
                keys = self.view(effect.view)[1]
                maximum = max(keys, default=None)
                if self.model.early_maximum:
                    maximum = self.model.maximum_at_mark
                cuts = self.cuts(maximum or 0, effect.parts)
                top = None if maximum is None else _key(maximum)
                plan = ScanPlan(SHAPE, top, 0, boundaries=cuts)
                if effect.keys_of is not None:
                    keys = self.model.stored[effect.keys_of].pending_keys
                    plan = ScanPlan(SHAPE, None, len(keys), keys)
                self.facts.append(protocol.PlanRead(effect.request_id, plan))
            case protocol.ReadChunk():
                yield from self.chunk(effect)

    def cuts(self, maximum: int, parts: int) -> tuple[Key, ...]:
        """Cut the keys below the maximum into ranges at random."""
        count = min(self.model.random.randrange(parts), maximum)
        return tuple(map(_key, sorted(self.model.random.sample(range(maximum), count))))

    def view(self, view: str | None) -> tuple[XidSnapshot, dict[int, Version]]:
        """Return the rows visible to a query: now, or in its exported snapshot."""
        now = self.model.snapshot(), dict(self.model.rows)
        return now if view is None else self.exported.setdefault(view, now)

    def exported_chunk(self, request: protocol.ReadChunk) -> Iterator[None]:
        """Read in the exported snapshot, unless it is lost."""
        if self.model.random.random() < 0.1 or request.view not in self.exported:
            self.exported.pop(request.view, None)
            lost = protocol.ReadFailed(
                request.chunk_id, "lost", may_recover=True, has_lost_view=True
            )
            self.facts.append(lost)
            return
        snapshot, rows = self.view(request.view)
        yield
        self.answer_chunk(request, snapshot, rows)

    def chunk(self, request: protocol.ReadChunk) -> Iterator[None]:
        model = self.model
        if request.view is not None:
            yield from self.exported_chunk(request)
            return
        if request.low_token:
            model.log.append(request.low_token)
        yield
        while any(t.truncates for t in model.open + model.unseen):
            yield
        snapshot, rows = model.snapshot(), dict(model.rows)
        yield
        if model.random.random() < 0.05:
            failure = protocol.ReadFailed(
                request.chunk_id, "cancelled", may_recover=True
            )
            self.facts.append(failure)
            return
        model.log.append(request.high_token)
        yield
        self.answer_chunk(request, snapshot, rows)

    def answer_chunk(
        self,
        request: protocol.ReadChunk,
        snapshot: XidSnapshot,
        rows: dict[int, Version],
    ) -> None:
        low = -1 if request.after_key is None else int(request.after_key[0])
        high = KEYS if request.maximum_key is None else int(request.maximum_key[0])
        keys = [k for k in sorted(rows) if low < k <= high]
        if request.keys:
            keys = [k for k in sorted(rows) if _key(k) in request.keys]
        limit = KEYS if request.keys else request.max_rows
        found = [_row(k, rows[k]) for k in keys[:limit]]
        is_last = len(keys) < limit or bool(request.keys)
        chunk = Chunk(SHAPE, found, snapshot, is_last)
        self.facts.append(protocol.ChunkRead(request.chunk_id, chunk))

    def receive(self) -> None:
        """Make the loop process an answer from the worker or the broker."""
        if not self.facts:
            return
        match self.facts.popleft():
            case protocol.SignalStored() as fact:
                self.released.add(fact.signal_id)
            case protocol.KeysStored() as fact:
                self.released.add(fact.snapshot_id)
            case fact:
                pass
        self.drive(fact)

    def tick(self) -> None:
        self.now_s += 0.5
        if self.invisible.count and protocol.ProbeVisibility() not in self.commands:
            self.commands.append(protocol.ProbeVisibility())
        self.drive(protocol.Tick(self.now_s))


def _has_ended(model: Model) -> bool:
    return model.answers.get("signal") in {"completed", "failed", "rejected"}


def _key(key: int) -> Key:
    return (str(key).encode(),)


def _row(key: int, version: Version) -> RowValues:
    return tuple(str(value).encode() for value in (key, *version))


# A history ---------------------------------------------------------------------------

STEP_COUNT = 400
# With this many crashes, the relay is also killed while progress waits to be stored.
CRASH_OFTEN = 3
PACES = ("database", "relay", "reader", "commands", "broker")


def run_history(seed: int, plant: Callable[[Model], None] | None = None) -> Model:
    """Run one history until all its work is finished."""
    model = Model(seed)
    if plant is not None:
        plant(model)
    relay = Relay(model)
    rng = model.random
    signal_at = rng.randrange(STEP_COUNT // 4)
    crashes = rng.choice([0, 1, 2, CRASH_OFTEN])
    crash_at = {rng.randrange(signal_at, STEP_COUNT) for _ in range(crashes)}
    pace = {name: rng.choice([1, 1, 3]) for name in PACES}
    turns = sorted(rng.sample(range(signal_at, STEP_COUNT), rng.choice([0, 0, 2, 3])))
    for step in range(STEP_COUNT):
        if step == signal_at:
            model.signal()
        if step in turns:
            kind = ("pause-snapshot", "resume-snapshot")[turns.index(step) % 2]
            model.send(f"{kind} {step}", kind)
        if step in crash_at or (crashes == CRASH_OFTEN and relay.is_vulnerable()):
            relay = model.kill_relay()
        actions = [
            *[model.begin] * pace["database"],
            *[lambda: _one(model, model.open, model.commit)] * pace["database"],
            *[lambda: _one(model, model.unseen, model.show)] * pace["database"],
            lambda: _abort(model),
            *[relay.stream] * 3 * pace["relay"],
            *[relay.receive] * 3 * pace["relay"],
            *[relay.read] * 2 * pace["reader"],
            *[relay.write] * pace["commands"],
            *[relay.turn] * pace["relay"],
            *[relay.acknowledge, relay.confirm] * pace["broker"],
            relay.tick,
        ]
        rng.choice(actions)()
    _finish_work(model, relay)
    _check(model)
    return model


def _one(model: Model, transactions: list, action: Callable) -> None:
    if transactions:
        action(model.random.choice(transactions))


def _abort(model: Model) -> None:
    if model.open and model.random.random() < 0.3:
        model.open.remove(model.random.choice(model.open))


def _end_transactions(model: Model) -> None:
    for transaction in list(model.open):
        model.commit(transaction)
    while model.unseen:
        model.show(model.unseen[0])


def _finish_work(model: Model, relay: Relay) -> None:
    _end_transactions(model)
    kills = model.random.choice([0, 2])
    for _ in range(3_000):
        for action in (
            relay.stream,
            relay.receive,
            relay.read,
            relay.write,
            relay.tick,
        ):
            action()
        relay.turn()
        if kills and relay.has_unacknowledged_sweep():
            # The broker is slow to append the sweep, and the relay dies.
            if model.random.random() < 0.2:
                relay, kills = model.kill_relay(), kills - 1
            continue
        relay.acknowledge()
        model.acknowledged = len(model.topic)
        relay.acknowledge()
        relay.confirm()
        if relay.is_idle():
            if not model.is_paused:
                return
            model.send(f"final {len(model.log)}", "resume-snapshot")
            model.show(model.unseen[0])
    message = "the history never becomes idle"
    raise RefutedError(message)


def _check(model: Model) -> None:
    status = model.answers.get("signal")
    if status != "completed":
        message = f"the status of the signal is {status}"
        raise RefutedError(message)
    records = model.topic[model.start_of_sink :]
    if model.target is not None:
        # The records of two topics arrive in any order: a guarded sink ends up as if
        # they arrived in position order.
        records = sorted(records, key=lambda record: record.position)
    wrong = dict.fromkeys(model.listed, Version(0, 0))
    if model.sweeps:
        # These rows were deleted while no sink was running.
        wrong = dict.fromkeys(range(KEYS), Version(0, 0))
    requested = set(model.listed or range(KEYS))
    _compare(model, "new sink", _fold(wrong, records), requested)
    shared = [record for record in model.topic if record.target is None]
    _compare(model, "old sink", _fold(model.first_rows, shared), set(range(KEYS)))


def _compare(model: Model, name: str, sink: dict, keys: set[int]) -> None:
    found = {key: row for key, row in sink.items() if row is not None and key in keys}
    rows = {key: row for key, row in model.rows.items() if key in keys}
    if found != rows:
        message = f"the {name} has {found}, the table {rows}"
        raise RefutedError(message)


def _fold(rows: dict, records: list[Record]) -> dict[int, Version | None]:
    """Return a guarded sink's rows after these records."""
    sink: dict[int, Version | None] = dict(rows)
    guard: dict[int, Position] = {}
    for record in records:
        if record.key == SWEPT:
            for key in list(sink):
                if guard.get(key, Position(0, 0)) < record.position:
                    sink[key] = None
            continue
        if record.position < guard.get(record.key, Position(0, 0)):
            continue
        guard[record.key] = record.position
        sink[record.key] = _merged(sink.get(record.key), record.version)
    return sink


def _merged(old: Version | None, new: Version | None) -> Version | None:
    """Apply a change; a partial one does not create an absent row."""
    if new is None or new.large is not None:
        return new
    return None if old is None else Version(new.tag, old.large)


@pytest.mark.timeout(300)
@given(seed=st.integers(0, 2**48))
def test_sinks_equal_the_table_after_every_history(seed: int) -> None:
    """
    In any history, no row is stale or lost, and no deleted row returns.
    """
    model = run_history(seed)

    assert model.answers["signal"] == "completed"


# Wrong variants ----------------------------------------------------------------------


def _textbook_window(patch: pytest.MonkeyPatch) -> None:
    """Count only changes after the low watermark."""
    patch.setattr(XidSnapshot, "sees_streamed", lambda *_: True)


def _no_wait_before_the_first_chunk(patch: pytest.MonkeyPatch) -> None:
    """Assume that transactions streamed before recording began are visible."""
    patch.setattr(InvisibleTransactions, "are_visible_until", lambda *_: True)


def _changed_keys_forgotten_too_early(patch: pytest.MonkeyPatch) -> None:
    """
    Forget a change below the low watermark, although the chunk did not see it.
    """
    real = ChangedKeys.passed
    sees_all = XidSnapshot(1 << 40, 1 << 40, frozenset())

    def passed(self: ChangedKeys, reader: int, low: int, _: XidSnapshot) -> None:
        real(self, reader, low, sees_all)

    patch.setattr(ChangedKeys, "passed", passed)


def _confirmed_past_invisible_transactions(patch: pytest.MonkeyPatch) -> None:
    """Do not stream invisible transactions again after a restart."""
    patch.setattr(InvisibleTransactions, "confirmable", lambda _, lsn: lsn)


def _progress_saved_before_the_broker_has_the_rows(patch: pytest.MonkeyPatch) -> None:
    """Store progress when rows are sent instead of when they are acknowledged."""
    real = RangeReader.deduplicate_next

    def deduplicate_next(self: RangeReader, *allowed: object) -> EmittedSlice | None:
        part = real(self, *allowed)
        if part is not None and part.emission is not None:
            self.acknowledge(part.emission.chunk_id)
        return part

    patch.setattr(RangeReader, "deduplicate_next", deduplicate_next)


def _partial_changes_treated_as_rows(patch: pytest.MonkeyPatch) -> None:
    """Do not reread a key whose change leaves columns out."""
    patch.setattr(RangeReader, "_read_again", lambda *_: None)


def _moved_rows_not_requested(patch: pytest.MonkeyPatch) -> None:
    """Do not request a row that moved to another key with columns left out."""
    patch.setattr(KeyRequests, "add", lambda *_: None)


def _transactions_confirmed_before_their_requests(patch: pytest.MonkeyPatch) -> None:
    """Confirm a transaction before its key request is stored."""
    real = KeyRequests.add

    def add(self: KeyRequests, *arguments: object) -> None:
        real(self, *arguments)

    patch.setattr(KeyRequests, "add", add)


def _requests_dropped_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Do not resume stored key requests."""
    real = SnapshotDriver._resume

    def resume(self: SnapshotDriver, fact: protocol.UnfinishedRead) -> None:
        tables = tuple(table for table in fact.tables if table.asked_until is None)
        real(self, dataclasses.replace(fact, tables=tables))

    patch.setattr(SnapshotDriver, "_resume", resume)


def _requested_again_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """Let a replayed change repeat a stored key request."""
    patch.setattr(KeyRequests, "resume", lambda *_: None)


def _stored_keys_overwritten(patch: pytest.MonkeyPatch) -> None:
    """Save progress without keys before the keys are loaded."""
    real = TableScan.table.fget

    def table(self: TableScan) -> StoredTable:
        table = real(self)
        return replace(table, pending_keys=table.pending_keys or ())

    patch.setattr(TableScan, "table", property(table))


def _deduplicated_in_one_step_and_emitted_later(patch: pytest.MonkeyPatch) -> None:
    """Deduplicate a chunk when it is ready, and emit it later in slices."""
    real = Window.deduplicate

    def deduplicate(
        self: Window, changed_keys: ChangedKeys, *allowed: object
    ) -> DeduplicatedRows:
        if not hasattr(changed_keys, "at_first"):
            changed_keys.at_first = {}
        known = changed_keys.at_first.setdefault(
            self.chunk_id, copy.deepcopy(changed_keys._by_key)
        )
        now, changed_keys._by_key = changed_keys._by_key, known
        verdict = real(self, changed_keys, *allowed)
        changed_keys._by_key = now
        return verdict

    patch.setattr(Window, "deduplicate", deduplicate)


def _absent_despite_changes(patch: pytest.MonkeyPatch) -> None:
    """Delete an absent key, although the stream has changed it."""
    real = Window._deduplicate_missing

    def deduplicate_missing(
        self: Window, _outcome: object, verdict: DeduplicatedRows
    ) -> None:
        real(self, lambda _key: None, verdict)

    patch.setattr(Window, "_deduplicate_missing", deduplicate_missing)


def _versioned_by_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Give a read a position above changes made after it."""
    real = Relay.emit

    def emit(self: Relay, effect: protocol.EmitRows) -> None:
        real(self, dataclasses.replace(effect, log_lsn=8 * len(self.model.log) + 8))

    patch.setattr(Relay, "emit", emit)


def _maximum_key_read_before_the_wait(patch: pytest.MonkeyPatch) -> None:
    """Read the maximum key when recording begins."""
    real = Model.__init__

    def init(self: Model, seed: int) -> None:
        real(self, seed)
        self.early_maximum = True

    patch.setattr(Model, "__init__", init)


def _lost_changed_keys_ignored(patch: pytest.MonkeyPatch) -> None:
    """Forget changed keys above the limit without restarting the recording."""
    patch.setattr(ChangedKeys, "has_overflowed", property(lambda _: False))


def _recording_from_the_start(patch: pytest.MonkeyPatch) -> None:
    """Make a resumed scan wait for the stream so far instead of its own mark."""
    real = TableScan.__init__

    def init(self: TableScan, *arguments: object) -> None:
        real(self, *arguments)
        self.changed_keys.begin()
        self._marker = self._invisible.marker()
        self.stage = ScanStage.WAITING

    patch.setattr(TableScan, "__init__", init)


def _readers_that_forget_for_each_other(patch: pytest.MonkeyPatch) -> None:
    """Forget changed keys that one reader has passed for all readers."""
    real = ChangedKeys._forget

    def passed(self: ChangedKeys, reader: int, low: int, snapshot: XidSnapshot) -> None:
        self._passed[reader] = (low, snapshot)
        real(self, ((low, snapshot),))

    patch.setattr(ChangedKeys, "passed", passed)


def _exported_rows_that_no_change_evicts(patch: pytest.MonkeyPatch) -> None:
    """Emit the rows of an exported snapshot despite changes after its mark."""
    real = Window.deduplicate

    def deduplicate(
        self: Window, changed_keys: ChangedKeys, *allowed: object
    ) -> DeduplicatedRows:
        is_exported = self.low_token == self.high_token
        return real(self, ChangedKeys() if is_exported else changed_keys, *allowed)

    patch.setattr(Window, "deduplicate", deduplicate)


def _rows_passed_over_not_read_again(patch: pytest.MonkeyPatch) -> None:
    """Continue after the rows passed over, although they were not emitted."""

    def last_key(self: RemainingRows) -> Key | None:
        rows = self._chunk.rows[: self._next_index]
        return rows[-1][:1] if rows else None

    patch.setattr(RemainingRows, "last_key", property(last_key))


def _views_that_outlive_their_run(patch: pytest.MonkeyPatch) -> None:
    """Read a resumed table in the earlier exported snapshot, after a later mark."""
    patch.setattr(ConsistentPoints, "drop", lambda *_: "")
    real = TableScan._observe

    def see(self: TableScan, mark: protocol.WatermarkSeen) -> list[protocol.Effect]:
        effects = real(self, mark)
        if self._point is not None and self._point.mark is mark:
            self._point.view = "the only one"
        return effects

    patch.setattr(TableScan, "_observe", see)


def _swept_from_the_last_mark(patch: pytest.MonkeyPatch) -> None:
    """Sweep away rows delivered before a crash."""
    real = TableScan._sweep

    def sweep(self: TableScan) -> list[protocol.Effect]:
        self._stored = replace(self._stored, floor=self._mark_lsn)
        return real(self)

    patch.setattr(TableScan, "_sweep", sweep)


def _completed_before_the_broker_has_the_sweep(patch: pytest.MonkeyPatch) -> None:
    """Complete the signal while the sweep may be lost."""
    real = TableScan._sweep

    def sweep(self: TableScan) -> list[protocol.Effect]:
        effects = real(self)
        self._has_swept = True
        return effects

    patch.setattr(TableScan, "_sweep", sweep)


# For the rarest variant, the first history that shows the defect is the 3,110th.
HISTORIES = 4_000
# Histories that show rare defects come first: searching for one can take 25 seconds.
REFUTING = (3109, 522, 415, 231, 172, 123, 1011)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "plant",
    [
        _textbook_window,
        _no_wait_before_the_first_chunk,
        _changed_keys_forgotten_too_early,
        _confirmed_past_invisible_transactions,
        _progress_saved_before_the_broker_has_the_rows,
        _partial_changes_treated_as_rows,
        _moved_rows_not_requested,
        _transactions_confirmed_before_their_requests,
        _requests_dropped_after_a_crash,
        _requested_again_after_a_crash,
        _stored_keys_overwritten,
        _deduplicated_in_one_step_and_emitted_later,
        _absent_despite_changes,
        _versioned_by_the_high_watermark,
        _maximum_key_read_before_the_wait,
        _lost_changed_keys_ignored,
        _recording_from_the_start,
        _readers_that_forget_for_each_other,
        _exported_rows_that_no_change_evicts,
        _rows_passed_over_not_read_again,
        _views_that_outlive_their_run,
        _swept_from_the_last_mark,
        _completed_before_the_broker_has_the_sweep,
    ],
)
def test_wrong_variants_of_the_snapshot_rule_are_refuted(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The histories are thorough enough to reveal each planted defect.
    """
    plant(monkeypatch)
    refutations = filter(_is_refuted, (*REFUTING, *range(HISTORIES)))

    assert next(refutations, None) is not None


def _is_refuted(seed: int) -> bool:
    try:
        run_history(seed)
    except RefutedError:
        return True
    return False

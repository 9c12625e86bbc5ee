"""
The chunks of one table between the question and Kafka's acknowledgement.

::

    asked -> window (read, stream passes it) -> judged -> delivered -> stored

A chunk is judged and emitted part by part, so that the stream goes on in between.

Three places in the table: ``_asked_key``, where the reader is; ``_judged_key``, up to
which rows were emitted or dropped; and the stored table's ``last_key``, up to which
Kafka has acknowledged. What cannot be judged is read again from the second, what is
lost in a crash from the third.

Keys to be read, because they are asked for or the stream does not carry their row, are
in exactly one of three hands: waiting, asked for by a window, or emitted and not
acknowledged. All of them are stored with the progress.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from towpath.relay.snapshot.effects import EmitRows, ReadChunk
from towpath.relay.snapshot.facts import WatermarkSeen
from towpath.relay.snapshot.shape import Chunk, Key, Plan, Row
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Notes
from towpath.relay.snapshot.window import Verdict, Window
from towpath.relay.wal.relation import Relation

# One chunk is read, one waits for the stream, one for Kafka: more adds only memory.
MAX_CHUNKS_IN_FLIGHT: Final = 3
# Each listed key is one index probe, and its text stands in the statement.
MAX_KEYS_PER_CHUNK: Final = 500


@dataclass(slots=True)
class _Delivery:
    """A chunk on its way to Kafka: what was judged of it so far."""

    chunk_id: int
    relation: Relation
    log_lsn: int
    last_key: Key | None = None
    row_count: int = 0
    dropped: int = 0
    keys: tuple[Key, ...] = ()
    has_emitted: bool = False
    is_acknowledged: bool = False

    def add(self, verdict: Verdict) -> None:
        """Take in a part."""
        self.last_key = verdict.last_key or self.last_key
        self.row_count += len(verdict.rows) + len(verdict.absent)
        self.dropped += verdict.dropped


class Part(NamedTuple):
    """What came of judging a part of a chunk: to be emitted, and how many rows."""

    emission: EmitRows | None
    judged: int


class Reading:
    """Chunks in flight, in the order in which they were asked for."""

    def __init__(self, table: StoredTable, tokens: Tokens) -> None:
        self._stored = table
        self._tokens = tokens
        self._asked_key = table.last_key
        self._judged_key = table.last_key
        self._has_reached_end = False
        self._windows: deque[Window] = deque()
        self._deliveries: deque[_Delivery] = deque()
        self._judging: _Delivery | None = None
        self._must_load = table.pending_keys is None
        self._waiting: dict[Key, None] = dict.fromkeys(table.pending_keys or ())
        self._last_mark: str | None = None
        self._seen_mark: WatermarkSeen | None = None

    @property
    def is_full(self) -> bool:
        """Whether no chunk may be asked for now."""
        return len(self._windows) + len(self._deliveries) >= MAX_CHUNKS_IN_FLIGHT

    @property
    def is_done(self) -> bool:
        """Whether everything is read, judged, delivered and nothing to read again."""
        return self._has_reached_end and not (
            self._windows or self._deliveries or self._waiting
        )

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return bool(self._windows) and self._windows[0].is_ready

    def progress(self) -> StoredTable:
        """Return what a restart needs to know now."""
        if self._must_load:
            return self._stored
        asked = (window.keys for window in self._windows)
        emitted = (delivery.keys for delivery in self._deliveries)
        keys = itertools.chain(self._waiting, *asked, *emitted)
        return self._stored._replace(pending_keys=tuple(dict.fromkeys(keys)))

    def amend(self, **fields: Any) -> None:  # noqa: ANN401 - the row's own fields
        """Set fields of the stored table; ``StoredTable`` names them."""
        self._stored = self._stored._replace(**fields)

    def load(self, keys: Iterable[Key]) -> None:
        """Take in the stored keys that are asked for."""
        if self._must_load:
            self._must_load = False
            self.read_again(keys)

    def read_again(self, keys: Iterable[Key]) -> None:
        """Put keys on the list of those to be read again."""
        self._waiting.update(dict.fromkeys(keys))

    def ask(self, plan: Plan, rows: int, *, at_once: bool) -> ReadChunk | None:
        """
        Ask for the next chunk: listed keys first, then the range's next rows.

        Args:
            plan: What is to be read.
            rows: At most this many.
            at_once: The chunk before was read just now: its high watermark will do as
                the low one. After a pause it would drop rows without need.
        """
        if plan.maximum_key is None:
            self._has_reached_end = True
        keys = tuple(itertools.islice(self._waiting, min(rows, MAX_KEYS_PER_CHUNK)))
        if not keys and self._has_reached_end:
            return None
        for key in keys:
            del self._waiting[key]
        window = self._open_window(keys, at_once=at_once)
        return ReadChunk(
            chunk_id=window.chunk_id,
            shape=plan.shape,
            low_token=None if window.low_token == self._last_mark else window.low_token,
            high_token=window.high_token,
            after_key=self._asked_key,
            maximum_key=plan.maximum_key,
            keys=keys,
            condition=self._stored.condition,
            max_rows=rows,
        )

    def _open_window(self, keys: tuple[Key, ...], *, at_once: bool) -> Window:
        chunk_id = self._tokens.next_id()
        if not at_once:
            self._last_mark = self._seen_mark = None
        window = Window(
            chunk_id,
            self._last_mark or self._tokens.watermark(chunk_id, "low"),
            self._tokens.watermark(chunk_id, "high"),
            keys,
        )
        if self._seen_mark is not None:
            window.see(self._seen_mark)
        self._windows.append(window)
        return window

    def take(self, chunk: Chunk) -> None:
        """Take in the rows of the chunk asked for last; its high mark is written."""
        window = self._windows[-1]
        window.chunk = chunk
        self._last_mark = window.high_token
        self._seen_mark = window.high
        if window.keys:
            return
        self._has_reached_end = chunk.is_last
        if chunk.rows:
            self._asked_key = chunk.last_key

    def give_up(self) -> None:
        """Forget the chunk asked for last: it could not be read."""
        self.read_again(self._windows.pop().keys)
        self._last_mark = self._seen_mark = None

    def rewind(self) -> list[EmitRows]:
        """Forget every row that is not judged: it will be read again."""
        effects = self.cut()
        for window in self._windows:
            self.read_again(window.keys)
        self._windows.clear()
        self._asked_key = self._judged_key
        self._has_reached_end = False
        self._last_mark = self._seen_mark = None
        return effects

    def cut(self) -> list[EmitRows]:
        """End the chunk that is judged in part where it is."""
        delivery = self._judging
        if delivery is None:
            return []
        window = self._windows.popleft()
        rest = dict.fromkeys(window.unjudged_keys)
        delivery.keys = tuple(key for key in window.keys if key not in rest)
        self.read_again(rest)
        self._close(delivery)
        return [self._emission(delivery)] if delivery.has_emitted else []

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark from the stream."""
        for window in self._windows:
            window.see(mark)
        if mark.token == self._last_mark:
            self._seen_mark = mark

    def judge_next(self, notes: Notes, max_rows: int) -> Part | None:
        """
        Judge rows of the first chunk if the stream has passed it; None: it has not.

        What is to be emitted must be emitted before the stream goes on.
        """
        if not self.has_ready:
            return None
        window = self._windows[0]
        verdict = window.judge(notes, max_rows)
        self.read_again(verdict.incomplete)
        self._judged_key = verdict.last_key or self._judged_key
        delivery = self._judging or _Delivery(
            window.chunk_id, verdict.relation, verdict.log_lsn, keys=window.keys
        )
        self._judging = delivery
        delivery.add(verdict)
        has_more = bool(verdict.rows or verdict.absent)
        must_tell = has_more or (verdict.is_last and delivery.has_emitted)
        delivery.has_emitted |= has_more
        if verdict.is_last:
            self._windows.popleft()
            self._close(delivery)
        if not must_tell:
            return Part(None, verdict.judged)
        emission = self._emission(
            delivery,
            rows=verdict.rows,
            absent=tuple(verdict.absent),
            is_last=verdict.is_last,
        )
        return Part(emission, verdict.judged)

    def _close(self, delivery: _Delivery) -> None:
        """Let the chunk that was judged wait for Kafka."""
        self._judging = None
        delivery.is_acknowledged = not delivery.has_emitted
        self._deliveries.append(delivery)

    def _emission(
        self,
        delivery: _Delivery,
        rows: Sequence[Row] = (),
        absent: tuple[Key, ...] = (),
        *,
        is_last: bool = True,
    ) -> EmitRows:
        return EmitRows(
            chunk_id=delivery.chunk_id,
            relation=delivery.relation,
            rows=rows,
            absent=absent,
            is_last=is_last,
            log_lsn=delivery.log_lsn,
            snapshot_id=self._stored.snapshot_id,
            target=self._stored.target,
        )

    def acknowledge(self, chunk_id: int) -> None:
        """Take in that Kafka has a chunk's rows."""
        for delivery in self._deliveries:
            if delivery.chunk_id == chunk_id:
                delivery.is_acknowledged = True

    def settle(self) -> bool:
        """Move the stored place over the acknowledged prefix; false: nothing moved."""
        before = self._stored
        while self._deliveries and self._deliveries[0].is_acknowledged:
            delivery = self._deliveries.popleft()
            self._stored = self._stored._replace(
                last_key=delivery.last_key or self._stored.last_key,
                rows=self._stored.rows + delivery.row_count,
                dropped=self._stored.dropped + delivery.dropped,
                chunks=self._stored.chunks + 1,
                error=None,
            )
        return before is not self._stored

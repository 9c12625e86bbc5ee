"""
The chunks of one reader between the question and Kafka's acknowledgement.

::

    asked -> window (read, stream passes it) -> judged -> delivered -> stored

A table is read by one reader, or by several of which each has a range of its keys. A
chunk is judged and emitted part by part, so that the stream goes on in between.

Three places in the range: ``_asked_key``, where the reader is; ``_judged_key``, up to
which rows were emitted or dropped; and the stored range's ``after_key``, up to which
Kafka has acknowledged. What cannot be judged is read again from the second, what is
lost in a crash from the third.

Keys to be read, because they are asked for or the stream does not carry their row, are
in exactly one of three hands: waiting, which all readers of a table share, asked for by
a window, or emitted and not acknowledged. All of them are stored with the progress.

The readers of one table, as one.

Each has a range of the table's keys; the list of keys to be read by name they share.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from towpath.relay.snapshot.effects import EmitRows, ReadChunk
from towpath.relay.snapshot.facts import ChunkRead, Fact, WatermarkSeen
from towpath.relay.snapshot.pace import ScanPace
from towpath.relay.snapshot.scan_context import ScanContext, acknowledged_key
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    KeyRange,
    RowValues,
)
from towpath.relay.snapshot.stored import SettledRows, StoredTable
from towpath.relay.snapshot.window import ChunkDelivery, Window

# One chunk is read, one waits for the stream, one for Kafka: more adds only memory.
MAX_CHUNKS_IN_FLIGHT: Final = 3
# Each listed key is one index probe, and its text stands in the statement.
MAX_KEYS_PER_CHUNK: Final = 500


class JudgedSlice(NamedTuple):
    """What came of judging a part of a chunk: to be emitted, and how many rows."""

    emission: EmitRows | None
    judged: int


class RangeReader:
    """Chunks in flight of one reader, in the order in which they were asked for."""

    def __init__(self, context: ScanContext, key_range: KeyRange | None) -> None:
        """
        Make a reader.

        Args:
            context: The scan's context, shared by its readers.
            key_range: The key range of this reader; None: only keys that are waiting.
        """
        self.range = key_range
        # The number of the chunk that is being read; None: nothing is.
        self.request_id: int | None = None
        # The number of the chunk that was read last.
        self.last_read: int | None = None
        self._context = context
        self._tokens = context.tokens
        self._waiting = context.waiting
        self._number: int | None = None
        self._asked_key = self._judged_key = key_range.after_key if key_range else None
        self._has_reached_end = key_range is None or key_range.is_done
        self._windows: deque[Window] = deque()
        self._deliveries: deque[ChunkDelivery] = deque()
        self._judging: ChunkDelivery | None = None
        self._last_mark: str | None = None
        self._seen_mark: WatermarkSeen | None = None

    @property
    def in_flight(self) -> int:
        """How many chunks were asked for and are not acknowledged."""
        return len(self._windows) + len(self._deliveries)

    @property
    def is_full(self) -> bool:
        """Whether no chunk may be asked for now."""
        return self.request_id is not None or self.in_flight >= MAX_CHUNKS_IN_FLIGHT

    @property
    def is_done(self) -> bool:
        """Whether everything of its own is read, judged and delivered."""
        return self._has_reached_end and not self.in_flight

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return bool(self._windows) and self._windows[0].is_ready

    def held_keys(self) -> Iterable[Key]:
        """Return the keys that were asked for, or are not acknowledged."""
        asked = (window.keys for window in self._windows)
        emitted = (delivery.keys for delivery in self._deliveries)
        return itertools.chain(*asked, *emitted)

    def ask(self, rows: int, *, at_once: bool) -> ReadChunk | None:
        """
        Ask for the next chunk: waiting keys first, then the range's next rows.

        Args:
            rows: At most this many.
            at_once: The chunk before was read just now: its high watermark will do as
                the low one. After a pause it would drop rows without need.
        """
        context = self._context
        keys = self._keys_to_ask(rows)
        if not keys and self._has_reached_end:
            return None
        for key in keys:
            del self._waiting[key]
        window = self._open_window(keys, at_once=at_once)
        if self._number is None:
            self._number = context.notes.join()
        self.request_id = window.chunk_id
        freeze = context.freeze
        is_new = window.low_token != self._last_mark and freeze is None
        return ReadChunk(
            chunk_id=window.chunk_id,
            shape=context.shape,
            low_token=window.low_token if is_new else None,
            high_token=window.high_token,
            after_key=self._asked_key,
            maximum_key=self.range.last_key if self.range else None,
            keys=keys,
            condition=context.condition,
            max_rows=rows,
            frozen_by=None if freeze is None else freeze.name,
            select=context.select,
        )

    def _keys_to_ask(self, rows: int) -> tuple[Key, ...]:
        """Take keys that wait; one view shows of them what it has shown before."""
        if self._context.freeze is not None:
            return ()
        return tuple(itertools.islice(self._waiting, min(rows, MAX_KEYS_PER_CHUNK)))

    def _open_window(self, keys: tuple[Key, ...], *, at_once: bool) -> Window:
        chunk_id = self._tokens.next_id()
        freeze = self._context.freeze
        if freeze is not None:
            window = Window(chunk_id, freeze.name, freeze.name, keys)
            window.low = window.high = freeze.mark
        else:
            window = self._marked_window(chunk_id, keys, at_once=at_once)
        self._windows.append(window)
        return window

    def _marked_window(
        self, chunk_id: int, keys: tuple[Key, ...], *, at_once: bool
    ) -> Window:
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
        return window

    def take(self, chunk: Chunk) -> bool:
        """
        Take in the rows of the chunk asked for last; its high mark is written.

        Returns:
            Whether it was a chunk of the range, and none of waiting keys.
        """
        self.last_read, self.request_id = self.request_id, None
        window = self._windows[-1]
        window.chunk = chunk
        if self._context.freeze is None:
            self._last_mark = window.high_token
            self._seen_mark = window.high
        if window.keys:
            return False
        self._has_reached_end = chunk.is_last
        if chunk.rows:
            self._asked_key = chunk.last_key
        return True

    def give_up(self) -> None:
        """Forget the chunk asked for last: it could not be read."""
        self.request_id = None
        self._read_again(self._windows.pop().keys)
        self._last_mark = self._seen_mark = None
        self._leave_if_idle()

    def rewind(self) -> list[EmitRows]:
        """Forget every row that is not judged: it will be read again."""
        effects = self.cut()
        for window in self._windows:
            self._read_again(window.keys)
        self._windows.clear()
        self.request_id = None
        self._asked_key = self._judged_key
        self._has_reached_end = self.range is None or self.range.is_done
        self._last_mark = self._seen_mark = None
        self._leave_if_idle()
        return effects

    def cut(self) -> list[EmitRows]:
        """End the chunk that is judged in part where it is."""
        delivery = self._judging
        if delivery is None:
            return []
        window = self._windows.popleft()
        rest = dict.fromkeys(window.unjudged_keys)
        delivery.keys = tuple(key for key in window.keys if key not in rest)
        self._read_again(rest)
        self._close(delivery)
        return [self._emission(delivery)] if delivery.has_emitted else []

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark from the stream."""
        for window in self._windows:
            window.see(mark)
        if mark.token == self._last_mark:
            self._seen_mark = mark

    def judge_next(self, max_rows: int) -> JudgedSlice | None:
        """
        Judge rows of the first chunk if the stream has passed it; None: it has not.

        What is to be emitted must be emitted before the stream goes on.
        """
        if not self.has_ready:
            return None
        window = self._windows[0]
        verdict = window.judge(self._context.notes, max_rows)
        self._read_again(verdict.incomplete)
        self._judged_key = verdict.last_key or self._judged_key
        delivery = self._judging or ChunkDelivery(
            window.chunk_id, verdict.relation, verdict.log_lsn, keys=window.keys
        )
        self._judging = delivery
        delivery.add(verdict)
        has_more = bool(verdict.rows or verdict.absent)
        must_tell = has_more or (verdict.is_last and delivery.has_emitted)
        delivery.has_emitted |= has_more
        if verdict.is_last:
            self._pass_window(delivery)
        if not must_tell:
            return JudgedSlice(None, verdict.judged)
        emission = self._emission(
            delivery,
            rows=verdict.rows,
            absent=tuple(verdict.absent),
            is_last=verdict.is_last,
        )
        return JudgedSlice(emission, verdict.judged)

    def _pass_window(self, delivery: ChunkDelivery) -> None:
        """Go on to the next window: what mattered to this one alone is forgotten."""
        window = self._windows.popleft()
        number, low, chunk = self._number, window.low, window.chunk
        if number is not None and low is not None and chunk is not None:
            self._context.notes.passed(number, low.sequence, chunk.snapshot)
        self._leave_if_idle()
        self._close(delivery)

    def _close(self, delivery: ChunkDelivery) -> None:
        """Let the chunk that was judged wait for Kafka."""
        self._judging = None
        delivery.is_acknowledged = not delivery.has_emitted
        self._deliveries.append(delivery)

    def _emission(
        self,
        delivery: ChunkDelivery,
        rows: Sequence[RowValues] = (),
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
            snapshot_id=self._context.snapshot_id,
            target=self._context.target,
        )

    def _read_again(self, keys: Iterable[Key]) -> None:
        self._waiting.update(dict.fromkeys(keys))

    def acknowledge(self, chunk_id: int) -> None:
        """Take in that Kafka has a chunk's rows."""
        for delivery in self._deliveries:
            if delivery.chunk_id == chunk_id:
                delivery.is_acknowledged = True

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Take in that rows of a chunk are dead letters."""
        for delivery in (*self._deliveries, self._judging):
            if delivery is not None:
                delivery.refuse(chunk_id, keys)

    def settle(self) -> SettledRows:
        """Move the stored place over the acknowledged prefix; say how far that was."""
        chunks = rows = dropped = 0
        undelivered: list[Key] = []
        while self._deliveries and self._deliveries[0].is_acknowledged:
            delivery = self._deliveries.popleft()
            if self.range is not None and delivery.last_key is not None:
                self.range = self.range._replace(after_key=delivery.last_key)
            chunks += 1
            rows += delivery.row_count - len(delivery.undelivered)
            undelivered += delivery.undelivered
            dropped += delivery.dropped
        if self.range is not None and self.is_done:
            self.range = self.range._replace(is_done=True)
        return SettledRows(chunks, rows, dropped, tuple(undelivered))

    def _leave_if_idle(self) -> None:
        """
        Hold no touch back while there is nothing to judge.

        A chunk that is asked for later sees whatever an earlier one saw, and its low
        watermark comes later: what was forgotten meanwhile drops none of its rows.
        """
        if self._number is not None and not self._windows:
            self._context.notes.leave(self._number)
            self._number = None


class ReadPolicy(NamedTuple):
    """
    When and how chunks are asked for.

    Attributes:
        pace: How many rows, and when.
        may_ask: Tells whether there is room for another chunk.
    """

    pace: ScanPace
    may_ask: Callable[[], bool]


class RangeReaders:
    """All readers of a table; there are none before its plan is read."""

    def __init__(self, waiting: Iterable[Key]) -> None:
        self.waiting: dict[Key, None] = dict.fromkeys(waiting)
        self._readings: list[RangeReader] = []
        # The chunk that was read just now: its high mark will do as the next one's low.
        self.just_read: int | None = None

    def __bool__(self) -> bool:
        return bool(self._readings)

    @property
    def in_flight(self) -> int:
        """How many chunks were asked for and are not acknowledged."""
        return sum(reading.in_flight for reading in self._readings)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return any(reading.has_ready for reading in self._readings)

    @property
    def are_through(self) -> bool:
        """Whether every range is delivered; keys may wait to be read again."""
        return all(reading.is_done for reading in self._readings)

    def begin(self, context: ScanContext, ranges: Iterable[KeyRange]) -> None:
        """Put a reader on each range; without any, one that reads waiting keys."""
        self._readings = [RangeReader(context, one) for one in ranges]
        if not self._readings:
            self._readings = [RangeReader(context, None)]

    def progress(self, stored: StoredTable) -> StoredTable:
        """Return what a restart needs to know now."""
        held = chain.from_iterable(reading.held_keys() for reading in self._readings)
        ranges = tuple(reading.range for reading in self._readings if reading.range)
        return stored._replace(
            ranges=ranges,
            last_key=acknowledged_key(ranges),
            pending_keys=tuple(dict.fromkeys(chain(self.waiting, held))),
        )

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark from the stream."""
        for reading in self._readings:
            reading.see(mark)

    def heard(self, fact: Fact) -> None:
        """Take in what is told now: only straight after a chunk its mark will do."""
        self.just_read = fact.chunk_id if isinstance(fact, ChunkRead) else None

    def take(self, fact: ChunkRead, pace: ScanPace) -> None:
        """Take in a chunk, if it is one of ours."""
        for reading in self._readings:
            if reading.request_id == fact.chunk_id:
                if reading.take(fact.chunk):
                    pace.aim(fact.chunk)
                pace.succeeded(len(fact.chunk.rows))

    def give_up(self, request_id: int) -> bool:
        """Forget a chunk that could not be read; false: it is none of ours."""
        failed = [r for r in self._readings if r.request_id == request_id]
        for reading in failed:
            reading.give_up()
        return bool(failed)

    def acknowledge(self, chunk_id: int) -> None:
        """Take in that Kafka has a chunk's rows."""
        for reading in self._readings:
            reading.acknowledge(chunk_id)

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Take in that rows of a chunk are dead letters."""
        for reading in self._readings:
            reading.refuse(chunk_id, keys)

    def cut(self) -> list[EmitRows]:
        """End the chunks that are judged in part where they are."""
        return list(chain.from_iterable([r.cut() for r in self._readings]))

    def rewind(self) -> list[EmitRows]:
        """Forget every row that is not judged: it will be read again."""
        return list(chain.from_iterable([r.rewind() for r in self._readings]))

    def leave(self) -> None:
        """Have no readers until the next ``begin``; the keys that wait stay."""
        held = chain.from_iterable(reading.held_keys() for reading in self._readings)
        self.waiting.update(dict.fromkeys(held))
        self._readings = []

    def judge(self, room: int) -> list[EmitRows]:
        """Judge so many rows at most, and return what is to be emitted at once."""
        effects: list[EmitRows] = []
        for reading in self._readings:
            while room > 0 and (part := reading.judge_next(room)) is not None:
                room -= part.judged
                effects += [part.emission] if part.emission else []
        return effects

    def settle(self) -> SettledRows:
        """Move what is stored over what is acknowledged; say how far that was."""
        settled = [reading.settle() for reading in self._readings]
        return SettledRows(
            chunks=sum(one.chunks for one in settled),
            rows=sum(one.rows for one in settled),
            dropped=sum(one.dropped for one in settled),
            undelivered=tuple(chain.from_iterable(s.undelivered for s in settled)),
        )

    def ask(self, asking: ReadPolicy) -> list[ReadChunk]:
        """Ask for as many chunks as there is room for, one for each reader."""
        asked: list[ReadChunk] = []
        just_read = self.just_read
        for reading in self._readings:
            if reading.is_full or not (asking.pace.may_read and asking.may_ask()):
                continue
            at_once = just_read is not None and reading.last_read == just_read
            ask = reading.ask(asking.pace.max_rows, at_once=at_once)
            asked += [ask] if ask else []
        return asked

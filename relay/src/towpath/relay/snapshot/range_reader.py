"""
The chunks of one reader, from their request to Kafka's acknowledgement.

::

    requested -> window (rows read, stream passes) -> emitted -> delivered -> stored

A table is read by one reader, or by several, each with a range of its keys. A
chunk is deduplicated and emitted slice by slice, so that the stream continues between
the slices.

A reader tracks three keys in its range: ``_requested_key``, the end of the last
chunk that was read; ``_emitted_key``, up to which rows were emitted or dropped; and the
stored range's ``after_key``, up to which Kafka has acknowledged the rows. If rows
cannot be deduplicated, they are read again from ``_emitted_key``; after a crash, from
``after_key``.

Single keys are read because a signal lists them or because the stream does not carry
their rows in full. Such a key is pending (shared by all readers of a table), requested
by a window, or emitted and not yet acknowledged; if it must be read again, it becomes
pending again. All these keys are stored with the progress.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from towpath.relay.snapshot.pace import ScanPace
from towpath.relay.snapshot.protocol import (
    ChunkRead,
    EmitAllowed,
    EmitRows,
    Fact,
    ReadChunk,
    WatermarkSeen,
)
from towpath.relay.snapshot.scan_context import ScanContext, acknowledged_key
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    KeyRange,
    PartitionsOf,
    RowValues,
)
from towpath.relay.snapshot.stored import DeliveredRows, StoredTable
from towpath.relay.snapshot.window import ChunkDelivery, Window

# One chunk is being read, one waits for the stream, and one for Kafka: more would only
# use memory.
MAX_CHUNKS_IN_FLIGHT: Final = 3
# Each listed key costs an index probe and lengthens the statement by its text.
MAX_KEYS_PER_CHUNK: Final = 500


class EmittedSlice(NamedTuple):
    """The rows of a slice to emit, if any, and how many of the allowed rows it used."""

    emission: EmitRows | None
    used_rows: int


class RangeReader:
    """The chunks in flight of one reader, in the order of their requests."""

    def __init__(self, context: ScanContext, key_range: KeyRange | None) -> None:
        """
        Create a reader.

        Args:
            context: The scan's context, shared by its readers.
            key_range: The key range of this reader; None if it reads only pending keys.
        """
        self.range = key_range
        # The chunk that is being read; None if there is none.
        self.request_id: int | None = None
        # The chunk that was read last.
        self.last_read: int | None = None
        self._context = context
        self._tokens = context.tokens
        self._pending_keys = context.pending_keys
        self._number: int | None = None
        start = key_range.after_key if key_range else None
        self._requested_key = self._emitted_key = start
        self._has_reached_end = key_range is None or key_range.is_done
        self._windows: deque[Window] = deque()
        self._deliveries: deque[ChunkDelivery] = deque()
        # The first window's chunk, once a slice of it has been deduplicated.
        self._partial: ChunkDelivery | None = None
        self._last_mark: str | None = None
        self._seen_mark: WatermarkSeen | None = None

    @property
    def in_flight(self) -> int:
        """The number of chunks that are requested and not acknowledged."""
        return len(self._windows) + len(self._deliveries)

    @property
    def is_full(self) -> bool:
        """Whether no chunk may be requested now."""
        return self.request_id is not None or self.in_flight >= MAX_CHUNKS_IN_FLIGHT

    @property
    def is_done(self) -> bool:
        """Whether its whole range is read, emitted and delivered."""
        return self._has_reached_end and not self.in_flight

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return bool(self._windows) and self._windows[0].is_ready

    def keys_in_flight(self) -> Iterable[Key]:
        """Return the listed keys that are requested and not acknowledged."""
        requested = (window.keys for window in self._windows)
        emitted = (delivery.keys for delivery in self._deliveries)
        return itertools.chain(*requested, *emitted)

    def next_request(self, rows: int, *, reuses_mark: bool) -> ReadChunk | None:
        """
        Return the request for the next chunk: pending keys first, then the range.

        Args:
            rows: The maximum number of rows.
            reuses_mark: Whether the previous chunk's high watermark is also this
                chunk's low one, which requires that the previous chunk was read just
                now: after a pause, a shared watermark would evict rows unnecessarily.
        """
        context = self._context
        keys = self._next_keys(rows)
        if not keys and self._has_reached_end:
            return None
        for key in keys:
            del self._pending_keys[key]
        window = self._open_window(keys, reuses_mark=reuses_mark)
        if self._number is None:
            self._number = context.changed_keys.add_reader()
        self.request_id = window.chunk_id
        point = context.consistent_point
        is_new = window.low_token != self._last_mark and point is None
        return ReadChunk(
            chunk_id=window.chunk_id,
            shape=context.shape,
            low_token=window.low_token if is_new else None,
            high_token=window.high_token,
            after_key=self._requested_key,
            maximum_key=self.range.last_key if self.range else None,
            keys=keys,
            condition=context.condition,
            max_rows=rows,
            view=None if point is None else point.view,
            select=context.select,
        )

    def _next_keys(self, rows: int) -> tuple[Key, ...]:
        """Return pending keys; none from an exported snapshot, which never changes."""
        if self._context.consistent_point is not None:
            return ()
        return tuple(
            itertools.islice(self._pending_keys, min(rows, MAX_KEYS_PER_CHUNK))
        )

    def _open_window(self, keys: tuple[Key, ...], *, reuses_mark: bool) -> Window:
        chunk_id = self._tokens.next_id()
        point = self._context.consistent_point
        if point is not None:
            window = Window(chunk_id, point.view, point.view, keys)
            window.low = window.high = point.mark
        else:
            window = self._marked_window(chunk_id, keys, reuses_mark=reuses_mark)
        self._windows.append(window)
        return window

    def _marked_window(
        self, chunk_id: int, keys: tuple[Key, ...], *, reuses_mark: bool
    ) -> Window:
        if not reuses_mark:
            self._last_mark = self._seen_mark = None
        window = Window(
            chunk_id,
            self._last_mark or self._tokens.watermark(chunk_id, "low"),
            self._tokens.watermark(chunk_id, "high"),
            keys,
        )
        if self._seen_mark is not None:
            window.observe(self._seen_mark)
        return window

    def accept(self, chunk: Chunk) -> bool:
        """
        Store the rows of the last requested chunk, whose high watermark is written.

        Returns:
            Whether it was a chunk of the range rather than one of pending keys.
        """
        self.last_read, self.request_id = self.request_id, None
        window = self._windows[-1]
        window.chunk = chunk
        if self._context.consistent_point is None:
            self._last_mark = window.high_token
            self._seen_mark = window.high
        if window.keys:
            return False
        self._has_reached_end = chunk.is_last
        if chunk.rows:
            self._requested_key = chunk.last_key
        return True

    def drop_request(self) -> None:
        """Drop the last requested chunk: it could not be read."""
        self.request_id = None
        self._read_again(self._windows.pop().keys)
        self._last_mark = self._seen_mark = None
        self._detach_if_idle()

    def rewind(self) -> list[EmitRows]:
        """Drop all rows that have not been emitted: they will be read again."""
        effects = self.end_partial()
        for window in self._windows:
            self._read_again(window.keys)
        self._windows.clear()
        self.request_id = None
        self._requested_key = self._emitted_key
        self._has_reached_end = self.range is None or self.range.is_done
        self._last_mark = self._seen_mark = None
        self._detach_if_idle()
        return effects

    def end_partial(self) -> list[EmitRows]:
        """
        End the chunk that is partly emitted; its remaining keys are read again.

        Emitted rows above the key of a row that still waits are read again, too.
        """
        delivery = self._partial
        if delivery is None:
            return []
        window = self._windows.popleft()
        remaining = dict.fromkeys(window.remaining_keys)
        delivery.keys = tuple(key for key in window.keys if key not in remaining)
        self._read_again(remaining)
        self._close(delivery)
        return [self._emission(delivery)] if delivery.has_emitted else []

    def observe(self, mark: WatermarkSeen) -> None:
        """Process a watermark in the stream."""
        for window in self._windows:
            window.observe(mark)
        if mark.token == self._last_mark:
            self._seen_mark = mark

    def deduplicate_next(
        self, max_rows: int, partitions_of: PartitionsOf | None
    ) -> EmittedSlice | None:
        """
        Deduplicate a slice of the first chunk; None if the stream has not passed it.

        The slice must be emitted before the stream continues.
        """
        if not self.has_ready:
            return None
        window, context = self._windows[0], self._context
        placed = partitions_of and partial(partitions_of, context.target)
        result = window.deduplicate(context.changed_keys, max_rows, placed)
        if context.select is not None:
            # The SELECT may leave out a row that the table still has.
            result.dropped += len(result.absent)
            result.absent.clear()
        self._read_again(result.incomplete)
        self._emitted_key = result.last_key or self._emitted_key
        delivery = self._partial or ChunkDelivery(
            window.chunk_id, result.relation, result.log_lsn, keys=window.keys
        )
        self._partial = delivery
        delivery.add(result)
        has_rows = bool(result.rows or result.absent)
        must_emit = has_rows or (result.is_last and delivery.has_emitted)
        delivery.has_emitted |= has_rows
        if result.is_last:
            self._pass_window(delivery)
        if not must_emit:
            return EmittedSlice(None, result.used_rows)
        emission = self._emission(
            delivery,
            rows=result.rows,
            absent=tuple(result.absent),
            is_last=result.is_last,
        )
        return EmittedSlice(emission, result.used_rows)

    def _pass_window(self, delivery: ChunkDelivery) -> None:
        """Remove the first window, and the changes that only it needed."""
        window = self._windows.popleft()
        number, low, chunk = self._number, window.low, window.chunk
        if number is not None and low is not None and chunk is not None:
            self._context.changed_keys.passed(number, low.sequence, chunk.snapshot)
        self._detach_if_idle()
        self._close(delivery)

    def _close(self, delivery: ChunkDelivery) -> None:
        """Queue the emitted chunk for Kafka's acknowledgement."""
        self._partial = None
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
        self._pending_keys.update(dict.fromkeys(keys))

    def acknowledge(self, chunk_id: int) -> None:
        """Record that Kafka has a chunk's rows."""
        for delivery in self._deliveries:
            if delivery.chunk_id == chunk_id:
                delivery.is_acknowledged = True

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Record that rows of a chunk are dead letters."""
        for delivery in (*self._deliveries, self._partial):
            if delivery is not None:
                delivery.refuse(chunk_id, keys)

    def take_delivered(self) -> DeliveredRows:
        """Advance the stored range over the acknowledged prefix; return its counts."""
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
        return DeliveredRows(chunks, rows, dropped, tuple(undelivered))

    def _detach_if_idle(self) -> None:
        """
        Allow recorded changes to be dropped while there is no window.

        A later chunk sees every change that an earlier chunk saw, and has a later low
        watermark: the dropped changes would evict none of its rows.
        """
        if self._number is not None and not self._windows:
            self._context.changed_keys.remove_reader(self._number)
            self._number = None


class RangeReaders:
    """All readers of a table; there are none before its plan is read."""

    def __init__(self, pending_keys: Iterable[Key]) -> None:
        self.pending_keys: dict[Key, None] = dict.fromkeys(pending_keys)
        self._readers: list[RangeReader] = []
        # The chunk that was read just now: its high mark serves as the next low one.
        self._just_read: int | None = None

    def __bool__(self) -> bool:
        return bool(self._readers)

    @property
    def in_flight(self) -> int:
        """The number of chunks that are requested and not acknowledged."""
        return sum(reader.in_flight for reader in self._readers)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows that the stream has passed."""
        return any(reader.has_ready for reader in self._readers)

    @property
    def are_done(self) -> bool:
        """Whether every range is delivered; keys may still be pending."""
        return all(reader.is_done for reader in self._readers)

    def begin(self, context: ScanContext, ranges: Iterable[KeyRange]) -> None:
        """Create a reader per range; without ranges, one that reads pending keys."""
        self._readers = [RangeReader(context, one) for one in ranges]
        if not self._readers:
            self._readers = [RangeReader(context, None)]

    def progress(self, stored: StoredTable) -> StoredTable:
        """Return the table's progress, from which a restart resumes."""
        in_flight = chain.from_iterable(r.keys_in_flight() for r in self._readers)
        ranges = tuple(reader.range for reader in self._readers if reader.range)
        return stored._replace(
            ranges=ranges,
            last_key=acknowledged_key(ranges),
            pending_keys=tuple(dict.fromkeys(chain(self.pending_keys, in_flight))),
        )

    def observe(self, mark: WatermarkSeen) -> None:
        """Process a watermark in the stream."""
        for reader in self._readers:
            reader.observe(mark)

    def note_fact(self, fact: Fact) -> None:
        """Remember a chunk that was read just now, until the next fact."""
        self._just_read = fact.chunk_id if isinstance(fact, ChunkRead) else None

    def accept(self, fact: ChunkRead, pace: ScanPace) -> None:
        """Give a chunk to the reader that requested it, if there is one."""
        for reader in self._readers:
            if reader.request_id == fact.chunk_id:
                if reader.accept(fact.chunk):
                    pace.adapt(fact.chunk)
                pace.succeeded(len(fact.chunk.rows))

    def drop_request(self, request_id: int) -> bool:
        """Drop a chunk that could not be read; return whether a reader requested it."""
        failed = [r for r in self._readers if r.request_id == request_id]
        for reader in failed:
            reader.drop_request()
        return bool(failed)

    def acknowledge(self, chunk_id: int) -> None:
        """Record that Kafka has a chunk's rows."""
        for reader in self._readers:
            reader.acknowledge(chunk_id)

    def refuse(self, chunk_id: int, keys: tuple[Key, ...]) -> None:
        """Record that rows of a chunk are dead letters."""
        for reader in self._readers:
            reader.refuse(chunk_id, keys)

    def end_partial(self) -> list[EmitRows]:
        """End the partly emitted chunks; their remaining keys are read again."""
        return list(chain.from_iterable([r.end_partial() for r in self._readers]))

    def rewind(self) -> list[EmitRows]:
        """Drop all rows that have not been emitted: they will be read again."""
        return list(chain.from_iterable([r.rewind() for r in self._readers]))

    def clear(self) -> None:
        """Remove all readers until the next ``begin``; their keys become pending."""
        in_flight = chain.from_iterable(r.keys_in_flight() for r in self._readers)
        self.pending_keys.update(dict.fromkeys(in_flight))
        self._readers = []

    def deduplicate(self, allowed: EmitAllowed) -> list[EmitRows]:
        """Deduplicate as many rows as allowed; return those to emit immediately."""
        effects: list[EmitRows] = []
        rows = allowed.max_rows
        for reader in self._readers:
            while rows > 0:
                part = reader.deduplicate_next(rows, allowed.partitions_of)
                if part is None:
                    break
                rows -= part.used_rows
                effects += [part.emission] if part.emission else []
        return effects

    def take_delivered(self) -> DeliveredRows:
        """Advance the stored ranges over the acknowledged rows; return their counts."""
        delivered = [reader.take_delivered() for reader in self._readers]
        return DeliveredRows(
            chunks=sum(one.chunks for one in delivered),
            rows=sum(one.rows for one in delivered),
            dropped=sum(one.dropped for one in delivered),
            undelivered=tuple(chain.from_iterable(d.undelivered for d in delivered)),
        )

    def next_requests(self, pace: ScanPace, room: int) -> list[ReadChunk]:
        """
        Return as many chunk requests as there is room for, one per reader.

        Args:
            pace: The size of the next chunk, and whether it may be read now.
            room: The number of chunks that may be in flight.
        """
        requests: list[ReadChunk] = []
        just_read = self._just_read
        for reader in self._readers:
            if reader.is_full or not pace.may_read or self.in_flight >= room:
                continue
            reuses_mark = just_read is not None and reader.last_read == just_read
            request = reader.next_request(pace.max_rows, reuses_mark=reuses_mark)
            requests += [request] if request else []
        return requests

"""
The chunks of one table between the question and Kafka's acknowledgement.

::

    asked -> window (read, stream passes it) -> judged -> delivered -> stored

Three places in the table: ``_asked_key``, where the reader is; ``_judged_key``, up to
which rows were emitted or dropped; and the stored table's ``last_key``, up to which
Kafka has acknowledged. A chunk that cannot be judged is read again from the second, one
lost in a crash from the third.

Keys to be read again are in exactly one of three hands: waiting, asked for by a window,
or emitted and not acknowledged. All of them are stored with the progress.
"""

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from towpath.relay.snapshot.effects import EmitRows, ReadChunk
from towpath.relay.snapshot.facts import Chunk, Key, Plan, StoredTable, WatermarkSeen
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Touches
from towpath.relay.snapshot.window import Verdict, Window

# One chunk is read, one waits for the stream, one for Kafka: more adds only memory.
MAX_CHUNKS_IN_FLIGHT: Final = 3
# Each listed key is one index probe, and its text stands in the statement.
MAX_KEYS_PER_CHUNK: Final = 500


@dataclass(slots=True)
class _Delivery:
    """A judged chunk that waits for Kafka."""

    chunk_id: int
    last_key: Key | None
    row_count: int
    dropped: int
    keys: tuple[Key, ...]
    is_acknowledged: bool


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
        self._waiting: dict[Key, None] = dict.fromkeys(table.pending_keys)
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

    def progress(self) -> StoredTable:
        """Return what a restart needs to know now."""
        asked = (window.keys for window in self._windows)
        emitted = (delivery.keys for delivery in self._deliveries)
        keys = itertools.chain(self._waiting, *asked, *emitted)
        return self._stored._replace(pending_keys=tuple(dict.fromkeys(keys)))

    def amend(self, **fields: Any) -> None:  # noqa: ANN401 - the row's own fields
        """Set fields of the stored table; ``StoredTable`` names them."""
        self._stored = self._stored._replace(**fields)

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

    def rewind(self) -> None:
        """Forget every chunk that is not judged: they will be read again."""
        for window in self._windows:
            self.read_again(window.keys)
        self._windows.clear()
        self._asked_key = self._judged_key
        self._has_reached_end = False
        self._last_mark = self._seen_mark = None

    def see(self, mark: WatermarkSeen) -> None:
        """Take in a watermark from the stream."""
        for window in self._windows:
            window.see(mark)
        if mark.token == self._last_mark:
            self._seen_mark = mark

    def close_next(self, touches: Touches) -> list[EmitRows] | None:
        """Judge the first chunk if the stream has passed it; None: it has not."""
        if not self._windows or not self._windows[0].is_ready:
            return None
        window = self._windows.popleft()
        verdict = window.close(touches)
        self.read_again(verdict.incomplete)
        self._judged_key = verdict.last_key or self._judged_key
        self._deliveries.append(_delivery(window, verdict))
        if not verdict.rows:
            return []
        emission = EmitRows(
            chunk_id=window.chunk_id,
            relation=verdict.relation,
            rows=verdict.rows,
            log_lsn=verdict.log_lsn,
            snapshot_id=self._stored.snapshot_id,
            target=self._stored.target,
        )
        return [emission]

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


def _delivery(window: Window, verdict: Verdict) -> _Delivery:
    return _Delivery(
        chunk_id=window.chunk_id,
        last_key=verdict.last_key,
        row_count=len(verdict.rows),
        dropped=verdict.dropped,
        keys=window.keys,
        is_acknowledged=not verdict.rows,
    )

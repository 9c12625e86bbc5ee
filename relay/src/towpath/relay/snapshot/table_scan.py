"""
The scan of one table, from its first chunk to its last.

::

    MARKING --start mark seen--> WAITING --all before it visible--> PLANNING
       ^                                                               │ plan read
       └── changed keys lost, or exported snapshot lost ── READING <───┘
                                                              │ nothing left
                                      a pause, a stop         v
                                        └──────> ENDED <── COMPLETING
                                                   ^
    a failure ──> FAILING ── rows acknowledged ────┘

Recording begins at the start mark; each start and each resume writes a new one.
Everything that was streamed before the mark must be visible before anything is read,
including the plan.

A scan with a *consistent point* reads from an exported snapshot, and the start mark is
the low and high watermark of every chunk. It shares the mark and the snapshot with the
other tables of its run, and the stream pauses until these are read. If the exported
snapshot is lost, the scan continues like any other.

An update may move a row from the unread range into the range that has been read, with
columns left out. The relay requests such rows itself. A scan of a whole table is
complete only when the key requests made before its end are delivered, and when Kafka
has the sweep, if one is requested.
"""

import enum
from typing import Final, NamedTuple

from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.pace import ReadRate, ScanPace
from towpath.relay.snapshot.protocol import (
    ChunkRead,
    Delivered,
    Effect,
    EmitAllowed,
    EmitSweep,
    Fact,
    PlanRead,
    ProbeVisibility,
    ReadFailed,
    ReadPlan,
    RowsRefused,
    SaveProgress,
    Tick,
    VisibilityRead,
    WatermarkSeen,
    WriteWatermark,
)
from towpath.relay.snapshot.range_reader import RangeReaders
from towpath.relay.snapshot.scan_context import (
    ConsistentPoint,
    ScanContext,
    WatermarkTokens,
    key_ranges,
    plan_request,
)
from towpath.relay.snapshot.shape import ScanPlan
from towpath.relay.snapshot.stored import StoredTable, scan_outcome
from towpath.relay.snapshot.visibility import InvisibleTransactions


class ScanStage(enum.Enum):
    """The stages of a scan."""

    MARKING = "marking"
    WAITING = "waiting"
    PLANNING = "planning"
    READING = "reading"
    COMPLETING = "completing"
    FAILING = "failing"
    ENDED = "ended"


# In these stages a scan with a consistent point blocks the stream.
_BLOCKING: Final = frozenset({ScanStage.WAITING, ScanStage.PLANNING, ScanStage.READING})


class ScanServices(NamedTuple):
    """The services that the scans of one source share."""

    invisible: InvisibleTransactions
    requests: KeyRequests
    tokens: WatermarkTokens


class ScanOptions(NamedTuple):
    """
    The options of one scan.

    Attributes:
        changed_keys: The recorded changes to its table.
        pace: The size of its next chunk, and whether it may be read now.
        parts: The number of ranges into which its table may be split.
        consistent_point: The mark and exported snapshot that its run shares; None if
            each chunk has its own watermarks.
    """

    changed_keys: ChangedKeys
    pace: ScanPace
    parts: int
    consistent_point: ConsistentPoint | None = None


_LOST_MOVES = (
    "rows whose key changed meanwhile could not be refetched by their new key; "
    "once they can be, resume the snapshot: it reads the whole table again"
)
_TOO_MANY_CHANGES = "too many rows changed while the exported snapshot was created"
_KEY_CHANGED = "its key has changed since the snapshot began: "
_TOO_SLOW = "reading even the smallest chunk takes longer than the server allows: "


class TableScan:
    """The scan of one table; ``on`` takes a fact and returns effects."""

    def __init__(
        self, table: StoredTable, options: ScanOptions, services: ScanServices
    ) -> None:
        self.changed_keys = options.changed_keys
        self.stage = ScanStage.MARKING
        self._options = options
        self._point = options.consistent_point
        self._stored = table
        self._pace = options.pace
        self._rate = ReadRate()
        self._readers = RangeReaders(table.pending_keys or ())
        self._must_load = table.pending_keys is None
        self._invisible = services.invisible
        self._requests = services.requests
        self._tokens = services.tokens
        self._failure: str | None = None
        self._marker = self._mark_lsn = 0
        self._plan: ScanPlan | None = None
        self._request_id: int | None = None
        self._start_token = ""
        self._sweep_id: int | None = None
        self._has_swept = not table.sweeps
        self._awaited = 0
        if self._point is not None and self._point.mark is not None:
            self._begin_recording(self._point.mark)

    @property
    def table(self) -> StoredTable:
        """The table's progress, from which a restart resumes."""
        if self._must_load or not self._readers:
            return self._stored
        rate = self._rate.rows_per_second
        return self._readers.progress(self._stored)._replace(rows_per_second=rate)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be deduplicated and emitted."""
        return self.stage is ScanStage.READING and self._readers.has_ready

    @property
    def in_flight(self) -> int:
        """The number of chunks that are requested and not acknowledged."""
        return self._readers.in_flight

    @property
    def consistent_point(self) -> ConsistentPoint | None:
        """The mark and exported snapshot of its chunks; None if it uses neither."""
        return self._point

    @property
    def blocks_stream(self) -> bool:
        """Whether the stream must not be read until its chunks are read."""
        return self._point is not None and self.stage in _BLOCKING

    def on(self, fact: Fact, room: int) -> list[Effect]:
        """
        Process a fact, then make every request that is now possible.

        Args:
            fact: The fact.
            room: The number of chunks that may be in flight.
        """
        effects: list[Effect] = []
        self._readers.note_fact(fact)
        match fact:
            case WatermarkSeen():
                effects += self._observe(fact)
            case Tick():
                self._pace.now_s = fact.now_s
            case VisibilityRead():
                self._end_waiting()
            case RowsRefused() | Delivered():
                self._record_delivery(fact)
            case PlanRead() if fact.request_id == self._request_id:
                effects += self._begin_reading(fact.plan)
            case ChunkRead():
                self._readers.accept(fact, self._pace)
            case ReadFailed():
                effects += self._handle_failure(fact)
            case _:
                pass
        allowed = fact if isinstance(fact, EmitAllowed) else None
        return effects + self._advance(allowed, room)

    @property
    def delivered(self) -> int:
        """The number of chunks that Kafka has acknowledged."""
        return self._stored.chunks

    def end(self, state: str, reason: str | None) -> list[Effect]:
        """End the scan at its current progress."""
        if self._point and self.stage is ScanStage.MARKING and self._request_id:
            self._point.view = ""
        self.stage = ScanStage.ENDED
        effects = self._readers.end_partial()
        self._stored = self.table._replace(state=state, error=reason)
        self._readers.clear()
        return [*effects, *self._save()]

    # Each fact -----------------------------------------------------------------

    def _observe(self, mark: WatermarkSeen) -> list[Effect]:
        if self.stage is ScanStage.MARKING and mark.token == self._token:
            if self._point is not None:
                self._point.mark = mark
            self._begin_recording(mark)
            return [ProbeVisibility()]
        self._readers.observe(mark)
        return []

    @property
    def _token(self) -> str:
        return self._start_token if self._point is None else self._point.view

    def _begin_recording(self, mark: WatermarkSeen) -> None:
        self._request_id = None
        self._mark_lsn = mark.log_lsn
        self.changed_keys.begin()
        self._marker = self._invisible.marker()
        self.stage = ScanStage.WAITING

    def _end_waiting(self) -> None:
        is_visible = self._invisible.are_visible_until(self._marker)
        if self.stage is ScanStage.WAITING and is_visible:
            self.stage = ScanStage.PLANNING if self._plan is None else ScanStage.READING

    def _record_delivery(self, fact: RowsRefused | Delivered) -> None:
        if isinstance(fact, RowsRefused):
            self._readers.refuse(fact.chunk_id, fact.keys)
            return
        self._has_swept |= fact.chunk_id == self._sweep_id
        self._readers.acknowledge(fact.chunk_id)

    def _begin_reading(self, plan: ScanPlan) -> list[Effect]:
        self._request_id = None
        self._plan = plan
        stored, key_columns = self._stored, plan.shape.key_columns
        if stored.key_columns not in {(), key_columns}:
            if stored.asked_keys is None:
                # The last key now precedes other rows: a resume reads all rows.
                self._stored = stored.from_the_first_row()
            return self._fail(_KEY_CHANGED + ", ".join(key_columns))
        # A resumed scan keeps its maximum key: the stream delivers the rows above it.
        maximum_key = stored.maximum_key or plan.maximum_key
        if self._must_load:
            self._must_load = False
            self._readers.pending_keys.update(dict.fromkeys(plan.keys))
        self._stored = stored._replace(
            maximum_key=maximum_key,
            key_columns=key_columns,
            estimated_rows=stored.asked_keys or plan.estimated_rows,
            floor=self._mark_lsn if stored.floor is None else stored.floor,
        )
        self._readers.begin(self._context(plan), key_ranges(self._stored, plan))
        self.stage = ScanStage.READING
        return self._save()

    def _context(self, plan: ScanPlan) -> ScanContext:
        stored = self._stored
        return ScanContext(
            snapshot_id=stored.snapshot_id,
            target=stored.target,
            condition=stored.filter,
            select=stored.select,
            shape=plan.shape,
            pending_keys=self._readers.pending_keys,
            changed_keys=self.changed_keys,
            tokens=self._tokens,
            consistent_point=self._point,
        )

    def _handle_failure(self, failure: ReadFailed) -> list[Effect]:
        if not self._readers.drop_request(failure.request_id):
            if failure.request_id != self._request_id:
                return []
            self._request_id = None
            if self._point is not None and self.stage is ScanStage.MARKING:
                self._point.view = ""
        if failure.has_lost_view:
            return self.leave_exported_snapshot(failure.reason)
        if not failure.may_recover:
            return self._fail(failure.reason)
        self._pace.failed(has_timed_out=failure.has_timed_out)
        if self._pace.is_too_slow:
            return self._fail(_TOO_SLOW + failure.reason)
        self._stored = self._stored._replace(error=failure.reason)
        return self._save()

    def _fail(self, reason: str) -> list[Effect]:
        """Stop reading; the scan ends once Kafka has acknowledged the emitted rows."""
        effects = self._readers.rewind()
        self._request_id, self._failure, self.stage = None, reason, ScanStage.FAILING
        return [*effects, *self._end_failed()]

    def _end_failed(self) -> list[Effect]:
        """End as failed with the true counts, once no emitted chunk is in flight."""
        effects, is_over = self._count_delivered(), not self._readers.in_flight
        return effects + (self.end("failed", self._failure) if is_over else [])

    def leave_exported_snapshot(self, reason: str | None) -> list[Effect]:
        """Resume without the exported snapshot, from the last acknowledged row."""
        effects = self._readers.rewind()
        self._stored = self.table._replace(error=reason)
        self._readers.clear()
        self._point = self._plan = self._request_id = None
        self.stage = ScanStage.MARKING
        return [*effects, *self._save()]

    # Requests that are possible now --------------------------------------------

    def _advance(self, allowed: EmitAllowed | None, room: int) -> list[Effect]:
        if self.stage in {ScanStage.COMPLETING, ScanStage.ENDED, ScanStage.FAILING}:
            has_failed = self.stage is ScanStage.FAILING
            return self._end_failed() if has_failed else self._complete()
        effects: list[Effect] = []
        if self.changed_keys.has_overflowed and self.stage is not ScanStage.MARKING:
            effects += self._restart_recording()
        if self.stage is ScanStage.READING and allowed is not None:
            effects += self._readers.deduplicate(allowed)
        effects += self._count_delivered()
        if self._pace.may_read:
            effects += self._next_requests(room)
        if self.stage is ScanStage.READING and self._readers.are_done:
            effects += self._end_reading()
        return effects + self._complete()

    def _end_reading(self) -> list[Effect]:
        """Complete the scan; an exported snapshot is left first if keys are pending."""
        if self._readers.pending_keys:
            return [] if self._point is None else self.leave_exported_snapshot(None)
        self.stage = ScanStage.COMPLETING
        if self._stored.asked_keys is None:
            self._awaited = self._requests.newest(self._stored.table_oid)
        return self._sweep()

    def _restart_recording(self) -> list[Effect]:
        if self._point is not None:
            return self.leave_exported_snapshot(_TOO_MANY_CHANGES)
        self._request_id = None
        self.stage = ScanStage.MARKING
        return [*self._readers.rewind()]

    def _count_delivered(self) -> list[Effect]:
        delivered = self._readers.take_delivered()
        if not delivered.chunks:
            return []
        self._rate.add(delivered.rows + delivered.dropped, self._pace.now_s)
        self._stored = self._stored.with_delivered(delivered)
        return self._save()

    def _sweep(self) -> list[Effect]:
        if self._has_swept or self._plan is None or self._sweep_id is not None:
            return []
        stored = self._stored
        self._sweep_id = self._tokens.next_id()
        return [
            EmitSweep(
                chunk_id=self._sweep_id,
                relation=self._plan.shape.relation,
                log_lsn=self._mark_lsn,
                floor=0 if stored.condition else stored.floor or 0,
                snapshot_id=stored.snapshot_id,
                target=stored.target,
            )
        ]

    def _complete(self) -> list[Effect]:
        if self.stage is not ScanStage.COMPLETING or not self._has_swept:
            return []
        if not self._requests.has_ended(self._awaited):
            return []
        if self._requests.has_failed(self._stored):
            return self.end("failed", _LOST_MOVES)
        return self.end(*scan_outcome(self._stored))

    def _next_requests(self, room: int) -> list[Effect]:
        if self.stage is ScanStage.READING:
            return [*self._readers.next_requests(self._pace, room)]
        if self._request_id is not None:
            return []
        if self.stage is ScanStage.MARKING and not (self._point and self._point.view):
            self._request_id = self._tokens.next_id()
            self._start_token = self._tokens.watermark(self._request_id, "start")
            if self._point is not None:
                self._point.view = self._start_token
            return [WriteWatermark(self._request_id, self._start_token)]
        return [self._request_plan()] if self.stage is ScanStage.PLANNING else []

    def _request_plan(self) -> ReadPlan:
        self._request_id = self._tokens.next_id()
        view = None if self._point is None else self._point.view
        return plan_request(self._stored, self._request_id, self._options.parts, view)

    def _save(self) -> list[Effect]:
        return [SaveProgress(self._tokens.next_id(), self.table)]

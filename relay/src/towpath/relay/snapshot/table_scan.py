"""
One table being read, from its first chunk to its last.

::

    MARKING --start mark seen--> WAITING --all before it visible--> PLANNING
       ^                                                               │ plan read
       └──────── touches lost, or no longer frozen ─────── READING <───┘
                                                              │ nothing left
                                    a failure, a pause        v
                                        └──────> ENDED <── COMPLETING

Recording begins with the start mark, for each start and each resume anew: whatever was
streamed before it must be visible before anything is read, the plan included.

A *frozen* scan reads in one view of the database, in which the start mark is low and
high watermark of every chunk; it shares mark and view with the other tables of its run,
and the stream is not read meanwhile. When the view is lost it goes on as any other.

A row may have left the part that is still to be read for the part that has been read,
with columns left out. The relay asks for such rows by itself, and a scan of a whole
table is complete only when those that were asked for until its end are delivered, and
Kafka has the sweep if there is to be one.

How far the reading of a table is.

What scans work with: what all of them share, and what each has of its own.
"""

import enum
from typing import Final, NamedTuple

from towpath.relay.snapshot.changed_keys import ChangedKeys
from towpath.relay.snapshot.effects import (
    Effect,
    EmitSweep,
    ProbeVisibility,
    ReadPlan,
    SaveProgress,
    WriteWatermark,
)
from towpath.relay.snapshot.facts import (
    ChunkRead,
    Delivered,
    EmitAllowed,
    Fact,
    PlanRead,
    ReadFailed,
    RowsRefused,
    Tick,
    VisibilityRead,
    WatermarkSeen,
)
from towpath.relay.snapshot.key_requests import KeyRequests
from towpath.relay.snapshot.pace import ReadRate
from towpath.relay.snapshot.range_reader import RangeReaders, ReadPolicy
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
    """How far the scan is."""

    MARKING = "marking"
    WAITING = "waiting"
    PLANNING = "planning"
    READING = "reading"
    COMPLETING = "completing"
    FAILING = "failing"
    ENDED = "ended"


# While a frozen scan is here the stream must not go on.
HOLDING: Final = frozenset({ScanStage.WAITING, ScanStage.PLANNING, ScanStage.READING})


class ScanServices(NamedTuple):
    """The services that the scans of one source share."""

    invisible: InvisibleTransactions
    requests: KeyRequests
    tokens: WatermarkTokens


class ScanOptions(NamedTuple):
    """
    The options of one scan.

    Attributes:
        notes: Where the stream's touches of its table go.
        asking: When and how it asks for chunks.
        parts: Into how many ranges its table may be cut.
        freeze: The mark and view that its run shares; None: it is not frozen.
    """

    notes: ChangedKeys
    asking: ReadPolicy
    parts: int
    freeze: ConsistentPoint | None = None


_MOVES_LOST = "rows whose key was changed meanwhile could not be read by their new key"
_TOO_MANY_CHANGES = "too much changed while the one view of the tables was made"
_OTHER_KEY = "its key was changed since it was begun: "
_TOO_SLOW = "reading even the smallest chunk takes longer than the server allows: "


class TableScan:
    """One table's reading; ``on`` answers a fact with effects."""

    def __init__(
        self, table: StoredTable, means: ScanOptions, services: ScanServices
    ) -> None:
        self.notes = means.notes
        self.stage = ScanStage.MARKING
        self._means = means
        self._freeze = means.freeze
        self._stored = table
        self._pace = means.asking.pace
        self._speed = ReadRate()
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
        self._ended_before = services.requests.ended
        self._awaited = 0
        if self._freeze is not None and self._freeze.mark is not None:
            self._begin_recording(self._freeze.mark)

    @property
    def table(self) -> StoredTable:
        """What a restart needs to know now."""
        if self._must_load or not self._readers:
            return self._stored
        speed = self._speed.rows_per_second
        return self._readers.progress(self._stored)._replace(rows_per_second=speed)

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be judged and emitted."""
        return self.stage is ScanStage.READING and self._readers.has_ready

    @property
    def in_flight(self) -> int:
        """How many chunks were asked for and are not acknowledged."""
        return self._readers.in_flight

    @property
    def holds_stream(self) -> bool:
        """Whether the stream must not be read until the view has served."""
        return self._freeze is not None and self.stage in HOLDING

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact, then do whatever is possible by now."""
        effects: list[Effect] = []
        self._readers.heard(fact)
        match fact:
            case WatermarkSeen():
                effects += self._see(fact)
            case Tick():
                self._pace.now_s = fact.now_s
            case VisibilityRead():
                self._see_visible()
            case RowsRefused() | Delivered():
                self._take_delivery(fact)
            case PlanRead() if fact.request_id == self._request_id:
                effects += self._begin_reading(fact.plan)
            case ChunkRead():
                self._readers.take(fact, self._pace)
            case ReadFailed():
                effects += self._fail_attempt(fact)
            case _:
                pass
        return effects + self._advance(
            fact.max_rows if isinstance(fact, EmitAllowed) else 0
        )

    @property
    def delivered(self) -> int:
        """How many chunks Kafka has."""
        return self._stored.chunks

    def end(self, state: str, reason: str | None) -> list[Effect]:
        """End it where it is."""
        if self._freeze and self.stage is ScanStage.MARKING and self._request_id:
            self._freeze.name = ""
        self.stage = ScanStage.ENDED
        effects = self._readers.cut()
        self._stored = self.table._replace(state=state, error=reason)
        self._readers.leave()
        return [*effects, *self._save()]

    # Each fact -----------------------------------------------------------------

    def _see(self, mark: WatermarkSeen) -> list[Effect]:
        if self.stage is ScanStage.MARKING and mark.token == self._token:
            if self._freeze is not None:
                self._freeze.mark = mark
            self._begin_recording(mark)
            return [ProbeVisibility()]
        self._readers.see(mark)
        return []

    @property
    def _token(self) -> str:
        return self._start_token if self._freeze is None else self._freeze.name

    def _begin_recording(self, mark: WatermarkSeen) -> None:
        self._request_id = None
        self._mark_lsn = mark.log_lsn
        self.notes.begin()
        self._marker = self._invisible.marker()
        self.stage = ScanStage.WAITING

    def _see_visible(self) -> None:
        is_visible = self._invisible.are_visible_until(self._marker)
        if self.stage is ScanStage.WAITING and is_visible:
            self.stage = ScanStage.PLANNING if self._plan is None else ScanStage.READING

    def _take_delivery(self, fact: RowsRefused | Delivered) -> None:
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
            return self._fail(_OTHER_KEY + ", ".join(key_columns))
        # A resumed scan keeps its maximum key: rows above it came by the stream.
        maximum_key = stored.maximum_key or plan.maximum_key
        if self._must_load:
            self._must_load = False
            self._readers.waiting.update(dict.fromkeys(plan.keys))
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
            waiting=self._readers.waiting,
            notes=self.notes,
            tokens=self._tokens,
            freeze=self._freeze,
        )

    def _fail_attempt(self, failure: ReadFailed) -> list[Effect]:
        if not self._readers.give_up(failure.request_id):
            if failure.request_id != self._request_id:
                return []
            self._request_id = None
            if self._freeze is not None and self.stage is ScanStage.MARKING:
                self._freeze.name = ""
        if failure.has_thawed:
            return self.thaw(failure.reason)
        if not failure.may_recover:
            return self._fail(failure.reason)
        self._pace.failed(has_timed_out=failure.has_timed_out)
        if self._pace.is_hopeless:
            return self._fail(_TOO_SLOW + failure.reason)
        self._stored = self._stored._replace(error=failure.reason)
        return self._save()

    def _fail(self, reason: str) -> list[Effect]:
        """Read no more; fail once the broker has acknowledged what was emitted."""
        effects = self._readers.rewind()
        self._request_id, self._failure, self.stage = None, reason, ScanStage.FAILING
        return [*effects, *self._end_failed()]

    def _end_failed(self) -> list[Effect]:
        """Fail with the true counts: rows on their way to the broker are counted."""
        effects, is_over = self._settle(), not self._readers.in_flight
        return effects + (self.end("failed", self._failure) if is_over else [])

    def thaw(self, reason: str | None) -> list[Effect]:
        """Go on without the one view, from what Kafka has acknowledged."""
        effects = self._readers.rewind()
        self._stored = self.table._replace(error=reason)
        self._readers.leave()
        self._freeze = self._plan = self._request_id = None
        self.stage = ScanStage.MARKING
        return [*effects, *self._save()]

    # What is possible by now ---------------------------------------------------

    def _advance(self, room: int) -> list[Effect]:
        if self.stage in {ScanStage.COMPLETING, ScanStage.ENDED, ScanStage.FAILING}:
            return (
                self._end_failed()
                if self.stage is ScanStage.FAILING
                else self._complete()
            )
        effects: list[Effect] = []
        if self.notes.has_overflowed and self.stage is not ScanStage.MARKING:
            effects += self._record_again()
        if self.stage is ScanStage.READING:
            effects += self._readers.judge(room)
        effects += self._settle()
        if self._pace.may_read:
            effects += self._request()
        if self.stage is ScanStage.READING and self._readers.are_through:
            effects += self._end_reading()
        return effects + self._complete()

    def _end_reading(self) -> list[Effect]:
        """Complete it, unless keys are left, which no frozen view can show anew."""
        if self._readers.waiting:
            return [] if self._freeze is None else self.thaw(None)
        self.stage = ScanStage.COMPLETING
        if self._stored.asked_keys is None:
            self._awaited = self._requests.newest(self._stored.table_oid)
        return self._sweep()

    def _record_again(self) -> list[Effect]:
        if self._freeze is not None:
            return self.thaw(_TOO_MANY_CHANGES)
        self._request_id = None
        self.stage = ScanStage.MARKING
        return [*self._readers.rewind()]

    def _settle(self) -> list[Effect]:
        settled = self._readers.settle()
        if not settled.chunks:
            return []
        stored = self._stored
        self._speed.told(settled.rows + settled.dropped, self._pace.now_s)
        self._stored = stored.after(settled)
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
        span = (self._ended_before, self._awaited)
        if self._requests.has_failed(self._stored.table_oid, *span):
            return self.end("failed", _MOVES_LOST)
        return self.end(*scan_outcome(self._stored))

    def _request(self) -> list[Effect]:
        if self.stage is ScanStage.READING:
            return [*self._readers.ask(self._means.asking)]
        if self._request_id is not None:
            return []
        if self.stage is ScanStage.MARKING and not (self._freeze and self._freeze.name):
            self._request_id = self._tokens.next_id()
            self._start_token = self._tokens.watermark(self._request_id, "start")
            if self._freeze is not None:
                self._freeze.name = self._start_token
            return [WriteWatermark(self._request_id, self._start_token)]
        return [self._ask_for_plan()] if self.stage is ScanStage.PLANNING else []

    def _ask_for_plan(self) -> ReadPlan:
        self._request_id = self._tokens.next_id()
        view = None if self._freeze is None else self._freeze.name
        return plan_request(self._stored, self._request_id, self._means.parts, view)

    def _save(self) -> list[Effect]:
        return [SaveProgress(self._tokens.next_id(), self.table)]

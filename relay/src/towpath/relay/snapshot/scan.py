"""
One table being read, from its first chunk to its last.

::

    MARKING --start mark seen--> WAITING --all before it visible--> PLANNING
       ^                                                               │ plan read
       └──────────────────── touches lost ───── READING <──────────────┘
                                                    │ nothing left
                                                    v
                            a failure ──> ENDED <── COMPLETING

Recording begins with the start mark, for each start and each resume anew: whatever was
streamed before it must be visible before anything is read, the plan included.

A row may have left the part that is still to be read for the part that has been read,
with columns left out. The relay asks for such rows by itself, and a scan of a whole
table is complete only when those that were asked for until its end are delivered.
"""

import enum
from dataclasses import replace
from typing import NamedTuple

from towpath.relay.snapshot.effects import (
    Effect,
    EmitRows,
    ProbeVisibility,
    ReadPlan,
    SaveProgress,
    WriteWatermark,
)
from towpath.relay.snapshot.facts import (
    ChunkRead,
    Delivered,
    Fact,
    PlanRead,
    ReadFailed,
    Tick,
    Turn,
    VisibilityRead,
    WatermarkSeen,
)
from towpath.relay.snapshot.pace import Pace
from towpath.relay.snapshot.reading import Reading
from towpath.relay.snapshot.requests import KeyRequests
from towpath.relay.snapshot.shape import Plan
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Notes
from towpath.relay.snapshot.visibility import InvisibleTransactions

_MOVES_LOST = "rows whose key was changed meanwhile could not be read by their new key"


class Stage(enum.Enum):
    """How far the scan is."""

    MARKING = "marking"
    WAITING = "waiting"
    PLANNING = "planning"
    READING = "reading"
    COMPLETING = "completing"
    ENDED = "ended"


class Desk(NamedTuple):
    """What the scans of one source share."""

    invisible: InvisibleTransactions
    requests: KeyRequests
    tokens: Tokens


class Scan:
    """One table's reading; ``on`` answers a fact with effects."""

    def __init__(
        self, table: StoredTable, notes: Notes, pace: Pace, desk: Desk
    ) -> None:
        self.notes = notes
        self.stage = Stage.MARKING
        self._reading = Reading(table, desk.tokens)
        self._invisible = desk.invisible
        self._requests = desk.requests
        self._tokens = desk.tokens
        self._pace = pace
        self._marker = 0
        self._plan: Plan | None = None
        self._request_id: int | None = None
        self._start_token = ""
        self._ended_before = desk.requests.ended
        self._awaited = 0

    @property
    def table(self) -> StoredTable:
        """What a restart needs to know now."""
        return self._reading.progress()

    @property
    def has_ready(self) -> bool:
        """Whether there are rows to be judged and emitted."""
        return self.stage is Stage.READING and self._reading.has_ready

    def on(self, fact: Fact) -> list[Effect]:
        """Take in a fact, then do whatever is possible by now."""
        effects: list[Effect] = []
        match fact:
            case WatermarkSeen():
                effects += self._see(fact)
            case Tick():
                self._pace.now_s = fact.now_s
            case VisibilityRead():
                self._see_visible()
            case Delivered():
                self._reading.acknowledge(fact.chunk_id)
            case PlanRead() if fact.request_id == self._request_id:
                effects += self._begin_reading(fact.plan)
            case ChunkRead() if fact.chunk_id == self._request_id:
                self._request_id = None
                self._reading.take(fact.chunk)
                self._pace.succeeded(len(fact.chunk.rows))
            case ReadFailed() if fact.request_id == self._request_id:
                effects += self._fail_attempt(fact)
            case _:
                pass
        room = fact.max_rows if isinstance(fact, Turn) else 0
        return effects + self._advance(room, at_once=isinstance(fact, ChunkRead))

    def stop(self, reason: str) -> list[Effect]:
        """End it where it is."""
        return self._end("stopped", reason)

    # Each fact -----------------------------------------------------------------

    def _see(self, mark: WatermarkSeen) -> list[Effect]:
        if self.stage is Stage.MARKING and mark.token == self._start_token:
            self._request_id = None
            self.notes.begin()
            self._marker = self._invisible.marker()
            self.stage = Stage.WAITING
            return [ProbeVisibility()]
        self._reading.see(mark)
        return []

    def _see_visible(self) -> None:
        is_visible = self._invisible.are_visible_until(self._marker)
        if self.stage is Stage.WAITING and is_visible:
            self.stage = Stage.PLANNING if self._plan is None else Stage.READING

    def _begin_reading(self, plan: Plan) -> list[Effect]:
        self._request_id = None
        # A resumed scan keeps its maximum key: rows above it came by the stream.
        maximum_key = self.table.maximum_key or plan.maximum_key
        self._plan = replace(plan, maximum_key=maximum_key)
        self._reading.load(plan.keys)
        estimated_rows = self.table.asked_keys or plan.estimated_rows
        self._reading.amend(maximum_key=maximum_key, estimated_rows=estimated_rows)
        self.stage = Stage.READING
        return self._save()

    def _fail_attempt(self, failure: ReadFailed) -> list[Effect]:
        self._request_id = None
        if self.stage is Stage.READING:
            self._reading.give_up()
        if not failure.may_recover:
            return self._end("failed", failure.reason)
        self._pace.failed()
        self._reading.amend(error=failure.reason)
        return self._save()

    # What is possible by now ---------------------------------------------------

    def _advance(self, room: int, *, at_once: bool) -> list[Effect]:
        if self.stage in {Stage.COMPLETING, Stage.ENDED}:
            return self._complete()
        effects: list[Effect] = []
        if self.notes.has_overflowed and self.stage is not Stage.MARKING:
            effects += self._record_anew()
        effects += self._judge(room)
        if self._reading.settle():
            effects += self._save()
        if self._request_id is None and self._pace.may_read:
            effects += self._request(at_once=at_once)
        if self.stage is Stage.READING and self._reading.is_done:
            self.stage = Stage.COMPLETING
            if self.table.asked_keys is None:
                self._awaited = self._requests.newest(self.table.table_oid)
        return effects + self._complete()

    def _record_anew(self) -> list[EmitRows]:
        self._request_id = None
        self.stage = Stage.MARKING
        return self._reading.rewind()

    def _judge(self, room: int) -> list[EmitRows]:
        effects: list[EmitRows] = []
        while room > 0:
            part = self._reading.judge_next(self.notes, room)
            if part is None:
                break
            room -= part.judged
            effects += [part.emission] if part.emission else []
        return effects

    def _complete(self) -> list[Effect]:
        if self.stage is not Stage.COMPLETING:
            return []
        if not self._requests.has_ended(self._awaited):
            return []
        oid = self.table.table_oid
        if self._requests.has_failed(oid, self._ended_before, self._awaited):
            return self._end("failed", _MOVES_LOST)
        return self._end("completed", None)

    def _request(self, *, at_once: bool) -> list[Effect]:
        effect: Effect | None = None
        if self.stage is Stage.MARKING:
            self._request_id = self._tokens.next_id()
            self._start_token = self._tokens.watermark(self._request_id, "start")
            effect = WriteWatermark(self._request_id, self._start_token)
        elif self.stage is Stage.PLANNING:
            self._request_id = self._tokens.next_id()
            table = self.table
            effect = ReadPlan(
                self._request_id,
                table.collection,
                table.table_oid,
                table.condition,
                None if table.asked_keys is None else table.snapshot_id,
            )
        elif self.stage is Stage.READING and self._plan and not self._reading.is_full:
            effect = self._reading.ask(self._plan, self._pace.max_rows, at_once=at_once)
            self._request_id = effect.chunk_id if effect else None
        return [effect] if effect else []

    def _save(self) -> list[Effect]:
        return [SaveProgress(self._tokens.next_id(), self.table)]

    def _end(self, state: str, error: str | None) -> list[Effect]:
        self.stage = Stage.ENDED
        effects = self._reading.cut()
        self._reading.amend(state=state, error=error)
        return [*effects, *self._save()]

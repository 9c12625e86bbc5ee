"""
One table being read, from its first chunk to its last.

::

    MARKING --start mark seen--> WAITING --all before it visible--> PLANNING
       ^                                                               │ plan read
       └──────────────────── touches lost ───── READING <──────────────┘
                                                    │ nothing left, or a failure
                                                    v
                                                  ENDED

Recording begins with the start mark, for each start and each resume anew: whatever was
streamed before it must be visible before anything is read, the plan included.
"""

import enum

from towpath.relay.snapshot.effects import (
    Effect,
    ProbeVisibility,
    ReadPlan,
    SaveProgress,
    WriteWatermark,
)
from towpath.relay.snapshot.facts import (
    ChunkRead,
    Delivered,
    Fact,
    Plan,
    PlanRead,
    ReadFailed,
    StoredTable,
    Tick,
    VisibilityRead,
    WatermarkSeen,
)
from towpath.relay.snapshot.pace import Pace
from towpath.relay.snapshot.reading import Reading
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Touches
from towpath.relay.snapshot.visibility import InvisibleTransactions

_MOVES_LOST = (
    "too many rows whose large columns did not change had their key changed meanwhile"
)


class Stage(enum.Enum):
    """How far the scan is."""

    MARKING = "marking"
    WAITING = "waiting"
    PLANNING = "planning"
    READING = "reading"
    ENDED = "ended"


class Scan:
    """One table's reading; ``on`` answers a fact with effects."""

    def __init__(
        self,
        table: StoredTable,
        touches: Touches,
        invisible: InvisibleTransactions,
        pace: Pace,
        tokens: Tokens,
    ) -> None:
        self.touches = touches
        self.stage = Stage.MARKING
        self._reading = Reading(table, tokens)
        self._invisible = invisible
        self._pace = pace
        self._tokens = tokens
        self._marker = 0
        self._plan: Plan | None = None
        self._request_id: int | None = None
        self._start_token = ""

    @property
    def table(self) -> StoredTable:
        """What a restart needs to know now."""
        return self._reading.progress()

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
        return effects + self._advance(has_just_read=isinstance(fact, ChunkRead))

    def stop(self, reason: str) -> list[Effect]:
        """End it where it is."""
        return self._end("stopped", reason)

    # Each fact -----------------------------------------------------------------

    def _see(self, mark: WatermarkSeen) -> list[Effect]:
        if self.stage is Stage.MARKING and mark.token == self._start_token:
            self._request_id = None
            self.touches.begin()
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
        self._plan = Plan(plan.shape, maximum_key, plan.estimated_rows)
        self._reading.amend(maximum_key=maximum_key, estimated_rows=plan.estimated_rows)
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

    def _advance(self, *, has_just_read: bool) -> list[Effect]:
        if self.stage is Stage.ENDED:
            return []
        if self.touches.has_lost_moves:
            return self._end("failed", _MOVES_LOST)
        if self.touches.has_overflowed and self.stage is not Stage.MARKING:
            self._record_anew()
        effects = self._judge()
        has_moved = self.touches.has_moved
        self._reading.read_again(self.touches.take_moved())
        if self._reading.settle() or has_moved:
            effects += self._save()
        if self._request_id is None and self._pace.may_read:
            effects += self._request(at_once=has_just_read)
        if self.stage is Stage.READING and self._reading.is_done:
            effects += self._end("completed", None)
        return effects

    def _record_anew(self) -> None:
        self._reading.rewind()
        self._request_id = None
        self.stage = Stage.MARKING

    def _judge(self) -> list[Effect]:
        effects: list[Effect] = []
        while (emissions := self._reading.close_next(self.touches)) is not None:
            effects += emissions
        return effects

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
                self._request_id, table.collection, table.table_oid, table.condition
            )
        elif self.stage is Stage.READING and self._plan and not self._reading.is_full:
            effect = self._reading.ask(self._plan, self._pace.max_rows, at_once=at_once)
            self._request_id = effect.chunk_id if effect else None
        return [effect] if effect else []

    def _save(self) -> list[Effect]:
        return [SaveProgress(self._tokens.next_id(), self.table)]

    def _end(self, state: str, error: str | None) -> list[Effect]:
        self.stage = Stage.ENDED
        self._reading.amend(state=state, error=error)
        return self._save()

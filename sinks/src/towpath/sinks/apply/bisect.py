"""
Hands a batch to a sink, and finds what it is that a target refuses.

A target that refuses a whole call does not always say which change is to blame. The
batch is halved then, and halved again, until the change stands alone: it is refused
with the target's answer, and all the rest is written. A target that refuses one change
after the other, and takes none between, is not handed poison: it is broken, and nothing
of the batch is set aside. Batches that were refused whole are counted together, over
restarts of the query too: else a topic with small batches would run empty into the dead
letters. An attempt begins with the first change all the same, and one call that is
taken ends the counting.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from towpath.schemas.clock import Clock
from towpath.sinks.change import Change, EventRow, Origin, Refusal
from towpath.sinks.errors import BatchRefusedError, EveryChangeRefusedError
from towpath.sinks.ports import Batch, Sink

# Refused one after the other, with nothing taken between: no longer poison.
MAX_CONSECUTIVE_REFUSALS: Final = 50

_Item: TypeAlias = Change | EventRow

_log = structlog.get_logger("towpath.sinks")


@dataclass(slots=True)
class DeliveryResult:
    """
    What became of a batch.

    Attributes:
        refused: Changes that were not applied.
        refused_events: Events that were not, by their record, with the reason.
    """

    applied: int = 0
    stale: int = 0
    nulled: int = 0
    apply_ms: int = 0
    flush_ms: int = 0
    refused: list[Refusal] = field(default_factory=list)
    refused_events: dict[Origin, str] = field(default_factory=dict)


@dataclass(slots=True)
class ConsecutiveRefusals:
    """
    How many changes one target has refused since it last took a call.

    Attributes:
        before: By the end of the last batch that was delivered; for as long as the
            process lives.
        now: In the batch that is delivered.
    """

    before: int = 0
    now: int = 0

    def begin(self) -> None:
        """Begin an attempt at a batch."""
        self.now = 0

    def taken(self) -> None:
        """Begin anew: the target takes calls."""
        self.before = self.now = 0

    def refused(self, error: BatchRefusedError) -> None:
        """
        Count a change that was refused alone.

        Raises:
            EveryChangeRefusedError: It is one too many for a batch.
        """
        self.now += 1
        self._check(self.now, error)

    def end(self, error: BatchRefusedError) -> None:
        """
        Let the batch count, all of which that could be written is.

        Raises:
            EveryChangeRefusedError: With those before, it has one too many.
        """
        self._check(self.before + self.now, error)
        self.before += self.now

    @staticmethod
    def _check(count: int, error: BatchRefusedError) -> None:
        if count > MAX_CONSECUTIVE_REFUSALS:
            message = f"the target refuses one change after the other: {error}"
            raise EveryChangeRefusedError(message) from error


class Delivery:
    """Writes batches into one sink; everything returned is durable."""

    def __init__(
        self, sink: Sink, clock: Clock, refusals: ConsecutiveRefusals | None = None
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._refusals = refusals or ConsecutiveRefusals()

    def deliver(self, batch: Batch, after: Sequence[Change] = ()) -> DeliveryResult:
        """
        Write a batch.

        Args:
            batch: What is written.
            after: Changes of the same keys, to be written after it. What was to come
                before one, and is refused, has it refused as well.

        Raises:
            UnavailableError: The target does not answer; write the batch again.
            EveryChangeRefusedError: The target refuses whatever it is given.
            BatchRefusedError: It refuses what is no change: a floor.
            HaltError: The sink refuses to go on.
        """
        done = DeliveryResult()
        self._deliver(batch, done)
        if after:
            reasons = {(r.change.route, r.change.key): r.reason for r in done.refused}
            fit = [c for c in after if (c.route, c.key) not in reasons]
            done.refused += [
                Refusal(c, reasons[c.route, c.key])
                for c in after
                if (c.route, c.key) in reasons
            ]
            self._deliver(_batch_of(batch.batch_id, fit), done)
        return done

    def _deliver(self, batch: Batch, done: DeliveryResult) -> None:
        """Write a batch, or what can be written of it."""
        items: Sequence[_Item] = (*batch.changes, *batch.events)
        self._refusals.begin()
        try:
            self._write(batch, done, is_proof=bool(items))
        except BatchRefusedError as error:
            _log.warning(
                "a batch was refused; its records are tried apart",
                answer=str(error),
                changes=len(batch.changes),
                events=len(batch.events),
            )
            bare = dataclasses.replace(batch, changes=(), events=())
            self._write(bare, done, is_proof=False)
            self._halve(items, batch.batch_id, error, done)
            self._refusals.end(error)

    def _halve(
        self,
        items: Sequence[_Item],
        batch_id: int,
        error: BatchRefusedError,
        done: DeliveryResult,
    ) -> None:
        """Write what can be written of items that were refused together."""
        if len(items) <= 1:
            for item in items:
                self._give_up(item, error, done)
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            try:
                self._write(_batch_of(batch_id, half), done, is_proof=True)
            except BatchRefusedError as why:
                self._halve(half, batch_id, why, done)

    def _give_up(
        self, item: _Item, error: BatchRefusedError, done: DeliveryResult
    ) -> None:
        self._refusals.refused(error)
        if isinstance(item, Change):
            done.refused.append(Refusal(item, str(error)))
        else:
            done.refused_events[item.origin] = str(error)

    def _write(self, batch: Batch, done: DeliveryResult, *, is_proof: bool) -> None:
        """Apply and flush; where it proves that the target takes changes, say so."""
        began_s = self._clock.monotonic_s()
        self._sink.apply(batch)
        applied_s = self._clock.monotonic_s()
        checkpoint = self._sink.flush()
        flushed_s = self._clock.monotonic_s()
        done.applied += checkpoint.applied
        done.stale += checkpoint.stale
        done.nulled += checkpoint.nulled
        done.refused += checkpoint.refused
        done.refused_events |= checkpoint.refused_events
        done.apply_ms += round((applied_s - began_s) * 1000)
        done.flush_ms += round((flushed_s - applied_s) * 1000)
        if is_proof and (checkpoint.applied or checkpoint.stale):
            self._refusals.taken()


def _batch_of(batch_id: int, items: Sequence[_Item]) -> Batch:
    return Batch(
        batch_id,
        tuple(item for item in items if isinstance(item, Change)),
        tuple(item for item in items if isinstance(item, EventRow)),
    )

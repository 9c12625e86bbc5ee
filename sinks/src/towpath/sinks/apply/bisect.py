"""
Deliver a batch to a sink, and bisect it to find the changes that a target refuses.

A target that refuses a whole call does not always name the change that is to blame. The
batch is then halved until that change is alone: it is refused with the target's
response, and all others are written. A target that refuses many consecutive changes is
broken: no dead letters are created. Refusals are counted across batches and restarts of
the query; otherwise small batches could move a whole topic into the dead letters.
Records whose dead letters cannot be stored, and which are written again, do not count,
nor does a replay. One accepted call resets the count.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from towpath.schemas.clock import Clock
from towpath.sinks.change import Change, EventRow, Origin, Refusal
from towpath.sinks.errors import BatchRefusedError, EveryChangeRefusedError
from towpath.sinks.ports import Batch, Sink

# More consecutive refusals than this mean a broken target, not broken changes.
MAX_CONSECUTIVE_REFUSALS: Final = 50

_Item: TypeAlias = Change | EventRow

_log = structlog.get_logger("towpath.sinks")


@dataclass(slots=True)
class DeliveryResult:
    """
    The counts and the refusals of a delivered batch.

    Attributes:
        refused: Changes that were not applied.
        refused_events: The reasons why events were not applied, by record.
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
    The number of changes that one target has refused since it last accepted a call.

    Attributes:
        before: The number at the end of the last delivered batch, while the process
            lives.
        now: The number in the current batch.
    """

    before: int = 0
    now: int = 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Ignore the refusals of a failed attempt: its records are written again."""
        before = self.before
        try:
            yield
        except BaseException:
            self.before = min(before, self.before)
            raise

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count refusals during a replay, which adds no dead letters."""
        before = self.before
        try:
            yield
        finally:
            self.before = min(before, self.before)

    def begin(self) -> None:
        """Begin a call to the target."""
        self.now = 0

    def reset(self) -> None:
        """Reset the count, because the target accepted a call."""
        self.before = self.now = 0

    def count(self, error: BatchRefusedError) -> None:
        """
        Count a change that was refused alone.

        Raises:
            EveryChangeRefusedError: The batch has too many refusals.
        """
        self.now += 1
        self._check(self.now, error)

    def end(self, error: BatchRefusedError) -> None:
        """
        Count a batch whose acceptable changes are all written.

        Raises:
            EveryChangeRefusedError: This and earlier batches have too many refusals.
        """
        self._check(self.before + self.now, error)
        self.before += self.now

    @staticmethod
    def _check(refusals: int, error: BatchRefusedError) -> None:
        if refusals > MAX_CONSECUTIVE_REFUSALS:
            message = f"the target refuses one change after another: {error}"
            raise EveryChangeRefusedError(message) from error


class Delivery:
    """Writes batches to one sink; every result returned is durable."""

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        refusals: ConsecutiveRefusals | None = None,
        name: str = "",
    ) -> None:
        self._name = name
        self._sink = sink
        self._clock = clock
        self._refusals = refusals or ConsecutiveRefusals()

    def deliver(self, batch: Batch, after: Sequence[Change] = ()) -> DeliveryResult:
        """
        Write a batch.

        Args:
            batch: The changes, events and floors.
            after: Changes of the same keys, to be written afterwards. A change is
                refused if the earlier change of its key was refused.

        Raises:
            UnavailableError: The target does not answer; write the batch again.
            EveryChangeRefusedError: The target refuses too many consecutive changes.
            BatchRefusedError: The target refuses a floor.
            HaltError: The sink refuses to continue.
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
        """Write a batch; if the target refuses it, write what the target accepts."""
        items: Sequence[_Item] = (*batch.changes, *batch.events)
        self._refusals.begin()
        try:
            self._write(batch, done, resets_refusals=bool(items))
        except BatchRefusedError as error:
            _log.warning(
                "batch refused by the target: bisecting it",
                sink=self._name,
                answer=str(error),
                changes=len(batch.changes),
                events=len(batch.events),
            )
            bare = dataclasses.replace(batch, changes=(), events=())
            self._write(bare, done, resets_refusals=False)
            self._bisect(items, batch.batch_id, error, done)
            self._refusals.end(error)

    def _bisect(
        self,
        items: Sequence[_Item],
        batch_id: int,
        error: BatchRefusedError,
        done: DeliveryResult,
    ) -> None:
        """Halve items that were refused together; write those that are accepted."""
        if len(items) <= 1:
            for item in items:
                self._refuse(item, error, done)
            return
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            try:
                self._write(_batch_of(batch_id, half), done, resets_refusals=True)
            except BatchRefusedError as why:
                self._bisect(half, batch_id, why, done)

    def _refuse(
        self, item: _Item, error: BatchRefusedError, done: DeliveryResult
    ) -> None:
        self._refusals.count(error)
        if isinstance(item, Change):
            done.refused.append(Refusal(item, str(error)))
        else:
            done.refused_events[item.origin] = str(error)

    def _write(
        self, batch: Batch, done: DeliveryResult, *, resets_refusals: bool
    ) -> None:
        """Apply and flush; with ``resets_refusals``, an accepted call resets them."""
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
        if resets_refusals and (checkpoint.applied or checkpoint.stale):
            self._refusals.reset()


def _batch_of(batch_id: int, items: Sequence[_Item]) -> Batch:
    return Batch(
        batch_id,
        tuple(item for item in items if isinstance(item, Change)),
        tuple(item for item in items if isinstance(item, EventRow)),
    )

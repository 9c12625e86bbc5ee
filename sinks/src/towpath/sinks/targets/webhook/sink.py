"""
Posts changes: side by side for different keys, one after the other for one aggregate.

The receiver guards by position. What it answered in this batch is kept until the next
batch begins, so that a batch that is tried again does not repeat what was taken.

A key that the receiver fails at waits alone. The rest of the batch is sent meanwhile;
the key is tried again for some seconds, and then refused *for now*: it is parked, which
makes it durable and keeps its order, and is replayed by itself. Only a receiver that
fails at everything has the whole sink wait.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import TowpathError
from towpath.settings.sink import WebhookOptions
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.dead_letters.letter import BEHIND, LATER
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.webhook.client import (
    Client,
    ReceiverOutcome,
    ReceiverVerdict,
)
from towpath.sinks.targets.webhook.schema import (
    Aggregate,
    Told,
    Unit,
    aggregate_of,
    id_of,
    lanes,
    sweep_of,
    unit_of,
)
from towpath.sinks.targets.webhook.write import Patience, Proof, Turn

_BEHIND: Final = "an earlier event of it was refused"

_DONE: Final = frozenset({ReceiverOutcome.TAKEN, ReceiverOutcome.KNOWN})

# A receiver that takes nothing new of so many is not well, whatever it took before.
_MANY: Final = 50

# Most failures are over by then; for longer, no batch waits for its last keys.
_WAIT_IN_BATCH_S: Final = 5.0

_log = structlog.get_logger("towpath.sinks.webhook")


class WebhookSink:
    """One receiver, told by one sink."""

    tells_in_order = True

    def __init__(
        self,
        url: str,
        options: WebhookOptions,
        clock: Clock,
        proof_file: Path | None = None,
    ) -> None:
        """
        Describe the receiver; nothing is opened yet.

        Args:
            url: Where requests are posted.
            options: Secrets, sizes and bounds.
            clock: The time.
            proof_file: Keeps the last request that was taken, over restarts.
        """
        self._clock = clock
        self._client = Client(url, options, clock)
        self._per_request = options.changes_per_request
        self._threads = ThreadPoolExecutor(options.concurrency, "webhook")
        self._floors = Floors()
        self._tally = Tally()
        self._patience = Patience(options, clock)
        self._proof = Proof(proof_file)
        self._batch_id: int | None = None
        self._answered: dict[str, ReceiverVerdict] = {}
        self._blocked: dict[Aggregate, str] = {}
        self._put_off: set[Aggregate] = set()
        self._apart: set[str] = set()

    def open(self) -> None:
        # Nothing to create, and nothing to ask: a receiver has no other verb.
        self._proof.recall()

    def apply(self, batch: Batch) -> None:
        if batch.batch_id != self._batch_id:
            self._batch_id = batch.batch_id
            self._answered.clear()
            self._blocked.clear()
            self._put_off.clear()
            self._apart.clear()
        tally = Tally()
        for route, floor in self._floors.due(batch.floors):
            self._sweep(route, floor)
        changes = self._floors.above(batch.changes, tally)
        # A replay is tried again by whoever replays.
        wait_s = 0.0 if batch.is_replay else _WAIT_IN_BATCH_S
        self._tell([*changes, *batch.events], Deadline(self._clock, wait_s))
        _count(tally, changes, self._answered)
        if refused := self._count_events(tally, batch.events):
            raise BatchRefusedError(refused)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        # The receiver has each change before it answers.
        self._proof.keep()
        return self._tally.take()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _sweep(self, route: str, floor: str) -> None:
        verdict = self._client.post(sweep_of(route, floor))
        if verdict.outcome not in _DONE:
            message = f"a sweep below {floor} of {route}: {verdict.reason}"
            raise BatchRefusedError(message)
        self._floors.learn(route, floor)
        self._floors.carried_out(route, floor)
        _log.info("a sweep was told", route=route, floor=floor)

    def _is_over(self, one: Told) -> bool:
        """Tell whether it was answered, or is behind an event that was refused."""
        if id_of(one) in self._answered:
            return True
        if not isinstance(one, EventRow):
            return False
        position = self._blocked.get(aggregate_of(one))
        return position is not None and position < one.position

    def _count_events(self, tally: Tally, events: Iterable[EventRow]) -> str:
        """
        Count what was said of events.

        Returns:
            Why one was not taken that was told; what is behind it was not.
        """
        refused = ""
        for event in events:
            verdict = self._answered.get(id_of(event))
            if verdict is None:
                is_put_off = aggregate_of(event) in self._put_off
                tally.refused_events[event.origin] = BEHIND if is_put_off else _BEHIND
            elif verdict.outcome is ReceiverOutcome.LATER:
                tally.refused_events[event.origin] = verdict.reason
            elif verdict.outcome is ReceiverOutcome.TAKEN:
                tally.applied += 1
            elif verdict.outcome is ReceiverOutcome.KNOWN:
                tally.stale += 1
            else:
                refused = refused or verdict.reason
        return refused

    def _block(self, event: EventRow) -> None:
        aggregate = aggregate_of(event)
        first = self._blocked.get(aggregate, event.position)
        self._blocked[aggregate] = min(first, event.position)

    def _tell(self, told: Sequence[Told], deadline: Deadline) -> None:
        """
        Send all that is not answered, until it is or has to wait for too long.

        Raises:
            TargetBusyError: The receiver asks for a pause, whatever it is sent.
            TargetUnavailableError: It fails at whatever it is sent.
            WebhookRefusedError: It takes no webhooks at all.
        """
        is_first = True
        while left := [one for one in told if not self._is_over(one)]:
            waits_s = {unit: self._patience.wait_s(unit) for unit in map(unit_of, left)}
            most_s = deadline.remaining_s()
            late = {unit for unit, wait_s in waits_s.items() if wait_s > most_s}
            self._refuse_for_now(left, late)
            ready = [one for one in left if not waits_s[unit_of(one)]]
            if ready:
                self._send(ready, is_first=is_first)
                is_first = False
            elif waiting := waits_s.keys() - late:
                self._clock.wait(min(waits_s[unit] for unit in waiting))

    def _send(self, told: Sequence[Told], *, is_first: bool) -> None:
        """Send changes side by side; what fails is to wait, or given up."""
        apart = self._apart.union(
            id_of(one) for one in told if unit_of(one) in self._patience
        )
        changes = [one for one in told if isinstance(one, Change)]
        events = [one for one in told if isinstance(one, EventRow)]
        turn = Turn(self._client, self._answered, self._is_well)
        requests = lanes(changes, events, self._per_request, frozenset(apart))
        for _ in self._threads.map(turn.send, requests):
            pass
        self._proof.take(turn.taken)
        if turn.failures and (turn.is_halting or self._is_down(turn, is_first)):
            # One change may have had its whole request fail.
            self._apart.update(*(one.request.told for one in turn.failures))
            raise turn.worst
        self._take_answers(told, turn)

    def _take_answers(self, told: Iterable[Told], turn: Turn) -> None:
        """Have the keys wait at which the receiver failed, and forget the others."""
        failed = self._failed(turn)
        for one in told:
            verdict = self._answered.get(id_of(one))
            if verdict is None:
                continue
            if unit_of(one) not in failed:
                self._patience.forget(unit_of(one))
            if isinstance(one, EventRow) and verdict.outcome not in _DONE:
                self._block(one)
        for one, error in failed.values():
            self._blame(one, error)

    def _failed(self, turn: Turn) -> dict[Unit, tuple[Told, TowpathError]]:
        """Return, of each key that the receiver failed at, the first change."""
        failed: dict[Unit, tuple[Told, TowpathError]] = {}
        for failure in turn.failures:
            for change_id, one in failure.request.told.items():
                if change_id not in self._answered:
                    failed.setdefault(unit_of(one), (one, failure.error))
        return failed

    def _is_well(self) -> bool:
        return self._proof.is_given(self._client)

    def _is_down(self, turn: Turn, is_first: bool) -> bool:  # noqa: FBT001 - private
        """
        Tell whether the receiver fails at everything.

        What is tried again is what it failed at before: many failures say nothing of
        the rest then.
        """
        if turn.has_stopped:
            return True
        if turn.is_answering:
            return False
        is_all = is_first and len(turn.failures) >= _MANY
        return is_all or not self._is_well()

    def _blame(self, one: Told, error: TowpathError) -> None:
        """Have one key wait that a receiver fails at which is well, or give it up."""
        unit = unit_of(one)
        self._patience.failed(unit, error)
        if reason := self._patience.worn_out(unit):
            self._answered[id_of(one)] = ReceiverVerdict(
                ReceiverOutcome.REFUSED, reason
            )
            self._patience.forget(unit)
            if isinstance(one, EventRow):
                self._block(one)

    def _refuse_for_now(self, left: Iterable[Told], late: AbstractSet[Unit]) -> None:
        """Refuse, of each key that has to wait for too long, what comes first."""
        for one in sorted(left, key=lambda one: one.position):
            unit = unit_of(one)
            if unit not in late or self._is_over(one):
                continue
            reason = LATER + self._patience.reason(unit)
            self._answered[id_of(one)] = ReceiverVerdict(ReceiverOutcome.LATER, reason)
            if isinstance(one, EventRow):
                self._put_off.add(aggregate_of(one))
                self._block(one)


def _count(
    tally: Tally, changes: Iterable[Change], answered: dict[str, ReceiverVerdict]
) -> None:
    """Count what the receiver said of each change."""
    for change in changes:
        verdict = answered[id_of(change)]
        is_absent = verdict.outcome is ReceiverOutcome.ABSENT and change.is_partial
        is_gone = verdict.outcome is ReceiverOutcome.ABSENT and change.row is None
        if verdict.outcome is ReceiverOutcome.TAKEN or is_gone:
            tally.applied += 1
        elif verdict.outcome is ReceiverOutcome.KNOWN:
            tally.stale += 1
        elif is_absent:
            tally.refused.append(Refusal(change, ABSENT_ROW, asks=True))
        else:
            tally.refused.append(Refusal(change, verdict.reason))

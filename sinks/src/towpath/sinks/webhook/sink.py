"""
Posts changes: side by side for different keys, one after the other for one aggregate.

The receiver guards by position. What it answered in this batch is kept until the next
batch begins, so that a batch that is tried again does not repeat what was taken.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from towpath.schemas.clock import Clock
from towpath.settings.webhook import WebhookOptions
from towpath.sinks.change import Change, EventRow, Refusal
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.floors import Floors
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Tally
from towpath.sinks.webhook.answer import Outcome, Verdict
from towpath.sinks.webhook.client import Client
from towpath.sinks.webhook.patience import Patience, Proof
from towpath.sinks.webhook.payload import (
    Aggregate,
    aggregate_of,
    id_of,
    lanes,
    sweep_of,
)
from towpath.sinks.webhook.turn import Turn

_BEHIND: Final = "an earlier event of it was refused"

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
        self._client = Client(url, options, clock)
        self._per_request = options.changes_per_request
        self._threads = ThreadPoolExecutor(options.concurrency, "webhook")
        self._floors = Floors()
        self._tally = Tally()
        self._patience = Patience(options, clock)
        self._proof = Proof(proof_file)
        self._batch_id: int | None = None
        self._answered: dict[str, Verdict] = {}
        self._blocked: dict[Aggregate, str] = {}

    def open(self) -> None:
        # Nothing to create, and nothing to ask: a receiver has no other verb.
        self._proof.recall()

    def apply(self, batch: Batch) -> None:
        if batch.batch_id != self._batch_id:
            self._batch_id = batch.batch_id
            self._answered.clear()
            self._blocked.clear()
            self._patience.forget()
        tally = Tally()
        for route, floor in self._floors.due(batch.floors):
            self._sweep(route, floor)
        changes = self._floors.above(batch.changes, tally)
        self._tell(
            [c for c in changes if id_of(c) not in self._answered],
            [e for e in batch.events if not self._is_over(e)],
        )
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
        if verdict.outcome not in {Outcome.TAKEN, Outcome.KNOWN}:
            message = f"a sweep below {floor} of {route}: {verdict.reason}"
            raise BatchRefusedError(message)
        self._floors.learn(route, floor)
        self._floors.carried_out(route, floor)
        _log.info("a sweep was told", route=route, floor=floor)

    def _is_over(self, event: EventRow) -> bool:
        return id_of(event) in self._answered or self._is_behind(event)

    def _is_behind(self, event: EventRow) -> bool:
        """Tell whether an earlier event of the aggregate was refused."""
        position = self._blocked.get(aggregate_of(event))
        return position is not None and position < event.position

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
                tally.refused_events[event.origin] = _BEHIND
            elif verdict.outcome is Outcome.TAKEN:
                tally.applied += 1
            elif verdict.outcome is Outcome.KNOWN:
                tally.stale += 1
            else:
                aggregate = aggregate_of(event)
                first = self._blocked.get(aggregate, event.position)
                self._blocked[aggregate] = min(first, event.position)
                refused = refused or verdict.reason
        return refused

    def _tell(self, changes: list[Change], events: list[EventRow]) -> None:
        """Send all lanes; raise what is worst of what went wrong."""
        turn = Turn(self._client, self._answered)
        size, apart = self._per_request, self._patience.failing
        for _ in self._threads.map(turn.send, lanes(changes, events, size, apart)):
            pass
        self._proof.take(turn.taken)
        self._give_up(turn.failed)
        left = [
            f
            for f in turn.failures
            if not f.request.told.keys() <= self._answered.keys()
        ]
        if left:
            raise max(left, key=lambda failure: failure.severity).error

    def _give_up(self, failed: Mapping[str, str]) -> None:
        """Refuse what was tried for long enough, if the receiver is well otherwise."""
        over = self._patience.worn_out(failed)
        if over and self._proof.is_given(self._client):
            self._answered.update(self._patience.verdicts(over, failed))


def _count(
    tally: Tally, changes: Iterable[Change], answered: dict[str, Verdict]
) -> None:
    """Count what the receiver said of each change."""
    for change in changes:
        verdict = answered[id_of(change)]
        is_absent = verdict.outcome is Outcome.ABSENT and change.is_partial
        if verdict.outcome is Outcome.TAKEN:
            tally.applied += 1
        elif verdict.outcome is Outcome.KNOWN:
            tally.stale += 1
        elif is_absent:
            tally.refused.append(Refusal(change, ABSENT_ROW, asks=True))
        else:
            tally.refused.append(Refusal(change, verdict.reason))

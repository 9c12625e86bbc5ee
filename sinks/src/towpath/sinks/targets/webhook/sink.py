"""
A sink that posts changes: keys concurrently, the events of an aggregate in order.

The receiver guards by position. Its verdicts are kept until the next batch begins, so
that a retried batch does not repeat accepted changes.

A key on which the receiver fails waits while the rest of the batch is sent. The key is
retried for a few seconds, and then refused *for now*: its changes are parked, which
makes them durable and keeps their order, and are replayed later. The whole sink waits
only for a receiver that fails on every request.
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
from towpath.sinks.dead_letters.entries import BEHIND, LATER
from towpath.sinks.errors import BatchRefusedError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint
from towpath.sinks.tally import Floors, Tally
from towpath.sinks.targets.webhook.client import (
    ReceiverOutcome,
    ReceiverVerdict,
    WebhookClient,
)
from towpath.sinks.targets.webhook.schema import (
    Aggregate,
    OrderingKey,
    WebhookChange,
    aggregate_of,
    id_of,
    lanes,
    ordering_key_of,
    sweep_of,
)
from towpath.sinks.targets.webhook.write import FailingKeys, HealthProbe, SendAttempt

_AFTER_REFUSED: Final = "an earlier event of the aggregate was refused"

_SUCCESSFUL: Final = frozenset({ReceiverOutcome.ACCEPTED, ReceiverOutcome.KNOWN})

# A receiver that fails on this many new requests and accepts none is down, even if it
# accepts the probe.
_MANY_FAILURES: Final = 50

# Most failures end within this time. A batch waits no longer for failing keys.
_WAIT_IN_BATCH_S: Final = 5.0

_log = structlog.get_logger("towpath.sinks.webhook")


class WebhookSink:
    """One receiver, to which one sink posts."""

    keeps_event_order = True

    def __init__(
        self,
        url: str,
        options: WebhookOptions,
        clock: Clock,
        probe_file: Path | None = None,
    ) -> None:
        """
        Describe the receiver; nothing is opened yet.

        Args:
            url: The receiver's address.
            options: Secrets, sizes and bounds.
            clock: The clock.
            probe_file: The file that keeps the last accepted request across restarts.
        """
        self._clock = clock
        self._client = WebhookClient(url, options, clock)
        self._per_request = options.changes_per_request
        self._threads = ThreadPoolExecutor(options.concurrency, "webhook")
        self._floors = Floors()
        self._tally = Tally()
        self._failing_keys = FailingKeys(options, clock)
        self._health_probe = HealthProbe(probe_file)
        self._batch_id: int | None = None
        self._verdicts: dict[str, ReceiverVerdict] = {}
        self._blocked: dict[Aggregate, str] = {}
        self._deferred: set[Aggregate] = set()
        self._sent_alone: set[str] = set()

    def open(self) -> None:
        # Nothing to create or to query: a receiver only accepts changes.
        self._health_probe.load()

    def apply(self, batch: Batch) -> None:
        if batch.batch_id != self._batch_id:
            self._batch_id = batch.batch_id
            self._verdicts.clear()
            self._blocked.clear()
            self._deferred.clear()
            self._sent_alone.clear()
        tally = Tally()
        for route, floor in self._floors.due(batch.floors):
            self._sweep(route, floor)
        changes = self._floors.above(batch.changes, tally)
        # A replay is retried by its caller.
        wait_s = 0.0 if batch.is_replay else _WAIT_IN_BATCH_S
        self._deliver([*changes, *batch.events], Deadline(self._clock, wait_s))
        _count(tally, changes, self._verdicts)
        if refused := self._count_events(tally, batch.events):
            raise BatchRefusedError(refused)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        # The receiver stores each change before it responds. The counts are taken
        # first: if the probe cannot be saved, the batch is applied and counted again.
        checkpoint = self._tally.take()
        self._health_probe.save()
        return checkpoint

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _sweep(self, route: str, floor: str) -> None:
        verdict = self._client.post(sweep_of(route, floor))
        if verdict.outcome not in _SUCCESSFUL:
            message = f"a sweep below {floor} of {route} is refused: {verdict.reason}"
            raise BatchRefusedError(message)
        self._floors.learn(route, floor)
        self._floors.mark_applied(route, floor)
        _log.info(
            "sink floor applied: the receiver accepted the sweep",
            route=route,
            floor=floor,
        )

    def _is_settled(self, change: WebhookChange) -> bool:
        """Return whether a change has a verdict, or follows a refused event."""
        if id_of(change) in self._verdicts:
            return True
        if not isinstance(change, EventRow):
            return False
        position = self._blocked.get(aggregate_of(change))
        return position is not None and position < change.position

    def _count_events(self, tally: Tally, events: Iterable[EventRow]) -> str:
        """
        Count the verdicts on events.

        Returns:
            The reason for the first refusal; empty if no event is refused. Later events
            of its aggregate were not sent.
        """
        refused = ""
        for event in events:
            verdict = self._verdicts.get(id_of(event))
            if verdict is None:
                is_deferred = aggregate_of(event) in self._deferred
                reason = BEHIND if is_deferred else _AFTER_REFUSED
                tally.refused_events[event.origin] = reason
            elif verdict.outcome is ReceiverOutcome.LATER:
                tally.refused_events[event.origin] = verdict.reason
            elif verdict.outcome is ReceiverOutcome.ACCEPTED:
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

    def _deliver(self, changes: Sequence[WebhookChange], deadline: Deadline) -> None:
        """
        Send all changes without a verdict, until none is left or the deadline passes.

        Raises:
            TargetBusyError: The receiver asks for a pause on every request.
            TargetUnavailableError: The receiver fails on every request.
            WebhookRefusedError: The receiver accepts no webhooks at all.
        """
        is_first = True
        while pending := [change for change in changes if not self._is_settled(change)]:
            waits_s = {
                key: self._failing_keys.wait_s(key)
                for key in map(ordering_key_of, pending)
            }
            remaining_s = deadline.remaining_s()
            overdue = {key for key, wait_s in waits_s.items() if wait_s > remaining_s}
            self._defer(pending, overdue)
            ready = [
                change for change in pending if not waits_s[ordering_key_of(change)]
            ]
            if ready:
                self._send(ready, is_first=is_first)
                is_first = False
            elif waiting := waits_s.keys() - overdue:
                self._clock.wait(min(waits_s[key] for key in waiting))

    def _send(self, ready: Sequence[WebhookChange], *, is_first: bool) -> None:
        """Send changes concurrently; a failed one waits, or is abandoned."""
        alone = self._sent_alone.union(
            id_of(change)
            for change in ready
            if ordering_key_of(change) in self._failing_keys
        )
        changes = [change for change in ready if isinstance(change, Change)]
        events = [change for change in ready if isinstance(change, EventRow)]
        attempt = SendAttempt(self._client, self._verdicts, self._is_receiver_healthy)
        requests = lanes(changes, events, self._per_request, frozenset(alone))
        for _ in self._threads.map(attempt.send, requests):
            pass
        self._health_probe.record(attempt.last_accepted)
        # Done before a failure is raised: the batch is retried with these verdicts.
        self._block_refused(events)
        if attempt.failures and (
            attempt.is_halting or self._receiver_is_down(attempt, is_first)
        ):
            # One change may have made the whole request fail: next, each is sent alone.
            self._sent_alone.update(*(f.request.changes for f in attempt.failures))
            raise attempt.worst
        self._take_verdicts(ready, attempt)

    def _block_refused(self, events: Iterable[EventRow]) -> None:
        """Block the aggregates of refused events."""
        for event in events:
            verdict = self._verdicts.get(id_of(event))
            if verdict is not None and verdict.outcome not in _SUCCESSFUL:
                self._block(event)

    def _take_verdicts(
        self, changes: Iterable[WebhookChange], attempt: SendAttempt
    ) -> None:
        """Delay the keys that failed, and forget those that have a verdict."""
        failed = self._failed(attempt)
        for change in changes:
            has_verdict = id_of(change) in self._verdicts
            if has_verdict and ordering_key_of(change) not in failed:
                self._failing_keys.forget(ordering_key_of(change))
        for change, error in failed.values():
            self._record_failure(change, error)

    def _failed(
        self, attempt: SendAttempt
    ) -> dict[OrderingKey, tuple[WebhookChange, TowpathError]]:
        """Return the first failed change of each key."""
        failed: dict[OrderingKey, tuple[WebhookChange, TowpathError]] = {}
        for failure in attempt.failures:
            for change_id, change in failure.request.changes.items():
                if change_id not in self._verdicts:
                    failed.setdefault(ordering_key_of(change), (change, failure.error))
        return failed

    def _is_receiver_healthy(self) -> bool:
        return self._health_probe.is_receiver_healthy(self._client)

    def _receiver_is_down(self, attempt: SendAttempt, is_first: bool) -> bool:  # noqa: FBT001 - private
        """
        Return whether the receiver fails on every request.

        A retry contains only keys that failed before, so its failures prove nothing.
        """
        if attempt.is_stopped:
            return True
        if attempt.has_succeeded:
            return False
        is_all = is_first and len(attempt.failures) >= _MANY_FAILURES
        return is_all or not self._is_receiver_healthy()

    def _record_failure(self, change: WebhookChange, error: TowpathError) -> None:
        """Delay the key of a change, or give up on it if it has failed too long."""
        ordering_key = ordering_key_of(change)
        self._failing_keys.failed(ordering_key, error)
        if reason := self._failing_keys.reason_to_give_up(ordering_key):
            self._verdicts[id_of(change)] = ReceiverVerdict(
                ReceiverOutcome.REFUSED, reason
            )
            self._failing_keys.forget(ordering_key)
            if isinstance(change, EventRow):
                self._block(change)

    def _defer(
        self, pending: Iterable[WebhookChange], overdue: AbstractSet[OrderingKey]
    ) -> None:
        """Refuse the first change of each key that has to wait too long."""
        for change in sorted(pending, key=lambda change: change.position):
            ordering_key = ordering_key_of(change)
            if ordering_key not in overdue or self._is_settled(change):
                continue
            reason = LATER + self._failing_keys.reason(ordering_key)
            self._verdicts[id_of(change)] = ReceiverVerdict(
                ReceiverOutcome.LATER, reason
            )
            if isinstance(change, EventRow):
                self._deferred.add(aggregate_of(change))
                self._block(change)


def _count(
    tally: Tally, changes: Iterable[Change], verdicts: dict[str, ReceiverVerdict]
) -> None:
    """Count the verdicts on changes."""
    for change in changes:
        verdict = verdicts[id_of(change)]
        is_absent = verdict.outcome is ReceiverOutcome.ABSENT and change.is_partial
        is_gone = verdict.outcome is ReceiverOutcome.ABSENT and change.row is None
        if verdict.outcome is ReceiverOutcome.ACCEPTED or is_gone:
            tally.applied += 1
        elif verdict.outcome is ReceiverOutcome.KNOWN:
            tally.stale += 1
        elif is_absent:
            tally.refused.append(Refusal(change, ABSENT_ROW, needs_refetch=True))
        else:
            tally.refused.append(Refusal(change, verdict.reason))

"""
Signals between being seen in the stream and being answered, one after another.

    seen -> its transaction visible -> tables inspected -> answer stored

The answer goes into the signal's own row, which is why the row must be visible first.
Every signal gets one, so that its transaction can be confirmed.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from towpath.relay.snapshot.effects import Effect, InspectTables, StoreSignal
from towpath.relay.snapshot.facts import SignalSeen, SignalStored, TablesInspected
from towpath.relay.snapshot.requests import SNAPSHOT_PREFIX
from towpath.relay.snapshot.shape import Key, TableShape
from towpath.relay.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    SignalRejectedError,
    StopSnapshot,
    expand,
    parse_signal,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot


@dataclass(frozen=True, slots=True)
class Accepted:
    """A signal that was stored as new: what it starts and what it stops."""

    tables: tuple[StoredTable, ...]
    stops: tuple[StoredTable, ...]


class Intake:
    """The signals that have no stored answer yet; the first is being answered."""

    def __init__(
        self, captured: Collection[str], sinks: Callable[[], Collection[str]]
    ) -> None:
        self._captured = captured
        self._sinks = sinks
        self._signals: deque[SignalSeen] = deque()
        self._is_asked = False
        self._request: ExecuteSnapshot | None = None
        self._refusals: Mapping[str, str] = {}
        self._answer: StoreSignal | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no signal waits."""
        return not self._signals

    @property
    def waits_for_visibility(self) -> bool:
        """Whether the first signal may be invisible yet."""
        return bool(self._signals) and not self._is_asked

    def see(self, signal: SignalSeen) -> None:
        """Take in a signal from the stream."""
        self._signals.append(signal)

    def answer(
        self, snapshot: XidSnapshot, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """
        Begin to answer the first signal, if this snapshot sees it.

        Args:
            snapshot: What is visible by now.
            open_tables: The tables that have not ended: those that can be stopped.
        """
        if not self.waits_for_visibility:
            return []
        signal = self._signals[0]
        if not snapshot.sees_streamed(signal.xid):
            return []
        self._is_asked = True
        try:
            return [self._begin(signal, open_tables)]
        except SignalRejectedError as rejection:
            return [self._store("rejected", {"reason": str(rejection)})]

    def inspected(self, fact: TablesInspected) -> list[Effect]:
        """Store the answer to an execute-snapshot, now that its tables are known."""
        request = self._request
        if request is None:
            return []
        signal = self._signals[0]
        refusals = {**self._refusals, **fact.refusals}
        if not fact.shapes:
            return [self._store("rejected", _refused(refusals))]
        tables = (
            *_queued(signal.signal_id, request, fact.shapes, fact.keys),
            *_failed(signal.signal_id, refusals, len(fact.shapes)),
        )
        detail = {"tables": list(fact.shapes), **_refused(refusals)}
        return [self._store("accepted", detail, tables)]

    def stored(self, fact: SignalStored) -> Accepted | None:
        """End a signal whose answer is durable; None: it was known before."""
        answer = self._answer
        if answer is None:
            return None
        self._signals.popleft()
        self._is_asked = False
        self._request = None
        self._answer = None
        return Accepted(answer.tables, answer.stops) if fact.is_new else None

    def _begin(
        self, signal: SignalSeen, open_tables: Collection[StoredTable]
    ) -> Effect:
        if signal.signal_id.startswith(SNAPSHOT_PREFIX):
            reason = f"ids that begin with {SNAPSHOT_PREFIX} are the relay's own"
            raise SignalRejectedError(reason)
        request = parse_signal(signal.type, signal.data)
        if isinstance(request, LogMessage):
            return self._store("completed", {"message": request.message})
        if isinstance(request, StopSnapshot):
            return self._stop(request, open_tables)
        return self._inspect(signal, request)

    def _inspect(self, signal: SignalSeen, request: ExecuteSnapshot) -> Effect:
        if request.target is not None and request.target not in self._sinks():
            reason = f"target {request.target!r} is not a sink of the configuration"
            raise SignalRejectedError(reason)
        expansion = expand(request.collections, self._captured)
        if request.keys and len(expansion.collections) + len(expansion.refusals) != 1:
            reason = "keys are those of one table: name just that in data-collections"
            raise SignalRejectedError(reason)
        self._refusals = expansion.refusals
        if expansion.collections:
            self._request = request
            return InspectTables(signal.signal_id, expansion.collections, request.keys)
        if expansion.refusals:
            return self._store("rejected", _refused(expansion.refusals))
        return self._store("completed", {"rows": 0, "tables": {}})

    def _stop(
        self, request: StopSnapshot, open_tables: Collection[StoredTable]
    ) -> Effect:
        expansion = expand(request.collections, [t.collection for t in open_tables])
        stops = tuple(
            table
            for table in open_tables
            if not request.collections or table.collection in expansion.collections
        )
        detail = {"stopped": [table.collection for table in stops]}
        return self._store("completed", detail, stops=stops)

    def _store(
        self,
        status: str,
        detail: Mapping[str, Any],
        tables: tuple[StoredTable, ...] = (),
        stops: tuple[StoredTable, ...] = (),
    ) -> StoreSignal:
        signal_id = self._signals[0].signal_id
        self._answer = StoreSignal(signal_id, status, detail, tables, stops)
        return self._answer


def _refused(refusals: Mapping[str, str]) -> dict[str, Any]:
    if not refusals:
        return {}
    reason = "; ".join(f"{entry}: {why}" for entry, why in refusals.items())
    return {"reason": reason, "refused": dict(refusals)}


def _queued(
    signal_id: str,
    request: ExecuteSnapshot,
    shapes: Mapping[str, TableShape],
    keys: tuple[Key, ...],
) -> tuple[StoredTable, ...]:
    return tuple(
        StoredTable(
            snapshot_id=signal_id,
            collection=collection,
            ordinal=ordinal,
            state="queued",
            table_oid=shape.relation.oid,
            condition=request.condition_of(collection),
            target=request.target,
            max_rows_per_second=request.max_rows_per_second,
            pending_keys=keys,
            estimated_rows=len(keys),
            asked_keys=len(keys) if request.keys else None,
        )
        for ordinal, (collection, shape) in enumerate(shapes.items())
    )


def _failed(
    signal_id: str, refusals: Mapping[str, str], first_ordinal: int
) -> tuple[StoredTable, ...]:
    return tuple(
        StoredTable(signal_id, entry, ordinal, "failed", 0, error=reason)
        for ordinal, (entry, reason) in enumerate(refusals.items(), first_ordinal)
    )

"""
Signals between being seen in the stream and being answered, one after another.

::

    seen -> its transaction visible -> claimed -> tables inspected, or read -> answer

A signal that names this relay is claimed without a question; another is looked up.
The answer goes into the signal's own row, which is why the row must be visible first.
Every signal gets one, so that its transaction can be confirmed. What it changes is
stored with its answer, and only then carried out.

What comes of a signal: the tables that it starts, and those that it changes.

Which tables a signal stops, pauses or resumes, and why not others.

====== ======================================= ================
signal tables in                               become
====== ======================================= ================
stop   queued, running, paused                 stopped
pause  queued, running                         paused
resume paused; of a named snapshot also        queued
       failed, stopped, incomplete
====== ======================================= ================

A named collection that is in no such state is told of; without names the others are let
be.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.effects import (
    ClaimSignal,
    Effect,
    InspectTables,
    Notify,
    ReadEnded,
    StoreSignal,
)
from towpath.relay.snapshot.facts import (
    EndedRead,
    SignalClaimed,
    SignalSeen,
    SignalStored,
    TablesInspected,
)
from towpath.relay.snapshot.key_requests import SNAPSHOT_PREFIX
from towpath.relay.snapshot.naming import (
    AmbiguousNameError,
    address_of,
    expand,
    matching_collections,
)
from towpath.relay.snapshot.shape import Key, TableShape
from towpath.relay.snapshot.signals import (
    ExecuteSnapshot,
    LogMessage,
    PauseSnapshot,
    Request,
    ResumeSnapshot,
    SignalRejectedError,
    StopSnapshot,
    TableSelection,
    parse_signal,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import XidSnapshot


@dataclass(frozen=True, slots=True)
class AcceptedSignal:
    """
    The tables that a newly stored signal starts and changes.

    Attributes:
        tables: To be read, in the state that each is stored in.
        stops: To be ended, as they were when the signal was answered.
        pauses: To wait, as they were when the signal was answered.
        resumes: To go on, as they are stored now: queued.
        siblings: The others of the snapshot that is resumed, for when it has ended.
        notices: The answer, to be published.
    """

    tables: tuple[StoredTable, ...] = ()
    stops: tuple[StoredTable, ...] = ()
    pauses: tuple[StoredTable, ...] = ()
    resumes: tuple[StoredTable, ...] = ()
    siblings: tuple[StoredTable, ...] = ()
    notices: tuple[Notify, ...] = ()


def queued_tables(
    signal_id: str,
    request: ExecuteSnapshot,
    shapes: Mapping[str, TableShape],
    keys: tuple[Key, ...],
) -> tuple[StoredTable, ...]:
    """Return the tables that a signal has read, in its order."""
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
            kind=request.kind,
            order_by=request.order_by,
            sweeps=request.sweeps,
        )
        for ordinal, (collection, shape) in enumerate(shapes.items())
    )


def refused_tables(
    signal_id: str, refusals: Mapping[str, str], first_ordinal: int
) -> tuple[StoredTable, ...]:
    """Return what a signal names and cannot have read, failed from the first."""
    return tuple(
        StoredTable(signal_id, entry, ordinal, "failed", 0, error=reason)
        for ordinal, (entry, reason) in enumerate(refusals.items(), first_ordinal)
    )


OPEN: Final = frozenset({"queued", "running", "paused"})
ACTIVE: Final = frozenset({"queued", "running"})
PAUSED: Final = frozenset({"paused"})
RESUMABLE: Final = frozenset({"paused", "failed", "stopped", "incomplete"})

_NOT_OPEN: Final = "no snapshot of it is open"


@dataclass(frozen=True, slots=True)
class PickedTables:
    """The tables that are meant, as they are, and why entries mean none."""

    tables: tuple[StoredTable, ...]
    refusals: dict[str, str] = field(default_factory=dict)


def pick_tables(
    request: TableSelection, tables: Iterable[StoredTable], states: Collection[str]
) -> PickedTables:
    """
    Choose the tables that a request means.

    Args:
        request: The signal's selection.
        tables: Those that could be meant.
        states: In which of their states they are.
    """
    wanted = request.snapshot_id
    pool = [table for table in tables if wanted in {None, table.snapshot_id}]
    if wanted is not None and not pool:
        return PickedTables((), {wanted: "there is no such snapshot, or it has ended"})
    names = list(dict.fromkeys(table.collection for table in pool))
    expansion = expand(request.collections, names, _NOT_OPEN)
    meant = [
        table
        for table in pool
        if not request.collections or table.collection in expansion.collections
    ]
    fit = tuple(table for table in meant if _mismatch_reason(table, states) is None)
    refusals = dict(expansion.refusals)
    if request.collections or not fit:
        found = {table.collection for table in fit}
        for table in meant:
            reason = _mismatch_reason(table, states)
            if reason is not None and table.collection not in found:
                refusals[table.collection] = reason
    return PickedTables(fit, refusals)


def _mismatch_reason(table: StoredTable, states: Collection[str]) -> str | None:
    """Tell why a table does not fit; None: it does."""
    if table.state not in states:
        return f"it is {table.state} in snapshot {table.snapshot_id}"
    if table.has_ended and not table.table_oid:
        return f"it was refused from the first: {table.error}"
    return None


_OURS: Final = f"ids that begin with {SNAPSHOT_PREFIX} are the relay's own"
_UNMATCHED: Final = "no captured table has this name, or matches it as an expression"


class SignalProcessor:
    """The signals that have no stored answer yet; the first is being answered."""

    def __init__(
        self,
        captured: Collection[str],
        sinks: Callable[[], Collection[str]],
        relay: str | None = None,
    ) -> None:
        """
        Begin without a signal.

        Args:
            captured: The collections that can be read, as of each look at it.
            sinks: Names the sinks as of now: what a signal's target may be.
            relay: This relay's name.
        """
        self._relay = relay
        self._captured = captured
        self._sinks = sinks
        self._signals: deque[SignalSeen] = deque()
        self._is_asked = False
        self._is_claiming = False
        self._request: Request | None = None
        self._refusals: Mapping[str, str] = {}
        self._answer: StoreSignal | None = None
        self._accepted = AcceptedSignal()

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
            snapshot: The visible transactions by now.
            open_tables: The tables that have not ended: those that can be stopped.
        """
        if not self.waits_for_visibility:
            return []
        signal = self._signals[0]
        if not snapshot.sees_streamed(signal.xid):
            return []
        self._is_asked = True
        address = address_of(signal.data, signal.relay)
        if address != self._relay:
            self._is_claiming = True
            return [ClaimSignal(signal.signal_id, address)]
        return [self._answer_now(signal, open_tables)]

    def claimed(
        self, fact: SignalClaimed, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """Answer a signal, now that it is known whose it is."""
        self._is_claiming = False
        if fact.refusal is not None:
            return [self._store("rejected", {"reason": fact.refusal}, is_ours=False)]
        return [self._answer_now(self._signals[0], open_tables)]

    def _answer_now(
        self, signal: SignalSeen, open_tables: Collection[StoredTable]
    ) -> Effect:
        try:
            return self._begin(signal, open_tables)
        except SignalRejectedError as rejection:
            return self._store("rejected", {"reason": str(rejection)})

    def inspected(self, fact: TablesInspected) -> list[Effect]:
        """Store the answer to an execute-snapshot, now that its tables are known."""
        request = self._request
        if not isinstance(request, ExecuteSnapshot):
            return []
        refusals = {**self._refusals, **fact.refusals}
        if not fact.shapes:
            return [self._store("rejected", _refused(refusals))]
        tables = (
            *queued_tables(fact.signal_id, request, fact.shapes, fact.keys),
            *refused_tables(fact.signal_id, refusals, len(fact.shapes)),
        )
        detail = {"tables": list(fact.shapes), **_refused(refusals)}
        return [self._store("accepted", detail, AcceptedSignal(tables))]

    def ended(
        self, fact: EndedRead, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """Store the answer to a resume-snapshot, now that its tables are known."""
        request = self._request
        if not isinstance(request, ResumeSnapshot):
            return []
        newest = {table[:2]: table for table in fact.tables}
        own = [t for t in open_tables if t.snapshot_id == request.snapshot_id]
        newest |= {table[:2]: table for table in own}
        picked = pick_tables(request, newest.values(), RESUMABLE)
        taken = {table[:2] for table in picked.tables}
        siblings = tuple(t for name, t in newest.items() if name not in taken)
        return [self._resume(picked, siblings)]

    def stored(self, fact: SignalStored) -> AcceptedSignal | None:
        """End a signal whose answer is durable; None: it is not carried out here."""
        accepted = self._accepted
        if self._answer is None and not self._is_claiming:
            return None
        self._is_claiming = False
        self._signals.popleft()
        self._is_asked = False
        self._request = None
        self._answer = None
        self._accepted = AcceptedSignal()
        return accepted if fact.is_new else None

    def _begin(
        self, signal: SignalSeen, open_tables: Collection[StoredTable]
    ) -> Effect:
        if signal.signal_id.startswith(SNAPSHOT_PREFIX):
            raise SignalRejectedError(_OURS)
        request = parse_signal(signal.type, signal.data)
        match request:
            case ExecuteSnapshot():
                return self._inspect(signal, request)
            case LogMessage():
                return self._store("completed", request.told(signal.position))
            case StopSnapshot():
                return self._stop(pick_tables(request, open_tables, OPEN))
            case PauseSnapshot():
                return self._pause(pick_tables(request, open_tables, ACTIVE))
            case ResumeSnapshot():
                return self._look_up(signal, request, open_tables)

    def _inspect(self, signal: SignalSeen, request: ExecuteSnapshot) -> Effect:
        if request.target is not None and request.target not in self._sinks():
            reason = f"target {request.target!r} is not a sink of the configuration"
            raise SignalRejectedError(reason)
        expansion = expand(request.collections, self._captured, unmatched=_UNMATCHED)
        request = with_filters(request, expansion.collections, self._captured)
        if request.keys and len(expansion.collections) + len(expansion.refusals) != 1:
            reason = "keys are those of one table: name just that in data-collections"
            raise SignalRejectedError(reason)
        self._refusals = expansion.refusals
        if expansion.collections:
            self._request = request
            return InspectTables(
                signal.signal_id,
                expansion.collections,
                request.keys,
                request.order_by,
                expansion.expressions,
            )
        return self._store("rejected", _refused(expansion.refusals))

    def _look_up(
        self,
        signal: SignalSeen,
        request: ResumeSnapshot,
        open_tables: Collection[StoredTable],
    ) -> Effect:
        """Resume what is in memory, or ask for what has ended."""
        if request.snapshot_id is None:
            return self._resume(pick_tables(request, open_tables, PAUSED))
        if request.snapshot_id.startswith(SNAPSHOT_PREFIX):
            raise SignalRejectedError(_OURS)
        self._request = request
        return ReadEnded(signal.signal_id, request.snapshot_id)

    def _stop(self, picked: PickedTables) -> StoreSignal:
        reason = f"stopped by signal {self._signals[0].signal_id}"
        changed = _changed(picked, "stopped", reason)
        return self._change(
            "stopped", picked, changed, AcceptedSignal(stops=picked.tables)
        )

    def _pause(self, picked: PickedTables) -> StoreSignal:
        changed = _changed(picked, "paused")
        return self._change(
            "paused", picked, changed, AcceptedSignal(pauses=picked.tables)
        )

    def _resume(
        self, picked: PickedTables, siblings: tuple[StoredTable, ...] = ()
    ) -> StoreSignal:
        changed = tuple(table.queued_again() for table in picked.tables)
        accepted = AcceptedSignal(resumes=changed, siblings=siblings if changed else ())
        return self._change("resumed", picked, changed, accepted)

    def _change(
        self,
        what: str,
        picked: PickedTables,
        changed: tuple[StoredTable, ...],
        accepted: AcceptedSignal,
    ) -> StoreSignal:
        names = [table.collection for table in picked.tables]
        detail = {what: names, **_refused(picked.refusals)}
        status = "rejected" if picked.refusals and not names else "completed"
        return self._store(status, detail, accepted, changed)

    def _store(
        self,
        status: str,
        detail: Mapping[str, Any],
        accepted: AcceptedSignal | None = None,
        changed: tuple[StoredTable, ...] = (),
        *,
        is_ours: bool = True,
    ) -> StoreSignal:
        accepted = accepted or AcceptedSignal()
        signal_id = self._signals[0].signal_id
        self._answer = StoreSignal(
            signal_id, status, detail, accepted.tables, changed, is_ours
        )
        notice = notifications.answered(signal_id, status, detail)
        self._accepted = replace(accepted, notices=(notice,))
        return self._answer


def with_filters(
    request: ExecuteSnapshot, collections: Collection[str], captured: Collection[str]
) -> ExecuteSnapshot:
    """
    Give each collection its filter.

    A filter that applies to nothing is refused: all rows would be read in its stead.
    """
    if not collections:
        return request
    conditions: dict[str, str] = {}
    for entry, condition in request.conditions.items():
        try:
            names = [
                one
                for one in matching_collections(entry, captured)
                if one in collections
            ]
        except AmbiguousNameError as ambiguous:
            reason = f"the additional condition for {entry!r}: {ambiguous}"
            raise SignalRejectedError(reason) from ambiguous
        if not names:
            reason = f"the additional condition for {entry!r} names no table to be read"
            raise SignalRejectedError(reason)
        conditions = {**dict.fromkeys(names, condition), **conditions}
    return replace(request, conditions=conditions)


def _changed(
    picked: PickedTables, state: str, reason: str | None = None
) -> tuple[StoredTable, ...]:
    return tuple(table._replace(state=state, error=reason) for table in picked.tables)


def _refused(refusals: Mapping[str, str]) -> dict[str, Any]:
    if not refusals:
        return {}
    reason = "; ".join(f"{entry}: {why}" for entry, why in refusals.items())
    return {"reason": reason, "refused": dict(refusals)}

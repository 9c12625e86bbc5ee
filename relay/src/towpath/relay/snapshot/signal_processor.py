"""
The signal processor: answers the stream's signals, one after another.

::

    seen -> its transaction visible -> claimed -> tables inspected, or read -> answer

A signal that names this relay is answered without a claim; for any other, the worker
looks up the relay. The answer goes into the signal's own row, so the row must be
visible first. Every signal gets an answer, so that its transaction can be confirmed.
The changes that a signal makes are stored with its answer and take effect after that.

A signal stops, pauses or resumes tables in these states:

====== ======================================= ================
signal tables in                               become
====== ======================================= ================
stop   queued, running, paused                 stopped
pause  queued, running                         paused
resume paused; of a named snapshot also        queued
       failed, stopped, incomplete
====== ======================================= ================

A named collection in another state is refused with the reason. Without names, tables in
another state are skipped; if no table matches, all are refused.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.key_requests import SNAPSHOT_PREFIX
from towpath.relay.snapshot.naming import (
    AmbiguousNameError,
    address_of,
    expand,
    matching_collections,
)
from towpath.relay.snapshot.protocol import (
    ClaimSignal,
    Effect,
    InspectTables,
    Notify,
    ReadSnapshotTables,
    SignalClaimed,
    SignalSeen,
    SignalStored,
    SnapshotTablesRead,
    StoreSignal,
    TablesInspected,
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
        tables: The tables to read, in their stored state.
        stops: The tables to end, as they were when the signal was answered.
        pauses: The tables to pause, as they were when the signal was answered.
        resumes: The tables to resume, as they are stored now: queued.
        siblings: The other tables of a resumed snapshot, in case it has ended.
        notices: The notification of the answer.
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
    """Return the tables that a signal queues, in the signal's order."""
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
    """Return the refused entries of a signal as failed tables."""
    return tuple(
        StoredTable(signal_id, entry, ordinal, "failed", 0, error=reason)
        for ordinal, (entry, reason) in enumerate(refusals.items(), first_ordinal)
    )


OPEN: Final = frozenset({"queued", "running", "paused"})
ACTIVE: Final = frozenset({"queued", "running"})
PAUSED: Final = frozenset({"paused"})
RESUMABLE: Final = frozenset({"paused", "failed", "stopped", "incomplete"})

_NOT_OPEN: Final = "it has no open snapshot"


@dataclass(frozen=True, slots=True)
class SelectedTables:
    """The selected tables, with their progress, and why some entries select none."""

    tables: tuple[StoredTable, ...]
    refusals: dict[str, str] = field(default_factory=dict)


def select_tables(
    request: TableSelection, tables: Iterable[StoredTable], states: Collection[str]
) -> SelectedTables:
    """
    Select the tables of a request.

    Args:
        request: The signal's selection.
        tables: The candidates.
        states: The states in which a table may be selected.
    """
    wanted = request.snapshot_id
    pool = [table for table in tables if wanted in {None, table.snapshot_id}]
    if wanted is not None and not pool:
        return SelectedTables(
            (), {wanted: "there is no such snapshot, or it has ended"}
        )
    names = list(dict.fromkeys(table.collection for table in pool))
    expansion = expand(request.collections, names, _NOT_OPEN)
    meant = [
        table
        for table in pool
        if not request.collections or table.collection in expansion.collections
    ]
    selectable = tuple(t for t in meant if _mismatch_reason(t, states) is None)
    refusals = dict(expansion.refusals)
    if request.collections or not selectable:
        found = {table.collection for table in selectable}
        for table in meant:
            reason = _mismatch_reason(table, states)
            if reason is not None and table.collection not in found:
                refusals[table.collection] = reason
    return SelectedTables(selectable, refusals)


def _mismatch_reason(table: StoredTable, states: Collection[str]) -> str | None:
    """Return why a table cannot be selected; None if it can."""
    if table.state not in states:
        return f"it is {table.state} in snapshot {table.snapshot_id}"
    if table.has_ended and not table.table_oid:
        return f"it was refused at the start: {table.error}"
    return None


_OURS: Final = f"ids that begin with {SNAPSHOT_PREFIX} are the relay's own"
_UNMATCHED: Final = "no captured table has this name or matches this expression"


class SignalProcessor:
    """The signals that have no stored answer yet; the first is being answered."""

    def __init__(
        self,
        captured: Collection[str],
        sinks: Callable[[], Collection[str]],
        relay: str | None = None,
    ) -> None:
        """
        Begin with no signals.

        Args:
            captured: The collections that can be read, updated by another thread.
            sinks: Returns the names of the current sinks, which a signal may target.
            relay: This relay's name.
        """
        self._relay = relay
        self._captured = captured
        self._sinks = sinks
        self._signals: deque[SignalSeen] = deque()
        self._has_begun = False
        self._is_claiming = False
        self._request: Request | None = None
        self._refusals: Mapping[str, str] = {}
        self._answer: StoreSignal | None = None
        self._accepted = AcceptedSignal()

    @property
    def is_empty(self) -> bool:
        """Whether no signal is waiting."""
        return not self._signals

    @property
    def waits_for_visibility(self) -> bool:
        """Whether the first signal may still be invisible."""
        return bool(self._signals) and not self._has_begun

    def add(self, signal: SignalSeen) -> None:
        """Append a signal from the stream."""
        self._signals.append(signal)

    def begin_answer(
        self, snapshot: XidSnapshot, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """
        Begin answering the first signal, if this snapshot sees it.

        Args:
            snapshot: The transactions that are visible now.
            open_tables: The tables that have not ended and can be stopped.
        """
        if not self.waits_for_visibility:
            return []
        signal = self._signals[0]
        if not snapshot.sees_streamed(signal.xid):
            return []
        self._has_begun = True
        address = address_of(signal.data, signal.relay)
        if address != self._relay:
            self._is_claiming = True
            return [ClaimSignal(signal.signal_id, address)]
        return [self._answer_now(signal, open_tables)]

    def claimed(
        self, fact: SignalClaimed, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """Answer a signal, now that its relay is known."""
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

    def tables_read(
        self, fact: SnapshotTablesRead, open_tables: Collection[StoredTable]
    ) -> list[Effect]:
        """Store the answer to a resume-snapshot, now that its tables are known."""
        request = self._request
        if not isinstance(request, ResumeSnapshot):
            return []
        newest = {table[:2]: table for table in fact.tables}
        own = [t for t in open_tables if t.snapshot_id == request.snapshot_id]
        newest |= {table[:2]: table for table in own}
        selected = select_tables(request, newest.values(), RESUMABLE)
        taken = {table[:2] for table in selected.tables}
        siblings = tuple(t for name, t in newest.items() if name not in taken)
        return [self._resume(selected, siblings)]

    def stored(self, fact: SignalStored) -> AcceptedSignal | None:
        """
        Remove a signal whose answer is durable; return its tables.

        None means that no answer was awaited, or that the relay does not run the
        signal: it was answered before, repeats a snapshot's id, or is another relay's.
        """
        accepted = self._accepted
        if self._answer is None and not self._is_claiming:
            return None
        self._is_claiming = False
        self._signals.popleft()
        self._has_begun = False
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
                return self._store("completed", request.fields(signal.position))
            case StopSnapshot():
                return self._stop(select_tables(request, open_tables, OPEN))
            case PauseSnapshot():
                return self._pause(select_tables(request, open_tables, ACTIVE))
            case ResumeSnapshot():
                return self._read_tables(signal, request, open_tables)

    def _inspect(self, signal: SignalSeen, request: ExecuteSnapshot) -> Effect:
        if request.target is not None and request.target not in self._sinks():
            reason = f"target {request.target!r} is not a sink of the configuration"
            raise SignalRejectedError(reason)
        expansion = expand(request.collections, self._captured, unmatched=_UNMATCHED)
        request = with_filters(request, expansion.collections, self._captured)
        if request.keys and len(expansion.collections) + len(expansion.refusals) != 1:
            reason = "keys belong to one table: name that table only"
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

    def _read_tables(
        self,
        signal: SignalSeen,
        request: ResumeSnapshot,
        open_tables: Collection[StoredTable],
    ) -> Effect:
        """Resume tables in memory, or read the tables of a named snapshot."""
        if request.snapshot_id is None:
            return self._resume(select_tables(request, open_tables, PAUSED))
        if request.snapshot_id.startswith(SNAPSHOT_PREFIX):
            raise SignalRejectedError(_OURS)
        self._request = request
        return ReadSnapshotTables(signal.signal_id, request.snapshot_id)

    def _stop(self, selected: SelectedTables) -> StoreSignal:
        reason = f"stopped by signal {self._signals[0].signal_id}"
        changed = _changed(selected, "stopped", reason)
        return self._change(
            "stopped", selected, changed, AcceptedSignal(stops=selected.tables)
        )

    def _pause(self, selected: SelectedTables) -> StoreSignal:
        changed = _changed(selected, "paused")
        return self._change(
            "paused", selected, changed, AcceptedSignal(pauses=selected.tables)
        )

    def _resume(
        self, selected: SelectedTables, siblings: tuple[StoredTable, ...] = ()
    ) -> StoreSignal:
        changed = tuple(table.queued_again() for table in selected.tables)
        accepted = AcceptedSignal(resumes=changed, siblings=siblings if changed else ())
        return self._change("resumed", selected, changed, accepted)

    def _change(
        self,
        verb: str,
        selected: SelectedTables,
        changed: tuple[StoredTable, ...],
        accepted: AcceptedSignal,
    ) -> StoreSignal:
        names = [table.collection for table in selected.tables]
        detail = {verb: names, **_refused(selected.refusals)}
        status = "rejected" if selected.refusals and not names else "completed"
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
    Assign each collection its filter.

    A filter that applies to no table is refused: otherwise the intended table would be
    read unfiltered.

    Raises:
        SignalRejectedError: A filter applies to no table, or its name is ambiguous.
    """
    if not collections:
        return request
    wanted = frozenset(collections)
    conditions: dict[str, str] = {}
    for entry, condition in request.conditions.items():
        try:
            found = matching_collections(entry, captured)
            names = [one for one in found if one in wanted]
        except AmbiguousNameError as ambiguous:
            reason = f"the additional condition for {entry!r}: {ambiguous}"
            raise SignalRejectedError(reason) from ambiguous
        if not names:
            reason = f"the additional condition for {entry!r} matches no table to read"
            raise SignalRejectedError(reason)
        conditions = {**dict.fromkeys(names, condition), **conditions}
    return replace(request, conditions=conditions)


def _changed(
    selected: SelectedTables, state: str, reason: str | None = None
) -> tuple[StoredTable, ...]:
    return tuple(table._replace(state=state, error=reason) for table in selected.tables)


def _refused(refusals: Mapping[str, str]) -> dict[str, Any]:
    if not refusals:
        return {}
    reason = "; ".join(f"{entry}: {why}" for entry, why in refusals.items())
    return {"reason": reason, "refused": dict(refusals)}

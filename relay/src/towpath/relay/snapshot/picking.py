"""
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

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.relay.snapshot.naming import expand
from towpath.relay.snapshot.signals import Pick
from towpath.relay.snapshot.stored import StoredTable

OPEN: Final = frozenset({"queued", "running", "paused"})
ACTIVE: Final = frozenset({"queued", "running"})
PAUSED: Final = frozenset({"paused"})
RESUMABLE: Final = frozenset({"paused", "failed", "stopped", "incomplete"})

_NOT_OPEN: Final = "no snapshot of it is open"


@dataclass(frozen=True, slots=True)
class Picked:
    """The tables that are meant, as they are, and why entries mean none."""

    tables: tuple[StoredTable, ...]
    refusals: dict[str, str] = field(default_factory=dict)


def pick(
    request: Pick, tables: Iterable[StoredTable], states: Collection[str]
) -> Picked:
    """
    Choose the tables that a request means.

    Args:
        request: What the signal names.
        tables: Those that could be meant.
        states: In which of their states they are.
    """
    wanted = request.snapshot_id
    pool = [table for table in tables if wanted in {None, table.snapshot_id}]
    if wanted is not None and not pool:
        return Picked((), {wanted: "there is no such snapshot, or it has ended"})
    names = list(dict.fromkeys(table.collection for table in pool))
    expansion = expand(request.collections, names, _NOT_OPEN)
    meant = [
        table
        for table in pool
        if not request.collections or table.collection in expansion.collections
    ]
    fit = tuple(table for table in meant if _why_not(table, states) is None)
    refusals = dict(expansion.refusals)
    if request.collections or not fit:
        found = {table.collection for table in fit}
        for table in meant:
            reason = _why_not(table, states)
            if reason is not None and table.collection not in found:
                refusals[table.collection] = reason
    return Picked(fit, refusals)


def _why_not(table: StoredTable, states: Collection[str]) -> str | None:
    """Tell why a table does not fit; None: it does."""
    if table.state not in states:
        return f"it is {table.state} in snapshot {table.snapshot_id}"
    if table.has_ended and not table.table_oid:
        return f"it was refused from the first: {table.error}"
    return None

"""What comes of a signal: the tables that it starts, and those that it changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from towpath.relay.snapshot.effects import Notify
from towpath.relay.snapshot.shape import Key, TableShape
from towpath.relay.snapshot.signals import ExecuteSnapshot
from towpath.relay.snapshot.stored import StoredTable


@dataclass(frozen=True, slots=True)
class Accepted:
    """
    What a signal that was stored as new starts and changes.

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


def queued(
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


def refused(
    signal_id: str, refusals: Mapping[str, str], first_ordinal: int
) -> tuple[StoredTable, ...]:
    """Return what a signal names and cannot have read, failed from the first."""
    return tuple(
        StoredTable(signal_id, entry, ordinal, "failed", 0, error=reason)
        for ordinal, (entry, reason) in enumerate(refusals.items(), first_ordinal)
    )

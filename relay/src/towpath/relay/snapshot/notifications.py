"""
Notifications: of a snapshot in Debezium's types and fields, of a signal in ours.

STARTED, then per chunk IN_PROGRESS, per table TABLE_SCAN_COMPLETED, at the end
COMPLETED, or ABORTED when a table failed, was stopped or is incomplete; in between
PAUSED and RESUMED.
The aggregate type is ``Incremental Snapshot``, or ``Initial Snapshot`` for what is read
in one view of the database. The id is the signal's.

What becomes of a signal is told too, since one that comes from a bare table or from
Kafka has no row to be answered in: aggregate type ``Signal``, types ACCEPTED, REJECTED,
COMPLETED, INCOMPLETE, FAILED.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from towpath.relay.snapshot.effects import Notify
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import INCREMENTAL, StoredTable

SIGNAL: Final = "Signal"

# A signal of 10,000 regular expressions has as many reasons; a notification must fit
# into a record. The signal's row has all of it.
_MAX_DETAIL: Final = 100_000
# Names of all tables in what is told of one of them: about a hundred tables.
_MAX_NAMES: Final = 4_000

_SCAN_STATUS: Final = MappingProxyType(
    {
        "completed": "SUCCEEDED",
        "incomplete": "INCOMPLETE",
        "failed": "SQL_EXCEPTION",
        "stopped": "STOPPED",
    }
)


def started(
    snapshot_id: str, collections: Iterable[str], kind: str = INCREMENTAL
) -> Notify:
    """Tell that a signal's snapshot begins."""
    return _snapshot_notification(snapshot_id, "STARTED", collections, kind)


def paused(
    snapshot_id: str, collections: Iterable[str], kind: str = INCREMENTAL
) -> Notify:
    """Tell that tables of a snapshot wait until they are resumed."""
    return _snapshot_notification(snapshot_id, "PAUSED", collections, kind)


def resumed(
    snapshot_id: str, collections: Iterable[str], kind: str = INCREMENTAL
) -> Notify:
    """Tell that tables of a snapshot are read again, from where they were."""
    return _snapshot_notification(snapshot_id, "RESUMED", collections, kind)


def in_progress(table: StoredTable, collections: Iterable[str]) -> Notify:
    """Tell how far a table is."""
    return Notify(
        table.snapshot_id,
        "IN_PROGRESS",
        {
            **_collections(collections, table.collection),
            "current_collection_in_progress": table.collection,
            "maximum_key": readable_key(table.maximum_key),
            "last_processed_key": readable_key(table.last_key),
        },
        _aggregate_type(table.kind),
    )


def table_ended(table: StoredTable, collections: Iterable[str]) -> Notify:
    """Tell that a table is done, and how it ended."""
    status = _SCAN_STATUS[table.state]
    if status == "SUCCEEDED" and not table.rows + table.dropped:
        status = "EMPTY"
    return Notify(
        table.snapshot_id,
        "TABLE_SCAN_COMPLETED",
        {
            **_collections(collections, table.collection),
            "scanned_collection": table.collection,
            "total_rows_scanned": str(table.rows + table.dropped),
            "status": status,
        },
        _aggregate_type(table.kind),
    )


def ended(
    snapshot_id: str, collections: Iterable[str], status: str, kind: str = INCREMENTAL
) -> Notify:
    """Tell that a signal's snapshot is over."""
    told = "COMPLETED" if status == "completed" else "ABORTED"
    return _snapshot_notification(snapshot_id, told, collections, kind)


def answered(signal_id: str, status: str, detail: Mapping[str, Any]) -> Notify:
    """Tell what has become of a signal: its status, and what its row says."""
    text = json.dumps(detail, ensure_ascii=False, default=str)
    told = {"status": status}
    if "reason" in detail:
        told["reason"] = str(detail["reason"])[:_MAX_DETAIL]
    if len(text) <= _MAX_DETAIL:
        told["detail"] = text
    else:
        told["detail_left_out"] = f"{len(text)} characters; the signal's row has them"
    return Notify(signal_id, status.upper(), told, SIGNAL)


def readable_key(key: Key | None) -> str:
    """Write a key for people: its only column's text, or a JSON list of them."""
    if key is None:
        return ""
    texts = [part.decode(errors="replace") for part in key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def _snapshot_notification(
    snapshot_id: str, told: str, collections: Iterable[str], kind: str
) -> Notify:
    return Notify(snapshot_id, told, _collections(collections), _aggregate_type(kind))


def _aggregate_type(kind: str) -> str:
    """Return Debezium's name for what is read chunk by chunk, or in one view."""
    return "Incremental Snapshot" if kind == INCREMENTAL else "Initial Snapshot"


def _collections(collections: Iterable[str], current: str = "") -> dict[str, str]:
    """
    Name the snapshot's tables.

    With thousands of them, what is told of one table names that one only: each notice
    of each table would repeat all names.
    """
    text = ", ".join(collections)
    if len(text) <= _MAX_NAMES:
        return {"data_collections": text}
    if current:
        left_out = f"{len(text)} characters; the notification STARTED has them"
        return {"data_collections": current, "data_collections_left_out": left_out}
    if len(text) <= _MAX_DETAIL:
        return {"data_collections": text}
    left_out = f"{len(text)} characters; towpath.snapshot has them"
    return {"data_collections": "", "data_collections_left_out": left_out}

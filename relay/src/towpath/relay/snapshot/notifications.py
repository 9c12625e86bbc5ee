"""
Notifications of snapshots, with Debezium's types and fields, and of signals, with ours.

A snapshot sends STARTED, IN_PROGRESS per chunk, TABLE_SCAN_COMPLETED per table, PAUSED
and RESUMED, and at the end COMPLETED, or ABORTED if a table failed, was stopped or is
incomplete. The aggregate type is ``Incremental Snapshot``, or ``Initial Snapshot`` for
tables that are read from an exported snapshot. The id is the signal's.

The answer to a signal is published too, since neither a bare signal table nor a signal
topic has a place for it: aggregate type ``Signal``, types ACCEPTED, REJECTED,
COMPLETED, INCOMPLETE, FAILED.
"""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from towpath.relay.snapshot.protocol import Notify
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import INCREMENTAL, StoredTable

SIGNAL: Final = "Signal"

# A signal with 10,000 regular expressions may have as many refusals, but a notification
# must fit into a record. The signal's row has the whole text.
_MAX_DETAIL: Final = 100_000
# The bound on the length of all names in one table's notification: about 100 tables.
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
    """Return the notification that a snapshot has begun."""
    return _snapshot_notification(snapshot_id, "STARTED", collections, kind)


def paused(
    snapshot_id: str, collections: Iterable[str], kind: str = INCREMENTAL
) -> Notify:
    """Return the notification that tables of a snapshot are paused."""
    return _snapshot_notification(snapshot_id, "PAUSED", collections, kind)


def resumed(
    snapshot_id: str, collections: Iterable[str], kind: str = INCREMENTAL
) -> Notify:
    """Return the notification that tables of a snapshot are resumed."""
    return _snapshot_notification(snapshot_id, "RESUMED", collections, kind)


def in_progress(table: StoredTable, collections: Iterable[str]) -> Notify:
    """Return the notification of a table's progress."""
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
    """Return the notification that a table's scan has ended, with its status."""
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
    """Return the notification of a snapshot's end."""
    type_ = "COMPLETED" if status == "completed" else "ABORTED"
    return _snapshot_notification(snapshot_id, type_, collections, kind)


def answered(signal_id: str, status: str, detail: Mapping[str, Any]) -> Notify:
    """Return the notification of a signal's answer: its status and detail."""
    text = json.dumps(detail, ensure_ascii=False, default=str)
    data = {"status": status}
    if "reason" in detail:
        data["reason"] = str(detail["reason"])[:_MAX_DETAIL]
    if len(text) <= _MAX_DETAIL:
        data["detail"] = text
    else:
        data["detail_left_out"] = f"{len(text)} characters; the signal's row has them"
    return Notify(signal_id, status.upper(), data, SIGNAL)


def readable_key(key: Key | None) -> str:
    """Return a key as text: its only column's value, or a JSON list of its values."""
    if key is None:
        return ""
    texts = [part.decode(errors="replace") for part in key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def _snapshot_notification(
    snapshot_id: str, type_: str, collections: Iterable[str], kind: str
) -> Notify:
    return Notify(snapshot_id, type_, _collections(collections), _aggregate_type(kind))


def _aggregate_type(kind: str) -> str:
    """Return Debezium's name for the kind of snapshot."""
    return "Incremental Snapshot" if kind == INCREMENTAL else "Initial Snapshot"


def _collections(collections: Iterable[str], current: str = "") -> dict[str, str]:
    """
    Return the names of a snapshot's tables.

    If the names together exceed ``_MAX_NAMES`` characters, a notification of one table
    names only that table. Other notifications name all tables or, above ``_MAX_DETAIL``
    characters, none.
    """
    text = ", ".join(collections)
    if len(text) <= _MAX_NAMES:
        return {"data_collections": text}
    if current:
        is_in_started = len(text) <= _MAX_DETAIL
        place = "the notification STARTED" if is_in_started else "towpath.snapshot"
        left_out = f"{len(text)} characters; {place} has them"
        return {"data_collections": current, "data_collections_left_out": left_out}
    if len(text) <= _MAX_DETAIL:
        return {"data_collections": text}
    left_out = f"{len(text)} characters; towpath.snapshot has them"
    return {"data_collections": "", "data_collections_left_out": left_out}

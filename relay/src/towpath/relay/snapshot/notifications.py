"""
Notifications of a snapshot, in Debezium's types and fields.

STARTED, then per chunk IN_PROGRESS, per table TABLE_SCAN_COMPLETED, at the end
COMPLETED, or ABORTED when a table failed or was stopped. The id is the signal's.
"""

import json
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from towpath.relay.snapshot.effects import Notify
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable

_SCAN_STATUS: Final = MappingProxyType(
    {"completed": "SUCCEEDED", "failed": "SQL_EXCEPTION", "stopped": "STOPPED"}
)


def started(snapshot_id: str, collections: Iterable[str]) -> Notify:
    """Tell that a signal's snapshot begins."""
    return Notify(snapshot_id, "STARTED", _collections(collections))


def in_progress(table: StoredTable, collections: Iterable[str]) -> Notify:
    """Tell how far a table is."""
    return Notify(
        table.snapshot_id,
        "IN_PROGRESS",
        {
            **_collections(collections),
            "current_collection_in_progress": table.collection,
            "maximum_key": key_text(table.maximum_key),
            "last_processed_key": key_text(table.last_key),
        },
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
            **_collections(collections),
            "scanned_collection": table.collection,
            "total_rows_scanned": str(table.rows + table.dropped),
            "status": status,
        },
    )


def ended(snapshot_id: str, collections: Iterable[str], status: str) -> Notify:
    """Tell that a signal's snapshot is over."""
    kind = "COMPLETED" if status == "completed" else "ABORTED"
    return Notify(snapshot_id, kind, _collections(collections))


def key_text(key: Key | None) -> str:
    """Write a key for people: its only column's text, or a JSON list of them."""
    if key is None:
        return ""
    texts = [part.decode(errors="replace") for part in key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def _collections(collections: Iterable[str]) -> dict[str, str]:
    return {"data_collections": ", ".join(collections)}

"""
The store of signals and progress: ``towpath.signal`` and ``towpath.snapshot``.

Keys are stored as JSON lists of their text, so that people can read them.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.naming import resolve_address
from towpath.relay.snapshot.protocol import (
    AnswerSignal,
    ClaimSignal,
    KeysStored,
    ProgressSaved,
    ReadSnapshotTables,
    SaveProgress,
    SignalClaimed,
    SignalStored,
    SnapshotTablesRead,
    StoreKeys,
    StoreSignal,
    UnfinishedRead,
)
from towpath.relay.snapshot.shape import Key, KeyRange
from towpath.relay.snapshot.stored import StoredTable
from towpath.schemas.position import Position


class SnapshotStore:
    """Writes and reads the signals and snapshots of one relay."""

    def __init__(self, connection: Connection, relay: str) -> None:
        """Create the store of ``relay`` over an open connection."""
        self._connection = connection
        self._relay = relay

    def read_unfinished(self, offset: int) -> UnfinishedRead:
        """
        Return the open snapshots, the oldest first, and the key requests' positions.

        A snapshot whose signal has no final answer is open, too.

        Args:
            offset: The offset of the lineage that is followed.
        """
        self._reset_foreign_requests(offset)
        tables = self._read(None)
        own = {"relay": self._relay}
        row = self._connection.execute(query("read_asked_until"), own).fetchone()
        asked_until = row[0] if row else None
        failed = self._connection.execute(query("read_failed_requests"), own)
        return UnfinishedRead(tables, asked_until, tuple(failed.fetchall()))

    def _reset_foreign_requests(self, offset: int) -> None:
        """Reset positions from another log, so that all of this one are above them."""
        row = self._connection.execute(query("read_log_end")).fetchone()
        log_end = offset + (row[0] if row else 0)
        fields = {
            "none": str(Position(0, 0)),
            "log_end": str(Position(log_end, 0)),
            "relay": self._relay,
        }
        self._connection.execute(query("reset_foreign_requests"), fields)

    def read_tables(self, effect: ReadSnapshotTables) -> SnapshotTablesRead:
        """Return all tables of a snapshot, in order, ended or not."""
        return SnapshotTablesRead(effect.signal_id, self._read(effect.snapshot_id))

    def claim(self, effect: ClaimSignal) -> SignalClaimed | SignalStored:
        """Look up the relay of a signal; another relay's signal counts as answered."""
        execute = self._connection.execute
        row = execute(query("read_signal_relay"), {"id": effect.signal_id}).fetchone()
        names = [name for name, _ in execute(query("list_relays"))]
        address = effect.address or (row[0] if row else None)
        found = resolve_address(address, self._relay, names)
        if found.is_ours or found.refusal is not None:
            return SignalClaimed(effect.signal_id, found.refusal)
        return SignalStored(effect.signal_id, is_new=False)

    def store_signal(
        self, effect: StoreSignal, attempts: list[datetime]
    ) -> SignalStored:
        """
        Answer a signal and store its tables, unless it was answered before.

        An attempt whose commit was not confirmed may have stored the answer: it is
        recognized by the time at which its transaction began, which its rows record.

        Args:
            effect: The answer.
            attempts: When earlier attempts at this effect began; this one is added.
        """
        with self._connection.transaction():
            is_new = self._store_first_answer(effect)
            if is_new:
                attempts += self._connection.execute(query("read_now")).fetchone() or ()
                self._insert(effect.tables, "insert_snapshot")
                for table in effect.changed:
                    fields = {
                        "snapshot_id": table.snapshot_id,
                        "collection": table.collection,
                        "state": table.state,
                        "error": table.error,
                        "pending_keys": _keys_json(table),
                        "undelivered": table.undelivered,
                    }
                    self._connection.execute(query("change_snapshot"), fields)
                queued = {t.snapshot_id for t in effect.changed if t.state == "queued"}
                for snapshot_id in sorted(queued):
                    reopened = {"id": snapshot_id}
                    self._connection.execute(query("reopen_signal"), reopened)
            elif attempts:
                wanted = {"id": effect.signal_id, "attempts": attempts}
                found = self._connection.execute(query("read_whether_stored"), wanted)
                is_new = found.fetchone() == (True,)
        return SignalStored(effect.signal_id, is_new)

    def store_keys(self, effect: StoreKeys) -> KeysStored:
        """Store a batch of key requests; delete batches that ended long ago."""
        with self._connection.transaction():
            self._insert(effect.tables, "store_request")
            own = {"relay": self._relay}
            self._connection.execute(query("delete_old_requests"), own)
        return KeysStored(effect.snapshot_id)

    def _read(self, snapshot_id: str | None) -> tuple[StoredTable, ...]:
        names = {"snapshot_id": snapshot_id, "relay": self._relay}
        rows = self._connection.execute(query("read_snapshots"), names).fetchall()
        return tuple(_stored(row) for row in rows)

    def _insert(self, tables: Iterable[StoredTable], statement: str) -> None:
        fields = [
            table._asdict()
            | {
                "pending_keys": _keys_json(table),
                "order_by": Jsonb(list(table.order_by)) if table.order_by else None,
                "relay": self._relay,
            }
            for table in tables
        ]
        # One round trip for all rows.
        self._connection.cursor().executemany(query(statement), fields)

    def answer_signal(self, effect: AnswerSignal) -> None:
        """Add the state of a signal's run to its answer."""
        self._connection.execute(query("store_answer"), _answer(effect))

    def save_progress(self, effect: SaveProgress) -> ProgressSaved:
        """Store a table's progress."""
        table = effect.table
        fields = table._asdict() | {
            "last_key": _key_json(table.last_key),
            "maximum_key": _key_json(table.maximum_key),
            "pending_keys": _keys_json(table),
            "percent": table.percent,
            "eta_s": table.eta_s,
            "ranges": _ranges_json(table.ranges),
            "key_columns": Jsonb(list(table.key_columns)),
            "undelivered_keys": _undelivered_json(table),
        }
        self._connection.execute(query("save_progress"), fields)
        return ProgressSaved(effect.request_id)

    def _store_first_answer(self, effect: StoreSignal) -> bool:
        """Store an answer if it is the first; return whether to store its tables."""
        execute = self._connection.execute
        signal = {"id": effect.signal_id}
        owner = {"relay": self._relay if effect.is_ours else None}
        used = execute(query("read_whether_snapshot_exists"), signal).fetchone()
        if used is not None and used[0]:
            reason = "this id was used by an earlier signal; choose another"
            answer = {"status": "rejected", "detail": Jsonb({"reason": reason})}
            execute(query("store_first_answer"), signal | answer | owner)
            return False
        if execute(query("store_first_answer"), _answer(effect) | owner).fetchone():
            return True
        known = execute(query("read_whether_signal_exists"), signal).fetchone()
        return known is None or not known[0]


def read_keys(
    connection: Connection, snapshot_id: str, collection: str
) -> tuple[Key, ...]:
    """Return the listed keys of a table that have not been delivered yet."""
    names = {"snapshot_id": snapshot_id, "collection": collection}
    row = connection.execute(query("read_pending_keys"), names).fetchone()
    return _keys(row[0]) if row else ()


def _answer(effect: StoreSignal | AnswerSignal) -> dict[str, Any]:
    return {
        "id": effect.signal_id,
        "status": effect.status,
        "detail": Jsonb(dict(effect.detail)),
    }


def _stored(row: tuple[Any, ...]) -> StoredTable:
    table = StoredTable(*row)
    return table._replace(
        last_key=_key(row[8]),
        maximum_key=_key(row[9]),
        pending_keys=_keys(row[10]) if table.asked_keys is None else None,
        order_by=tuple(table.order_by or ()),
        ranges=_ranges(table.ranges),
        key_columns=tuple(table.key_columns or ()),
        undelivered_keys=_keys(row[25]),
    )


def _ranges(stored: Any) -> tuple[KeyRange, ...]:  # noqa: ANN401 - a JSON value
    return tuple(
        KeyRange(_key(one["after"]), _bytes(one["last"]), one["done"])
        for one in stored or ()
    )


def _ranges_json(ranges: tuple[KeyRange, ...]) -> Jsonb | None:
    """Return the ranges as JSON; without ranges the last key is the progress."""
    if not ranges:
        return None
    return Jsonb(
        [
            {
                "after": None if one.after_key is None else _texts(one.after_key),
                "last": _texts(one.last_key),
                "done": one.is_done,
            }
            for one in ranges
        ]
    )


def _keys(listed: list[list[str]] | None) -> tuple[Key, ...]:
    return tuple(_bytes(texts) for texts in listed or ())


def _keys_json(table: StoredTable) -> Jsonb | None:
    keys = table.pending_keys
    return None if keys is None else Jsonb([_texts(key) for key in keys])


def _undelivered_json(table: StoredTable) -> Jsonb | None:
    """Return the keys of dead letters as JSON; most tables have none."""
    keys = table.undelivered_keys
    return Jsonb([_texts(key) for key in keys]) if keys else None


def _texts(key: Key) -> list[str]:
    return [part.decode() for part in key]


def _bytes(texts: list[str]) -> Key:
    return tuple(text.encode() for text in texts)


def _key(texts: list[str] | None) -> Key | None:
    return None if texts is None else _bytes(texts)


def _key_json(key: Key | None) -> Jsonb | None:
    return None if key is None else Jsonb(_texts(key))

"""
Changed keys of captured tables, whose sinks keep the rows under the former key.

Under REPLICA IDENTITY FULL the key is read from the catalog: earlier changes are
published under the new key, and records under the former key are never updated or
deleted again. Under the other identities, too, the rows under the former key remain. So
a changed key is a gap in its table's changes, which a snapshot with a sweep closes.

The key of each captured table is stored in ``towpath.captured`` and compared with the
catalog at each turn, including the first after a restart. ``on_gap`` decides: ``halt``
ends the session and refuses each start, ``plan`` logs the statement that closes the
gap, and ``snapshot`` requests the snapshot, in the transaction that stores the new key.
Tables with configured ``key_columns`` are skipped, and so are those whose key was
stored in another lineage: the plan of that gap sweeps all tables.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog

from towpath.relay.encode.notifications import TABLE_EVENT_PREFIX
from towpath.relay.errors import KeyChangedError
from towpath.relay.postgres.backfill import request_tables, signal_entry
from towpath.relay.postgres.catalog import TableKey, key_columns_text, read_table_keys
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.known_tables import (
    KnownTable,
    KnownTables,
    unreadable_tables,
)
from towpath.relay.postgres.new_tables import CHECK_INTERVAL_S, is_id_used
from towpath.relay.postgres.queries import query
from towpath.relay.recovery.backfill import signal_statement, sweep_data
from towpath.relay.snapshot.naming import Registration
from towpath.settings import FirstStart, OnGap, Settings

_LOG = structlog.get_logger("towpath.relay.slot_monitor")

KEY_CHANGED: Final = "KEY_CHANGED"
_REQUESTED: Final = "none is needed: a snapshot with a sweep is requested"


class KeyChange(NamedTuple):
    """A captured table with its stored key and its current one."""

    known: KnownTable
    now: TableKey

    def __str__(self) -> str:
        """Return the change as readable text."""
        former, key = key_columns_text(self.known.key), key_columns_text(self.now.key)
        return f"{self.known.name} from {former} to {key}"


def require_same_keys(
    connection: Connection, settings: Settings, store: KnownTables
) -> None:
    """
    Refuse a start with changed keys if ``on_gap`` is halt.

    Raises:
        KeyChangedError: The key of a captured table changed.
        SourceUnavailableError: The connection is lost.
    """
    if settings.relay.on_gap is not OnGap.HALT:
        return
    with translated_errors("comparing the keys of captured tables"):
        found = [str(each) for each in _key_changes(connection, settings, store)]
    if found:
        reason = f"the key of captured tables changed: {'; '.join(found)}"
        raise KeyChangedError(reason)


class KeyChanges:
    """The slot monitor's task that finds changed keys; created once per session."""

    def __init__(
        self,
        settings: Settings,
        store: KnownTables,
        relay: Registration,
        on_halt: Callable[[str], None],
    ) -> None:
        """
        Create the task.

        Args:
            settings: The captured tables, and ``on_gap``.
            store: The captured tables as stored.
            relay: The relay that captures the tables.
            on_halt: Ends the session; the next start then fails on the changed key.
        """
        self.interval_s = min(CHECK_INTERVAL_S, settings.relay.heartbeat_interval_s)
        self._settings = settings
        self._store = store
        self._relay = relay
        self._on_halt = on_halt

    def turn(self, connection: Connection) -> None:
        """
        Check once, and handle each changed key.

        Raises:
            psycopg.Error: The connection is lost.
        """
        self._store.store_first_keys(connection)
        for change in _key_changes(connection, self._settings, self._store):
            if self._settings.relay.on_gap is OnGap.HALT:
                self._on_halt(f"the key of a captured table changed: {change}")
                return
            self._handle(connection, change)

    def _handle(self, connection: Connection, change: KeyChange) -> None:
        """Publish a change, request the snapshot if configured, and store the key."""
        name, publication = change.known.name, self._settings.database.publication
        with connection.transaction():
            reason = unreadable_tables(connection, [name], publication).get(name)
            signal_id = self._unused_id(connection, change.now.oid)
            data = sweep_data([signal_entry(name)], self._relay)
            fill = signal_statement(signal_id, data)
            is_requested = reason is None and self._requests_snapshot
            if is_requested:
                name_of_relay = self._relay.name
                request_tables(
                    connection, signal_id, [name], {}, relay=name_of_relay, sweeps=True
                )
            more = {
                "former_key": ", ".join(change.known.key or ()),
                "key": ", ".join(change.now.key),
                **({"fill": fill} if reason is None else {"reason": reason}),
            }
            self._write(connection, change, more, is_swept=is_requested)
            self._store.store_changed_key(connection, change.known, change.now.key)
        remedy = _REQUESTED if is_requested else fill
        if reason is not None:
            remedy = f"snapshots cannot read it: {reason}; fix this, then run: {fill}"
        _LOG.error("table key changed", table=name, **more, remedy=remedy)

    @property
    def _requests_snapshot(self) -> bool:
        relay = self._settings.relay
        is_needed = relay.snapshot.mode is FirstStart.WHEN_NEEDED
        return is_needed or relay.on_gap is OnGap.SNAPSHOT

    def _unused_id(self, connection: Connection, oid: int) -> str:
        times = 1
        while is_id_used(connection, f"key-{oid}-{times}{self._relay.suffix}"):
            times += 1
        return f"key-{oid}-{times}{self._relay.suffix}"

    def _write(
        self,
        connection: Connection,
        change: KeyChange,
        more: Mapping[str, str],
        *,
        is_swept: bool,
    ) -> None:
        """Write the event into the log, in the transaction of the snapshot's signal."""
        content = {
            "relay": self._settings.database.slot,
            "event": KEY_CHANGED,
            "schema": change.known.schema,
            "table": change.known.table,
            "oid": change.now.oid,
            "renamed_to": None,
            "on_drop": self._settings.database.on_drop,
            "empties": False,
            "is_swept": is_swept,
            "more": more,
        }
        message = {"prefix": TABLE_EVENT_PREFIX, "content": json.dumps(content)}
        connection.execute(query("write_table_event"), message)


def _key_changes(
    connection: Connection, settings: Settings, store: KnownTables
) -> Iterator[KeyChange]:
    """Yield the tables whose stored key differs from the catalog's."""
    fixed = settings.relay.rows.key_columns
    known = {
        each.oid: each
        for each in store.read(connection).values()
        if each.lineage == store.lineage
        and not each.is_gone
        and each.key is not None
        and each.name not in fixed
        and settings.capture.includes(each.name)
    }
    for now in read_table_keys(connection, list(known)):
        each = known[now.oid]
        # A renamed table is handled under its new name.
        if now.name == each.name and tuple(now.key) != tuple(each.key or ()):
            yield KeyChange(each, now)

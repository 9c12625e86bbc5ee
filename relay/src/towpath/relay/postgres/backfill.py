"""
Snapshots that the relay requests itself: the first one, and those that close a gap.

The relay inserts signals as an operator would. They return through the log, so that
their snapshots have a place in the stream's order, and are answered, stored and resumed
like any others.

A table of kind ``initial`` is read in the slot's exported snapshot. If that snapshot is
lost, the scan of the table continues chunk by chunk from its last key or, if the table
has a SELECT, as a blocking snapshot.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import list_tables
from towpath.relay.recovery.backfill import ALWAYS_PREFIX, SELECT_SUFFIX, SNAPSHOT_ID
from towpath.relay.snapshot.naming import Registration
from towpath.schemas.table_name import TableName
from towpath.settings import Settings


def request_tables(
    connection: Connection,
    signal_id: str,
    tables: Sequence[str],
    selects: Mapping[str, str],
    *,
    relay: str,
    sweeps: bool = False,
) -> None:
    """
    Request snapshots of tables, once: an existing signal is not changed.

    Args:
        connection: A connection inside a transaction.
        signal_id: The signal's id, for the tables that are read whole.
        tables: The tables, as ``schema.table``.
        selects: The SELECTs of some tables, which get a separate signal.
        relay: The relay that reads the tables.
        sweeps: Whether sinks delete the rows that the source does not have.
    """
    whole = [table for table in tables if table not in selects]
    if whole:
        sweep: dict[str, Any] = {"sweep": True} if sweeps else {}
        data = {"type": "incremental", **sweep}
        _insert(connection, signal_id, relay, whole, data)
    chosen = [table for table in tables if table in selects]
    if chosen:
        conditions = [
            {"data-collection": signal_entry(table), "filter": selects[table]}
            for table in chosen
        ]
        data = {"type": "blocking", "additional-conditions": conditions}
        _insert(connection, signal_id + SELECT_SUFFIX, relay, chosen, data)


def signal_entry(table: str) -> str:
    """Return a table's name for a signal, quoted if it would be read as a pattern."""
    return TableName.parse(table).entry


def _insert(
    connection: Connection,
    signal_id: str,
    relay: str,
    tables: Sequence[str],
    more: Mapping[str, Any],
) -> None:
    data = {"data-collections": [signal_entry(table) for table in tables], **more}
    signal = {"id": signal_id, "data": json.dumps(data), "relay": relay}
    connection.execute(query("insert_snapshot_signal"), signal)


_READING: Final = "reading the first snapshot's progress"
_STORING: Final = "storing the first snapshot"


class FirstSnapshotProgress(NamedTuple):
    """
    The progress of the first snapshot.

    Attributes:
        open_count: The number of open tables and signals without an answer.
        view_count: The number of open tables read in the slot's exported snapshot.
        failures: The reasons why tables did not complete, or signals were rejected.
    """

    open_count: int
    view_count: int
    failures: tuple[str, ...]


def first_id(relay: Registration) -> str:
    """Return the id of a relay's first snapshot."""
    return SNAPSHOT_ID + relay.suffix


def read_is_untouched(connection: Connection, relay: Registration) -> bool:
    """Return whether the first snapshot is stored or requested, but has not begun."""
    with translated_errors(_READING):
        row = connection.execute(
            query("read_whether_untouched"), {"ids": _ids(relay)}
        ).fetchone()
    return bool(row and row[0])


def read_progress(connection: Connection, relay: Registration) -> FirstSnapshotProgress:
    """Return the progress of the first snapshot."""
    known = {"ids": _ids(relay)}
    with translated_errors(_READING):
        row = connection.execute(query("read_first_progress"), known).fetchone()
    open_count, view_count, failures = row or (0, 0, None)
    return FirstSnapshotProgress(open_count, view_count, tuple(failures or ()))


def store_first_snapshot(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """
    Store the tables to read in the slot's exported snapshot; return their names.

    The stored rows of an earlier first snapshot are deleted.
    """
    tables = _published(connection, settings)
    with translated_errors(_STORING), connection.transaction():
        connection.execute(query("delete_first_snapshot"), {"ids": _ids(relay)})
        _store_tables(connection, settings, relay, tables)
    return tuple(tables)


def _store_tables(
    connection: Connection,
    settings: Settings,
    relay: Registration,
    tables: Mapping[str, int],
) -> None:
    """Store queued tables of the first snapshot, from their names and oids."""
    selects = selects_by_table(settings)
    for ordinal, (name, oid) in enumerate(tables.items()):
        fields = {
            "snapshot_id": first_id(relay),
            "relay": relay.name,
            "collection": name,
            "ordinal": ordinal,
            "table_oid": oid,
            "condition": selects.get(name),
        }
        connection.execute(query("store_first_table"), fields)


def request_first_snapshot(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """Request the first snapshot for an existing slot; return its tables."""
    tables = tuple(_published(connection, settings))
    with translated_errors(_STORING), connection.transaction():
        connection.execute(query("delete_first_snapshot"), {"ids": _ids(relay)})
        selects = selects_by_table(settings)
        request_tables(connection, first_id(relay), tables, selects, relay=relay.name)
    return tables


def request_at_start(
    connection: Connection, settings: Settings, relay: Registration, run_id: str
) -> bool:
    """Request all tables at start; return False if an earlier request is still open."""
    tables = tuple(_published(connection, settings))
    known = {"ids": _ids(relay), "prefix": ALWAYS_PREFIX, "relay": relay.name}
    with translated_errors(_STORING), connection.transaction():
        row = connection.execute(query("read_whether_one_is_open"), known).fetchone()
        if row and row[0]:
            return False
        selects = selects_by_table(settings)
        request_tables(
            connection, ALWAYS_PREFIX + run_id, tables, selects, relay=relay.name
        )
    return True


def release_lost_views(connection: Connection, relay: Registration) -> None:
    """Make the tables of a lost exported snapshot continue without it."""
    with translated_errors(_STORING):
        connection.execute(query("release_initial_tables"), {"relay": relay.name})


def retry_failed_tables(
    connection: Connection, settings: Settings, relay: Registration
) -> None:
    """
    Requeue those tables of the first snapshot that ended without being completed.

    They continue from their progress where possible. A table that was refused in the
    answer to a signal has no progress: it is queued with its current oid and SELECT,
    without a signal. The refusal of a table that is not published remains.
    """
    ids = {"ids": _ids(relay)}
    tables = _published(connection, settings)
    names = {entry: name for name in tables for entry in (name, signal_entry(name))}
    execute = connection.execute
    with translated_errors(_STORING), connection.transaction():
        execute(query("retry_first_tables"), ids)
        found = execute(query("delete_refused_tables"), ids | {"entries": list(names)})
        refused = {names[entry] for (entry,) in found}
        if tables and execute(query("delete_rejected_signals"), ids).fetchall():
            # No table of such a signal is stored.
            refused.update(tables)
        stored = {name for (name,) in execute(query("list_first_tables"), ids)}
        chosen = {t: oid for t, oid in tables.items() if t in refused - stored}
        _store_tables(connection, settings, relay, chosen)
        execute(query("release_initial_tables"), {"relay": relay.name})


def selects_by_table(settings: Settings) -> Mapping[str, str]:
    """Return the configured SELECTs, by table name."""
    return {each.table: each.select for each in settings.relay.snapshot.select}


def _ids(relay: Registration) -> list[str]:
    return [first_id(relay), first_id(relay) + SELECT_SUFFIX]


def _published(connection: Connection, settings: Settings) -> dict[str, int]:
    """Return the captured tables that the publication sends, in order, with oids."""
    oids = {
        each.name: each.oid
        for each in list_tables(connection, settings)
        if each.is_published
    }
    chosen: Sequence[str] = settings.capture.chosen(oids)
    return {name: oids[name] for name in chosen if name in oids}

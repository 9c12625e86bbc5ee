"""
What is stored of snapshots that are taken unasked, and how it is asked for.

A table of the kind ``initial`` is read in the view of the slot's making. When that is
gone the table is *thawed*: it goes on chunk by chunk from its last key, or, if it has a
SELECT of its own, which is no filter of chunks, as a blocking snapshot.

Signals that the relay leaves for itself: inserted as anybody's are, and read as theirs.

They come back through the log, so that what they start stands in the stream's order and
is answered, stored and resumed like anything that was asked for.
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
    Ask for tables, once: a signal that is there is left as it is.

    Args:
        connection: Where to; call it inside a transaction.
        signal_id: Of the tables that are read whole.
        tables: As ``schema.table``.
        selects: What some of them are read by; they have a signal of their own.
        relay: The relay that is to read them.
        sweeps: Let sinks delete what the source has no more.
    """
    whole = [table for table in tables if table not in selects]
    if whole:
        sweep: dict[str, Any] = {"sweep": True} if sweeps else {}
        wishes = {"type": "incremental", **sweep}
        _insert(connection, signal_id, relay, whole, wishes)
    chosen = [table for table in tables if table in selects]
    if chosen:
        conditions = [
            {"data-collection": signal_entry(table), "filter": selects[table]}
            for table in chosen
        ]
        wishes = {"type": "blocking", "additional-conditions": conditions}
        _insert(connection, signal_id + SELECT_SUFFIX, relay, chosen, wishes)


def signal_entry(table: str) -> str:
    """Name a table as a signal does: quoted, if it would read as an expression."""
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
    connection.execute(query("ask_for_snapshot"), signal)


_READING: Final = "looking at the first snapshot"
_STORING: Final = "storing the first snapshot"


class FirstSnapshotProgress(NamedTuple):
    """
    How far the first snapshot is.

    Attributes:
        open_count: Tables, and signals without an answer, that have not ended.
        frozen_count: Those of them that are read in the view of the slot's making.
        failures: Why tables failed.
    """

    open_count: int
    frozen_count: int
    failures: tuple[str, ...]


def first_id(relay: Registration) -> str:
    """Return the id of a relay's first snapshot."""
    return SNAPSHOT_ID + relay.suffix


def read_is_untouched(connection: Connection, relay: Registration) -> bool:
    """Tell whether the first snapshot is stored or asked for, and has not begun."""
    with translated_errors(_READING):
        row = connection.execute(
            query("read_whether_untouched"), {"ids": _ids(relay)}
        ).fetchone()
    return bool(row and row[0])


def read_progress(connection: Connection, relay: Registration) -> FirstSnapshotProgress:
    """Return how far the first snapshot is."""
    known = {"ids": _ids(relay)}
    with translated_errors(_READING):
        row = connection.execute(query("read_first_progress"), known).fetchone()
    open_count, frozen_count, failures = row or (0, 0, None)
    return FirstSnapshotProgress(open_count, frozen_count, tuple(failures or ()))


def store_first_snapshot(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """
    Store a table each, to be read in the view of the slot's making; return their names.

    What is stored of another life under this id goes.
    """
    selects = selects_by_table(settings)
    tables = _published(connection, settings)
    with translated_errors(_STORING), connection.transaction():
        connection.execute(query("forget_first_snapshot"), {"ids": _ids(relay)})
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
    return tuple(tables)


def request_first_snapshot(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """Ask for the first snapshot beside a slot that is there; return its tables."""
    tables = tuple(_published(connection, settings))
    with translated_errors(_STORING), connection.transaction():
        connection.execute(query("forget_first_snapshot"), {"ids": _ids(relay)})
        selects = selects_by_table(settings)
        request_tables(connection, first_id(relay), tables, selects, relay=relay.name)
    return tables


def request_at_start(
    connection: Connection, settings: Settings, relay: Registration, run_id: str
) -> bool:
    """Ask for all tables, as at each start; False: an earlier one has not ended."""
    tables = tuple(_published(connection, settings))
    known = {"ids": _ids(relay), "prefix": ALWAYS_PREFIX, "relay": relay.name}
    with translated_errors(_STORING), connection.transaction():
        row = connection.execute(query("read_whether_one_goes_on"), known).fetchone()
        if row and row[0]:
            return False
        selects = selects_by_table(settings)
        request_tables(
            connection, ALWAYS_PREFIX + run_id, tables, selects, relay=relay.name
        )
    return True


def release_lost_views(connection: Connection, relay: Registration) -> None:
    """Let go on by other means what was read in a view that is gone."""
    with translated_errors(_STORING):
        connection.execute(query("thaw_first_tables"), {"relay": relay.name})


def retry_failed_tables(connection: Connection, relay: Registration) -> None:
    """Take up tables that failed, where they were."""
    with translated_errors(_STORING):
        connection.execute(query("retry_first_tables"), {"ids": _ids(relay)})


def selects_by_table(settings: Settings) -> Mapping[str, str]:
    """Return what is read in place of a table, by its name."""
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

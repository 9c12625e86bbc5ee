"""
What is stored of snapshots that are taken unasked, and how it is asked for.

A table of the kind ``initial`` is read in the view of the slot's making. When that is
gone the table is *thawed*: it goes on chunk by chunk from its last key, or, if it has a
SELECT of its own, which is no filter of chunks, as a blocking snapshot.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from towpath.relay.addressing import Registration
from towpath.relay.first_start import ALWAYS_PREFIX, SELECT_SUFFIX, SNAPSHOT_ID
from towpath.relay.postgres.asking import ask
from towpath.relay.postgres.connect import Connection, translated
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import list_tables
from towpath.settings import Settings

_READING: Final = "looking at the first snapshot"
_STORING: Final = "storing the first snapshot"


class Progress(NamedTuple):
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


def read_whether_untouched(connection: Connection, relay: Registration) -> bool:
    """Tell whether the first snapshot is stored or asked for, and has not begun."""
    with translated(_READING):
        row = connection.execute(
            query("read_whether_untouched"), {"ids": _ids(relay)}
        ).fetchone()
    return bool(row and row[0])


def read_progress(connection: Connection, relay: Registration) -> Progress:
    """Return how far the first snapshot is."""
    known = {"ids": _ids(relay)}
    with translated(_READING):
        row = connection.execute(query("read_first_progress"), known).fetchone()
    open_count, frozen_count, failures = row or (0, 0, None)
    return Progress(open_count, frozen_count, tuple(failures or ()))


def store(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """
    Store a table each, to be read in the view of the slot's making; return their names.

    What is stored of another life under this id goes.
    """
    selects = selects_of(settings)
    tables = _published(connection, settings)
    with translated(_STORING), connection.transaction():
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


def ask_for_all(
    connection: Connection, settings: Settings, relay: Registration
) -> tuple[str, ...]:
    """Ask for the first snapshot beside a slot that is there; return its tables."""
    tables = tuple(_published(connection, settings))
    with translated(_STORING), connection.transaction():
        connection.execute(query("forget_first_snapshot"), {"ids": _ids(relay)})
        selects = selects_of(settings)
        ask(connection, first_id(relay), tables, selects, relay=relay.name)
    return tables


def ask_again(
    connection: Connection, settings: Settings, relay: Registration, run_id: str
) -> bool:
    """Ask for all tables, as at each start; False: an earlier one has not ended."""
    tables = tuple(_published(connection, settings))
    known = {"ids": _ids(relay), "prefix": ALWAYS_PREFIX, "relay": relay.name}
    with translated(_STORING), connection.transaction():
        row = connection.execute(query("read_whether_one_goes_on"), known).fetchone()
        if row and row[0]:
            return False
        selects = selects_of(settings)
        ask(connection, ALWAYS_PREFIX + run_id, tables, selects, relay=relay.name)
    return True


def thaw(connection: Connection, relay: Registration) -> None:
    """Let go on by other means what was read in a view that is gone."""
    with translated(_STORING):
        connection.execute(query("thaw_first_tables"), {"relay": relay.name})


def retry(connection: Connection, relay: Registration) -> None:
    """Take up tables that failed, where they were."""
    with translated(_STORING):
        connection.execute(query("retry_first_tables"), {"ids": _ids(relay)})


def selects_of(settings: Settings) -> Mapping[str, str]:
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

"""A slot: what the server tells of it, and what makes one."""

from typing import Final

from towpath.relay.errors import NotPreparedError
from towpath.relay.lineage import FoundSlot
from towpath.relay.postgres.connect import Connection, quoted, translated
from towpath.relay.postgres.queries import query
from towpath.settings import Source

# Slots that a standby keeps in step exist from this version on.
_FAILOVER_VERSION: Final = 170000
_PLUGIN: Final = "pgoutput"

# Making a slot waits for every transaction that runs: for so long, then they are named.
SLOT_TIMEOUT: Final = b"set statement_timeout = '60s'"


def slot_statement(slot: str, version: int) -> str:
    """Return the statement that makes a slot; it survives a failover where it can."""
    failover = ", false, false, true" if version >= _FAILOVER_VERSION else ""
    return (
        "select pg_catalog.pg_create_logical_replication_slot"
        f"('{slot}', '{_PLUGIN}'{failover})"
    )


def exporting_command(slot: str, version: int) -> str:
    """Return the protocol's command that makes a slot, and exports its view."""
    failover = ", FAILOVER true" if version >= _FAILOVER_VERSION else ""
    return (
        f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL {_PLUGIN} "
        f"(SNAPSHOT 'export'{failover})"
    )


def require_publications(connection: Connection, source: Source) -> None:
    """
    Make sure that the publications are there, as they must be before a slot.

    Raises:
        NotPreparedError: One is missing.
        SourceUnavailableError: The connection is gone.
    """
    for name in (source.publication, source.outbox_publication):
        with translated("reading the publications"):
            found = connection.execute(query("read_publication"), {"publication": name})
            is_there = found.fetchone() is not None
        if not is_there:
            reason = f"publication {name} is missing, and the slot with it"
            raise NotPreparedError(reason)


def read_slot(connection: Connection, name: str) -> FoundSlot | None:
    """Return what the server tells of a slot, whosever it is; None if there is none."""
    row = connection.execute(query("read_slot_details"), {"slot": name}).fetchone()
    if row is None:
        return None
    database, plugin, is_temporary, confirmed_lsn, status, pid, why, read, here = row
    kind = _kind(database, plugin, here, is_temporary=is_temporary)
    return FoundSlot(
        confirmed_lsn=confirmed_lsn,
        wal_status=status,
        invalidation_reason=why,
        is_active=pid is not None,
        is_ours=not kind,
        kind=kind,
        has_streamed=bool(read),
    )


def _kind(
    database: str | None, plugin: str | None, here: str, *, is_temporary: bool
) -> str:
    """Say what makes a slot somebody else's; empty if it is ours."""
    if database is None:
        return "a physical one"
    if database != here:
        return f"one of database {database}"
    if plugin != _PLUGIN:
        return f"one of plugin {plugin}"
    return "a temporary one" if is_temporary else ""

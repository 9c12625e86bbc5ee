"""
What status and doctor show of captured tables: dropped, or not readable by snapshots.

A table counts as readable if ``tables.describe``, which every snapshot asks
first, does not refuse it. Tables for which the answer is plain are left out by one
query, so that the others alone are described.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from towpath.relay.finding import Finding, warning
from towpath.relay.postgres.connect import Connection, translated
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import list_tables, name_lists
from towpath.relay.postgres.stored_keys import key_text
from towpath.relay.postgres.tables import TableRefusedError, describe
from towpath.schemas.table_name import TableName
from towpath.settings import Settings


class TableReport(NamedTuple):
    """
    Captured names that somebody should know of.

    Attributes:
        dropped: Names without a table, whose rows are kept in topic and sinks.
        changed_keys: What is to be known of tables whose key changed, by name.
        unreadable: Why snapshots cannot read each of the others.
    """

    dropped: tuple[str, ...]
    unreadable: Mapping[str, str]
    changed_keys: Mapping[str, str] = MappingProxyType({})

    def findings(self) -> Iterator[Finding]:
        """Return a warning for each table."""
        for name in self.dropped:
            yield warning(
                f"{name}: the captured table was dropped or renamed",
                "topic and sinks keep the rows that were captured under this name",
                'set on_drop = "truncate" in [[source]] and start the relay again, or '
                "take the name out of [source] tables",
            )
        for name, change in self.changed_keys.items():
            yield warning(
                f"{name}: the key changed {change}",
                "topic and sinks keep rows under the former key",
                "ask for a snapshot of the table with a sweep, or wait for the one "
                "that runs: towpath snapshot start --sweep",
            )
        for name, reason in self.unreadable.items():
            yield warning(
                f"{name}: snapshots cannot read it: {reason}",
                "rows from before its capture are in no topic and no sink",
                "change the table as the reason says, then run towpath snapshot start",
            )


def report(connection: Connection, settings: Settings) -> TableReport:
    """
    Look at all captured tables.

    Raises:
        SourceUnavailableError: The connection is gone.
    """
    listed = list_tables(connection, settings)
    takes = settings.capture.takes
    captured = [each.name for each in listed if each.is_published and takes(each.name)]
    with translated("looking at captured tables"):
        return TableReport(
            dropped=_dropped(connection, settings),
            unreadable=unreadable(connection, captured, settings.database.publication),
            changed_keys=_changed_keys(connection, settings),
        )


def unreadable(
    connection: Connection, names: Sequence[str], publication: str
) -> dict[str, str]:
    """
    Return why snapshots cannot read tables; those that they can read are left out.

    Raises:
        psycopg.Error: The connection is gone.
    """
    wanted = {**name_lists(names), "publication": publication}
    found = {}
    for row in connection.execute(query("read_unclear_tables"), wanted).fetchall():
        name = TableName(*row).text
        try:
            describe(connection, name, publication)
        except TableRefusedError as refused:
            found[name] = str(refused)
    return found


def _changed_keys(connection: Connection, settings: Settings) -> dict[str, str]:
    """Return the former key and the key of tables that no sweep has read since."""
    outdated = connection.execute(query("read_whether_captured_is_outdated")).fetchone()
    if outdated == (True,):
        return {}
    parameters = {"relay": settings.database.slot}
    rows = connection.execute(query("read_changed_keys"), parameters).fetchall()
    found = {}
    for schema, table, former, key, swept in rows:
        name = TableName(schema, table).text
        if name not in swept:
            found[name] = f"from {key_text(former)} to {key_text(key)}"
    return found


def _dropped(connection: Connection, settings: Settings) -> tuple[str, ...]:
    missing = connection.execute(query("read_whether_captured_is_missing")).fetchone()
    if missing == (True,):
        return ()
    parameters = {"relay": settings.database.slot}
    rows = connection.execute(query("read_dropped_tables"), parameters).fetchall()
    return tuple(TableName(*row).text for row in rows)

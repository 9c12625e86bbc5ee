"""
New tables, which are published and snapshotted while the relay is running.

Every few seconds the catalog is compared with ``[[source]] tables``. Each table that
should be captured but is not captured yet gets its own transaction::

    lock it against writers -> add it to the publication -> request its rows

The lock lasts until the commit, so every row is either visible to the snapshot or
streamed; without it, rows that an open transaction had already written would be
neither. The relay waits briefly for a writer, and retries after it has ended. A table
can be added to the publication only once, so it is filled once, however many relays
try. A table that was removed from the publication by hand and is captured again is
filled with a sweep, because changes were missed.

A table that cannot be captured is refused; the reason is logged once, and each later
check tries the table again. Postgres removes dropped tables from the publication.

Before tables are captured, the captured names are compared with the tables that they
had at the last check (``known_tables``), even if that was in an earlier process.
``on_drop`` decides whether the rows of a name without a table are kept. A name that
belongs to a different table is filled with a sweep, since topic and sinks have the rows
of the former one. A renamed captured table is filled under its new name.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import psycopg
import structlog

from towpath.relay.encode.captured_tables import CapturedTables, topic_findings
from towpath.relay.postgres.backfill import request_tables
from towpath.relay.postgres.capture_checks import blocking_finding
from towpath.relay.postgres.connect import Connection, quoted
from towpath.relay.postgres.known_tables import (
    CapturedNameChange,
    KnownTable,
    KnownTables,
    captured_name_changes,
    unreadable_tables,
)
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import (
    ListedTable,
    is_own,
    list_tables,
    read_source_facts,
)
from towpath.relay.snapshot.naming import Registration
from towpath.relay.stats import Stats
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_LOG = structlog.get_logger("towpath.relay.slot_monitor")

REFUSED: Final = "a table that should be captured cannot be captured"

# New tables are rarely urgent; reading the catalog of ten thousand tables takes
# a few milliseconds.
CHECK_INTERVAL_S: Final = 5.0

# How long writers may queue behind our lock request while it waits for a transaction.
_LOCK_TIMEOUT: Final = b"set local lock_timeout = '500ms'"
_MAX_ID: Final = 64
_HASH_CHARACTERS: Final = 32


class NewTables:
    """The slot monitor's task that captures new tables; created once per session."""

    def __init__(
        self,
        settings: Settings,
        captured: CapturedTables,
        stats: Stats,
        known: KnownTables,
        relay: Registration,
    ) -> None:
        self._relay = relay
        self.interval_s = min(CHECK_INTERVAL_S, settings.relay.heartbeat_interval_s)
        self._settings = settings
        self._captured = captured
        self._stats = stats
        self._refused: dict[str, str] = {}
        self._writers: dict[str, frozenset[str]] = {}
        self._store = known
        self._known: Mapping[str, KnownTable] = {}
        self._uncaptured: set[int] = set()

    def turn(self, connection: Connection) -> None:
        """
        Check once, and capture new tables.

        Raises:
            psycopg.Error, SourceUnavailableError: The connection is lost.
        """
        listed = list_tables(connection, self._settings)
        capture = self._settings.capture
        taken = [each for each in listed if capture.includes(each.name)]
        published = [each.name for each in taken if each.is_published]
        # The names are replaced before a signal is inserted, so that the loop finds its
        # table captured.
        self._captured.replace(capture.chosen(published))
        self._follow_names(connection, listed, taken)
        self._warn_of_uncaptured(listed)
        missing = [each for each in taken if not each.is_published]
        absent = set(capture.names).difference(each.name for each in listed)
        self._refused = {
            name: why
            for name, why in self._refused.items()
            if name in absent or any(each.name == name for each in missing)
        }
        if missing or absent:
            self._capture_all(connection, missing, sorted(absent))

    def _capture_all(
        self, connection: Connection, missing: list[ListedTable], absent: list[str]
    ) -> None:
        facts = read_source_facts(connection, self._settings)
        if self._settings.database.publication not in facts.publications:
            return
        for name in absent:
            self._refuse(name, "there is no such table yet")
        captured = self._captured
        wanted = (*captured.names, *(each.name for each in missing))
        collisions = topic_findings(self._settings, wanted, captured.announced)
        for table in missing:
            finding = blocking_finding(
                table.name, facts, self._settings
            ) or collisions.get(table.name)
            if finding is not None:
                self._refuse(table.name, str(finding))
            elif not self._is_blocked(connection, table):
                self._try(connection, table)

    def _is_blocked(self, connection: Connection, table: ListedTable) -> bool:
        """Return whether a transaction that blocked the capture is still open."""
        before = self._writers.pop(table.name, None)
        if before is None:
            return False
        remaining = before & _writers(connection, table)
        if remaining:
            self._writers[table.name] = remaining
        return bool(remaining)

    def _try(self, connection: Connection, table: ListedTable) -> None:
        try:
            is_captured = self._capture(connection, table)
        except psycopg.errors.LockNotAvailable:
            self._writers[table.name] = _writers(connection, table)
            self._refuse(table.name, "a transaction that wrote to it has not ended")
        except psycopg.errors.DuplicateObject:
            # Another process has just added it.
            self._refused.pop(table.name, None)
        except psycopg.Error as error:
            if connection.broken:
                raise
            reason = error.diag.message_primary or str(error).strip()
            self._refuse(table.name, reason)
        else:
            if is_captured:
                self._refused.pop(table.name, None)

    def _capture(self, connection: Connection, table: ListedTable) -> bool:
        """Add a table to the publication and request its rows, in one transaction."""
        name = TableName.parse(table.name)
        publication = quoted(self._settings.database.publication)
        signal_id = None
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            lock = f"lock table {name.sql} in share row exclusive mode"
            connection.execute(lock.encode())
            row = connection.execute(
                query("read_table_oid"), {"schema": name.schema, "table": name.table}
            ).fetchone()
            if row is None or row[0] != table.oid:
                return False
            add = f"alter publication {publication} add table only {name.sql}"
            connection.execute(add.encode())
            unread = self._unread_reason(connection, table)
            known = self._known.get(table.name)
            if self._fills:
                # The topic and its sinks have the rows of the name's former table.
                sweeps = known is not None
                signal_id = _request_rows(connection, table, self._relay, sweeps=sweeps)
            if unread is not None and known is not None and known.oid != table.oid:
                self._store.empty(connection, known, table)
            self._store.store(connection, [table.oid])
            # The names are replaced before the signal is streamed, so that it finds the
            # table captured.
            self._captured.replace((*self._captured.names, table.name))
        _LOG.info("table captured", table=table.name, signal_id=signal_id)
        if unread is not None:
            _LOG.warning(
                "table captured without its earlier rows",
                table=table.name,
                reason=unread,
            )
        return True

    def _unread_reason(self, connection: Connection, table: ListedTable) -> str | None:
        """Return why a table's existing rows are not read; None if they are."""
        if not self._fills:
            return "fill_new_tables is false in [relay.snapshot]"
        publication = self._settings.database.publication
        return unreadable_tables(connection, [table.name], publication).get(table.name)

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) == reason:
            return
        self._refused[name] = reason
        self._stats.skip(REFUSED)
        _LOG.warning("table not captured", table=name, reason=reason)

    @property
    def _fills(self) -> bool:
        return self._settings.relay.snapshot.fill_new_tables

    def _follow_names(
        self,
        connection: Connection,
        listed: list[ListedTable],
        taken: list[ListedTable],
    ) -> None:
        """Compare captured names with their former tables, and handle each change."""
        store, includes = self._store, self._settings.capture.includes
        known = self._known = store.read(connection)
        former = {each.oid for each in known.values()}
        added = [t for t in taken if t.is_published and t.name not in known]
        renamed = [t for t in added if t.oid in former and self._fills]
        for table in renamed:
            self._fill(connection, table)
        unread = [table.oid for table in added if table not in renamed]
        store.store(connection, [*unread, *store.outdated(known.values(), listed)])
        for each in known.values():
            if not includes(each.name):
                store.forget(connection, each)
        followed = [each for each in known.values() if includes(each.name)]
        on_drop = self._settings.database.on_drop
        found = captured_name_changes(followed, listed, store.lineage, on_drop)
        for change in found:
            self._handle(connection, change)
        now = store.read(connection) if found else known
        self._stats.dropped_tables = [n for n, each in now.items() if each.is_gone]

    def _handle(self, connection: Connection, change: CapturedNameChange) -> None:
        """Publish that a name lost its table; fill the table that has the name now."""
        now = change.now
        is_sent = now is not None and now.is_published
        with connection.transaction():
            self._store.publish(connection, change, is_filled=self._fills)
            if now is None or not is_sent:
                return
            if self._fills:
                signal_id = _request_rows(connection, now, self._relay, sweeps=True)
                _LOG.info("table filled again", table=now.name, signal_id=signal_id)
            self._store.store(connection, [now.oid])

    def _fill(self, connection: Connection, table: ListedTable) -> None:
        """Request the rows of a captured table under its new name."""
        with connection.transaction():
            signal_id = _request_rows(connection, table, self._relay)
            self._store.store(connection, [table.oid])
        _LOG.info(
            "table filled under its new name", table=table.name, signal_id=signal_id
        )

    def _warn_of_uncaptured(self, listed: list[ListedTable]) -> None:
        """Log each published table that is not captured, once."""
        capture = self._settings.capture
        for each in listed:
            is_ours = each.name in capture.reserved or is_own(each.name)
            if not each.is_published or is_ours or capture.includes(each.name):
                continue
            if each.oid not in self._uncaptured:
                self._uncaptured.add(each.oid)
                _LOG.warning(
                    "publication sends a table that is not captured",
                    table=each.name,
                    remedy="run towpath relay init, which removes it, or remove "
                    "its schema from the publication",
                )


def fill_id(table: ListedTable, times: int = 1, relay_suffix: str = "") -> str:
    """Return the id of the signal that fills a table for the n-th time."""
    suffix = f"-{table.oid}" if times == 1 else f"-{table.oid}-{times}"
    suffix += relay_suffix
    whole = f"towpath-new-{table.name}{suffix}"
    if len(whole) <= _MAX_ID:
        return whole
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"towpath-new-{digest}{suffix}"


def _request_rows(
    connection: Connection,
    table: ListedTable,
    relay: Registration,
    *,
    sweeps: bool = False,
) -> str:
    """
    Request a table's rows under an unused id; return the id.

    A table that was filled before is always swept, because changes were missed.
    """
    times = 1
    while is_id_used(connection, fill_id(table, times, relay.suffix)):
        times += 1
    signal_id = fill_id(table, times, relay.suffix)
    sweeps = sweeps or times > 1
    request_tables(
        connection, signal_id, [table.name], {}, relay=relay.name, sweeps=sweeps
    )
    return signal_id


def is_id_used(connection: Connection, signal_id: str) -> bool:
    """Return whether a signal or a snapshot has this id."""
    known = {"id": signal_id}
    signal = connection.execute(query("read_whether_signal_exists"), known).fetchone()
    stored = connection.execute(query("read_whether_snapshot_exists"), known).fetchone()
    return bool((signal and signal[0]) or (stored and stored[0]))


def _writers(connection: Connection, table: ListedTable) -> frozenset[str]:
    rows = connection.execute(query("read_writers"), {"oid": table.oid}).fetchall()
    return frozenset(who for (who,) in rows)

"""
Tables that are to be captured from now on are added to the publication, and filled.

Every few seconds the catalog is held against ``[[source]] tables``. Each table that
should be captured and is not yet gets a transaction of its own::

    lock it against writers -> add it to the publication -> ask for its rows

The lock is held until the commit, so every row is either visible to whoever reads the
table for the signal, or streamed: of a transaction that wrote before and after, the
first half would be neither. A writer is waited for only so long; then it is left alone
until it has ended. The publication takes a table once, so it is filled once, however
often this is tried and by however many. A table that was taken out of the publication
by hand and is captured again is filled again, with a sweep: changes were missed.

A table that cannot be captured is refused with the reason, told once, and looked at
again each time. Dropped tables leave the publication by themselves.

Before that, the captured names are compared with the tables that they had at the last
look (``known_tables``), also of an earlier process. A name without a table gets what
``on_drop`` says. A name that belongs to another table is filled with a sweep, since
topic and sinks have the rows of the former one. A captured table that has another
name by now is filled under that name.
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

_LOG = structlog.get_logger("towpath.relay.guardian")

REFUSED: Final = "a table that is to be captured cannot be"

# New tables are rarely waited for; the catalog of ten thousand takes some milliseconds.
LOOK_INTERVAL_S: Final = 5.0

# How long writers wait behind us while we wait for one that has not committed.
_LOCK_TIMEOUT: Final = b"set local lock_timeout = '500ms'"
_MAX_ID: Final = 64
_HASH_CHARACTERS: Final = 32


class NewTables:
    """Keeps publication and captured tables in step; one per attempt."""

    def __init__(
        self,
        settings: Settings,
        captured: CapturedTables,
        stats: Stats,
        known: KnownTables,
        relay: Registration,
    ) -> None:
        self._relay = relay
        self.interval_s = min(LOOK_INTERVAL_S, settings.relay.heartbeat_interval_s)
        self._settings = settings
        self._captured = captured
        self._stats = stats
        self._refused: dict[str, str] = {}
        self._writers: dict[str, frozenset[str]] = {}
        self._store = known
        self._known: Mapping[str, KnownTable] = {}
        self._foreign: set[int] = set()

    def turn(self, connection: Connection) -> None:
        """
        Look once, and capture what is new.

        Raises:
            psycopg.Error: The connection is gone.
            SourceUnavailableError: The same.
        """
        listed = list_tables(connection, self._settings)
        capture = self._settings.capture
        taken = [each for each in listed if capture.takes(each.name)]
        published = [each.name for each in taken if each.is_published]
        # Before a signal is left: the loop must find its table captured.
        self._captured.replace(capture.chosen(published))
        self._follow_names(connection, listed, taken)
        self._warn_of_foreign(listed)
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
        taken = topic_findings(self._settings, wanted, captured.announced)
        for table in missing:
            finding = blocking_finding(table.name, facts, self._settings) or taken.get(
                table.name
            )
            if finding is not None:
                self._refuse(table.name, str(finding))
            elif not self._is_written(connection, table):
                self._try(connection, table)

    def _is_written(self, connection: Connection, table: ListedTable) -> bool:
        """Tell whether a writer that was waited for in vain is still at it."""
        before = self._writers.pop(table.name, None)
        if before is None:
            return False
        still = before & _writers(connection, table)
        if still:
            self._writers[table.name] = still
        return bool(still)

    def _try(self, connection: Connection, table: ListedTable) -> None:
        try:
            is_captured = self._capture(connection, table)
        except psycopg.errors.LockNotAvailable:
            self._writers[table.name] = _writers(connection, table)
            self._refuse(table.name, "a transaction that wrote to it has not ended")
        except psycopg.errors.DuplicateObject:
            # Somebody else has just added it.
            self._refused.pop(table.name, None)
        except psycopg.Error as error:
            if connection.broken:
                raise
            told = error.diag.message_primary or str(error).strip()
            self._refuse(table.name, told)
        else:
            if is_captured:
                self._refused.pop(table.name, None)

    def _capture(self, connection: Connection, table: ListedTable) -> bool:
        """Add a table to the publication and ask for its rows, at once."""
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
            unread = self._why_unread(connection, table)
            known = self._known.get(table.name)
            if self._fills:
                # Whoever reads the topic has the rows that this name had before.
                sweeps = known is not None
                signal_id = _request_rows(connection, table, self._relay, sweeps=sweeps)
            if unread is not None and known is not None and known.oid != table.oid:
                self._store.empty(connection, known, table)
            self._store.store(connection, [table.oid])
            # Before the signal can come round: it must find the table captured.
            self._captured.replace((*self._captured.names, table.name))
        _LOG.info("table captured", table=table.name, signal_id=signal_id)
        if unread is not None:
            _LOG.warning(
                "table captured without its earlier rows",
                table=table.name,
                reason=unread,
            )
        return True

    def _why_unread(self, connection: Connection, table: ListedTable) -> str | None:
        """Return why the rows that a table has are not read; None: they are."""
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
        """Compare captured names with the tables that they had; act on each change."""
        store, takes = self._store, self._settings.capture.takes
        known = self._known = store.read(connection)
        former = {each.oid for each in known.values()}
        added = [t for t in taken if t.is_published and t.name not in known]
        renamed = [t for t in added if t.oid in former and self._fills]
        for table in renamed:
            self._fill(connection, table)
        unread = [table.oid for table in added if table not in renamed]
        store.store(connection, [*unread, *store.outdated(known.values(), listed)])
        for each in known.values():
            if not takes(each.name):
                store.forget(connection, each)
        followed = [each for each in known.values() if takes(each.name)]
        on_drop = self._settings.database.on_drop
        found = captured_name_changes(followed, listed, store.lineage, on_drop)
        for change in found:
            self._act(connection, change)
        now = store.read(connection) if found else known
        self._stats.dropped_tables = [n for n, each in now.items() if each.is_gone]

    def _act(self, connection: Connection, change: CapturedNameChange) -> None:
        """Publish what became of a name, and fill it if another table has it."""
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
        """Ask for the rows of a captured table that has another name by now."""
        with connection.transaction():
            signal_id = _request_rows(connection, table, self._relay)
            self._store.store(connection, [table.oid])
        _LOG.info("table filled by its new name", table=table.name, signal_id=signal_id)

    def _warn_of_foreign(self, listed: list[ListedTable]) -> None:
        """Log once each table that is sent and should not be."""
        capture = self._settings.capture
        for each in listed:
            is_ours = each.name in capture.apart or is_own(each.name)
            if not each.is_published or is_ours or capture.takes(each.name):
                continue
            if each.oid not in self._foreign:
                self._foreign.add(each.oid)
                _LOG.warning(
                    "publication sends a table that is not captured",
                    table=each.name,
                    remedy="run towpath relay init, which takes it out",
                )


def fill_id(table: ListedTable, times: int = 1, relay_suffix: str = "") -> str:
    """Return the id of the signal that fills a table captured so many times."""
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
    Ask for a table's rows, under an id that was not used; return it.

    A table that was filled before is swept in any case: changes were missed.
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
    """Tell whether a signal or a snapshot has an id."""
    known = {"id": signal_id}
    asked = connection.execute(query("read_whether_signal_exists"), known).fetchone()
    stored = connection.execute(query("read_whether_snapshot_exists"), known).fetchone()
    return bool((asked and asked[0]) or (stored and stored[0]))


def _writers(connection: Connection, table: ListedTable) -> frozenset[str]:
    rows = connection.execute(query("read_writers"), {"oid": table.oid}).fetchall()
    return frozenset(who for (who,) in rows)

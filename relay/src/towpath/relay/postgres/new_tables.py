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
"""

import hashlib
from typing import Final

import psycopg
import structlog

from towpath.relay.captured import CapturedTables
from towpath.relay.postgres.asking import ask
from towpath.relay.postgres.capturing import refusal
from towpath.relay.postgres.connect import Connection, quoted
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import (
    ListedTable,
    list_tables,
    read_facts,
)
from towpath.relay.tally import Tally
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
        self, settings: Settings, captured: CapturedTables, tally: Tally
    ) -> None:
        self.interval_s = min(LOOK_INTERVAL_S, settings.relay.heartbeat_interval_s)
        self._settings = settings
        self._captured = captured
        self._tally = tally
        self._refused: dict[str, str] = {}
        self._writers: dict[str, frozenset[str]] = {}
        self._names: dict[int, str] = {}
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
        self._tell_changes(listed)
        published = [each.name for each in taken if each.is_published]
        self._captured.replace(capture.chosen(published))
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
        facts = read_facts(connection, self._settings)
        if self._settings.database.publication not in facts.publications:
            return
        for name in absent:
            self._refuse(name, "there is no such table yet")
        for table in missing:
            finding = refusal(table.name, facts, self._settings)
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
        name = quoted(*table.name.split(".", 1))
        publication = quoted(self._settings.database.publication)
        signal_id = None
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            lock = f"lock table {name} in share row exclusive mode"
            connection.execute(lock.encode())
            row = connection.execute(
                query("read_table_oid"), {"name": table.name}
            ).fetchone()
            if row is None or row[0] != table.oid:
                return False
            add = f"alter publication {publication} add table only {name}"
            connection.execute(add.encode())
            if self._settings.relay.snapshot.fill_new_tables:
                signal_id = _ask(connection, table)
            # Before the signal can come round: it must find the table captured.
            self._captured.replace((*self._captured.names, table.name))
        self._names[table.oid] = table.name
        _LOG.info(
            "table captured",
            table=table.name,
            signal_id=signal_id,
        )
        return True

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) == reason:
            return
        self._refused[name] = reason
        self._tally.skip(REFUSED)
        _LOG.warning("a table is not captured", table=name, reason=reason)

    def _tell_changes(self, listed: list[ListedTable]) -> None:
        """Tell of captured tables that have another name, and of names that moved."""
        now = {each.oid: each for each in listed}
        by_name = {each.name: each.oid for each in listed}
        for oid, name in list(self._names.items()):
            other = by_name.get(name)
            if oid not in now:
                _LOG.warning("a captured table is gone", table=name, another=other)
                del self._names[oid]
            elif now[oid].name != name:
                _LOG.warning(
                    "a captured table was renamed",
                    table=name,
                    renamed=now[oid].name,
                    is_captured=self._settings.capture.takes(now[oid].name),
                    has_another=other is not None,
                    remedy="its changes have the topic of its new name from now on; "
                    "ask for a snapshot of it if that topic's readers need its rows",
                )
                del self._names[oid]
        self._note(listed)

    def _note(self, listed: list[ListedTable]) -> None:
        """Remember who is captured, and tell once of who is sent and should not be."""
        capture, apart = self._settings.capture, self._settings.capture.apart
        for each in listed:
            if not each.is_published or each.name in apart:
                continue
            if capture.takes(each.name):
                self._names[each.oid] = each.name
            elif each.oid not in self._foreign and not each.name.startswith("towpath."):
                self._foreign.add(each.oid)
                _LOG.warning(
                    "the publication sends a table that is not captured",
                    table=each.name,
                    remedy="run towpath relay init, which takes it out",
                )


def fill_id(table: ListedTable, times: int = 1) -> str:
    """Return the id of the signal that fills a table captured so many times."""
    suffix = f"-{table.oid}" if times == 1 else f"-{table.oid}-{times}"
    whole = f"towpath-new-{table.name}{suffix}"
    if len(whole) <= _MAX_ID:
        return whole
    digest = hashlib.sha256(table.name.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"towpath-new-{digest}{suffix}"


def _ask(connection: Connection, table: ListedTable) -> str:
    """Ask for a table's rows, under an id that was not used; return it."""
    times = 1
    while _is_used(connection, fill_id(table, times)):
        times += 1
    signal_id = fill_id(table, times)
    ask(connection, signal_id, [table.name], {}, sweeps=times > 1)
    return signal_id


def _is_used(connection: Connection, signal_id: str) -> bool:
    known = {"id": signal_id}
    asked = connection.execute(query("read_whether_signal_exists"), known).fetchone()
    stored = connection.execute(query("read_whether_snapshot_exists"), known).fetchone()
    return bool((asked and asked[0]) or (stored and stored[0]))


def _writers(connection: Connection, table: ListedTable) -> frozenset[str]:
    rows = connection.execute(query("read_writers"), {"oid": table.oid}).fetchall()
    return frozenset(who for (who,) in rows)

"""
The replication slot: its state, its creation, and its ownership by one relay.

One slot serves one relay, which holds the slot's advisory lock on a separate
connection. The server, too, admits only one reader at a time, but only while the slot
is being read. The lock is taken before anything is decided, and lasts until its
connection ends.
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import psycopg
import structlog

from towpath.relay.errors import NotPreparedError, SlotBusyError, SlotHeldError
from towpath.relay.ports import InterruptibleWait
from towpath.relay.postgres.catalog import session_text
from towpath.relay.postgres.connect import (
    Connection,
    connect,
    quoted,
    translated_errors,
)
from towpath.relay.postgres.queries import query
from towpath.relay.recovery.lineage import SlotHistory
from towpath.schemas.clock import Clock, Deadline
from towpath.settings import Source

# Slots that are synchronized to a standby exist from this version on.
_FAILOVER_VERSION: Final = 170000
_PLUGIN: Final = "pgoutput"

# Creating a slot waits for every running transaction: after this time the error names
# them.
SLOT_TIMEOUT: Final = b"set statement_timeout = '60s'"


def age_text(age_s: float | None) -> str:
    """Return an age as text; that of another role's session may be hidden."""
    if age_s is None:
        return "a time that is hidden from this role (grant pg_read_all_stats)"
    return f"{age_s:.0f} s"


def blocking_transactions(connection: Connection) -> list[str]:
    """Describe the transactions that block a slot's creation, the oldest first."""
    old = connection.execute(query("read_old_transactions")).fetchall()
    return [f"{who} ({application}, {age_text(age)})" for who, application, age in old]


def slot_statement(slot: str, version: int) -> str:
    """Return the statement that creates a slot, with failover from version 17 on."""
    failover = ", false, false, true" if version >= _FAILOVER_VERSION else ""
    return (
        "select pg_catalog.pg_create_logical_replication_slot"
        f"('{slot}', '{_PLUGIN}'{failover})"
    )


def exporting_command(slot: str, version: int) -> str:
    """Return the replication command that creates a slot with an exported snapshot."""
    failover = ", FAILOVER true" if version >= _FAILOVER_VERSION else ""
    return (
        f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL {_PLUGIN} "
        f"(SNAPSHOT 'export'{failover})"
    )


def require_publications(connection: Connection, source: Source) -> None:
    """
    Check that the publications exist; they must be created before the slot.

    Raises:
        NotPreparedError: A publication is missing.
        SourceUnavailableError: The connection is lost.
    """
    for name in (source.publication, source.outbox_publication):
        with translated_errors("reading the publications"):
            found = connection.execute(query("read_publication"), {"publication": name})
            exists = found.fetchone() is not None
        if not exists:
            reason = f"publication {name} is missing: it must exist before the slot"
            raise NotPreparedError(reason)


def read_slot(connection: Connection, name: str) -> SlotHistory | None:
    """
    Return the state of the named slot; None if there is none.

    Raises:
        SlotBusyError: The slot is still being created.
    """
    row = connection.execute(query("read_slot_details"), {"slot": name}).fetchone()
    if row is None:
        return None
    database, plugin, is_temporary, confirmed_lsn, status, pid, why, read, here = row
    kind = _kind(database, plugin, here, is_temporary=is_temporary)
    if confirmed_lsn is None and not kind:
        # The slot vanishes again if its creation fails.
        reason = f"slot {name} is still being created by process {pid} of the server"
        raise SlotBusyError(reason)
    return SlotHistory(
        confirmed_lsn=confirmed_lsn or 0,
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
    """Describe a slot that this relay cannot use; empty if it can."""
    if database is None:
        return "a physical one"
    if database != here:
        return f"a slot of database {database}"
    if plugin != _PLUGIN:
        return f"a slot of plugin {plugin}"
    return "a temporary one" if is_temporary else ""


_LOG = structlog.get_logger("towpath.relay")

_RETRY_S: Final = 0.5


# The server ends the session of a lost host within about 11 s; otherwise a standby
# would wait for hours.
_LOST_HOST_TIMEOUTS: Final = (
    b"set tcp_keepalives_idle = '5s'; set tcp_keepalives_interval = '2s';"
    b" set tcp_keepalives_count = 3; set tcp_user_timeout = '11s'"
)


class ClaimWait(NamedTuple):
    """
    The bounds of the wait for a slot that another process holds.

    A standby waits without a limit: its ``timeout_s`` is infinite.
    """

    clock: Clock
    sleeper: InterruptibleWait
    timeout_s: float
    is_stopping: Callable[[], bool]


def lock_key(slot: str) -> int:
    """Return the key of a slot's advisory lock."""
    digest = hashlib.sha256(f"towpath slot {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def wait_for_slot(
    slot: str,
    attempt: Callable[[], bool],
    holder: Callable[[], str],
    wait: ClaimWait,
) -> None:
    """
    Retry an attempt until it succeeds or the wait ends.

    Args:
        slot: The slot's name.
        attempt: Returns whether it succeeded; may raise ``SlotBusyError``.
        holder: Describes the process that has the slot.
        wait: The bounds of the wait.

    Raises:
        SlotHeldError: Another process did not release it in time.
        SlotBusyError: Another process has it, and this one is stopping.
        SourceUnavailableError: The connection is lost.
    """
    deadline = Deadline(wait.clock, wait.timeout_s)
    is_logged = False
    while True:
        with suppress(SlotBusyError):
            if attempt():
                if is_logged:
                    _LOG.info("slot taken over", slot=slot)
                return
        reason = f"slot {slot} is held by {(who := holder())}"
        if wait.is_stopping():
            raise SlotBusyError(reason)
        if not is_logged:
            _log_wait(slot, who, wait)
            is_logged = True
        if deadline.passed():
            raise SlotHeldError(reason)
        wait.sleeper.wait(min(_RETRY_S, deadline.remaining_s()))


def _log_wait(slot: str, holder: str, wait: ClaimWait) -> None:
    if math.isinf(wait.timeout_s):
        _LOG.info("slot held by another process: standby", slot=slot, holder=holder)
        return
    _LOG.warning("slot held by another process: waiting", slot=slot, holder=holder)


class SlotOwnership:
    """The claim of one process on one slot."""

    def __init__(self, dsn: str, slot: str) -> None:
        """
        Connect; the slot is not claimed yet.

        Raises:
            SourceUnavailableError: The server cannot be reached.
            SourceRefusedError: The server refuses the login.
        """
        self._slot = slot
        self._key = lock_key(slot)
        self._connection: Connection = connect(dsn)
        with translated_errors("preparing the claim on the slot"):
            self._connection.execute(_LOST_HOST_TIMEOUTS)

    def acquire(
        self,
        clock: Clock,
        sleeper: InterruptibleWait,
        timeout_s: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        """
        Claim the slot; wait at most ``timeout_s`` for another process.

        Raises:
            SlotHeldError: Another process did not release it in time.
            SlotBusyError: Another process has it, and this one is stopping.
            SourceUnavailableError: The connection is lost.
        """
        wait = ClaimWait(clock, sleeper, timeout_s, is_stopping)
        wait_for_slot(self._slot, self._claim, self.holder, wait)

    def holder(self) -> str:
        """
        Return a readable description of the process that holds the claim.

        Raises:
            SourceUnavailableError: The connection is lost.
        """
        with translated_errors("reading the holder of the slot"):
            execute = self._connection.execute
            row = execute(query("read_claim"), {"key": self._key}).fetchone()
        return "a process that has just ended" if row is None else session_text(*row)

    def check(self) -> None:
        """
        Check that the claim still holds: it lasts as long as its connection.

        Raises:
            SourceUnavailableError: The connection is lost, and the claim with it.
        """
        with translated_errors("keeping the claim on the slot"):
            self._connection.execute(b"select 1")

    def close(self) -> None:
        """Release the claim. Never raises."""
        with suppress(psycopg.Error):
            self._connection.close()

    def _claim(self) -> bool:
        with translated_errors("claiming the slot"):
            execute = self._connection.execute
            row = execute(query("claim"), {"key": self._key}).fetchone()
        return row is not None and bool(row[0])

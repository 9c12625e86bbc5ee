"""
The slot and the end of the log, read from the source's database.

The connection stays open: each query is one round trip that reads shared memory.
"""

from typing import Final, LiteralString, NamedTuple

import psycopg

from towpath.schemas.failure import first_line
from towpath.sinks.errors import SourceUnavailableError
from towpath.sinks.postgres import connected

_SLOT: Final[LiteralString] = """
    select (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, active,
        (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint
    from pg_replication_slots
    where slot_name = %s and database = current_database()
"""
# The message is transactional, so its commit flushes the log up to here.
_NUDGE: Final[LiteralString] = (
    "select pg_logical_emit_message(true, 'towpath.wait', '')"
)


class SlotStatus(NamedTuple):
    """
    The state of the slot.

    Attributes:
        confirmed_lsn: Every transaction that ended below it is in Kafka.
        is_active: Whether a relay is consuming the slot.
        log_end_lsn: The end of the log, including parts that are not flushed yet.
    """

    confirmed_lsn: int
    is_active: bool
    log_end_lsn: int


class PostgresSlot:
    """One slot, queried through one connection."""

    def __init__(self, dsn: str, slot: str) -> None:
        """
        Connect.

        Raises:
            SourceUnavailableError: The database does not answer.
        """
        self._slot = slot
        try:
            self._connection = connected(dsn)
        except psycopg.Error as error:
            raise _unavailable(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def status(self) -> SlotStatus | None:
        """
        Return the current state; ``None`` if the slot does not exist.

        Raises:
            SourceUnavailableError: The database does not answer.
        """
        try:
            row = self._connection.execute(_SLOT, (self._slot,)).fetchone()
        except psycopg.Error as error:
            raise _unavailable(error) from error
        return None if row is None else SlotStatus(row[0] or 0, row[1], row[2])

    def nudge(self) -> None:
        """
        Write a small message to the log, if the user has the privilege.

        Raises:
            SourceUnavailableError: The database does not answer.
        """
        try:
            self._connection.execute(_NUDGE)
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.ReadOnlySqlTransaction,
        ):
            # The next commit, or the relay's heartbeat, has the same effect.
            return
        except psycopg.Error as error:
            raise _unavailable(error) from error


def _unavailable(error: psycopg.Error) -> SourceUnavailableError:
    message = f"the source's database does not answer: {first_line(error)}"
    return SourceUnavailableError(message)

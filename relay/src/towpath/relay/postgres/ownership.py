"""
One slot serves one relay: an advisory lock per slot, on a connection of its own.

The slot itself admits one reader too, but only while it is read; the lock is taken
before anything is decided, and lasts from then until the connection ends.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import psycopg
import structlog

from towpath.relay.errors import SlotBusyError, SlotHeldError
from towpath.relay.postgres.catalog import described
from towpath.relay.postgres.connect import Connection, connect, translated
from towpath.relay.postgres.queries import query
from towpath.schemas.clock import Clock, Deadline

_LOG = structlog.get_logger("towpath.relay")

_RETRY_S: Final = 0.5


class Sleeper(Protocol):
    """Something to wait on that can be woken."""

    def wait(self, timeout_s: float) -> None:
        """Wait until woken, or the time is over."""


class Patience(NamedTuple):
    """How long whoever holds a slot is waited for, and what ends the wait."""

    clock: Clock
    sleeper: Sleeper
    timeout_s: float
    is_stopping: Callable[[], bool]


def lock_key(slot: str) -> int:
    """Return the number that stands for a slot among advisory locks."""
    digest = hashlib.sha256(f"towpath slot {slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def wait_for_slot(
    slot: str,
    attempt: Callable[[], bool],
    holder: Callable[[], str],
    patience: Patience,
) -> None:
    """
    Try until it succeeds; whoever has the slot is waited for, but not for ever.

    Args:
        slot: Its name.
        attempt: Tells whether it succeeded; a slot that is busy may also raise.
        holder: Describes who has it, for people.
        patience: How long to wait.

    Raises:
        SlotHeldError: Another process keeps it.
        SlotBusyError: Another process has it, and this one is to stop.
        SourceUnavailableError: The connection is gone.
    """
    deadline = Deadline(patience.clock, patience.timeout_s)
    is_told = False
    while True:
        with suppress(SlotBusyError):
            if attempt():
                return
        reason = f"slot {slot} is held by {(who := holder())}"
        if patience.is_stopping():
            raise SlotBusyError(reason)
        if not is_told:
            _LOG.warning("waiting for the slot", slot=slot, holder=who)
            is_told = True
        if deadline.passed():
            raise SlotHeldError(reason)
        patience.sleeper.wait(min(_RETRY_S, deadline.remaining_s()))


class Ownership:
    """The claim of one process on one slot."""

    def __init__(self, dsn: str, slot: str) -> None:
        """
        Connect; the claim is not made yet.

        Raises:
            SourceUnavailableError: The server cannot be reached.
            SourceRefusedError: The server refuses the login.
        """
        self._slot = slot
        self._key = lock_key(slot)
        self._connection: Connection = connect(dsn)

    def acquire(
        self,
        clock: Clock,
        sleeper: Sleeper,
        timeout_s: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        """
        Make the claim; whoever has it is waited for, but not for ever.

        Raises:
            SlotHeldError: Another process keeps it.
            SlotBusyError: Another process has it, and this one is to stop.
            SourceUnavailableError: The connection is gone.
        """
        patience = Patience(clock, sleeper, timeout_s, is_stopping)
        wait_for_slot(self._slot, self._claim, self.holder, patience)

    def holder(self) -> str:
        """
        Describe who has the claim, for people.

        Raises:
            SourceUnavailableError: The connection is gone.
        """
        with translated("reading who holds the slot"):
            row = self._connection.execute(
                query("read_claim"), {"key": self._key}
            ).fetchone()
        if row is None:
            return "nobody, by now"
        return described(*row)

    def check(self) -> None:
        """
        Make sure that the claim stands: it does as long as its connection.

        Raises:
            SourceUnavailableError: The connection is gone, and the claim with it.
        """
        with translated("keeping the claim on the slot"):
            self._connection.execute(b"select 1")

    def close(self) -> None:
        """Give the claim up. Never raises."""
        with suppress(psycopg.Error):
            self._connection.close()

    def _claim(self) -> bool:
        with translated("claiming the slot"):
            row = self._connection.execute(
                query("claim"), {"key": self._key}
            ).fetchone()
        return row is not None and bool(row[0])

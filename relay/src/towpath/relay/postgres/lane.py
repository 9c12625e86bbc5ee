"""A thread that does one thing after another over a connection of its own."""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

import psycopg

from towpath.relay.postgres.connect import Connection

EffectT = TypeVar("EffectT")
# What is to be done; each None ends one lane.
Effects = SimpleQueue[EffectT | None]


class Lane(Generic[EffectT]):
    """
    Performs effects in the order in which they were submitted.

    Lanes may share their effects: each takes the next one when it is free. An error
    that ``perform`` lets out is told to ``fail`` and ends the lane.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        perform: Callable[[EffectT, "Lane[EffectT]"], None],
        fail: Callable[[BaseException], None],
        effects: Effects[EffectT] | None = None,
    ) -> None:
        self._connect = connect
        self._perform = perform
        self._fail = fail
        self._connection: Connection | None = None
        self._effects: Effects[EffectT] = SimpleQueue() if effects is None else effects
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, effect: EffectT) -> None:
        """Put an effect behind those that wait."""
        self._effects.put(effect)

    def connection(self) -> Connection:
        """
        Return the lane's connection; it is made if there is none. In the thread only.

        Raises:
            TowpathError: It cannot be made.
        """
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    @property
    def server_pid(self) -> int | None:
        """The server's process behind the lane's connection; None: there is none."""
        connection = self._connection
        return None if connection is None else connection.info.backend_pid

    def mend(self) -> None:
        """Give up a connection that an error has left in any other state than idle."""
        connection = self._connection
        idle = psycopg.pq.TransactionStatus.IDLE
        if connection is not None and connection.info.transaction_status != idle:
            self._connection = None
            with suppress(psycopg.Error):
                connection.close()

    def end(self, timeout_s: float, *, is_urgent: bool) -> None:
        """
        Let the lane, or one of those that share effects, end after them. Never raises.

        Args:
            timeout_s: How long to try to cancel.
            is_urgent: Cancel what is running.
        """
        self._effects.put(None)
        connection = self._connection
        if is_urgent and connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=timeout_s)

    def close(self, timeout_s: float, *, is_urgent: bool) -> None:
        """End the lane after what was submitted, and wait for that. Never raises."""
        self.end(timeout_s, is_urgent=is_urgent)
        self.join(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until the lane has ended, but not longer than that."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (effect := self._effects.get()) is not None:
                self._perform(effect, self)
        except Exception as error:  # noqa: BLE001 - the loop gets it
            self._fail(error)
        finally:
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.close()

"""
Wait for a client's writes: until the sinks that serve a read have applied an LSN.

A waiter keeps its connections and is used by one thread at a time. A waiter whose wait
has ended is reused; a new one is created only if all others are in use.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.services.plumbing.http import (
    HEADER,
    FieldError,
    MalformedError,
    ProblemError,
)


class CannotWaitError(ProblemError):
    """The read has an LSN, but the storefront was started without a configuration."""

    status = HTTPStatus.NOT_IMPLEMENTED
    slug = "cannot-wait"
    remedy = "Leave the header out, or start the storefront with --config."


class LsnWaiter(Protocol):
    """Waits for sinks; used by one thread at a time."""

    def wait_for(self, lsn: str, sink: str, timeout_s: float) -> object:
        """
        Return once the sink has applied every commit that ended at or before the LSN.

        Raises:
            MalformedError: The LSN is outside the history that the relay follows.
            UnavailableError: The LSN is not applied in time, or the database or the
                broker does not answer.
        """

    def close(self) -> None:
        """Close the connections."""


class SinkWaits:
    """Waits until the sinks that serve a read have applied an LSN."""

    def __init__(
        self,
        make: Callable[[], LsnWaiter],
        sinks: Mapping[str, str],
        clock: Clock,
        timeout_s: float,
    ) -> None:
        """
        Store the parameters; no connection is opened.

        Args:
            make: Creates a waiter; each concurrent wait has its own.
            sinks: The name of the sink of each kind, ``search`` and ``cache``.
            clock: Measures the waits.
            timeout_s: The longest wait of a read, for all of its sinks.
        """
        self._make = make
        self._sinks = sinks
        self._clock = clock
        self._timeout_s = timeout_s
        self._idle: list[LsnWaiter] = []

    def until_applied(self, lsn: str, kinds: Sequence[str]) -> dict[str, int]:
        """
        Return once the sinks of all these kinds have applied the LSN.

        Returns:
            The milliseconds since the start of the wait, for each kind.

        Raises:
            MalformedError: The LSN is outside the history that the relay follows.
            UnavailableError: The LSN is not applied in time, or the database or the
                broker does not answer.
        """
        began_s = self._clock.monotonic_s()
        deadline = Deadline(self._clock, self._timeout_s)
        waited_ms = {}
        with self._waiter() as waiter:
            for kind in kinds:
                waiter.wait_for(lsn, self._sinks[kind], deadline.remaining_s())
                waited_ms[kind] = round(1000 * (self._clock.monotonic_s() - began_s))
        return waited_ms

    def close(self) -> None:
        """Close the connections of idle waiters."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _waiter(self) -> Iterator[LsnWaiter]:
        try:
            # ``list.pop`` is atomic: no two threads get the same waiter.
            waiter = self._idle.pop()
        except IndexError:
            waiter = self._make()
        try:
            yield waiter
        finally:
            self._idle.append(waiter)


def malformed_lsn(reason: str) -> MalformedError:
    """Return the error for a header that is not an LSN of the source."""
    detail = f"The header {HEADER} cannot be used: {reason}."
    return MalformedError(detail, [FieldError(HEADER, reason)])

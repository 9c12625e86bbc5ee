"""Consecutive sessions: which failures are retried, and after which delay."""

from datetime import UTC, datetime

import pytest

from towpath.relay.errors import MalformedMessageError, SourceUnavailableError
from towpath.relay.session import SessionLoop
from towpath.schemas.clock import Backoff


class Clock:
    """Time that moves when it is waited on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        self.now_s += timeout_s


class Script:
    """Fails as often as the test says, then returns."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)


def run(script: Script, clock: Clock, stops_after: int = 100) -> None:
    """Run a script's sessions with a back-off of one, two, four seconds."""
    attempts = SessionLoop(
        clock,
        clock,
        lambda: script.calls >= stops_after,
        Backoff(first_s=1.0, ceiling_s=4.0),
    )
    attempts.run(script)


def test_transient_failures_are_retried_with_growing_delays():
    """
    Each failure waits longer than the one before, up to the ceiling.
    """
    clock = Clock()
    script = Script(*[SourceUnavailableError("away")] * 4)
    run(script, clock)

    assert (5, True, True) == (
        script.calls,
        clock.waits[0] <= 2.0,
        2.0 <= clock.waits[-1] <= 4.0,
    )


def test_a_halting_failure_ends_the_retries():
    """
    A failure that halts is raised at once.
    """
    script = Script(MalformedMessageError("strange"))
    with pytest.raises(MalformedMessageError):
        run(script, Clock())

    assert 1 == script.calls


def test_an_unexpected_exception_is_not_retried():
    """
    An exception outside our error tree is raised at once.
    """
    script = Script(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(script, Clock())

    assert 1 == script.calls


def test_a_stop_ends_the_back_off():
    """
    After a stop, no further session is tried.
    """
    clock = Clock()
    script = Script(*[SourceUnavailableError("away")] * 4)
    run(script, clock, stops_after=1)

    assert (1, []) == (script.calls, clock.waits)

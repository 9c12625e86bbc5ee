"""Consecutive sessions: the failures that are retried, and the delays."""

from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from towpath.relay.errors import (
    MalformedMessageError,
    SlotHeldError,
    SourceUnavailableError,
)
from towpath.relay.postgres.slot import ClaimWait, wait_for_slot
from towpath.relay.session import SessionLoop, longest_wait_s
from towpath.schemas.clock import Backoff
from towpath.settings import Kafka, Relay, Settings, Source


class Clock:
    """A clock that advances only in ``wait``."""

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


class ScriptedSession:
    """A session that fails with each of the given errors, then returns."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)


def run(session: ScriptedSession, clock: Clock, stops_after: int = 100) -> None:
    """Run a scripted session with a back-off of one, two, four seconds."""
    sessions = SessionLoop(
        clock,
        clock,
        lambda: session.calls >= stops_after,
        Backoff(first_s=1.0, ceiling_s=4.0),
    )
    sessions.run(session)


def test_transient_failures_are_retried_with_growing_delays():
    """
    The wait after each failure is longer than the previous one, up to the ceiling.
    """
    clock = Clock()
    session = ScriptedSession(*[SourceUnavailableError("down")] * 4)
    run(session, clock)

    assert (5, True, True) == (
        session.calls,
        clock.waits[0] <= 2.0,
        2.0 <= clock.waits[-1] <= 4.0,
    )


def test_a_halting_failure_ends_the_retries():
    """
    A failure that halts the relay is raised at once.
    """
    session = ScriptedSession(MalformedMessageError("malformed"))
    with pytest.raises(MalformedMessageError):
        run(session, Clock())

    assert 1 == session.calls


def test_an_unexpected_exception_is_not_retried():
    """
    An exception outside the relay's error tree is raised at once.
    """
    session = ScriptedSession(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(session, Clock())

    assert 1 == session.calls


def test_a_stop_ends_the_back_off():
    """
    After a stop, no new session is tried.
    """
    clock = Clock()
    session = ScriptedSession(*[SourceUnavailableError("down")] * 4)
    run(session, clock, stops_after=1)

    assert (1, []) == (session.calls, clock.waits)


DAY_S = 86_400.0


def wait_a_day(**relay: object) -> list[tuple[str, str]]:
    """Wait for a slot that becomes free after a day; return the log records' texts."""
    settings = Settings(
        version=1,
        source=(Source(dsn="postgresql://unused"),),
        kafka=Kafka(bootstrap_servers="x"),
        relay=Relay.model_validate(relay),
    )
    clock = Clock()
    wait = ClaimWait(clock, clock, longest_wait_s(settings), lambda: False)
    with capture_logs() as logs:
        wait_for_slot(
            "towpath", lambda: clock.now_s >= DAY_S, lambda: "process 7", wait
        )
    return [(record["event"], record["log_level"]) for record in logs]


def test_a_standby_waits_indefinitely_and_takes_over():
    """
    It logs the wait once, not as a fault, and then the takeover.
    """
    assert [
        ("slot held by another process: standby", "info"),
        ("slot taken over", "info"),
    ] == wait_a_day(standby=True)


def test_a_relay_that_is_not_a_standby_stops_waiting():
    """
    Its service manager gets the reason.
    """
    with pytest.raises(SlotHeldError, match="process 7"):
        wait_a_day()

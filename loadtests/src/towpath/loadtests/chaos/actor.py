"""
Actors: threads that take random steps, each in its own session.

An actor's random choices in a step depend only on the seed, its own name and the
step's number, never on what earlier steps read or on whether the server refused them,
so that a seed repeats the choices of each actor. Steps that the server refuses (a lock
timeout, a deadlock, a dropped column) are counted and not retried.
"""

import contextlib
import threading
from collections import Counter
from random import Random
from typing import Final, Self

import psycopg

from towpath.loadtests.chaos.context import ChaosEnvironment
from towpath.loadtests.chaos.tables import Session
from towpath.loadtests.errors import ChaosError

_JOIN_WITHIN_S: Final = 30.0
_RETRY_AFTER_S: Final = 0.1
REFUSED: Final = "refused"
_SESSION: Final = "set lock_timeout = '500ms'; set statement_timeout = '20s'"
# The commit waits for a standby that does not exist, so it is in the log, but
# invisible.
_WAITING: Final = "set synchronous_commit = on"
_NOT_WAITING: Final = "set synchronous_commit = local"


class Actor:
    """Takes one step after another until it is stopped."""

    def __init__(
        self, environment: ChaosEnvironment, name: str, seed: str, pause_s: float
    ) -> None:
        """
        Create an actor; ``with`` starts and stops it.

        Args:
            environment: The environment of the run.
            name: The thread's name, and a part of the seed.
            seed: The seed.
            pause_s: The longest pause between two steps.
        """
        self.counts: Counter[str] = Counter()
        self._seed = f"{seed}.{name}"
        self.random = Random(self._seed)
        self.environment = environment
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(_JOIN_WITHIN_S)

    def stop(self) -> None:
        """
        Stop after the current step.

        Raises:
            ChaosError: The actor failed, or does not stop.
        """
        self._stopping.set()
        self._thread.join(_JOIN_WITHIN_S)
        self.check()
        if self._thread.is_alive():
            message = f"{self._thread.name} does not stop"
            raise ChaosError(message)

    def check(self) -> None:
        """
        Raise the failure that ended the thread, if there is one.

        Raises:
            ChaosError: The actor failed.
        """
        if self._failure is not None:
            message = f"{self._thread.name} failed: {self._failure!r}"
            raise ChaosError(message) from self._failure

    def rest(self, longest_s: float) -> None:
        """Pause for a random time, unless stopped."""
        self._stopping.wait(self.random.uniform(0, longest_s))

    def step(self, session: Session) -> None:
        """Take one step."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            with connect(self.environment.dsn) as session:
                number = 0
                while not self._stopping.is_set():
                    self.random.seed(f"{self._seed}.{number}")
                    self._try(session)
                    self.rest(self._pause_s)
                    number += 1
        except BaseException as error:  # noqa: BLE001 - raised by check
            self._failure = error

    def _try(self, session: Session) -> None:
        try:
            self.step(session)
        except psycopg.Error as error:
            if session.closed:
                raise
            self.counts[REFUSED] += 1
            self.counts[f"{REFUSED} {error.sqlstate}"] += 1


def connect(dsn: str) -> Session:
    """Open a session with time limits, whose commits do not wait for a standby."""
    # Prepared statements would fail once their table is altered.
    session = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    session.execute(_SESSION)
    session.execute(_NOT_WAITING)
    return session


class LateCommit:
    """
    A block whose commits are in the log but stay invisible for a while.

    Canceling a commit that waits for a standby makes it visible. A statement that is
    canceled before the commit fails, so nothing in the block may take long.
    """

    def __init__(self, session: Session, delay_s: float) -> None:
        self._session = session
        self._delay_s = delay_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._release, daemon=True)

    def __enter__(self) -> None:
        self._session.execute(_WAITING)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        # A cancellation that came too late for the commit may hit this statement.
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            self._session.execute("select 1")
        self._session.execute(_NOT_WAITING)

    def _release(self) -> None:
        delay_s = self._delay_s
        while not self._is_over.wait(delay_s):
            # A cancellation that fails, for example on a busy machine, is sent again.
            with contextlib.suppress(psycopg.Error):
                self._session.cancel_safe(timeout=5)
            delay_s = _RETRY_AFTER_S

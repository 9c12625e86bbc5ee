"""
Applies, parks and replays events, each in its own transaction.

An observer receives the outcome of each event, for the application's metrics.
"""

import asyncio
import contextvars
import enum
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final

from towpath.inbox.event import UNREADABLE, Event
from towpath.inbox.inbox import Admission, Inbox
from towpath.schemas.failure import UnavailableError
from towpath.schemas.transactions import Result, Statement, Steps, drive, drive_async

# The SQLSTATEs of a session that ends, or cannot begin, because the server is shutting
# down, has crashed or is starting.
_SERVER_ENDED: Final = frozenset({"57P01", "57P02", "57P03"})
# Also the SQLSTATE of a single session that an administrator or a watchdog ends.
_BY_COMMAND: Final = "57P01"

Begin = Callable[[], AbstractContextManager[Any]]
BeginAsync = Callable[[], AbstractAsyncContextManager[Any]]


class EffectError(Exception):
    """The effect of an event failed; the reason names the cause."""

    def __init__(self, event: Event, cause: Exception) -> None:
        super().__init__(reason_of(cause))
        self.event = event


class HandlerError(EffectError):
    """The handler or the commit of its effect failed."""


class UnavailableEffectError(EffectError):
    """A dependency of an event's effect is down."""


class _SessionEndedError(UnavailableEffectError):
    """A command ended this session alone, or the whole server."""


def check_headers(event: Event) -> None:
    """
    Check that the headers of an event could be read.

    Raises:
        HandlerError: The client could not read them; the event is parked, and stays
            parked after a replay.
    """
    if UNREADABLE in event.headers:
        raise HandlerError(event, ValueError("the name of a header is not UTF-8"))


class Observer:
    """
    Receives reports from a consumer; each method does nothing unless overridden.

    A consumer calls the methods between two polls, after the transaction that they
    report on. There are two exceptions: ``handled`` is called in the transaction, and
    ``lag`` with None during a poll or while the consumer leaves the group.
    No method may block. An error that a method raises is logged and has no other
    effect.
    """

    def handled(self, event: Event, duration_s: float) -> None:
        """The handler was called, and returned or failed after this time."""

    def applied(self, event: Event) -> None:
        """The effect of a new or a replayed event is committed."""

    def skipped(self, event: Event) -> None:
        """An event was delivered again, and changed nothing."""

    def retried(self, event: Event, reason: str) -> None:
        """An event failed and will be retried later; or a replay failed."""

    def parked(self, event: Event, reason: str) -> None:
        """An event was parked because it failed, or behind another event of its key."""

    def parked_events(self, count: int) -> None:
        """This many events of the consumer are parked now, across all its processes."""

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        """
        This many records of a partition have not been handled yet.

        ``None`` means that this process no longer reads the partition.
        """


class Outcome(enum.Enum):
    """The result of a delivery: the event was applied, skipped or parked."""

    APPLIED = enum.auto()
    SKIPPED = enum.auto()
    PARKED = enum.auto()


class Effects:
    """Applies and parks events, each in its own transaction."""

    # The server's start time, as read when a session was last ended.
    _started_at: str | None = None

    def __init__(
        self, inbox: Inbox, begin: Begin, handle: Callable[[Event, Any], object]
    ) -> None:
        self._inbox = inbox
        self._begin = begin
        self._handle = handle

    def apply(self, event: Event) -> Outcome:
        """
        Apply an event unless it was handled; park it if its key has parked events.

        Raises:
            HandlerError: The handler or the commit failed.
            Exception: The database failed, or another dependency is down.
        """
        while (admission := self._carry_out(self._inbox.admit(event))) is None:
            is_parked = self._run(self._inbox.park_behind(event))
            if is_parked is not None:
                return Outcome.PARKED if is_parked else Outcome.SKIPPED
            # The key was replayed in the meantime: begin again.
        return Outcome.SKIPPED if admission.event is None else Outcome.APPLIED

    def park(self, event: Event, reason: str) -> bool:
        """Park an event unless it was handled; return whether it was parked."""
        return self._run(self._inbox.park(event, reason))

    def replay_next(self) -> Admission | None:
        """
        Replay the first event of a requested key; None if there is none.

        If a dependency of its effect is down, the replay of its key is postponed.

        Raises:
            HandlerError: The handler or the commit failed.
            Exception: The database failed, or another dependency is down.
        """
        try:
            return self._carry_out(self._inbox.admit_requested())
        except UnavailableEffectError as error:
            self._run(self._inbox.postpone(error.event))
            raise

    def keep_parked(self, event: Event, reason: str) -> None:
        """Store the reason why a replay failed."""
        self._run(self._inbox.fail(event, reason))

    def count_parked(self) -> int:
        """Return how many events are parked."""
        return self._run(self._inbox.count_parked())

    def prune(self, below: Mapping[tuple[str, int], int]) -> int:
        """Delete the ids below the given offsets; return how many."""
        return self._run(self._inbox.delete_below(below))

    def _run(self, steps: Steps[Result]) -> Result:
        """Run steps in a transaction, and return their result."""
        with self._begin() as session:
            return drive(session, steps)

    def _carry_out(self, steps: Steps[Admission | None]) -> Admission | None:
        """
        Run steps and, in the same transaction, the handler of the admitted event.

        If a session is ended while its server keeps running, the event has failed: a
        watchdog may end the session of a handler that runs for too long each time.
        """
        try:
            return self._attempt(steps)
        except _SessionEndedError as error:
            if self._is_same_server():
                raise HandlerError(error.event, error) from error
            raise

    def _is_same_server(self) -> bool:
        """
        Return whether the server is the one that the previous call found.

        The first call returns False, and so does a call that gets no answer.
        """
        before = self._started_at
        try:
            self._started_at = self._run(_read_start())
        except Exception:  # noqa: BLE001 - the driver's own
            return False
        return self._started_at == before

    def _attempt(self, steps: Steps[Admission | None]) -> Admission | None:
        """Run steps and the handler in a transaction; classify a failure."""
        admission = None
        try:
            with self._begin() as session:
                admission = drive(session, steps)
                if admission is not None and admission.event is not None:
                    check_headers(admission.event)
                    self._handle(admission.event, session)
        except Exception as error:
            raise _cause(error, admission) from error
        return admission


class AsyncEffects(Effects):
    """Effects with asynchronous sessions; their work runs in the event loop."""

    def __init__(
        self,
        inbox: Inbox,
        begin: BeginAsync,
        handle: Callable[[Event, Any], Awaitable[object]],
    ) -> None:
        self._inbox = inbox
        self._begin_async = begin
        self._handle_async = handle
        self._loop: asyncio.AbstractEventLoop | None = None

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """
        Run work in its own thread, and its effects in the event loop that awaits it.

        The loop's executor has few threads, and the effects need them: to resolve host
        names, and for the work that a handler or a decoder does in a thread.
        """
        self._loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "towpath-inbox")
        run = contextvars.copy_context().run
        try:
            return await self._loop.run_in_executor(thread, run, work)
        finally:
            thread.shutdown(wait=False)

    def _run(self, steps: Steps[Result]) -> Result:
        async def run() -> Result:
            async with self._begin_async() as session:
                return await drive_async(session, steps)

        return self._wait(run())

    def _attempt(self, steps: Steps[Admission | None]) -> Admission | None:
        async def attempt() -> Admission | None:
            admission = None
            try:
                async with self._begin_async() as session:
                    admission = await drive_async(session, steps)
                    if admission is not None and admission.event is not None:
                        check_headers(admission.event)
                        await _load(admission.event)
                        await self._handle_async(admission.event, session)
            except Exception as error:
                raise _cause(error, admission) from error
            return admission

        return self._wait(attempt())

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait, in a thread, for work in the event loop."""
        if self._loop is None:
            message = "an asynchronous consumer has no event loop before run_async"
            raise RuntimeError(message)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _cause(error: Exception, admission: Admission | None) -> Exception:
    """
    Return the effect error for an error; the error itself if no event was admitted.

    A dependency is the database, or a service that the handler or the decoder needs.
    """
    event = None if admission is None else admission.event
    if event is None or isinstance(error, HandlerError):
        return error
    if isinstance(error, UnavailableError):
        return UnavailableEffectError(event, error)
    state = _session_end_sqlstate(error)
    if state == _BY_COMMAND:
        return _SessionEndedError(event, error)
    kind = HandlerError if state is None else UnavailableEffectError
    return kind(event, error)


def _session_end_sqlstate(error: Exception) -> str | None:
    """
    Return the SQLSTATE with which a database server ended or refused a session.

    Without such a SQLSTATE, an event may itself be the reason why a connection is lost:
    its handler may exceed a timeout, or crash the server's process.
    """
    each: BaseException | None = error
    seen = set[int]()
    # An error that is raised from itself is its own cause.
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state in _SERVER_ENDED:
            return str(state)
        each = each.__cause__ or each.__context__
    return None


def _read_start() -> Steps[str]:
    """Read the time at which the database's server started."""
    start = "extract(epoch from pg_postmaster_start_time())"
    rows = yield Statement.of(f"select cast({start} as text)", {})
    return str(rows[0][0])


async def _load(event: Event) -> None:
    """Decode the payload in a thread if decoding may need a request."""
    if event.decode is not None:
        await asyncio.to_thread(lambda: event.payload)


def reason_of(error: Exception) -> str:
    """
    Return the reason that is stored and logged for an error.

    Drivers and SQLAlchemy put the values of rows into the lines after the first.
    """
    if isinstance(error, EffectError):
        return str(error)
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"

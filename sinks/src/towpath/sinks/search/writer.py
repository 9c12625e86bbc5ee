"""
Bulk calls, several under way at once, each item followed to its end.

Their order does not matter: the index guards every document by its version, and a batch
has each key once.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from opensearchpy import OpenSearch

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock
from towpath.sinks.change import Refusal
from towpath.sinks.errors import (
    IndexBlockedError,
    IndexGoneError,
    SearchRefusedError,
    TargetBusyError,
)
from towpath.sinks.search.answer import Outcome, Verdict, outcomes
from towpath.sinks.search.client import FULL_RETRY_AFTER_S, blocked, send
from towpath.sinks.search.request import Document, body_of

# Six tries take some seconds: longer than a burst fills the index's queues, shorter
# than anyone wants a batch to hang before it is reported.
ATTEMPTS: Final = 6

_TOO_LARGE: Final = "the document is larger than the search index takes"


@dataclass(slots=True)
class Written:
    """
    What became of changes.

    ``only_new`` counts documents that an index refuses which is about to be replaced.
    """

    applied: int = 0
    stale: int = 0
    only_new: int = 0
    refused: list[Refusal] = field(default_factory=list)

    def add(self, other: "Written") -> None:
        """Count what another call came to, too."""
        self.applied += other.applied
        self.stale += other.stale
        self.only_new += other.only_new
        self.refused += other.refused


class Writer:
    """Writes calls of documents."""

    def __init__(self, client: OpenSearch, clock: Clock, at_once: int) -> None:
        self.client = client
        self._clock = clock
        self._at_once = at_once
        self._backoff = Backoff(first_s=0.2, ceiling_s=3.0)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="bulk")

    def write(self, calls: Iterable[list[Document]]) -> Written:
        """
        Write all calls; when this returns or raises, none is under way any more.

        Raises:
            UnavailableError: Some part may not be written; write all of it again.
            BatchRefusedError: A call cannot be read.
            SearchRefusedError: The sink may not write.
        """
        written = Written()
        running: deque[Future[Written]] = deque()
        try:
            for call in calls:
                # One more than are sent, so that none waits for us to write it.
                if len(running) > self._at_once:
                    written.add(running.popleft().result())
                running.append(self._threads.submit(self._call, call))
            while running:
                written.add(running.popleft().result())
        finally:
            for left in running:
                left.cancel()
            wait(running)
        return written

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, call: list[Document]) -> Written:
        """Write a call, and again those of its items that the index asks for."""
        written = Written()
        for attempt in range(ATTEMPTS):
            call = self._once(call, written)
            if not call:
                return written
            self._clock.wait(self._backoff.delay_s(attempt))
        message = f"the search index has no room for {len(call)} documents"
        raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)

    def _once(self, call: list[Document], written: Written) -> list[Document]:
        """Send a call, in halves if it is too large; return what is to come again."""
        try:
            answer = send(self.client, body_of(call))
        except IndexBlockedError:
            raise
        except TargetBusyError:
            # Nothing of it was taken: for want of memory, or of room in a queue.
            return call
        if answer is not None:
            told = zip(call, outcomes(answer, len(call)), strict=True)
            return [one for one, said in told if _is_wanted_again(one, said, written)]
        if len(call) == 1:
            _refuse(call[0], _TOO_LARGE, written)
            return []
        half = len(call) // 2
        again = self._once(call[:half], written)
        return again + self._once(call[half:], written)


def _is_wanted_again(one: Document, said: Outcome, written: Written) -> bool:
    """Note what became of one item; tell whether it is to be sent again."""
    match said.verdict:
        case Verdict.WRITTEN:
            written.applied += one.counts
        case Verdict.STALE:
            written.stale += one.counts
        case Verdict.REFUSED:
            _refuse(one, said.reason, written)
        case Verdict.AGAIN:
            return True
        case Verdict.GONE:
            message = f"an index went away: {said.reason}"
            raise IndexGoneError(message)
        case Verdict.BLOCKED:
            raise blocked(said.reason)
        case Verdict.FORBIDDEN:
            message = f"the search index refuses to be written: {said.reason}"
            raise SearchRefusedError(message)
    return False


def _refuse(one: Document, reason: str, written: Written) -> None:
    if one.counts:
        written.refused.append(Refusal(one.change, reason))
    else:
        written.only_new += 1

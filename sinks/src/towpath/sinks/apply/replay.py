"""
Carry out requests about dead letters: replay, discard, erase.

The dead letters of a key are replayed together, in position order, through the same
guard as any batch: a change older than the target's row changes nothing. The key is
released once all of them are written; if one is refused again, all of them remain.
After a discard, the row is refetched, so that the target gets the source's row.

An erase request removes keys from the target. Rows that the source may still have are
requested first, so that a crash in between leaves none of them missing.

Keys whose change a target cannot accept yet are replayed without a request, with a
growing pause between the attempts. Later changes of these keys stay parked meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from towpath.schemas import headers as names
from towpath.schemas.clock import Backoff, Clock
from towpath.schemas.failure import Disposition, TowpathError
from towpath.sinks.apply.batch import AppliedRecords, RecordWriter
from towpath.sinks.change import Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.dead_letters.entries import (
    LATER,
    DeadLetter,
    DeadLetterRequest,
    DeadLetterStore,
    ParkedKey,
    Reply,
    Resolution,
    Subject,
    Verb,
    shared_topic,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.key_text import key_parts
from towpath.sinks.ports import Repairs

# Bounds the keys that one turn retries automatically.
MAX_AT_ONCE: Final = 500
# Bounds the dead letters of one turn, which are in memory. Those of one key are
# replayed together, however many there are.
MAX_DEAD_LETTERS: Final = 10_000
# Each attempt reads the topic; reading takes at most a tenth of the time.
_PAUSE_FACTOR: Final = 10.0

_BACKOFF: Final = Backoff(first_s=1.0, ceiling_s=60.0)


class _NextAttempt(NamedTuple):
    """The next attempt at a key."""

    attempts: int
    due_s: float


class RetrySchedule:
    """
    The times at which the keys of one sink are retried.

    After a restart, all keys are at their first attempt.
    """

    def __init__(self, parked: ParkedKeys, clock: Clock) -> None:
        self._parked = parked
        self._clock = clock
        self._next: dict[ParkedKey, _NextAttempt] = {}
        self._paused_until_s = 0.0

    def due(self, requested: AbstractSet[Subject]) -> list[ParkedKey]:
        """
        Return the keys to be retried now, longest overdue first.

        Args:
            requested: The subjects of open requests; their keys wait for the requests.
        """
        retried_keys = self._parked.retried_keys()
        now_s = self._clock.monotonic_s()
        first = _NextAttempt(0, now_s + _BACKOFF.bound_s(0))
        self._next = {key: self._next.get(key, first) for key in retried_keys}
        if now_s < self._paused_until_s:
            return []
        due = [
            key
            for key, one in self._next.items()
            if one.due_s <= now_s and Subject(*key) not in requested
        ]
        return sorted(due, key=lambda key: self._next[key].due_s)[:MAX_AT_ONCE]

    def postpone(self, key: ParkedKey) -> None:
        """Schedule the next attempt at a key, with a longer pause."""
        attempts = self._next[key].attempts + 1
        due_s = self._clock.monotonic_s() + _BACKOFF.delay_s(attempts)
        self._next[key] = _NextAttempt(attempts, due_s)

    def pause_after_read(self, read_s: float) -> None:
        """Pause after an attempt, in proportion to the time spent reading the topic."""
        self._paused_until_s = self._clock.monotonic_s() + _PAUSE_FACTOR * read_s


CANNOT_ERASE: Final = "the sink cannot delete single keys from its target"
CANNOT_READ: Final = "the rows of these keys cannot be read from the source"
NO_ROUTE: Final = "the sink no longer has this route"
NOTHING_OPEN: Final = "no open dead letter has this key"
AWAITS_REFETCH: Final = (
    "its row was requested from the source: the key is released when the row arrives"
)

# Lets the decoder read a record without its position; nothing is applied.
_ANY_POSITION: Final = b"0000000000000000.-"

_LOCK_TIMEOUT_S: Final = 1.0

_log = structlog.get_logger("towpath.sinks")


class DeadLetterRequests:
    """The open requests of one sink."""

    def __init__(
        self,
        writer: RecordWriter,
        dead_letters: DeadLetterStore,
        parked: ParkedKeys,
        repairs: Repairs,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._dead_letters = dead_letters
        self._parked = parked
        self._repairs = repairs
        self._clock = clock
        self._retries = RetrySchedule(parked, clock)
        self._log = _log.bind(sink=writer.routes.sink_name)
        self._open: dict[str, DeadLetterRequest] = {}
        self._are_due_first = False

    @property
    def parked_keys(self) -> int:
        """The number of parked keys."""
        return len(self._parked)

    def restore(self, open_dead_letters: OpenDeadLetters) -> None:
        """Restore the requests that had no reply at the last stop."""
        self._open |= open_dead_letters.requests

    def process(self) -> None:
        """
        Carry out the open requests, and retry the keys that are due.

        If the target refuses a record again, the reply to the request says why.

        Raises:
            UnavailableError: A system does not answer; the requests stay open.
        """
        self._open |= {request.id: request for request in self._dead_letters.requests()}
        due = self._retries.due({request.subject for request in self._open.values()})
        if not (self._open or due):
            return
        # Between the reading of a key's dead letters and their resolution, no batch may
        # add another one. A long batch is not awaited, so that a stop is noticed.
        if not self._writer.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            return
        try:
            self._process(due)
        finally:
            self._writer.lock.release()

    def _process(self, due: Sequence[ParkedKey]) -> None:
        began_s = self._clock.monotonic_s()
        subjects = {key: Subject(*key) for key in due}
        wanted = self._wanted(list(subjects.values()))
        open_dead_letters = OpenDeadLetters(wanted).read(self._dead_letters.entries())
        if not wanted.isdisjoint(subjects.values()):
            self._retries.pause_after_read(self._clock.monotonic_s() - began_s)
        # A write that seemed to fail may be in the topic.
        for resolution in open_dead_letters.resolutions():
            self._parked.resolve(resolution)
        # Requests that arrived in the meantime wait: their dead letters were not read.
        late = open_dead_letters.requests.keys() - self._open.keys()
        try:
            self._carry_out_open(wanted, open_dead_letters)
        finally:
            self._open |= {name: open_dead_letters.requests[name] for name in late}
            # A key with an open request waits for it: its records may be discarded.
            waiting = {request.subject for request in self._open.values()}
            retried = wanted - waiting
            self._try_again(
                {
                    key: open_dead_letters.of(at)
                    for key, at in subjects.items()
                    if at in retried
                }
            )

    def _wanted(self, due: Sequence[Subject]) -> frozenset[Subject]:
        """
        Return the subjects of this turn, as many as fit into memory; at least one.

        Open requests come first, then keys to be retried. If some of these do not fit,
        keys to be retried come first the next time: a request that fails stays open,
        and must not block them. Subjects that do not fit wait for another turn.
        """
        requested = [request.subject for request in self._open.values()]
        were_first = self._are_due_first
        wanted: set[Subject] = set()
        left = MAX_DEAD_LETTERS
        for subject in chain(due, requested) if were_first else chain(requested, due):
            count = 0 if subject in wanted else self._count(subject)
            if count <= left or not wanted:
                wanted.add(subject)
                left -= count
        # If no key is due now, the keys to be retried keep their precedence.
        if due:
            self._are_due_first = not (were_first or wanted.issuperset(due))
        return frozenset(wanted)

    def _count(self, subject: Subject) -> int:
        """Return the number of dead letters of a subject."""
        if subject.key is None or subject.at is not None:
            return 1
        waiting = self._parked.waiting(ParkedKey(subject.topic, subject.key))
        return 1 if waiting is None else waiting.dead_letters

    def _carry_out_open(
        self, wanted: AbstractSet[Subject], open_dead_letters: OpenDeadLetters
    ) -> None:
        """
        Carry out the requests of this turn until one fails; that one is retried last.

        Raises:
            UnavailableError: A system does not answer; the other requests stay open.
        """
        for request in [r for r in self._open.values() if r.subject in wanted]:
            del self._open[request.id]
            try:
                if request.id not in open_dead_letters.replies:
                    self._carry_out(request, open_dead_letters)
            except BaseException:
                self._open[request.id] = request
                raise

    def _try_again(self, dead_letters: Mapping[ParkedKey, list[DeadLetter]]) -> None:
        """Replay the dead letters of keys that are due."""
        records = [one.record for letters in dead_letters.values() for one in letters]
        if not records:
            return
        try:
            written = self._writer.replay(records)
        except TowpathError as error:
            # The next batch reports the failure.
            why, keys = str(error), len(dead_letters)
            self._log.info(
                "dead letters not replayed: retrying later", keys=keys, why=why
            )
            for key in dead_letters:
                self._retries.postpone(key)
            return
        by_key = dead_letters.items()
        taken = {
            k: found for k, found in by_key if self._is_accepted(k, found, written)
        }
        resolutions = [
            Resolution(Subject(*key), letters[-1].position, "accepted by the target")
            for key, letters in taken.items()
            if letters
        ]
        self._dead_letters.resolve(resolutions)
        for resolution in resolutions:
            self._parked.resolve(resolution)
        facts = {"keys": len(dead_letters), "taken": len(taken)}
        self._log.info("dead letters replayed automatically", **facts)

    def _is_accepted(
        self,
        key: ParkedKey,
        dead_letters: Sequence[DeadLetter],
        written: AppliedRecords,
    ) -> bool:
        """
        Return whether all dead letters of a key are written.

        If not, schedule the next attempt, and store the reasons of a final refusal.
        """
        reasons = [written.reasons.get(one.record.origin, "") for one in dead_letters]
        awaits_refetch = written.awaits_refetch and self._writer.awaits_refetch(key)
        if not (awaits_refetch or any(reasons)):
            return True
        self._retries.postpone(key)
        refused = [
            one._replace(reason=reason)
            for one, reason in zip(dead_letters, reasons, strict=True)
            if reason and not reason.startswith(LATER)
        ]
        if refused and not any(reason.startswith(LATER) for reason in reasons):
            # Refused for good: from now on only a request replays them.
            self._dead_letters.put(refused)
            for one in refused:
                self._parked.park(one)
        return False

    def _carry_out(
        self, request: DeadLetterRequest, open_dead_letters: OpenDeadLetters
    ) -> None:
        dead_letters = open_dead_letters.of(request.subject)
        carry_out = _VERBS[request.verb]
        try:
            outcome = (
                carry_out(self, request, dead_letters)
                if dead_letters or request.verb is Verb.ERASE
                else Reply(request.id, NOTHING_OPEN, request.subject)
            )
        except TowpathError as error:
            if error.disposition is Disposition.RETRY:
                raise
            outcome = Reply(request.id, str(error), request.subject)
        if isinstance(outcome, Reply):
            self._dead_letters.reply(outcome)
        else:
            self._dead_letters.resolve([outcome])
            self._parked.resolve(outcome)
            open_dead_letters.read([outcome])
        self._log.info(
            "dead letter request handled",
            verb=request.verb,
            topic=request.subject.topic,
            dead_letters=len(dead_letters),
            outcome=outcome.text if isinstance(outcome, Reply) else outcome.how,
        )

    def _replayed(
        self, request: DeadLetterRequest, dead_letters: list[DeadLetter]
    ) -> Resolution | Reply:
        written = self._writer.replay([one.record for one in dead_letters])
        if written.reasons:
            reason = next(iter(written.reasons.values()))
            return Reply(request.id, reason, request.subject)
        if written.awaits_refetch:
            return Reply(request.id, AWAITS_REFETCH, request.subject)
        is_stale = written.delivered.stale > 0
        how = "replayed; newer rows in the sink were kept" if is_stale else "replayed"
        return Resolution(request.subject, dead_letters[-1].position, how, request.id)

    def _discarded(
        self, request: DeadLetterRequest, dead_letters: list[DeadLetter]
    ) -> Resolution:
        how = "discarded"
        if self._refetch(dead_letters):
            how = "discarded; its row was requested"
        return Resolution(request.subject, dead_letters[-1].position, how, request.id)

    def _erased(
        self, request: DeadLetterRequest, _: list[DeadLetter]
    ) -> Resolution | Reply:
        reading = self._writer.routes.reading(request.subject.topic)
        if request.route not in {route.name for route, _ in reading}:
            return Reply(request.id, NO_ROUTE, request.subject)
        if not self._writer.can_erase:
            return Reply(request.id, CANNOT_ERASE, request.subject)
        keys = map(key_parts, request.keys)
        # The rows are applied afterwards: no batch is written meanwhile.
        request_keys = self._repairs.request_keys
        if request.is_read_again and not request_keys(request.route, keys):
            return Reply(request.id, CANNOT_READ, request.subject)
        self._writer.erase(request.route, request.keys)
        self._log.warning(
            "sink rows erased on request",
            request_id=request.id,
            route=request.route,
            keys=len(request.keys),
            is_read_again=request.is_read_again,
        )
        return Resolution(request.subject, "", "erased", request.id)

    def _refetch(self, dead_letters: list[DeadLetter]) -> bool:
        last = dead_letters[-1]
        topic = shared_topic(last.record.origin.topic)
        record_key = ParkedKey(topic, last.record.key or b"")
        bare = [_bare(one.record) for one in dead_letters]
        changes = decode(bare, self._writer.routes).changes
        rows = dict.fromkeys((change.route, change.key) for change in changes)
        requested = [
            self._writer.request_row(row, record_key, last.position) for row in rows
        ]
        return any(requested)


_VERBS: Final[
    Mapping[
        Verb,
        Callable[
            [DeadLetterRequests, DeadLetterRequest, list[DeadLetter]],
            Resolution | Reply,
        ],
    ]
] = MappingProxyType(
    {
        Verb.REPLAY: DeadLetterRequests._replayed,  # noqa: SLF001 - of this module
        Verb.DISCARD: DeadLetterRequests._discarded,  # noqa: SLF001
        Verb.ERASE: DeadLetterRequests._erased,  # noqa: SLF001
    }
)


def _bare(record: Record) -> Record:
    """Return a record with only its key, because the rest may be unreadable."""
    return record._replace(value=None, headers={names.POSITION: _ANY_POSITION})

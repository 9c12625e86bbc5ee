"""
Carries out requests about dead letters: replay, discard, erase.

The dead letters of a key are replayed together, in position order, through the same
guard as any batch: a change older than the target's row changes nothing. The key is
released once all of them are written; if one is refused again, all of them stay. After
a discard the row is refetched, so that the target has it as the source does.

An erase request removes keys from the target. Their rows are requested from the source
first, so that a crash in between leaves none of them missing.

Keys whose change a target could not take for now are replayed without a request, with a
growing pause between the attempts. Later changes of these keys stay parked meanwhile.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from towpath.schemas import headers as names
from towpath.schemas.clock import Backoff, Clock
from towpath.schemas.failure import Disposition, TowpathError
from towpath.sinks.apply.batch import AppliedRecords, BatchWriter
from towpath.sinks.change import Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.dead_letters.entries import (
    LATER,
    DeadLetter,
    DeadLetterReply,
    DeadLetterRequest,
    DeadLetterStore,
    DeadLetterSubject,
    ParkedKey,
    Resolution,
    Verb,
    shared_topic,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.key_text import key_parts
from towpath.sinks.ports import Repairs

# Their letters are in memory while they are replayed.
MAX_AT_ONCE: Final = 500
# The topic is read for each attempt: no more than a tenth of the time.
_REST_FACTOR: Final = 10.0

_BACKOFF: Final = Backoff(first_s=1.0, ceiling_s=60.0)


class _Next(NamedTuple):
    """The next attempt at a key."""

    attempts: int
    due_s: float


class Retries:
    """The schedule of one sink; a restart begins with all keys anew."""

    def __init__(self, parked: ParkedKeys, clock: Clock) -> None:
        self._parked = parked
        self._clock = clock
        self._next: dict[ParkedKey, _Next] = {}
        self._rests_until_s = 0.0

    def due(self) -> list[ParkedKey]:
        """Return the keys to be tried again now."""
        retried_keys = self._parked.retried_keys()
        now_s = self._clock.monotonic_s()
        first = _Next(0, now_s + _BACKOFF.bound_s(0))
        self._next = {key: self._next.get(key, first) for key in retried_keys}
        if now_s < self._rests_until_s:
            return []
        due = [key for key, one in self._next.items() if one.due_s <= now_s]
        return due[:MAX_AT_ONCE]

    def failed(self, key: ParkedKey) -> None:
        """Put a key off again, for longer."""
        attempts = self._next[key].attempts + 1
        due_s = self._clock.monotonic_s() + _BACKOFF.delay_s(attempts)
        self._next[key] = _Next(attempts, due_s)

    def took(self, read_s: float) -> None:
        """Rest after an attempt, the longer the more there was to read."""
        self._rests_until_s = self._clock.monotonic_s() + _REST_FACTOR * read_s


CANNOT_ERASE: Final = "the sink cannot take single keys out of its target"
CANNOT_ASK: Final = "the rows of these keys cannot be read again"
NO_ROUTE: Final = "the sink has no such route any more"
NOTHING_OPEN: Final = "there is no open letter of it"
AWAITS_REFETCH: Final = "its row was asked for as it is, and will let the key go"

# Only where decoding asks for a position: nothing is applied.
_ANY_POSITION: Final = b"0000000000000000.-"

_PATIENCE_S: Final = 1.0

_log = structlog.get_logger("towpath.sinks")


class DeadLetterRequests:
    """The orders that one sink has not answered yet."""

    def __init__(
        self,
        writer: BatchWriter,
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
        self._retries = Retries(parked, clock)
        self._open: dict[str, DeadLetterRequest] = {}

    @property
    def parked_keys(self) -> int:
        """How many keys are parked by now."""
        return len(self._parked)

    def restore(self, book: OpenDeadLetters) -> None:
        """Take the orders that nobody answered before the last end."""
        self._open |= book.requests

    def process(self) -> None:
        """
        Carry out what was asked for since, and try again what is due.

        Raises:
            UnavailableError: Some part does not answer; the order stays open.
        """
        self._open |= {request.id: request for request in self._dead_letters.requests()}
        due = self._retries.due()
        if not (self._open or due):
            return
        # No batch may add a letter between the reading of a key's and their end. A
        # batch that takes long is not waited for: a stop must be noticed meanwhile.
        if not self._writer.lock.acquire(timeout=_PATIENCE_S):
            return
        try:
            self._process(due)
        finally:
            self._writer.lock.release()

    def _process(self, due: Sequence[ParkedKey]) -> None:
        began_s = self._clock.monotonic_s()
        wanted = {request.subject for request in self._open.values()}
        wanted |= {DeadLetterSubject(*key) for key in due}
        book = OpenDeadLetters(frozenset(wanted)).read(self._dead_letters.entries())
        self._retries.took(self._clock.monotonic_s() - began_s)
        # Orders that came in the meantime wait: their letters were not read.
        late = book.requests.keys() - self._open.keys()
        for request in list(self._open.values()):
            if request.id not in book.replies:
                self._carry_out(request, book)
            del self._open[request.id]
        self._open |= {name: book.requests[name] for name in late}
        self._try_again({key: book.of(DeadLetterSubject(*key)) for key in due})

    def _try_again(self, found: Mapping[ParkedKey, list[DeadLetter]]) -> None:
        """Write what was put off; what is not taken even now is put off again."""
        records = [
            dead_letter.record
            for dead_letters in found.values()
            for dead_letter in dead_letters
        ]
        if not records:
            return
        try:
            written = self._writer.replay(records)
        except TowpathError as error:
            # The batches report it.
            _log.info("dead letters not tried again", keys=len(found), why=str(error))
            for key in found:
                self._retries.failed(key)
            return
        taken = [key for key in found if self._is_taken(key, found[key], written)]
        endings = [
            Resolution(
                DeadLetterSubject(*key), found[key][-1].position, "taken after all"
            )
            for key in taken
            if found[key]
        ]
        self._dead_letters.resolve(endings)
        for ending in endings:
            self._parked.end(ending)
        _log.info("dead letters tried again", keys=len(found), taken=len(taken))

    def _is_taken(
        self,
        key: ParkedKey,
        dead_letters: Sequence[DeadLetter],
        written: AppliedRecords,
    ) -> bool:
        """Tell whether all letters of a key are written; keep why they are not."""
        reasons = [
            written.reasons.get(dead_letter.record.origin, "")
            for dead_letter in dead_letters
        ]
        awaits_refetch = written.awaits_refetch and self._writer.awaits_refetch(key)
        if not (awaits_refetch or any(reasons)):
            return True
        self._retries.failed(key)
        refused = [
            dead_letter._replace(reason=reason)
            for dead_letter, reason in zip(dead_letters, reasons, strict=True)
            if reason and not reason.startswith(LATER)
        ]
        if refused and not any(reason.startswith(LATER) for reason in reasons):
            # For good: from now on somebody has to ask.
            self._dead_letters.put(refused)
            for dead_letter in refused:
                self._parked.park(dead_letter)
        return False

    def _carry_out(self, request: DeadLetterRequest, book: OpenDeadLetters) -> None:
        found = book.of(request.subject)
        carry_out = _VERBS[request.verb]
        try:
            said = (
                carry_out(self, request, found)
                if found or request.verb is Verb.ERASE
                else DeadLetterReply(request.id, NOTHING_OPEN, request.subject)
            )
        except TowpathError as error:
            if error.disposition is Disposition.RETRY:
                raise
            said = DeadLetterReply(request.id, str(error), request.subject)
        if isinstance(said, DeadLetterReply):
            self._dead_letters.reply(said)
        else:
            self._dead_letters.resolve([said])
            self._parked.end(said)
            book.read([said])
        _log.info(
            "dead letters attended to",
            verb=request.verb,
            topic=request.subject.topic,
            dead_letters=len(found),
            outcome=said.text if isinstance(said, DeadLetterReply) else said.how,
        )

    def _replayed(
        self, request: DeadLetterRequest, found: list[DeadLetter]
    ) -> Resolution | DeadLetterReply:
        written = self._writer.replay([dead_letter.record for dead_letter in found])
        if written.reasons:
            return DeadLetterReply(
                request.id, next(iter(written.reasons.values())), request.subject
            )
        if written.awaits_refetch:
            return DeadLetterReply(request.id, AWAITS_REFETCH, request.subject)
        how = "replayed; what the sink had newer stayed" if _stale(written) else ""
        return Resolution(
            request.subject, found[-1].position, how or "replayed", request.id
        )

    def _discarded(
        self, request: DeadLetterRequest, found: list[DeadLetter]
    ) -> Resolution:
        how = "discarded"
        if self._ask(found):
            how = "discarded; its row was asked for as it is"
        return Resolution(request.subject, found[-1].position, how, request.id)

    def _erased(
        self, request: DeadLetterRequest, _: list[DeadLetter]
    ) -> Resolution | DeadLetterReply:
        reading = self._writer.routes.reading(request.subject.topic)
        if request.route not in {route.name for route, _ in reading}:
            return DeadLetterReply(request.id, NO_ROUTE, request.subject)
        if not self._writer.can_erase:
            return DeadLetterReply(request.id, CANNOT_ERASE, request.subject)
        keys = map(key_parts, request.keys)
        # What is read is applied after this: no batch is written meanwhile.
        if request.is_read_again and not self._repairs.request_keys(
            request.route, keys
        ):
            return DeadLetterReply(request.id, CANNOT_ASK, request.subject)
        self._writer.erase(request.route, request.keys)
        _log.warning(
            "sink rows erased",
            request_id=request.id,
            route=request.route,
            keys=len(request.keys),
            is_read_again=request.is_read_again,
        )
        return Resolution(request.subject, "", "erased", request.id)

    def _ask(self, found: list[DeadLetter]) -> bool:
        last = found[-1]
        topic = shared_topic(last.record.origin.topic)
        record_key = ParkedKey(topic, last.record.key or b"")
        bare = [_bare(dead_letter.record) for dead_letter in found]
        changes = decode(bare, self._writer.routes).changes
        rows = dict.fromkeys((change.route, change.key) for change in changes)
        asked = [row for row in rows if self._repairs.request_keys(row[0], [row[1]])]
        for row in asked:
            self._writer.note_refetch(row, record_key, last.position)
        return bool(asked)


_VERBS: Final[
    Mapping[
        Verb,
        Callable[
            [DeadLetterRequests, DeadLetterRequest, list[DeadLetter]],
            Resolution | DeadLetterReply,
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
    """Leave of a record what says which row it is about: the rest may be unreadable."""
    return record._replace(value=None, headers={names.POSITION: _ANY_POSITION})


def _stale(written: AppliedRecords) -> bool:
    return written.delivered.stale > 0

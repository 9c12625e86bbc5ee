"""
Carries out what was asked for of the dead letters: replay them, or give them up.

Keys of the target can be erased by an order, too: the rows that the source has of them
are asked for first, so that no end in between leaves one of them missing.

Letters of a key are replayed together, in position order, through the same guard as any
batch: what is older than what the target has changes nothing. They are over once all of
them are written; if one is refused again, all of them stay. Letters that are given up
leave the row as the sink has it, so the row is asked for as it is.

When keys are tried again that a target did not take for now.

They are parked, so what comes after waits behind them and nothing else does. Nobody has
to ask for their replay: it is due after a while, and after longer with each attempt.
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
from towpath.sinks.dead_letters.letter import (
    LATER,
    Answer,
    DeadLetterStore,
    Ending,
    Letter,
    Matter,
    Order,
    ParkedKey,
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
        put_off = self._parked.put_off()
        now_s = self._clock.monotonic_s()
        first = _Next(0, now_s + _BACKOFF.bound_s(0))
        self._next = {key: self._next.get(key, first) for key in put_off}
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
ASKED_FOR: Final = "its row was asked for as it is, and will let the key go"

# Only where decoding asks for a position: nothing is applied.
_ANY_POSITION: Final = b"0000000000000000.-"

_PATIENCE_S: Final = 1.0

_log = structlog.get_logger("towpath.sinks")


class DeadLetterOrders:
    """The orders that one sink has not answered yet."""

    def __init__(
        self,
        writer: BatchWriter,
        letters: DeadLetterStore,
        parked: ParkedKeys,
        repairs: Repairs,
        clock: Clock,
    ) -> None:
        self._writer = writer
        self._letters = letters
        self._parked = parked
        self._repairs = repairs
        self._clock = clock
        self._retries = Retries(parked, clock)
        self._open: dict[str, Order] = {}

    @property
    def parked_keys(self) -> int:
        """How many keys are parked by now."""
        return len(self._parked)

    def recall(self, book: OpenDeadLetters) -> None:
        """Take the orders that nobody answered before the last end."""
        self._open |= book.orders

    def attend(self) -> None:
        """
        Carry out what was asked for since, and try again what is due.

        Raises:
            UnavailableError: Some part does not answer; the order stays open.
        """
        self._open |= {order.id: order for order in self._letters.orders()}
        due = self._retries.due()
        if not (self._open or due):
            return
        # No batch may add a letter between the reading of a key's and their end. A
        # batch that takes long is not waited for: a stop must be noticed meanwhile.
        if not self._writer.alone.acquire(timeout=_PATIENCE_S):
            return
        try:
            self._attend(due)
        finally:
            self._writer.alone.release()

    def _attend(self, due: Sequence[ParkedKey]) -> None:
        began_s = self._clock.monotonic_s()
        wanted = {order.matter for order in self._open.values()}
        wanted |= {Matter(*key) for key in due}
        book = OpenDeadLetters(frozenset(wanted)).read(self._letters.entries())
        self._retries.took(self._clock.monotonic_s() - began_s)
        # Orders that came in the meantime wait: their letters were not read.
        late = book.orders.keys() - self._open.keys()
        for order in list(self._open.values()):
            if order.id not in book.answers:
                self._carry_out(order, book)
            del self._open[order.id]
        self._open |= {name: book.orders[name] for name in late}
        self._try_again({key: book.of(Matter(*key)) for key in due})

    def _try_again(self, found: Mapping[ParkedKey, list[Letter]]) -> None:
        """Write what was put off; what is not taken even now is put off again."""
        records = [letter.record for letters in found.values() for letter in letters]
        if not records:
            return
        try:
            written = self._writer.again(records)
        except TowpathError as error:
            # The batches report it.
            _log.info("dead letters not tried again", keys=len(found), why=str(error))
            for key in found:
                self._retries.failed(key)
            return
        taken = [key for key in found if self._is_taken(key, found[key], written)]
        endings = [
            Ending(Matter(*key), found[key][-1].position, "taken after all")
            for key in taken
            if found[key]
        ]
        self._letters.end(endings)
        for ending in endings:
            self._parked.end(ending)
        _log.info("dead letters tried again", keys=len(found), taken=len(taken))

    def _is_taken(
        self, key: ParkedKey, letters: Sequence[Letter], written: AppliedRecords
    ) -> bool:
        """Tell whether all letters of a key are written; keep why they are not."""
        reasons = [written.reasons.get(letter.record.origin, "") for letter in letters]
        is_owed = written.is_open and self._writer.is_owed(key)
        if not (is_owed or any(reasons)):
            return True
        self._retries.failed(key)
        refused = [
            letter._replace(reason=reason)
            for letter, reason in zip(letters, reasons, strict=True)
            if reason and not reason.startswith(LATER)
        ]
        if refused and not any(reason.startswith(LATER) for reason in reasons):
            # For good: from now on somebody has to ask.
            self._letters.put(refused)
            for letter in refused:
                self._parked.park(letter)
        return False

    def _carry_out(self, order: Order, book: OpenDeadLetters) -> None:
        found = book.of(order.matter)
        carry_out = _VERBS[order.verb]
        try:
            said = (
                carry_out(self, order, found)
                if found or order.verb is Verb.ERASE
                else Answer(order.id, NOTHING_OPEN, order.matter)
            )
        except TowpathError as error:
            if error.disposition is Disposition.RETRY:
                raise
            said = Answer(order.id, str(error), order.matter)
        if isinstance(said, Answer):
            self._letters.answer(said)
        else:
            self._letters.end([said])
            self._parked.end(said)
            book.read([said])
        _log.info(
            "dead letters attended to",
            verb=order.verb,
            topic=order.matter.topic,
            letters=len(found),
            outcome=said.text if isinstance(said, Answer) else said.how,
        )

    def _replayed(self, order: Order, found: list[Letter]) -> Ending | Answer:
        written = self._writer.again([letter.record for letter in found])
        if written.reasons:
            return Answer(order.id, next(iter(written.reasons.values())), order.matter)
        if written.is_open:
            return Answer(order.id, ASKED_FOR, order.matter)
        how = "replayed; what the sink had newer stayed" if _stale(written) else ""
        return Ending(order.matter, found[-1].position, how or "replayed", order.id)

    def _discarded(self, order: Order, found: list[Letter]) -> Ending:
        how = "discarded"
        if self._ask(found):
            how = "discarded; its row was asked for as it is"
        return Ending(order.matter, found[-1].position, how, order.id)

    def _erased(self, order: Order, _: list[Letter]) -> Ending | Answer:
        reading = self._writer.routes.reading(order.matter.topic)
        if order.route not in {route.name for route, _ in reading}:
            return Answer(order.id, NO_ROUTE, order.matter)
        if not self._writer.can_erase:
            return Answer(order.id, CANNOT_ERASE, order.matter)
        keys = map(key_parts, order.keys)
        # What is read is applied after this: no batch is written meanwhile.
        if order.is_read_again and not self._repairs.ask_keys(order.route, keys):
            return Answer(order.id, CANNOT_ASK, order.matter)
        self._writer.erase(order.route, order.keys)
        _log.warning(
            "sink rows erased",
            order=order.id,
            route=order.route,
            keys=len(order.keys),
            is_read_again=order.is_read_again,
        )
        return Ending(order.matter, "", "erased", order.id)

    def _ask(self, found: list[Letter]) -> bool:
        last = found[-1]
        topic = shared_topic(last.record.origin.topic)
        record_key = ParkedKey(topic, last.record.key or b"")
        bare = [_bare(letter.record) for letter in found]
        changes = decode(bare, self._writer.routes).changes
        rows = dict.fromkeys((change.route, change.key) for change in changes)
        asked = [row for row in rows if self._repairs.ask_keys(row[0], [row[1]])]
        for row in asked:
            self._writer.owe(row, record_key, last.position)
        return bool(asked)


_VERBS: Final[
    Mapping[Verb, Callable[[DeadLetterOrders, Order, list[Letter]], Ending | Answer]]
] = MappingProxyType(
    {
        Verb.REPLAY: DeadLetterOrders._replayed,  # noqa: SLF001 - of this module
        Verb.DISCARD: DeadLetterOrders._discarded,  # noqa: SLF001
        Verb.ERASE: DeadLetterOrders._erased,  # noqa: SLF001
    }
)


def _bare(record: Record) -> Record:
    """Leave of a record what says which row it is about: the rest may be unreadable."""
    return record._replace(value=None, headers={names.POSITION: _ANY_POSITION})


def _stale(written: AppliedRecords) -> bool:
    return written.delivered.stale > 0

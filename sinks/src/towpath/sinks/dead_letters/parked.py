"""
Which keys are parked, and from which position on.

Only positions decide what waits, so that a batch that comes again after a crash decides
the same. What is over is remembered as well: a record that comes again from below an
ending is not parked a second time. Both are bounded.

The open letters of a sink: what was set aside and is not over. Pure.

A record that was set aside twice, because its batch came again, is one letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from towpath.sinks.change import Origin
from towpath.sinks.dead_letters.letter import (
    BEHIND,
    LATER,
    Answer,
    Ending,
    Entry,
    Letter,
    Matter,
    Order,
    ParkedKey,
    matter_of,
)
from towpath.sinks.errors import TooManyParkedError

MAX_PARKED_KEYS: Final = 100_000


@dataclass(slots=True)
class Waiting:
    """
    What waits of one key.

    Attributes:
        lowest: The first position; from there on everything waits.
        highest: The last position set aside.
        letters: How many are set aside.
        last_offsets: Per topic and partition, the last record set aside: up to there,
            what comes again is in the topic already.
    """

    lowest: str
    highest: str
    letters: int = 0
    last_offsets: dict[tuple[str, int], int] = field(default_factory=dict)


class ParkedKeys:
    """The parked keys of one sink."""

    def __init__(self, max_keys: int = MAX_PARKED_KEYS) -> None:
        self._max_keys = max_keys
        self._waiting: dict[ParkedKey, Waiting] = {}
        self._ended: dict[ParkedKey, str] = {}
        self._put_off: set[ParkedKey] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, parked: ParkedKey) -> bool:
        return parked in self._waiting

    def keys(self) -> frozenset[ParkedKey]:
        """Return all parked keys."""
        return frozenset(self._waiting)

    def put_off(self) -> frozenset[ParkedKey]:
        """Return the keys that are tried again by themselves."""
        return frozenset(self._put_off)

    def waiting(self, parked: ParkedKey) -> Waiting | None:
        """Return what waits of a key."""
        return self._waiting.get(parked)

    def recall(self, entries: Iterable[Entry]) -> None:
        """
        Learn what the topic tells, oldest first.

        Raises:
            TooManyParkedError: More keys are parked than can be kept in mind.
        """
        for entry in entries:
            if isinstance(entry, Letter):
                self.park(entry)
            elif isinstance(entry, Ending):
                self.end(entry)
        self.check(())

    def check(self, letters: Iterable[Letter]) -> None:
        """
        See whether letters can be parked beside what is.

        Raises:
            TooManyParkedError: More keys are parked than can be kept in mind.
        """
        new = {letter.parked for letter in letters} - self._waiting.keys() - {None}
        count = len(self._waiting) + len(new)
        if count > self._max_keys:
            message = f"{count:,} keys of the sink are parked behind dead letters"
            raise TooManyParkedError(message)

    def park(self, letter: Letter) -> None:
        """Take note of a letter that is durable."""
        parked = letter.parked
        if parked is None or self.is_over(parked, letter.position):
            return
        position, origin = letter.position, letter.record.origin
        if letter.reason.startswith(LATER):
            self._put_off.add(parked)
        elif letter.reason != BEHIND:
            self._put_off.discard(parked)
        waiting = self._waiting.setdefault(parked, Waiting(position, position))
        if not self.has(letter):
            waiting.letters += 1
        if position < waiting.lowest:
            # What stands between is not in the topic: it counts from here again.
            waiting.lowest = position
            waiting.last_offsets.clear()
        waiting.highest = max(waiting.highest, position)
        place = (origin.topic, origin.partition)
        last = waiting.last_offsets.get(place, -1)
        waiting.last_offsets[place] = max(last, origin.offset)

    def end(self, ending: Ending) -> None:
        """Take note that what waits of a key, up to a position, is over."""
        matter = ending.matter
        if matter.at is not None or matter.key is None:
            return
        parked = ParkedKey(matter.topic, matter.key)
        waiting = self._waiting.get(parked)
        if waiting is not None and waiting.highest <= ending.position:
            del self._waiting[parked]
            self._put_off.discard(parked)
        before = self._ended.pop(parked, "")
        self._ended[parked] = max(before, ending.position)
        if len(self._ended) > self._max_keys:
            del self._ended[next(iter(self._ended))]

    def has(self, letter: Letter) -> bool:
        """Tell whether a letter that comes again is in the topic already."""
        parked, origin = letter.parked, letter.record.origin
        waiting = None if parked is None else self._waiting.get(parked)
        if waiting is None or letter.position < waiting.lowest:
            return False
        place = (origin.topic, origin.partition)
        return origin.offset <= waiting.last_offsets.get(place, -1)

    def is_put_off(self, parked: ParkedKey) -> bool:
        """Tell whether a key is tried again by itself."""
        return parked in self._put_off

    def is_new(self, parked: ParkedKey, position: str) -> bool:
        """Tell whether nothing of a key was set aside at a position or above it."""
        waiting = self._waiting.get(parked)
        return waiting is None or position > waiting.highest

    def is_over(self, parked: ParkedKey, position: str) -> bool:
        """Tell whether a position stands below an ending of its key."""
        return position <= self._ended.get(parked, "")

    def below(self, topic: str, floor: str) -> list[ParkedKey]:
        """Return the keys of a topic of which everything that waits is below."""
        return [
            parked
            for parked, waiting in self._waiting.items()
            if parked.topic == topic and waiting.highest < floor
        ]

    def lowest(self) -> str | None:
        """Return the lowest position that waits, if any does."""
        return min((w.lowest for w in self._waiting.values()), default=None)

    def superseded(self, parked: ParkedKey) -> Ending:
        """Make the ending of a key whose row was read anew."""
        highest = self._waiting[parked].highest
        return Ending(Matter(*parked), highest, "superseded by its row as it is")


@dataclass(slots=True)
class OpenDeadLetters:
    """
    Open letters by what they are about, in the order of their records.

    Attributes:
        wanted: Of which letters are kept; ``None`` for all. A topic may hold more than
            memory does.
        orders: Those that nobody has answered.
    """

    wanted: frozenset[Matter] | None = None
    letters: dict[Matter, dict[Origin, Letter]] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    answers: dict[str, Ending | Answer] = field(default_factory=dict)
    _ended: dict[Matter, str] = field(default_factory=dict)

    def read(self, entries: Iterable[Entry]) -> "OpenDeadLetters":
        """Learn what the topic tells, oldest first; return this book."""
        for entry in entries:
            if isinstance(entry, Letter):
                self._open(entry)
            elif isinstance(entry, Ending):
                self._close(entry)
                self._answered(entry)
            elif isinstance(entry, Order):
                self.orders[entry.id] = entry
            else:
                self._answered(entry)
        return self

    def of(self, matter: Matter) -> list[Letter]:
        """Return the open letters of a matter in the order to replay them in."""
        found = self.letters.get(matter, {}).values()
        return sorted(found, key=lambda letter: letter.position)

    def _open(self, letter: Letter) -> None:
        matter = matter_of(letter)
        if self.wanted is not None and matter not in self.wanted:
            return
        # Of a lone letter without a position, only a later record may open it again.
        if matter in self._ended and letter.position <= self._ended[matter]:
            return
        self.letters.setdefault(matter, {})[letter.record.origin] = letter

    def _close(self, ending: Ending) -> None:
        kept = {
            origin: letter
            for origin, letter in self.letters.pop(ending.matter, {}).items()
            if letter.position > ending.position
        }
        if kept:
            self.letters[ending.matter] = kept
        before = self._ended.get(ending.matter, "")
        self._ended[ending.matter] = max(before, ending.position)

    def _answered(self, entry: Ending | Answer) -> None:
        if entry.order:
            self.orders.pop(entry.order, None)
            self.answers[entry.order] = entry

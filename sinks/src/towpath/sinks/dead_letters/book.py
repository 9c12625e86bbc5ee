"""
The open letters of a sink: what was set aside and is not over. Pure.

A record that was set aside twice, because its batch came again, is one letter.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from towpath.sinks.change import Origin
from towpath.sinks.dead_letters.letter import (
    Answer,
    Ending,
    Entry,
    Letter,
    Matter,
    Order,
    matter_of,
)


@dataclass(slots=True)
class Book:
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

    def read(self, entries: Iterable[Entry]) -> "Book":
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

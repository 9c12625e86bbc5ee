"""What the jobs need of the dead-letter topic of one sink."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from towpath.sinks.dead_letters.letter import Answer, Ending, Entry, Letter, Order


class LetterBox(Protocol):
    """
    The dead-letter topic of one sink.

    What was written is durable when the call returns; each call raises
    ``UnavailableError`` if that, or what was read, is not known to be whole.
    """

    def put(self, letters: Iterable[Letter]) -> int:
        """Set records aside; return how many."""

    def end(self, endings: Iterable[Ending]) -> None:
        """State that letters are over."""

    def answer(self, answer: Answer) -> None:
        """State why an order was not carried out."""

    def entries(self) -> Iterator[Entry]:
        """Go through all that was ever written, oldest first per key."""

    def orders(self) -> list[Order]:
        """Return what was asked for since ``entries`` or ``orders`` was last called."""

    def close(self) -> None:
        """Let go of connections; never raises."""

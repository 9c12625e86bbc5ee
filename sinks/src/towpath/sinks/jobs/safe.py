"""
The safe position: what stands below it cannot be delivered again.

It is the lowest position that the head of any partition of the sink's topics still
has. What retention has cut off cannot come back, so tombstones below guard against
nothing. A dead letter can be replayed, however old it is: it holds the safe position
down. Looked up now and then, beside the batches, which do not wait for it.
"""

import threading
from collections.abc import Callable
from typing import Final, Protocol

from towpath.schemas.clock import Clock, Deadline

LOOK_EVERY_S: Final = 300.0


class Heads(Protocol):
    """What the topics begin with."""

    def lowest_position(self, names: list[str]) -> str | None:
        """
        Return the lowest position among the first records of all partitions.

        Returns:
            ``None`` if no record is retained, or one has no position to go by.

        Raises:
            UnavailableError: The broker does not answer.
        """


class SafePosition:
    """Looked up by one thread, taken by another."""

    def __init__(self, heads: Heads | None, clock: Clock) -> None:
        self._heads = heads
        self._clock = clock
        self._next = Deadline(clock, 0)
        self._lock = threading.Lock()
        self._found: str | None = None

    def look(self, names: Callable[[], list[str]]) -> None:
        """
        Look the position up, if that is due.

        Args:
            names: Lists the sink's topics.

        Raises:
            UnavailableError: The broker does not answer.
        """
        if self._heads is None or not self._next.passed():
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        found = self._heads.lowest_position(names())
        with self._lock:
            self._found = found

    def take(self, parked_from: str | None) -> str | None:
        """Return what was found since the last call, no higher than what is parked."""
        with self._lock:
            found, self._found = self._found, None
        if found is None or parked_from is None:
            return found
        return min(found, parked_from)

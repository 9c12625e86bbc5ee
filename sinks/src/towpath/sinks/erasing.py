"""
A sink's verb beside the others: single keys are taken out of its target.

``towpath verify --repair --erase`` asks for it, by an order in the dead-letter topic.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Erasing(Protocol):
    """A sink that can take single keys out of its target, whatever their position."""

    def erase(self, route: str, keys: Sequence[str]) -> None:
        """
        Take every row of some keys away, durably; what is read of them later counts.

        Args:
            route: Whose they are.
            keys: As ``StoredRow`` has them.

        Raises:
            BusyError: The target asks for a pause.
            UnavailableError: The target cannot be reached; it is safe to repeat.
        """

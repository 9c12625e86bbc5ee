"""
Ctrl-C, once: the first signal ends what is being done, the clean-up is never hindered.

Whoever closes the terminal (SIGHUP) or says ``kill`` (SIGTERM) means the same.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Attention:
    """Whether a signal still interrupts."""

    def __init__(self) -> None:
        self._turned_away = False

    def turn_away(self) -> None:
        """Ignore signals from now on: what follows is the clean-up."""
        self._turned_away = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Take a signal."""
        if not self._turned_away:
            self._turned_away = True
            raise KeyboardInterrupt


@contextmanager
def interrupted_once() -> Iterator[Attention]:
    """Turn the first of the signals into ``KeyboardInterrupt``; ignore later ones."""
    attention = Attention()
    before = {number: signal.signal(number, attention) for number in _SIGNALS}
    try:
        yield attention
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

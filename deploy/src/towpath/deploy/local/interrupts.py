"""
Signals that end a run: the first interrupts it, and none disturbs the clean-up.

Python can raise ``KeyboardInterrupt`` between any two steps of the main thread, even
while a library has started a thread but not registered it; nobody would then wait for
that thread. A block that starts threads therefore defers signals to its end.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, TypeAlias


def _signals() -> list[signal.Signals]:
    """Return the signals that end a run, with SIGHUP unless the process ignores it."""
    ending = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    return ending


_Handlers: TypeAlias = Mapping[signal.Signals, Any]


def _restore(before: _Handlers) -> None:
    """Restore handlers; one that is not Python's (None) cannot be installed again."""
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)


class InterruptHandler:
    """A signal handler that interrupts once, and not during the clean-up."""

    def __init__(self) -> None:
        self._is_disabled = False

    def disable(self) -> None:
        """Ignore signals from now on, for the clean-up."""
        self._is_disabled = True

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Raise ``KeyboardInterrupt`` for the first signal; ignore later ones."""
        if not self._is_disabled:
            self._is_disabled = True
            raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_once() -> Iterator[InterruptHandler]:
    """Turn the first of the signals into ``KeyboardInterrupt``; ignore later ones."""
    interrupts = InterruptHandler()
    before = {number: signal.signal(number, interrupts) for number in _signals()}
    try:
        yield interrupts
    finally:
        _restore(before)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer signals that arrive during the block to its end."""
    if threading.current_thread() is not threading.main_thread():
        # Handlers run in the main thread only.
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in _signals()
    }
    try:
        yield
    finally:
        _restore(before)
        for late in arrived:
            signal.raise_signal(late)

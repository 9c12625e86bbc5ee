"""Where it is told how far a run is: a live line, or now and then one that stays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.status import Status

from towpath.schemas.clock import Clock

_LINE_EVERY_S: Final = 10.0


class Screen(Protocol):
    """Takes what is so now, and what stays."""

    def show(self, line: str) -> None:
        """Show how far it is."""

    def say(self, line: str) -> None:
        """Tell something that stays."""


class Quiet:
    """Shows nothing; what stays is kept."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def show(self, line: str) -> None:
        """Show nothing."""

    def say(self, line: str) -> None:
        """Keep it."""
        self.said.append(line)


class LiveScreen:
    """A spinner with a line; without a terminal a line every few seconds."""

    def __init__(self, console: Console, status: Status, clock: Clock) -> None:
        self._console = console
        self._status = status
        self._clock = clock
        self._told_at_s = float("-inf")

    def show(self, line: str) -> None:
        """Show it in place of the last."""
        if self._console.is_terminal:
            self._status.update(line)
        elif self._clock.monotonic_s() - self._told_at_s >= _LINE_EVERY_S:
            self._told_at_s = self._clock.monotonic_s()
            self.say(line)

    def say(self, line: str) -> None:
        """Print it above."""
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def open_screen(console: Console, clock: Clock) -> Iterator[LiveScreen]:
    """Show a live line for the block."""
    with console.status("starting") as status:
        yield LiveScreen(console, status, clock)

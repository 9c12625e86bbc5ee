"""
When keys are tried again that a target did not take for now.

They are parked, so what comes after waits behind them and nothing else does. Nobody has
to ask for their replay: it is due after a while, and after longer with each attempt.
"""

from typing import Final, NamedTuple

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock
from towpath.sinks.dead_letters.letter import ParkedKey
from towpath.sinks.dead_letters.parked import ParkedKeys

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

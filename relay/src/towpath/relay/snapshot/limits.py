"""How much and how fast a track reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.requests import MAX_BATCH_KEYS
from towpath.relay.snapshot.run import Run
from towpath.relay.snapshot.touches import MAX_TOUCHES


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Bounds of memory and speed.

    Attributes:
        chunk: What chunks should be like.
        readers: How many chunks are read at the same time.
        max_touches: How many touches of a table are kept.
        batch_keys: How many keys that the relay asks for are stored together.
    """

    chunk: ChunkSize
    readers: int = 1
    max_touches: int = MAX_TOUCHES
    batch_keys: int = MAX_BATCH_KEYS


class Way(NamedTuple):
    """
    How a track reads.

    Attributes:
        readers: How many tables, and ranges of a table, are read at the same time.
        throttle: What makes it yield; None: it never does.
        on_ended: Told of each run when it has ended.
        ahead: How many tables more are begun while tables turn out to be tiny, so that
            they do not wait for each other's round trips.
    """

    readers: int
    throttle: Throttle | None
    on_ended: Callable[[Run], None]
    ahead: int = 0

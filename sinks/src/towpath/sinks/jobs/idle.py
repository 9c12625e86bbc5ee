"""
Has a sink look after itself while no batch comes: a loss is noticed all the same.

Most sinks have nothing to do then. One that has, has a verb for it (``Attending``),
which is called now and then, by the supervisor's thread, and never beside a batch.
"""

import threading
from typing import Final

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.ports import Attending, Sink

# Whoever reads a cache that was emptied sees nothing until this has passed, and the
# rows have been read. Some small calls each time.
LOOK_EVERY_S: Final = 5.0


class Idle:
    """Attends to one sink between its batches."""

    def __init__(self, sink: Sink, alone: threading.RLock, clock: Clock) -> None:
        """
        Describe whom to attend to.

        Args:
            sink: The sink.
            alone: Held by whoever uses the sink.
            clock: The time.
        """
        self._sink = sink
        self._alone = alone
        self._clock = clock
        self._next = Deadline(clock, LOOK_EVERY_S)

    def look(self) -> None:
        """
        Attend to the sink, if that is due and nobody uses it.

        Raises:
            UnavailableError: The target does not answer.
            BusyError: The target asks for a pause.
            HaltError: The sink refuses to go on.
        """
        if not isinstance(self._sink, Attending) or not self._next.passed():
            return
        if not self._alone.acquire(blocking=False):
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        try:
            self._sink.attend()
        finally:
            self._alone.release()

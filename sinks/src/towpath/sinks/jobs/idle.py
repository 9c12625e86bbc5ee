"""
Does what is due between batches: a loss is noticed also while none comes.

The writer asks for what it has put off. Most sinks have nothing to do then; one that
has, has a verb for it (``Attending``). Both are called now and then, by the
supervisor's thread, and never beside a batch.
"""

from typing import Final

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.jobs.batch import BatchWriter
from towpath.sinks.ports import Attending, Sink

# Whoever reads a cache that was emptied sees nothing until this has passed, and the
# rows have been read. Some small calls each time.
LOOK_EVERY_S: Final = 5.0


class Idle:
    """Attends to one sink between its batches."""

    def __init__(self, sink: Sink, writer: BatchWriter, clock: Clock) -> None:
        """
        Describe whom to attend to.

        Args:
            sink: The sink.
            writer: Who uses it.
            clock: The time.
        """
        self._sink = sink
        self._writer = writer
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
        if not self._next.passed() or not self._writer.alone.acquire(blocking=False):
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        try:
            self._writer.attend()
            if isinstance(self._sink, Attending):
                self._sink.attend()
        finally:
            self._writer.alone.release()

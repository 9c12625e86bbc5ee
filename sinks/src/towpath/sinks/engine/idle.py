"""
The time between two batches of a sink: waiting for it, and maintenance within it.

A batch and maintenance exclude each other by the lock of the sink's writer.
"""

from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.ports import Sink, SupportsUpkeep

# A batch that takes longer is delivered again. The driver waits twice as long for its
# sinks.
FINISH_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.02


def wait_for_batch(query: StreamingQuery, clock: Clock) -> None:
    """Wait until no batch is under way; the writer starts no new one."""
    deadline = Deadline(clock, FINISH_WITHIN_S)
    while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
        clock.wait(_LOOK_EVERY_S)


# An emptied cache stays empty for up to this long, until its rows are requested. Each
# check is a few small calls.
LOOK_EVERY_S: Final = 5.0


class IdleUpkeep:
    """Maintains one sink between its batches."""

    def __init__(self, sink: Sink, writer: RecordWriter, clock: Clock) -> None:
        """
        Store the parameters.

        Args:
            sink: The sink.
            writer: The writer of the sink's batches.
            clock: The time.
        """
        self._sink = sink
        self._writer = writer
        self._clock = clock
        self._next = Deadline(clock, LOOK_EVERY_S)

    def check(self) -> None:
        """
        Maintain the sink, if that is due and no batch is being written.

        Raises:
            UnavailableError: The target does not answer.
            BusyError: The target asks for a pause.
            HaltError: The sink refuses to continue.
        """
        if not self._next.passed() or not self._writer.lock.acquire(blocking=False):
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        try:
            self._writer.request_overdue()
            if isinstance(self._sink, SupportsUpkeep):
                self._sink.maintain()
        finally:
            self._writer.lock.release()

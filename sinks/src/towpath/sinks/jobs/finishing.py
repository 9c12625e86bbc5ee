"""
How a query is ended that has a batch under way.

To stop it at once would end it between what the batch wrote and the engine's note of
it, and all of the batch would come again at the next start.
"""

from typing import Final

from pyspark.sql.streaming.query import StreamingQuery

from towpath.schemas.clock import Clock, Deadline

# A batch that takes longer comes again. The driver's own patience is twice as long.
FINISH_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.02


def let_finish(query: StreamingQuery, clock: Clock) -> None:
    """Wait until no batch is under way; whoever writes them begins no other."""
    deadline = Deadline(clock, FINISH_WITHIN_S)
    while query.isActive and query.status["isTriggerActive"] and not deadline.passed():
        clock.wait(_LOOK_EVERY_S)

"""
How an executor makes a sink of its own: from what it was told, and nothing else.

Its process has no configuration and no state folder. What it must know of the table's
shapes it reads from Kafka, as the driver does, over one connection for all its sinks.
"""

from dataclasses import dataclass
from functools import cache

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.settings import Kafka, Settings
from towpath.settings import Sink as SinkSettings
from towpath.sinks.kafka import KafkaRelations
from towpath.sinks.kinds import ExecutorParts, kind_of
from towpath.sinks.ports import Sink
from towpath.sinks.routed import RoutedRelations


@dataclass(frozen=True, slots=True)
class Told:
    """What an executor must know to make a sink; it is sent with every task."""

    sink: SinkSettings
    kafka: Kafka
    prefix: str
    replay_window_s: int

    def make(self) -> Sink:
        """
        Make the sink; nothing of it is opened yet.

        Raises:
            UsageError: The kind is written from the driver only.
        """
        spread = kind_of(self.sink).spread
        if spread is None:
            message = f"a sink of the kind {self.sink.kind} is written from the driver"
            raise UsageError(message)
        announced = _relations(self.kafka, self.prefix)
        parts = ExecutorParts(
            prefix=self.prefix,
            replay_window_s=self.replay_window_s,
            relations=RoutedRelations(
                announced, self.sink.route, kind_of(self.sink).unfit_name
            ),
            clock=SystemClock(),
        )
        return spread(self.sink, parts)


def told_of(settings: Settings, sink: SinkSettings) -> Told:
    """Return what executors must know of a sink."""
    return Told(
        sink,
        settings.kafka,
        settings.database.prefix,
        settings.topics.replay_window_s,
    )


@cache
def _relations(kafka: Kafka, prefix: str) -> KafkaRelations:
    return KafkaRelations(kafka, prefix)

"""
The watch over topics while the relay runs: their partitions, and that they are there.

The relay writes to the partitions that it has stored, whatever is added; but whoever
adds some wants to hear of it at once, and a topic that was deleted takes no record any
more. So a thread looks at all topics every few seconds, in one request; what it finds
ends the loop, with what the operator can do.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.relay.kafka.reading import TopicCounts
from towpath.schemas.failure import HaltError, TowpathError
from towpath.settings import Kafka

_LOG = structlog.get_logger("towpath.relay.kafka")

# Soon enough for a person, rarely enough for a cluster of thousands of topics.
INTERVAL_S: Final = 2.0
# A topic just made may be unknown to the broker that is asked.
_LOOKS_IN_VAIN: Final = 2
# A look that a frozen broker holds up must not hold up the relay's stop; its thread
# ends by itself once the request has.
_CLOSE_TIMEOUT_S: Final = 0.5


class TopicMonitor:
    """Compares the topics that the relay writes with what the cluster has."""

    def __init__(
        self,
        kafka: Kafka,
        counts: Mapping[str, int],
        is_marked: Callable[[str], bool],
        on_found: Callable[[], None],
    ) -> None:
        """
        Prepare; ``start`` begins.

        Args:
            kafka: The brokers.
            counts: The partition counts that the relay works with, as of each look.
            is_marked: Whether the state tells what a topic has: only then does its
                partition count decide where keys stand.
            on_found: Wakes the loop; called from the thread.
        """
        self._kafka = kafka
        self._counts = counts
        self._is_marked = is_marked
        self._on_found = on_found
        self._found: HaltError | None = None
        self._missed: dict[str, int] = {}
        self._is_closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="topic watch", daemon=True
        )

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking. Never raises."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def check(self) -> None:
        """
        Make sure that nothing was found; called from the loop.

        Raises:
            PartitionCountChangedError: A topic has other partitions.
            TopicTruncatedError: A topic is gone.
        """
        if self._found is not None:
            raise self._found

    def look(self, there: Mapping[str, int]) -> HaltError | None:
        """Return what is wrong with the cluster's topics, by their partition counts."""
        for topic, count in tuple(self._counts.items()):
            if not self._is_marked(topic):
                continue
            found = there.get(topic, 0)
            if not found:
                self._missed[topic] = self._missed.get(topic, 0) + 1
                if self._missed[topic] >= _LOOKS_IN_VAIN:
                    reason = f"topic {topic} was deleted while the relay writes it"
                    return TopicTruncatedError(reason)
                continue
            self._missed.pop(topic, None)
            if found != count:
                reason = f"topic {topic} had {count} partitions and has {found} now"
                return PartitionCountChangedError(reason)
        return None

    def _run(self) -> None:
        with TopicCounts(self._kafka) as topics:
            while not self._is_closing.wait(INTERVAL_S):
                try:
                    found = self.look(topics.read())
                except TowpathError as error:
                    # The loop notices for itself that Kafka is away.
                    _LOG.debug(
                        "topic monitor failed, next look retries", reason=str(error)
                    )
                    continue
                if found is not None:
                    self._found = found
                    self._on_found()
                    return

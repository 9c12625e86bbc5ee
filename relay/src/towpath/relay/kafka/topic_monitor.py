"""
Monitors the relay's topics: deleted ones, and changed partition counts.

The relay writes to the partition count that it has stored, but an operator who adds
partitions should learn at once that they are not used. A thread checks all topics every
few seconds, in one request; a finding ends the session with its remedy.
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
# A new topic may be unknown to a broker for a moment.
_MISSED_LOOKS: Final = 2
# A frozen broker must not delay the relay's stop; the thread ends with its request.
_CLOSE_TIMEOUT_S: Final = 0.5


class TopicMonitor:
    """Compares the topics that the relay writes with those of the cluster."""

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
            counts: The partition counts that the relay uses.
            is_marked: Whether a topic has marks: only then does its partition count
                matter.
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
            target=self._run, name="topic monitor", daemon=True
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
                if self._missed[topic] >= _MISSED_LOOKS:
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

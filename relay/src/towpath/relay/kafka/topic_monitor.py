"""
Monitors the relay's topics for deletions and changed partition counts.

The relay partitions keys with the partition count that it has stored; an operator who
adds partitions should learn promptly that they are not used. A thread checks all topics
every few seconds, in one request; a finding ends the session, and its error names the
remedy.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from towpath.relay.errors import PartitionCountChangedError, TopicTruncatedError
from towpath.relay.kafka.reading import TopicReader
from towpath.schemas.failure import HaltError, TowpathError
from towpath.settings import Kafka

_LOG = structlog.get_logger("towpath.relay.kafka")

# Short enough to warn an operator promptly, long enough for thousands of topics.
INTERVAL_S: Final = 2.0
# A new topic may be unknown to a broker for a moment.
_MISSED_CHECKS: Final = 2
# A frozen broker must not delay the relay's stop; the thread ends when its request
# does.
_CLOSE_TIMEOUT_S: Final = 0.5


class TopicMonitor:
    """Compares the topics that the relay writes to with those of the cluster."""

    def __init__(
        self,
        kafka: Kafka,
        counts: Mapping[str, int],
        is_marked: Callable[[str], bool],
        on_found: Callable[[], None],
    ) -> None:
        """
        Prepare the thread; ``start`` starts it.

        Args:
            kafka: The brokers.
            counts: The partition counts that the relay uses.
            is_marked: Whether a topic has marks; other topics are not checked.
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
        """Start checking."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking. Never raises."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def check(self) -> None:
        """
        Raise the finding, if there is one; called from the loop.

        Raises:
            PartitionCountChangedError: A topic's partition count has changed.
            TopicTruncatedError: A topic was deleted.
        """
        if self._found is not None:
            raise self._found

    def _compare(self, existing: Mapping[str, int]) -> HaltError | None:
        """Return the error of a topic that is gone or whose partition count differs."""
        for topic, count in tuple(self._counts.items()):
            if not self._is_marked(topic):
                continue
            found = existing.get(topic, 0)
            if not found:
                self._missed[topic] = self._missed.get(topic, 0) + 1
                if self._missed[topic] >= _MISSED_CHECKS:
                    reason = (
                        f"topic {topic} was deleted while the relay was writing to it"
                    )
                    return TopicTruncatedError(reason)
                continue
            self._missed.pop(topic, None)
            if found != count:
                reason = f"topic {topic} changed from {count} to {found} partitions"
                return PartitionCountChangedError(reason)
        return None

    def _run(self) -> None:
        with TopicReader(self._kafka) as reader:
            while not self._is_closing.wait(INTERVAL_S):
                try:
                    found = self._compare(reader.partition_counts())
                except TowpathError as error:
                    # The loop itself notices that Kafka is unreachable.
                    _LOG.debug(
                        "topic check failed: the next check tries again",
                        reason=str(error),
                    )
                    continue
                if found is not None:
                    self._found = found
                    self._on_found()
                    return

"""
Which topics a sink reads, by the ids that the broker gave them.

A topic that was deleted and made again has the old name and another id. Its offsets
tell only as long as it is shorter than what was read of the old one, so the ids are
kept beside the checkpoint: that of a topic is noted when it is first met, and whatever
has the name and another id is not that topic. A broker that gives no ids tells nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import orjson

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.ports import Cluster
from towpath.sinks.progress import replace_file

TOPIC_IDS_FILE: Final = "topic_ids.json"

# How long a running query may read a topic made anew as if it were the old one; what
# it left out is asked for then. A look is one small request.
LOOK_EVERY_S: Final = 10.0


class TopicIds:
    """The ids of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path, cluster: Cluster, clock: Clock) -> None:
        self._path = folder / TOPIC_IDS_FILE
        self._cluster = cluster
        self._clock = clock
        self._next = Deadline(clock, LOOK_EVERY_S)

    def now(self, names: Iterable[str]) -> dict[str, str]:
        """
        Return the ids that topics have now.

        Raises:
            UnavailableError: The broker does not answer.
        """
        return self._cluster.topic_ids(names)

    def others(self, found: Mapping[str, str]) -> frozenset[str]:
        """Return which topics are others than those that were noted."""
        noted = self._noted()
        return frozenset(n for n, one in found.items() if noted.get(n, one) != one)

    def note(self, found: Mapping[str, str]) -> None:
        """Note the ids that were found, and forget all others."""
        if found != self._noted():
            replace_file(self._path, orjson.dumps(found))

    def look(self, names: Callable[[], Iterable[str]]) -> frozenset[str]:
        """
        Look, if that is due, whether topics were made anew, and note new ones.

        Raises:
            UnavailableError: The broker does not answer.
        """
        if not self._next.passed():
            return frozenset()
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        found = self.now(names())
        remade = self.others(found)
        if not remade:
            self.note(self._noted() | found)
        return remade

    def _noted(self) -> dict[str, str]:
        try:
            noted: dict[str, str] = orjson.loads(self._path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return noted

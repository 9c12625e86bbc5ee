"""
Which topics a sink reads, by the ids that the broker gave them.

A topic that was deleted and made again has the old name and another id. Its offsets
tell only as long as it is shorter than what was read of the old one, so the ids are
kept beside the checkpoint: that of a topic is noted when it is first met, and whatever
has the name and another id is not that topic. A broker that gives no ids tells nothing.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from towpath.sinks.kept import KeptFile

TOPIC_IDS_FILE: Final = "topic_ids.json"


class TopicIds:
    """The ids of one sink's topics, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        self._file = KeptFile[str](folder / TOPIC_IDS_FILE)

    def others(self, found: Mapping[str, str]) -> frozenset[str]:
        """Return which topics are others than those that were noted."""
        noted = self._file.read()
        return frozenset(n for n, one in found.items() if noted.get(n, one) != one)

    def note(self, found: Mapping[str, str], gone: Collection[str] = ()) -> None:
        """Note the ids that were found beside the others, and forget what is gone."""
        known = {**self._file.read(), **found}
        self._file.keep({t: one for t, one in known.items() if t not in gone})

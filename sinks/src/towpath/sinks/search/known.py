"""
How a sink notices that an index is not the one that it has written.

An index has an id, which the server chose when it was made. The ids of a sink's indexes
stand in a file beside its checkpoint, which says what they were given. An index with
another id was made anew, was restored from a copy, or the alias was put over another
one: what the old one had need not be there. A rebuild's index is no such case: it lists
those whose place it takes.

The rows are asked for, the file forgets the route, and only then the index is made: who
ends in between asks once more, or has asked. An index that the file does not know is
taken as it is.
"""

from dataclasses import dataclass
from pathlib import Path

import structlog

from towpath.sinks.known_ids import KnownIds
from towpath.sinks.ports import Repairs
from towpath.sinks.search.aliases import Standing

_log = structlog.get_logger("towpath.sinks.search")


@dataclass(frozen=True, slots=True)
class Watch:
    """
    What is needed to notice that an index is another one, and to cure it.

    Attributes:
        file: Where to keep the ids, in the sink's own folder.
        repairs: Has rows read anew.
    """

    file: Path
    repairs: Repairs


class KnownIndexes:
    """The ids of one sink's indexes."""

    def __init__(self, watch: Watch | None) -> None:
        """Describe where they are kept; without that, for as long as we run."""
        self._watch = watch
        self._ids = KnownIds(watch.file if watch else None)

    def recall(self) -> None:
        """Read what was known."""
        self._ids.recall()

    def loss(self, route: str, found: Standing | None) -> str | None:
        """Say why the index of a route cannot hold what was written, if so."""
        known = self._ids.of(route)
        if known is None:
            return None
        if found is None:
            return "its index was dropped"
        if known == found.id or known in found.follows:
            return None
        return f"{found.name} is not the index that was written"

    def ask(self, route: str, why: str) -> None:
        """
        Have the rows of a route read anew, and forget its index.

        Raises:
            UnavailableError: They are not known to be asked for; try again.
        """
        watch = self._watch
        is_asked = watch is not None and watch.repairs.ask_all(route, why)
        _log.warning("index lost rows", route=route, why=why, asked_for_rows=is_asked)
        self._ids.forget(route)

    def learn(self, route: str, found: Standing) -> None:
        """Know an index from now on."""
        self._ids.learn(route, found.id)

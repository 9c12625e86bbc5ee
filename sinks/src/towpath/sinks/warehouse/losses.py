"""
How a sink notices that a table is not the one that it has written.

A table gets an id when it is made, as one of its properties; the ids of a sink's tables
stand in a file beside its checkpoint. A table with another id was dropped and made
anew, by whomever: what the old one held is gone, deletes too.

The rows are asked for first, and only then the new id is known: who ends in between
asks once more. A table of which nothing is known is taken as it is.
"""

from pathlib import Path

import structlog

from towpath.sinks.known_ids import KnownIds
from towpath.sinks.ports import Repairs

_log = structlog.get_logger("towpath.sinks.warehouse")


class Losses:
    """The tables of one warehouse, by their ids."""

    def __init__(self, file: Path | None, repairs: Repairs | None) -> None:
        """
        Describe whom to ask; nothing is read yet.

        Args:
            file: Where to keep the ids; without it, they are known while we run.
            repairs: Has rows read anew.
        """
        self._known = KnownIds(file)
        self._repairs = repairs

    def recall(self) -> None:
        """Learn what was known of the tables when the sink ran last."""
        self._known.recall()

    def look(self, route: str, id_: str) -> None:
        """
        Have the rows of a route read anew if its table is another one than before.

        Raises:
            UnavailableError: They are not known to be asked for; try again.
        """
        if self._known.of(route) not in {None, id_}:
            self._ask(route)
        self._known.learn(route, id_)

    def _ask(self, route: str) -> None:
        why = f"the table of {route} is not the one that was written"
        if self._repairs is not None and self._repairs.ask_all(route, why):
            _log.warning("table lost rows, all of them asked for", reason=why)
            return
        _log.error("table lost rows that cannot be asked for", reason=why)

"""
Taking documents away: those below a floor, and tombstones that nothing needs any more.

A tombstone is needed as long as something older of its key can be delivered again. What
lies below the safe position cannot, so tombstones below it go: a portion with each
batch, so that no batch waits long for it.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
from opensearchpy import OpenSearch

from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.search.client import translated
from towpath.sinks.search.indexes import Indexes
from towpath.sinks.search.mapping import DELETED_FIELD, POSITION_FIELD

# Some ten thousand documents a second go; a longer sweep is asked for again.
SWEPT_WITHIN_S: Final = 600.0

_log = structlog.get_logger("towpath.sinks.search")


class Upkeep:
    """Sweeps and purges of one sink's indexes."""

    def __init__(self, client: OpenSearch, indexes: Indexes, at_once: int) -> None:
        self._client = client
        self._indexes = indexes
        self._at_once = at_once
        self._due: dict[str, str] = {}

    def sweep(self, route: str, floor: str) -> None:
        """
        Remember a floor, then take away what is below it, tombstones too.

        Raises:
            TargetUnavailableError: Not all of it is gone: do it again.
        """
        if route not in self._indexes.known():
            self._indexes.ensure(route)
        self._indexes.floors.learn(route, floor)
        indexes = self._indexes.behind(route)
        with translated():
            self._indexes.remember_floor(route)
            # A search, which this is, sees only what was refreshed.
            self._client.indices.refresh(index=list(indexes))
        taken, is_all = self._take(indexes, _below(floor), {"refresh": "true"})
        if not is_all:
            message = f"not all rows of {route} below {floor} could be taken away"
            raise TargetUnavailableError(message)
        self._indexes.floors.carried_out(route, floor)
        _log.info("rows below a floor taken away", route=route, floor=floor, rows=taken)

    def purge(self, safe: str | None) -> int:
        """
        Take away a portion of the tombstones below the newest safe position.

        Args:
            safe: The safe position, when it was told anew.

        Returns:
            How many are gone.
        """
        if safe is not None:
            self._due = dict.fromkeys(self._indexes.known(), safe)
        if not self._due:
            return 0
        route, below = next(iter(self._due.items()))
        query = {"filter": [_below(below), {"term": {DELETED_FIELD: True}}]}
        portion = {"max_docs": self._at_once}
        taken, is_all = self._take(
            self._indexes.behind(route), {"bool": query}, portion
        )
        if taken:
            _log.info("tombstones taken away", route=route, below=below, rows=taken)
        if not is_all:
            _log.warning("tombstones left for the next time", route=route)
        if taken < self._at_once:
            del self._due[route]
        return taken

    def _take(
        self, indexes: Sequence[str], query: dict[str, Any], params: dict[str, Any]
    ) -> tuple[int, bool]:
        """Delete what a query finds; return how many, and whether that is all."""
        if not indexes:
            return 0, True
        with translated():
            # By the indexes, as the alias would hide what is deleted.
            answer = self._client.delete_by_query(
                index=list(indexes),
                body={"query": query},
                params={
                    "conflicts": "proceed",
                    "request_timeout": SWEPT_WITHIN_S,
                    **params,
                },
            )
        is_all = not answer.get("failures") and not answer.get("version_conflicts")
        return answer["deleted"], is_all


def _below(position: str) -> dict[str, Any]:
    return {"range": {POSITION_FIELD: {"lt": position}}}

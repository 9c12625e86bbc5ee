"""
Held-back routes and ignored columns, for targets with columns.

A route is *held back* while its table cannot be fitted to its source: its changes
become dead letters with the reason. A column is *ignored* if an older record has it,
but the source has dropped it; each ignored column is logged once.
"""

from collections.abc import Iterable
from typing import Any

from towpath.schemas.failure import TowpathError, with_remedy


class HeldBackRoutes:
    """The routes of one sink that are held back, with the reasons."""

    def __init__(self, log: Any) -> None:  # noqa: ANN401 - structlog's
        """Start with no route held back; ``log`` is the logger of the target."""
        self._log = log
        self._reasons: dict[str, str] = {}

    def hold(self, route: str, error: TowpathError) -> None:
        """Hold a route back; log it unless it is already held back for this reason."""
        reason = with_remedy(str(error), error.remedy)
        if self._reasons.get(route) != reason:
            self._log.error(
                "route held back: its changes become dead letters",
                route=route,
                reason=reason,
            )
        self._reasons[route] = reason

    def resume(self, route: str) -> None:
        """Stop holding a route back; log it if the route was held back."""
        if self._reasons.pop(route, None) is not None:
            self._log.info("route resumed: its table fits again", route=route)

    def __contains__(self, route: str) -> bool:
        """Return whether a route is held back."""
        return route in self._reasons

    def reason(self, route: str) -> str:
        """Return why a route is held back, and the remedy."""
        return self._reasons[route]


class IgnoredColumns:
    """The columns of older records that one sink ignores."""

    def __init__(self, log: Any) -> None:  # noqa: ANN401 - structlog's
        """Start with no column ignored; ``log`` is the logger of the target."""
        self._log = log
        self._known: set[tuple[str, str]] = set()

    def add(self, route: str, columns: Iterable[str]) -> None:
        """Log each column of a route once."""
        for column in sorted(columns):
            if (route, column) not in self._known:
                self._known.add((route, column))
                self._log.warning(
                    "column ignored: the source no longer has it",
                    route=route,
                    column=column,
                )

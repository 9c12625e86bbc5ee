"""
Counts between two flushes, and the floors of a sink's routes.

A failed ``apply`` counts nothing, because the same batch is delivered again: each
``apply`` counts into a new tally, and adds it to the sink's tally at the end.

A target stores a floor before it deletes the rows below it, and a sink loads the stored
floors when it opens a route. A sink is the only writer of its routes, so floors can be
compared with changes here instead of in the target.
"""

from collections.abc import Iterable, Sequence

from towpath.sinks.change import Change, Floor, Origin, Refusal
from towpath.sinks.fold import changes_above, highest_per_route
from towpath.sinks.ports import Checkpoint


class Tally:
    """Counts of changes applied, stale and refused, and of values made null."""

    def __init__(self) -> None:
        self.applied = 0
        self.stale = 0
        self.nulled = 0
        self.refused: list[Refusal] = []
        self.refused_events: dict[Origin, str] = {}

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.applied += other.applied
        self.stale += other.stale
        self.nulled += other.nulled
        self.refused += other.refused
        self.refused_events |= other.refused_events

    def take(self) -> Checkpoint:
        """Return the counts and reset them."""
        checkpoint = Checkpoint(
            *(self.applied, self.stale, tuple(self.refused), self.refused_events),
            nulled=self.nulled,
        )
        self.applied = self.stale = self.nulled = 0
        self.refused, self.refused_events = [], {}
        return checkpoint


class Floors:
    """The highest known floor of each route."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._applied: dict[str, str] = {}

    def of(self, route: str) -> str | None:
        """Return a route's floor, if it has one."""
        return self._known.get(route)

    def learn(self, route: str, position: str | None) -> None:
        """Add a floor that the target has stored."""
        if position is not None and position > self._known.get(route, ""):
            self._known[route] = position

    def due(self, floors: Iterable[Floor]) -> list[tuple[str, str]]:
        """
        Return the routes and floors that are to be applied.

        A floor that the target has stored is included: the sink may have stopped before
        it had deleted the rows.
        """
        return [
            (route, position)
            for route, position in highest_per_route(floors).items()
            if position >= self._known.get(route, "")
            and position > self._applied.get(route, "")
        ]

    def mark_applied(self, route: str, position: str) -> None:
        """Note that no row is left below a floor."""
        self._applied[route] = position

    def above(self, changes: Sequence[Change], tally: Tally) -> Sequence[Change]:
        """Drop the changes below their route's floor, and count them as stale."""
        kept = changes_above(changes, self._known)
        tally.stale += len(changes) - len(kept)
        return kept

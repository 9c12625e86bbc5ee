"""
What a sink counts between two flushes.

A failed ``apply`` must count nothing, because the same batch comes again: whoever
applies counts into a tally of its own and adds it at the end.

The floors of one sink's routes: what is below its route's floor never comes back.

A target remembers each floor before it takes the rows below away, and a sink learns the
remembered floors when it opens a route. One sink is the only writer of its routes, so
the floors may be held against changes here, and not in the target.
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
        """Count what another tally counted, too."""
        self.applied += other.applied
        self.stale += other.stale
        self.nulled += other.nulled
        self.refused += other.refused
        self.refused_events |= other.refused_events

    def take(self) -> Checkpoint:
        """Return the counts and begin anew."""
        checkpoint = Checkpoint(
            *(self.applied, self.stale, tuple(self.refused), self.refused_events),
            nulled=self.nulled,
        )
        self.applied = self.stale = self.nulled = 0
        self.refused, self.refused_events = [], {}
        return checkpoint


class Floors:
    """The highest known floor of each route; rises and never falls."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._carried_out: dict[str, str] = {}

    def of(self, route: str) -> str | None:
        """Return a route's floor, if it has one."""
        return self._known.get(route)

    def learn(self, route: str, position: str | None) -> None:
        """Take what the target remembers."""
        if position is not None and position > self._known.get(route, ""):
            self._known[route] = position

    def due(self, floors: Iterable[Floor]) -> list[tuple[str, str]]:
        """
        Return routes and floors to be carried out.

        A floor that the target remembers is among them: whoever noted it may have
        ended before the rows were gone.
        """
        return [
            (route, position)
            for route, position in highest_per_route(floors).items()
            if position >= self._known.get(route, "")
            and position > self._carried_out.get(route, "")
        ]

    def carried_out(self, route: str, position: str) -> None:
        """Take note that nothing is left below a floor."""
        self._carried_out[route] = position

    def above(self, changes: Sequence[Change], tally: Tally) -> Sequence[Change]:
        """Leave out what lies below its route's floor, and count it as stale."""
        kept = changes_above(changes, self._known)
        tally.stale += len(changes) - len(kept)
        return kept

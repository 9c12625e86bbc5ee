"""
Counts events into their transaction whose values have no room to tell their place.

Rows of the outbox and events without a table: their payload is theirs, but END counts
them. So does it count what is set aside as a dead letter.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from towpath.relay.routing.codec import Place
from towpath.relay.routing.record import Record
from towpath.relay.wal.sequencer import Change, Spoken

CountIn = Callable[[str], Place]


class ChangeRoute(Protocol):
    """Makes records of changes."""

    def records(self, change: Change, now_us: int, /) -> Sequence[Record]:
        """Return the records that the change gives, in their order."""


class SpokenRoute(Protocol):
    """Makes records of logical messages."""

    def records(self, spoken: Spoken, now_us: int, /) -> Sequence[Record]:
        """Return the records that the message gives, in their order."""


class CountedChanges:
    """Counts what a route makes of changes."""

    def __init__(self, route: ChangeRoute, collection: str, count_in: CountIn) -> None:
        self._records = route.records
        self._collection = collection
        self._count_in = count_in

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """Return what the route returns, each record counted as an event."""
        records = self._records(change, now_us)
        for _ in records:
            self._count_in(self._collection)
        return records


class CountedEvents:
    """Counts what a route makes of messages that belong to a transaction."""

    def __init__(self, route: SpokenRoute, collection: str, count_in: CountIn) -> None:
        self._records = route.records
        self._collection = collection
        self._count_in = count_in

    def records(self, spoken: Spoken, now_us: int) -> Sequence[Record]:
        """Return what the route returns, each record counted as an event."""
        records = self._records(spoken, now_us)
        if spoken.transaction is not None:
            for _ in records:
                self._count_in(self._collection)
        return records

"""Which route a relation takes: outbox, table, or none for the signal table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.outbox import OutboxRoute
from towpath.relay.routing.record import Record
from towpath.relay.routing.table import Place, TableRoute
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change

SIGNAL_TABLE: Final = "towpath.signal"


class Route(Protocol):
    """What every route does with a change."""

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """Return the records that the change gives, in their order."""


@dataclass(frozen=True, slots=True)
class Router:
    """
    Makes routes for relations as they come.

    Attributes:
        place: Prefix and database, for topics and envelopes.
        outbox_table: The outbox, as ``schema.table``.
        outbox_topic: The template of its topics.
        dead: Where unroutable rows go.
        on_skipped: Told why a change gives no record although one might be expected.
    """

    place: Place
    outbox_table: str
    outbox_topic: str
    dead: DeadLetters
    on_skipped: Callable[[str], None]

    def route(self, relation: Relation) -> Route | None:
        """
        Return the route of a relation; None for the signal table.

        Raises:
            NotPreparedError: The outbox table lacks a column.
        """
        if relation.name == SIGNAL_TABLE:
            return None
        if self.is_outbox(relation.name):
            return OutboxRoute(relation, self.outbox_topic, self.dead, self.on_skipped)
        return self.table(relation)

    def table(self, relation: Relation) -> TableRoute:
        """Return the table route of a relation."""
        return TableRoute(self.place, relation)

    def is_outbox(self, name: str) -> bool:
        """Tell whether the table of this name is the outbox."""
        return name == self.outbox_table

    def is_captured(self, name: str) -> bool:
        """Tell whether the table's rows are published as row changes."""
        return name != SIGNAL_TABLE and not self.is_outbox(name)

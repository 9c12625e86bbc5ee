"""
Chooses the route of a relation: outbox, table, or none for signal tables.

If the registry refuses a table's schema, the relay halts, or the table's rows become
dead letters, as ``on_refused_schema`` specifies.

With transaction metadata, ``CountedChanges`` and ``CountedEvents`` count records whose
values have no field for their place in the transaction, because the END record's totals
include these records. Dead letters count, too.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from towpath.relay.encode.codecs.codec import Codec, TableNames, TransactionPlace
from towpath.relay.encode.codecs.connect_schema import Field
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import DeadLetters, RefusedRoute
from towpath.relay.encode.outbox import OutboxRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.encode.table import (
    PreciseKeyRoute,
    RouteCallbacks,
    SourceNames,
    TableRoute,
    lacks_key_forms,
)
from towpath.relay.wal.messages import Relation
from towpath.relay.wal.transactions import Change, LogicalMessageEvent
from towpath.schemas import topics
from towpath.schemas.failure import SchemaRefusedError
from towpath.settings.relay import Relay
from towpath.settings.rows import RefusedSchema

# Counts a record of a collection in the open transaction.
CountIn = Callable[[str], TransactionPlace]


class ChangeRoute(Protocol):
    """Turns changes into records."""

    def records(self, change: Change, now_us: int, /) -> Sequence[Record]:
        """Return the records of the change, in order."""


class LogicalRoute(Protocol):
    """Turns logical messages into records."""

    def records(self, message: LogicalMessageEvent, now_us: int, /) -> Sequence[Record]:
        """Return the records of the message, in order."""


class CountedChanges:
    """Counts the records of a route for changes."""

    def __init__(self, route: ChangeRoute, collection: str, count_in: CountIn) -> None:
        self._records = route.records
        self._collection = collection
        self._count_in = count_in

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """Return the route's records, each counted as an event."""
        records = self._records(change, now_us)
        for _ in records:
            self._count_in(self._collection)
        return records


class CountedEvents:
    """Counts the records of a route for transactional messages."""

    def __init__(self, route: LogicalRoute, collection: str, count_in: CountIn) -> None:
        self._records = route.records
        self._collection = collection
        self._count_in = count_in

    def records(self, message: LogicalMessageEvent, now_us: int) -> Sequence[Record]:
        """Return the route's records, each counted as an event."""
        records = self._records(message, now_us)
        if message.transaction is not None:
            for _ in records:
                self._count_in(self._collection)
        return records


SIGNAL_TABLE: Final = "towpath.signal"

UNKEYED: Final = "a numeric value in the key is NaN or infinite, so not a decimal"


class UnkeyedRoute(RefusedRoute):
    """Turns changes to rows with NaN or infinity in the key into dead letters."""

    reason = UNKEYED


# Makes a codec from names, the key's columns in key order, and the value's columns.
MakeCodec = Callable[[TableNames, Sequence[Field], Sequence[Field]], Codec]


class Route(Protocol):
    """The interface of every route."""

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """Return the records of the change, in order."""


@dataclass(frozen=True, slots=True)
class Router:
    """
    Makes a route for each relation of the stream.

    Attributes:
        place: Prefix and database, for topics and envelopes.
        relay: ``[relay]``, with the options of the routes.
        dead: Makes dead letters.
        parked: The parked aggregates.
        reserved: Topics that no event may use.
        rules: The published columns, and their types.
        make_codec: Makes the codec of a table's schema.
        callbacks: The callbacks of the routes.
    """

    place: SourceNames
    relay: Relay
    dead: DeadLetters
    parked: ParkedAggregates
    reserved: Container[str]
    rules: ColumnRules
    make_codec: MakeCodec
    callbacks: RouteCallbacks

    def route(self, relation: Relation, facts: CatalogFacts) -> Route | None:
        """
        Return the route of a relation; None for signal tables.

        Raises:
            NotPreparedError: The outbox or a table lacks a configured column.
            SchemaRefusedError: The registry refuses the schema: the relay halts.
        """
        if self._is_signals(relation.name):
            return None
        if self.is_outbox(relation.name):
            outbox = OutboxRoute(
                relation,
                self.relay.outbox,
                self.dead,
                self.parked,
                self.reserved,
                self.callbacks.on_skipped,
            )
            if self.callbacks.on_traced is not None:
                outbox.watch(self.callbacks.on_traced)
            if self.callbacks.enrich is None:
                return outbox
            return CountedChanges(outbox, relation.name, self.callbacks.enrich)
        return self.table(relation, facts)

    def table(
        self, relation: Relation, facts: CatalogFacts
    ) -> TableRoute | RefusedRoute:
        """
        Return the table route of a relation.

        Raises:
            NotPreparedError: A configured key names a column that is missing.
            SchemaRefusedError: The registry refuses the schema: the relay halts.
        """
        prefix, database = self.place
        topic = topics.table_topic(prefix, relation.full_name)
        names = TableNames(prefix, database, relation.schema, relation.table, topic)
        rows = self.relay.rows
        plan = self.rules.plan(relation, facts)
        count_in = self.callbacks.enrich
        try:
            codec = self.make_codec(names, plan.key, plan.columns)
        except SchemaRefusedError as failure:
            if rows.on_refused_schema is RefusedSchema.HALT:
                raise
            reason = str(failure)
            return RefusedRoute(relation, plan, topic, self.dead, reason, count_in)
        if not lacks_key_forms(relation, plan):
            return TableRoute(prefix, relation, plan, codec, rows, self.callbacks)
        unkeyed = UnkeyedRoute(relation, plan, topic, self.dead, UNKEYED, count_in)
        return PreciseKeyRoute(prefix, unkeyed, plan, codec, rows, self.callbacks)

    def is_outbox(self, name: str) -> bool:
        """Return whether the table is the outbox."""
        return name == self.relay.outbox.table

    def is_captured(self, name: str) -> bool:
        """Return whether the table's rows are published as row changes."""
        return not (self._is_signals(name) or self.is_outbox(name))

    def _is_signals(self, name: str) -> bool:
        return name in {SIGNAL_TABLE, self.relay.snapshot.signal_table}

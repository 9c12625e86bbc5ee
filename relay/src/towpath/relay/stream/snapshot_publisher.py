"""
Publishes rows and sweeps of snapshots, each through its collection's route.

A row is published to the topic of its table or aggregate; rows for a single sink have
their own topic. The window has just checked the rows of each call: no record of the
stream is published between that check and these rows.
"""

from collections.abc import Callable, Sequence
from typing import Final

from towpath.relay.encode.codecs.codec import TableNames
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.dead_letters import TOO_LARGE, RefusedRoute
from towpath.relay.encode.record import Record
from towpath.relay.encode.rows import (
    ReadRoute,
    ReadSlice,
    read_envelope_facts,
    sweep_records,
    undelivered_read,
    with_message,
)
from towpath.relay.encode.table import TableRoute
from towpath.relay.errors import MalformedMessageError
from towpath.relay.publish.in_flight import Delivery
from towpath.relay.snapshot.protocol import EmitRows, EmitSweep
from towpath.relay.snapshot.shape import Key, RowValues, key_of
from towpath.relay.stream.context import LoopContext
from towpath.relay.wal.messages import Relation
from towpath.schemas import headers, topics

UNREPORTED_DELETE: Final = (
    "a requested row no longer exists, and its record's key cannot be computed from "
    "the primary key alone"
)

UNSWEPT: Final = (
    "a table's schema is refused and its rows are dead letters, so its sweep is omitted"
)

# With more partitions, each has only a few rows of a chunk.
MAX_PARTITIONS: Final = 128

# Returns the route of a collection that is not a table; None for a table.
AggregateRouteOf = Callable[[Relation], ReadRoute | None]


def _none_declared(_relation: Relation) -> None:
    return None


class SnapshotPublisher:
    """Publishes the rows and sweeps that the snapshot driver emits."""

    def __init__(
        self,
        context: LoopContext,
        aggregate_route_of: AggregateRouteOf = _none_declared,
    ) -> None:
        self._context = context
        self._aggregate_route_of = aggregate_route_of
        self._routes: dict[int, ReadRoute] = {}
        self._chunks: dict[int, Delivery] = {}

    def rows(self, effect: EmitRows) -> Sequence[Key]:
        """
        Publish rows, and deletes of keys that were not found.

        Returns:
            The table's own keys of the rows that became dead letters.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
            SourceUnavailableError: The catalog cannot be read.
        """
        context = self._context
        route, read_slice, delivery = self._context_of(effect)
        records = route.reads(effect.rows, read_slice)
        refused = self._publish(records, effect, read_slice, delivery)
        undelivered = [key_of(effect.rows[at], effect.relation.key) for at in refused]
        undelivered += [
            key
            for key in effect.absent
            if self._publish(
                self._deletes(route, key, read_slice), effect, read_slice, delivery
            )
        ]
        context.stats.snapshot_rows += len(effect.rows) + len(effect.absent)
        if effect.is_last:
            self._end(effect.chunk_id)
        return undelivered

    def partitions_of(
        self, target: str | None, relation: Relation, rows: Sequence[RowValues]
    ) -> Sequence[int]:
        """
        Return the partition of each row's record; nothing if grouping is useless.

        It is useless for an aggregate, if the topic has one partition or very many, if
        a record has no key or a row becomes a dead letter, and before the first rows of
        a relation are published.
        """
        route = self._routes.get(relation.oid)
        if not isinstance(route, TableRoute) or route.relation != relation:
            return ()
        sender = self._context.sender
        facts = sender.known_facts(_topic_of(route.topic, target))
        if facts is None or not 1 < facts.partition_count <= MAX_PARTITIONS:
            return ()
        try:
            keys = route.keys(rows)
        except MalformedMessageError:
            # ``rows`` raises this error again, or turns the row into a dead letter.
            return ()
        return sender.partitions_of(keys, facts.partition_count)

    def sweep(self, effect: EmitSweep) -> None:
        """
        Publish a sweep to every partition.

        Raises:
            DeliveryFailedError: A record could not be delivered.
            UnavailableError: The topic is new and Kafka cannot be reached.
            SourceUnavailableError: The catalog cannot be read.
        """
        context = self._context
        route, read_slice, delivery = self._context_of(effect)
        if isinstance(route, RefusedRoute):
            context.stats.skip(UNSWEPT)
        else:
            facts = context.sender.facts(read_slice.topic)
            records = sweep_records(
                self._sweep_value(route, effect.floor, read_slice),
                effect.floor,
                read_slice,
                facts.partition_count,
                is_compacted=facts.is_compacted,
            )
            context.publisher.publish_reads(records, delivery)
        self._end(effect.chunk_id)

    def _context_of(
        self, effect: EmitRows | EmitSweep
    ) -> tuple[ReadRoute, ReadSlice, Delivery]:
        """Return the route, the slice and the delivery of an effect's records."""
        now_us = self._context.now_us()
        delivery = self._delivery_of(effect.chunk_id)
        route = self._route_of(effect.relation, effect.log_lsn, now_us, delivery)
        topic = _topic_of(route.topic, effect.target)
        read_slice = ReadSlice(effect.log_lsn, effect.snapshot_id, topic, now_us)
        return route, read_slice, delivery

    def _sweep_value(
        self, route: ReadRoute, floor: int, read_slice: ReadSlice
    ) -> bytes:
        """Return a sweep's envelope; an aggregate's has no columns."""
        if isinstance(route, TableRoute):
            return route.sweep(floor, read_slice)
        router, relation = self._context.router, route.relation
        names = TableNames(*router.place, relation.schema, relation.table, route.topic)
        codec = json_maker(router.relay)(names, (), ())
        empty = codec.value(
            None, None, read_envelope_facts(b"m", read_slice), is_full=False
        )
        return with_message(empty, floor)

    def _route_of(
        self, relation: Relation, log_lsn: int, now_us: int, delivery: Delivery
    ) -> ReadRoute:
        """
        Return a collection's route; a table's schema is published first.

        The chunk does not count as delivered before its schema is: otherwise, after a
        crash, a table that was read to its end might have no published schema.
        """
        aggregate = self._aggregate_route_of(relation)
        if aggregate is not None:
            return aggregate
        relations = self._context.relations
        relations.announce(relation, log_lsn, now_us // 1000, delivery)
        route = self._routes.get(relation.oid)
        if route is None or route.relation != relation:
            facts = relations.facts_of(relation)
            route = self._context.router.table(relation, facts)
            self._routes[relation.oid] = route
        return route

    def _publish(
        self,
        records: Sequence[Record],
        effect: EmitRows,
        read_slice: ReadSlice,
        delivery: Delivery,
    ) -> Sequence[int]:
        """Publish records, and return the indexes of those that are dead letters."""
        refused = self._context.publisher.publish_reads(records, delivery)
        if refused and effect.target is not None:
            self._notify_target([records[at] for at in refused], read_slice, delivery)
        return refused

    def _notify_target(
        self, records: Sequence[Record], read_slice: ReadSlice, delivery: Delivery
    ) -> None:
        """Notify the target sink of its rows and deletes that are dead letters."""
        # A delete and its tombstone have the same key.
        for key, record in {one.key: one for one in records}.items():
            if key is not None:
                found = dict(record.headers).get(headers.REASON)
                reason = found.decode() if isinstance(found, bytes) else TOO_LARGE
                notice = undelivered_read(
                    record, read_slice, f"the row is a dead letter: {reason}"
                )
                self._context.publisher.publish_unordered(notice, delivery)

    def _deletes(
        self, route: ReadRoute, key: Key, read_slice: ReadSlice
    ) -> Sequence[Record]:
        """Return deletes for an absent key that determines the record's key."""
        try:
            return route.absent(key, read_slice)
        except MalformedMessageError:
            self._context.stats.skip(UNREPORTED_DELETE)
            return ()

    def _delivery_of(self, chunk_id: int) -> Delivery:
        delivery = self._chunks.get(chunk_id)
        if delivery is None:
            delivery = self._context.ledger.begin_chunk(chunk_id)
            self._chunks[chunk_id] = delivery
        return delivery

    def _end(self, chunk_id: int) -> None:
        self._context.ledger.end_chunk(chunk_id)
        del self._chunks[chunk_id]


def _topic_of(topic: str, target: str | None) -> str:
    return topic if target is None else topics.backfill_topic(topic, target)

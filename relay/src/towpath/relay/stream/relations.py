"""
Table shapes: bound when the stream brings them, told before the first row has them.

A shape is published with the position from which it holds. One that a chunk brings is
published only if the stream has not told a newer one since the chunk's low watermark.
"""

from collections.abc import Callable
from typing import NamedTuple

from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.relations import (
    NOTHING_KNOWN,
    CatalogFacts,
    bind,
    relation_record,
)
from towpath.relay.ports import TableCatalog
from towpath.relay.publish.in_flight import Delivery
from towpath.relay.publish.publisher import Publisher
from towpath.relay.wal.messages import Relation, RelationShape
from towpath.schemas.position import READ_ORDINAL, Position
from towpath.schemas.table_name import TableName


class _Announced(NamedTuple):
    relation: Relation
    facts: CatalogFacts
    since: Position


class RelationAnnouncer:
    """The shapes that this process has published, and how to make them."""

    def __init__(
        self,
        prefix: str,
        catalog: TableCatalog,
        publisher: Publisher,
        is_captured: Callable[[str], bool],
        rules: ColumnRules,
    ) -> None:
        self._prefix = prefix
        self._catalog = catalog
        self._publisher = publisher
        self._is_captured = is_captured
        self._rules = rules
        self._announced: dict[str, _Announced] = {}
        self._facts: dict[int, tuple[Relation, CatalogFacts]] = {}

    def bind(
        self,
        shape: RelationShape,
        since: Position,
        timestamp_ms: int,
        delivery: Delivery | None,
    ) -> Relation:
        """
        Return the relation of a shape; a captured table's is published if it is new.

        Raises:
            SourceUnavailableError: The catalog does not answer.
        """
        name = TableName(shape.schema, shape.table)
        if not self._is_captured(name.text):
            relation = bind(shape, NOTHING_KNOWN)
            self._facts[relation.oid] = relation, NOTHING_KNOWN
            return relation
        type_oids = [column.type_oid for column in shape.columns]
        facts = self._catalog.describe(shape.oid, name, type_oids)
        relation = bind(shape, facts)
        self._facts[relation.oid] = relation, facts
        announced = self._announced.get(relation.name)
        if announced is None or (announced.relation, announced.facts) != (
            relation,
            facts,
        ):
            self._publish(_Announced(relation, facts, since), timestamp_ms, delivery)
        return relation

    def announce(self, relation: Relation, log_lsn: int, timestamp_ms: int) -> None:
        """
        Publish the shape of a chunk's rows, unless it is told, or outdated by now.

        Raises:
            SourceUnavailableError: The catalog does not answer.
        """
        since = Position(log_lsn, READ_ORDINAL)
        announced = self._announced.get(relation.name)
        if announced is not None and (
            announced.relation == relation or announced.since > since
        ):
            return
        facts = self.facts_of(relation)
        self._publish(_Announced(relation, facts, since), timestamp_ms, None)

    def facts_of(self, relation: Relation) -> CatalogFacts:
        """
        Return what the catalog told of a shape, or tells now if it was not asked yet.

        Raises:
            SourceUnavailableError: The catalog does not answer.
        """
        known, facts = self._facts.get(relation.oid, (None, NOTHING_KNOWN))
        if known == relation:
            return facts
        type_oids = [column.type_oid for column in relation.columns]
        facts = self._catalog.describe(relation.oid, relation.full_name, type_oids)
        self._facts[relation.oid] = relation, facts
        return facts

    def _publish(
        self, announced: _Announced, timestamp_ms: int, delivery: Delivery | None
    ) -> None:
        record = relation_record(
            self._prefix,
            announced.relation,
            announced.facts,
            self._rules.plan(announced.relation, announced.facts),
            str(announced.since).encode(),
            timestamp_ms,
        )
        self._publisher.publish_unordered(record, delivery)
        self._announced[announced.relation.name] = announced

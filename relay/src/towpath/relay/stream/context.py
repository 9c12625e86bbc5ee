"""
The parts that the loop and the stream's consumers share in one session.

``RelationAnnouncer`` publishes the schema of each table before the first row that has
it, with the position from which it applies. A schema that a chunk brings is published
only if the stream has not brought a newer one since the chunk's low watermark.

``RowRequests`` asks snapshots for rows that the stream carried incompletely.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.relations import (
    NOTHING_KNOWN,
    CatalogFacts,
    bind,
    relation_record,
)
from towpath.relay.encode.router import Router
from towpath.relay.ports import TableCatalog
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.publish.publisher import Publisher
from towpath.relay.publish.sender import RecordSender
from towpath.relay.publish.spans import PublishSpans
from towpath.relay.snapshot.driver import SnapshotDriver
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.snapshot.visibility import InvisibleTransactions
from towpath.relay.stats import Stats
from towpath.relay.wal.messages import Relation, RelationShape
from towpath.schemas.clock import Clock
from towpath.schemas.position import READ_ORDINAL, Position
from towpath.schemas.table_name import TableName


class _Announced(NamedTuple):
    relation: Relation
    facts: CatalogFacts
    since: Position


class RelationAnnouncer:
    """Binds table schemas, and publishes those that are new to the session."""

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
        Return the relation of a schema; publish a captured table's schema if it is new.

        Raises:
            SourceUnavailableError: The catalog cannot be read.
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
        if announced is None or announced[:2] != (relation, facts):
            self._publish(_Announced(relation, facts, since), timestamp_ms, delivery)
        return relation

    def announce(
        self,
        relation: Relation,
        log_lsn: int,
        timestamp_ms: int,
        delivery: Delivery,
    ) -> None:
        """
        Publish the schema of a chunk's rows unless it was published or is outdated.

        Args:
            relation: The schema.
            log_lsn: The log LSN of the chunk's low watermark.
            timestamp_ms: The record's timestamp.
            delivery: The delivery of the chunk's rows, which the schema joins.

        Raises:
            SourceUnavailableError: The catalog cannot be read.
        """
        since = Position(log_lsn, READ_ORDINAL)
        announced = self._announced.get(relation.name)
        if announced is not None and (
            announced.relation == relation or announced.since > since
        ):
            return
        facts = self.facts_of(relation)
        self._publish(_Announced(relation, facts, since), timestamp_ms, delivery)

    def facts_of(self, relation: Relation) -> CatalogFacts:
        """
        Return the catalog's facts about a relation; they are cached.

        Raises:
            SourceUnavailableError: The catalog cannot be read.
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


class RowRequests:
    """Requests rows that moved to a new key with columns missing."""

    def __init__(self, driver: SnapshotDriver, ledger: DeliveryLedger) -> None:
        self._driver = driver
        self._ledger = ledger

    def request(self, relation: Relation, key: Key, position: Position) -> None:
        """
        Request a row; the open transaction is held until the request is stored.

        Call order: for each such change, even when Kafka already has its records.

        Args:
            relation: The row's table.
            key: The raw text of its new key, in key order.
            position: The change's position.
        """
        request_id = self._driver.request_key(relation, key, position)
        if request_id is not None:
            self._ledger.hold(request_id)


@dataclass(frozen=True, slots=True)
class LoopContext:
    """
    The shared parts of one session.

    Attributes:
        ledger: The deliveries in flight.
        invisible: Streamed transactions that may not be visible to queries yet.
        sender: Hands records to the producer.
        publisher: Publishes records.
        router: Decides which records a change produces.
        relations: Published table schemas.
        row_requests: Requests incomplete rows.
        stats: Counters of the process.
        clock: The source of the current time.
        spans: Records the spans of outbox rows; None if tracing is off.
        on_snapshot: Called with each table of a snapshot whose progress changes.
    """

    ledger: DeliveryLedger
    invisible: InvisibleTransactions
    sender: RecordSender
    publisher: Publisher
    router: Router
    relations: RelationAnnouncer
    row_requests: RowRequests
    stats: Stats
    clock: Clock
    spans: PublishSpans | None
    on_snapshot: Callable[[StoredTable], None]

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970."""
        return int(self.clock.now().timestamp() * 1_000_000)

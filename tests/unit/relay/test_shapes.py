"""Table schemas: bound from stream and catalog, published when they are new."""

import json
from collections.abc import Sequence

from support.copying import replace
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.record import Record
from towpath.relay.encode.relations import CatalogFacts, bind
from towpath.relay.encode.types.form import TypeFacts, TypeField
from towpath.relay.publish.in_flight import Delivery, DeliveryLedger
from towpath.relay.stream.context import RelationAnnouncer
from towpath.relay.wal.messages import ColumnShape, RelationShape
from towpath.schemas.position import Position
from towpath.settings.relay import Relay

SHAPE = RelationShape(
    oid=7,
    schema="s",
    table="t",
    identity="d",
    columns=(
        ColumnShape("line", 23, -1, is_key=True),
        ColumnShape("id", 20, -1, is_key=True),
        ColumnShape("total", 1700, 786438, is_key=False),
    ),
)
WIDER = replace(SHAPE, columns=(*SHAPE.columns, ColumnShape("x", 25, -1, is_key=False)))
FACTS = CatalogFacts(
    ("id", "line"), {20: "bigint", 23: "integer", 1700: "numeric"}, frozenset({"id"})
)


class Catalog:
    """Returns the facts that the test sets."""

    def __init__(self) -> None:
        self.queries = 0
        self.facts = FACTS

    def describe(
        self, _table_oid: int, _name: str, _type_oids: Sequence[int]
    ) -> CatalogFacts:
        self.queries += 1
        return self.facts


class Publisher:
    """Keeps published records."""

    def __init__(self) -> None:
        self.sent: list[tuple[Record, Delivery | None]] = []

    def publish_unordered(
        self, record: Record, delivery: Delivery | None = None
    ) -> None:
        self.sent.append((record, delivery))


class ShapesBench:
    """A relation announcer over fakes."""

    def __init__(self, **rows: object) -> None:
        self.catalog = Catalog()
        self.publisher = Publisher()
        rules = ColumnRules(Relay.model_validate({"rows": rows}))
        self.shapes = RelationAnnouncer(
            "p", self.catalog, self.publisher, lambda name: name != "s.no", rules
        )

    def bind(self, shape: RelationShape, log_lsn: int):
        """Bind a shape that arrives in the stream."""
        return self.shapes.bind(shape, Position(log_lsn, 0), 5, None)

    def published(self) -> list[str]:
        """List the positions of the published shapes."""
        return [record.position.decode() for record, _ in self.publisher.sent]


def test_the_order_of_the_key_is_that_of_the_catalog():
    """
    The relation's key is in key order, whatever the columns' order.
    """
    relation = ShapesBench().bind(SHAPE, 8)

    assert ("id", "line") == relation.key_names


def test_a_dropped_table_keeps_the_streams_key():
    """
    If the catalog does not have the table, the replica identity's columns are the key.
    """
    relation = bind(SHAPE, CatalogFacts((), {}, frozenset()))

    assert ("line", "id") == relation.key_names


def test_a_dropped_table_with_full_identity_has_no_key():
    """
    With REPLICA IDENTITY FULL the stream does not mark the key, so there is none.
    """
    relation = bind(replace(SHAPE, identity="f"), CatalogFacts((), {}, frozenset()))

    assert () == relation.key


def test_a_shape_record_suffices_to_build_a_table():
    """
    It has columns with types and nullability, the key, and its first position.
    """
    bench = ShapesBench()
    bench.bind(SHAPE, 8)
    record = bench.publisher.sent[0][0]

    assert (
        ("p.relations", b"s.t"),
        {
            "schema": "s",
            "table": "t",
            "oid": 7,
            "columns": [
                column("line", "integer", 23, -1, nullable=True),
                column("id", "bigint", 20, -1, nullable=False),
                column("total", "numeric", 1700, 786438, nullable=True),
            ],
            "key": ["id", "line"],
            "position": "0000000000000008.0000000000",
        },
    ) == ((record.topic, record.key), json.loads(record.value or b""))


def column(name: str, kind: str, oid: int, typmod: int, *, nullable: bool) -> dict:
    """Write a column as it is in the record."""
    return {
        "name": name,
        "type": kind,
        "type_oid": oid,
        "typmod": typmod,
        "nullable": nullable,
    }


def test_a_repeated_shape_is_not_published_again():
    """
    Only a shape that differs from the last published one is published.
    """
    bench = ShapesBench()
    for log_lsn, shape in ((8, SHAPE), (16, SHAPE), (24, WIDER)):
        bench.bind(shape, log_lsn)

    assert [
        "0000000000000008.0000000000",
        "0000000000000018.0000000000",
    ] == bench.published()


def test_a_table_that_is_not_captured_has_no_published_shape():
    """
    Outbox and signal table have no shape for sinks, and the catalog is not queried.
    """
    bench = ShapesBench()
    bench.bind(replace(SHAPE, table="no"), 8)

    assert ([], 0) == (bench.published(), bench.catalog.queries)


def test_a_chunks_shape_is_published_only_if_it_is_new():
    """
    It is published with the low watermark's position.
    """
    bench = ShapesBench()
    relation = bind(SHAPE, FACTS)
    chunk = DeliveryLedger(0).begin_chunk(1)
    bench.shapes.announce(relation, 16, 5, chunk)
    bench.shapes.announce(relation, 24, 5, chunk)

    assert ["0000000000000010.-"] == bench.published()
    assert chunk is bench.publisher.sent[0][1]


def test_an_outdated_shape_of_a_chunk_is_not_published():
    """
    A chunk read before a newer shape in the stream publishes no shape.
    """
    bench = ShapesBench()
    bench.bind(WIDER, 32)
    bench.shapes.announce(bind(SHAPE, FACTS), 16, 5, DeliveryLedger(0).begin_chunk(1))

    assert 1 == len(bench.publisher.sent)


def test_a_shape_is_delivered_with_its_transaction():
    """
    The shape belongs to the delivery of its own transaction.
    """
    bench = ShapesBench()
    delivery = DeliveryLedger(0).begin()
    bench.shapes.bind(SHAPE, Position(8, 0), 5, delivery)

    assert delivery is bench.publisher.sent[0][1]


def flagged(*names: str, identity: str = "d") -> RelationShape:
    """Make a shape whose replica identity has these columns."""
    columns = [replace(c, is_key=c.name in names) for c in SHAPE.columns]
    return replace(SHAPE, identity=identity, columns=tuple(columns))


def test_the_stream_determines_the_key_columns():
    """
    A key that was added to the table later does not apply to earlier rows (B60).
    """
    facts = CatalogFacts(("id",), {}, frozenset())

    assert ("line", "id") == bind(flagged("line", "id"), facts).key_names


def test_an_identity_index_is_the_key():
    """
    With USING INDEX old rows have only that index's columns, so it is the key.
    """
    facts = CatalogFacts(("id",), {}, frozenset(), other_keys=(("total", "line"),))
    shape = flagged("line", "total", identity="i")

    assert ("total", "line") == bind(shape, facts).key_names


def test_a_unique_index_is_the_key_of_a_table_without_a_primary_key():
    """
    If all its columns are NOT NULL, it identifies rows (A67).
    """
    facts = CatalogFacts((), {}, frozenset(), other_keys=(("total",),))
    shapes = (flagged(), flagged("line", "id", "total", identity="f"))

    assert [("total",), ("total",)] == [bind(s, facts).key_names for s in shapes]


def test_a_key_outside_the_published_columns_is_not_used():
    """
    A publication's column list may omit the key: such a table has none.
    """
    facts = CatalogFacts(("hidden",), {}, frozenset())

    assert () == bind(flagged(), facts).key


def test_a_shape_has_only_published_columns():
    """
    Excluded columns are absent, masked ones are texts, and key columns are kept.
    """
    bench = ShapesBench(
        exclude_columns=["s.t.id"],
        mask=[{"columns": ["s.t.total"], "form": "mask", "length": 3}],
    )
    bench.bind(SHAPE, 8)
    announced = json.loads(bench.publisher.sent[0][0].value or b"")

    assert (
        [("line", "integer"), ("id", "bigint"), ("total", "text")],
        ["id", "line"],
    ) == (
        [(column["name"], column["type"]) for column in announced["columns"]],
        announced["key"],
    )


def test_a_shape_describes_nested_types():
    """
    A column is described with its elements, labels, fields, or domain's base type.
    """
    bench = ShapesBench()
    types = {
        20: TypeFacts("_pair", "s.pair[]", element_oid=50),
        23: TypeFacts("mood", "s.mood", "e", labels=("sad", "ok")),
        50: TypeFacts("pair", "s.pair", "c", fields=(TypeField("n", 1700, 6),)),
        1700: TypeFacts("numeric", "numeric"),
    }
    bench.catalog.facts = CatalogFacts((), {}, frozenset(), types=types)
    bench.bind(SHAPE, 8)
    line, pairs, total = json.loads(bench.publisher.sent[0][0].value or b"")["columns"]
    field = {"name": "n", "typmod": 6, "type": "numeric", "type_oid": 1700}

    assert (
        ["sad", "ok"],
        {"type": "s.pair", "type_oid": 50, "fields": [field]},
        {"name", "type", "type_oid", "typmod", "nullable"},
    ) == (line["labels"], pairs["element"], set(total))


def test_a_chunk_uses_the_facts_that_the_stream_has_for_its_shape():
    """
    One shape has one set of facts, so stream and snapshot write the same forms.
    """
    bench = ShapesBench()
    relation = bench.bind(SHAPE, 8)
    facts = bench.shapes.facts_of(relation)
    other = bench.shapes.facts_of(bind(WIDER, FACTS))

    assert (FACTS, FACTS, 2) == (facts, other, bench.catalog.queries)

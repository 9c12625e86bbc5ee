"""The aggregate route: the record for a row of an aggregate view."""

import uuid
from collections import Counter
from typing import Any

import pytest

from support.copying import replace
from towpath.relay.encode.aggregates import AggregateRoutes
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.event_options import BAD_PARTITION, NOT_A_CLOUDEVENT
from towpath.relay.encode.outbox import OutboxRoute
from towpath.relay.encode.outbox_columns import ReservedTopics
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.encode.rows import ReadRoute, ReadSlice
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.schemas.failure import ConfigurationError
from towpath.settings.outbox import Outbox
from towpath.settings.relay import Relay

BIGINT, TEXT, JSON, BYTEA = 20, 25, 114, 17
READ_SLICE = ReadSlice(
    log_lsn=0xABC,
    snapshot_id="fill-1",
    topic="outbox.event.order",
    now_us=1_700_000_000_123_456,
)
ROW = (b"42", b"OrderState", b'{ "total":  1.10 }')


class RouteBench:
    """The routes of the declared views, and the counted events."""

    def __init__(self, relay: Relay | None = None, **options: Any) -> None:
        views = [{"aggregate_type": "order", "view": "s.order_state"}]
        options = {"view": views} | options
        outbox = relay.outbox if relay else Outbox.model_validate(options)
        self.outbox = outbox
        self.refusals: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.parked = ParkedAggregates(10)
        dead = DeadLetters("towpath", lambda r: self.refusals.update([r]), self.parked)
        self.dead = dead
        reserved = ReservedTopics("towpath", ("towpath.shop.line",))
        self.routes = AggregateRoutes(
            outbox, dead, reserved, lambda r: self.skipped.update([r])
        )

    def route(self, payload_type: int = JSON) -> ReadRoute:
        """Return the route of the orders."""
        columns = (
            Column("aggregate_id", BIGINT),
            Column("type", TEXT),
            Column("payload", payload_type),
        )
        route = self.routes.of(Relation(9, "outbox", "order", columns, (0,), "d"))
        assert route is not None
        return route

    def read(self, row: tuple = ROW, payload_type: int = JSON) -> Record:
        """Return the record of a row."""
        (record,) = self.route(payload_type).reads([row], READ_SLICE)
        return record


def test_a_view_row_is_a_read_event():
    """
    It has all fields of a streamed event, and the snapshot's id.

    Fields that a view lacks are absent.
    """
    record = RouteBench().read()

    namespace = uuid.uuid5(uuid.NAMESPACE_URL, "towpath:snapshot:fill-1:order")
    assert ("outbox.event.order", b"42") == (record.topic, record.key)
    assert b'{ "total":  1.10 }' == record.value
    assert (b"0000000000000abc.-", 1_700_000_000_123) == record[4:6]

    assert {
        "id": str(uuid.uuid5(namespace, "42")).encode(),
        "type": b"OrderState",
        "aggregate_type": b"order",
        "position": b"0000000000000abc.-",
        "snapshot": b"fill-1",
    } == dict(record.headers)


def test_a_row_read_twice_keeps_its_id_within_the_snapshot():
    """
    A chunk that is read twice yields the same events.

    Different aggregates or snapshots never share an id.
    """
    bench = RouteBench()
    route = bench.route()
    slices = [
        READ_SLICE,
        replace(READ_SLICE, log_lsn=0xDEF),
        replace(READ_SLICE, snapshot_id="b"),
    ]

    first, again, other = (
        dict(route.reads([ROW], each)[0].headers)["id"] for each in slices
    )

    assert first == again
    assert first != other


def test_a_targeted_snapshot_uses_the_targets_topic():
    """
    The target, not the route, determines the topic of READ rows.
    """
    own = replace(READ_SLICE, topic="outbox.event.order.backfill.search")

    read, absent = (
        RouteBench().route().reads([ROW], own)[0],
        RouteBench().route().absent((b"1",), own)[0],
    )

    assert {"outbox.event.order.backfill.search"} == {read.topic, absent.topic}


def test_an_absent_aggregate_is_a_tombstone():
    """
    The tombstone has no event type, unlike a row whose payload is null.
    """
    (record,) = RouteBench().route().absent((b"42",), READ_SLICE)

    assert (b"42", None) == (record.key, record.value)
    assert {"id", "aggregate_type", "position", "snapshot"} == dict(
        record.headers
    ).keys()


def test_a_bytea_payload_of_a_view_is_published_as_its_bytes():
    """
    A framed payload is unchanged, as in the stream.
    """
    record = RouteBench().read((b"42", b"OrderState", rb"\x00ff"), BYTEA)

    assert b"\x00\xff" == record.value


@pytest.mark.parametrize(
    ("options", "payload"),
    [
        ({}, None),
        ({}, b" "),
        ({"on_empty_payload": "tombstone"}, b" "),
        ({"placements": ["type:envelope"]}, None),
        ({"placements": ["type:header:eventType", "kind:header"]}, b"1"),
        ({"cloudevents": "/shop"}, b"1"),
        ({"cloudevents": "/shop"}, None),
        ({"route_regex": "ord(.*)", "route_replacement": "$1"}, b"1"),
    ],
)
def test_options_apply_to_a_read_row_as_to_a_streamed_event(options, payload):
    """
    Topic, value and headers are the same, except for the id and missing columns.
    """
    bench = RouteBench(**options)
    names = ("id", "aggregate_type", "aggregate_id", "type", "payload", "headers")
    more = ("traceparent", "occurred_at", "kind")
    columns = tuple(Column(name, JSON if name == "payload" else TEXT) for name in names)
    columns += tuple(Column(name, TEXT) for name in more)
    table = Relation(5, "towpath", "outbox", columns, ())
    streamed = OutboxRoute(
        table, bench.outbox, bench.dead, bench.parked, frozenset(), print
    )
    row = (b"i", b"order", b"42", b"OrderState", payload, None, None, None, b"k")
    transaction = Transaction(9, 160, 160, READ_SLICE.now_us, b"P.")
    change = Change(Operation.CREATE, table, row, None, False, transaction, 0, 160)
    (expected,) = streamed.records(change, 0)

    (record,) = bench.route().reads(
        [(b"42", b"OrderState", payload)], replace(READ_SLICE, topic=expected.topic)
    )

    apart = {"id", "ce_id", "position", "snapshot", "kind"}
    headers = {k: v for k, v in record.headers if k not in apart}
    assert bench.route().topic == expected.topic
    assert (record.key, record.value) == (expected.key, expected.value)

    assert {k: v for k, v in expected.headers if k not in apart} == headers


def test_placements_use_the_tables_own_names():
    """
    Debezium's names of columns and headers work for a view with this project's names.
    """
    view = {"aggregate_type": "order", "view": "s.v"}
    relay = Relay.model_validate({"preset": "debezium", "outbox": {"view": [view]}})

    record = RouteBench(relay).read()

    assert b"OrderState" == dict(record.headers)["eventType"]


def test_an_invalid_cloudevent_is_a_dead_letter_that_parks_nothing():
    """
    Its value and headers are kept; later events of the aggregate are published.
    """
    bench = RouteBench(cloudevents="/shop")

    record = bench.read((b"42", None, b"1"))

    assert ("towpath.dead.relay", b"1") == (record.topic, record.value)
    assert b"fill-1" == dict(record.headers)["snapshot"]
    assert {NOT_A_CLOUDEVENT: 1} == bench.refusals
    assert 0 == len(bench.parked)


def test_a_placement_that_refuses_a_row_yields_a_dead_letter():
    """
    The dead letter is written without the placement, which would refuse it again.
    """
    bench = RouteBench(placements=["aggregate_id:partition"])

    placed, refused = bench.read(), bench.read((b"x", *ROW[1:]))

    assert ("outbox.event.order", 42) == (placed.topic, placed.partition)
    assert ("towpath.dead.relay", ROW[2]) == (refused.topic, refused.value)
    assert {BAD_PARTITION: 1} == bench.refusals


def test_a_row_with_a_wrong_number_of_values_is_refused():
    """
    It must not be treated as a shorter row.
    """
    with pytest.raises(MalformedMessageError, match="has 2 values, not 3"):
        RouteBench().read((b"42", b"OrderState"))


def test_only_declared_collections_are_aggregates():
    """
    A table is not an aggregate, whatever its name.
    """
    routes = RouteBench().routes
    columns = (Column("id", BIGINT),)

    found = [
        routes.of(Relation(9, schema, table, columns, (0,)))
        for schema, table in (("public", "order"), ("outbox", "customer"))
    ]

    assert [None, None] == found


def test_a_type_without_a_valid_topic_is_a_configuration_error():
    """
    The error is raised at startup, not when the view is read.
    """
    with pytest.raises(ConfigurationError, match="order: the value that names"):
        RouteBench(route_regex="order", route_replacement="a b")


def test_a_type_with_the_topic_of_a_table_is_a_configuration_error():
    """
    Readers of the table would treat its events as rows.
    """
    with pytest.raises(ConfigurationError, match="view: order: "):
        RouteBench(topic="towpath.shop.line")


def test_additional_views_of_a_type_yield_additional_events_of_its_aggregates():
    """
    They go to the same topic with ids of their own; such views yield no tombstones.
    """
    view = {"aggregate_type": "order", "view": "s.state"}
    totals = view | {"name": "totals", "view": "s.totals"}
    bench = RouteBench(view=[view, totals])
    columns = (Column("id", BIGINT), Column("type", TEXT), Column("payload", JSON))
    additional = bench.routes.of(
        Relation(10, "outbox", "order.totals", columns, (0,), "d")
    )
    assert additional is not None
    (state,) = bench.route().reads([ROW], READ_SLICE)
    (total,) = additional.reads([ROW], READ_SLICE)

    assert (state.topic, state.key, ()) == (
        total.topic,
        total.key,
        additional.absent((b"42",), READ_SLICE),
    )
    assert dict(state.headers)["id"] != dict(total.headers)["id"]
    assert dict(total.headers)["aggregate_type"] == b"order"

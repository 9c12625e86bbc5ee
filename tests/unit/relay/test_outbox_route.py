"""The outbox route: what an outbox row becomes."""

import json
from collections import Counter

import pytest

from towpath.relay.errors import NotPreparedError, OutboxUpdatedError
from towpath.relay.routing.dead import BEHIND, DeadLetters
from towpath.relay.routing.outbox import UPDATED, WRONGLY_UPDATED, OutboxRoute
from towpath.relay.routing.outbox_event import (
    HEADERS_NOT_AN_OBJECT,
    NO_AGGREGATE_TYPE,
    NO_INSTANT,
    OWN_NAME,
)
from towpath.relay.routing.parked import Parked
from towpath.relay.routing.record import Record
from towpath.relay.routing.topic_rule import (
    ILLEGAL_TOPIC,
    RESERVED_TOPIC,
    topics_of_relay,
)
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import OnUpdate, Outbox

NAMES = (
    "occurred_at",
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "traceparent",
)
OUTBOX = Relation(
    oid=5,
    schema="towpath",
    table="outbox",
    columns=tuple(Column(name, 25) for name in NAMES),
    key=(),
)
ROW = {
    "id": b"10711fa5-0000-4000-8000-000000000000",
    "aggregate_type": b"order",
    "aggregate_id": b"42",
    "type": b"OrderPlaced",
    "payload": b'{ "total":  1.10 }',
    "headers": None,
    "traceparent": None,
    "occurred_at": b"2026-01-02 03:04:05.6+00",
}
TRANSACTION = Transaction(
    xid=9, commit_lsn=160, log_lsn=160, committed_us=1_700_000_000_123_456, place=b"P."
)


class Desk:
    """A route, and what it counted."""

    def __init__(self, outbox: Outbox | None = None) -> None:
        self.skipped: Counter[str] = Counter()
        self.buried: Counter[str] = Counter()
        self.parked = Parked(10)
        dead = DeadLetters(
            "towpath", lambda reason: self.buried.update([reason]), self.parked
        )
        self.route = OutboxRoute(
            OUTBOX,
            outbox or Outbox(),
            dead,
            self.parked,
            topics_of_relay("towpath") | {"towpath.shop.line"},
            lambda reason: self.skipped.update([reason]),
        )

    def records(
        self,
        operation: Operation = Operation.CREATE,
        ordinal: int = 3,
        **columns: bytes | None,
    ) -> list[Record]:
        """Route a change of an outbox row that differs in some columns."""
        row = tuple((ROW | columns)[name] for name in NAMES)
        new, old = (None, row) if operation is Operation.DELETE else (row, None)
        change = Change(operation, OUTBOX, new, old, False, TRANSACTION, ordinal, 120)
        return list(self.route.records(change, 0))


def test_a_row_becomes_an_event():
    """
    Topic, key, payload untouched, headers and commit time of an inserted row.
    """
    (record,) = Desk().records()

    assert (
        ("outbox.event.order", b"42", b'{ "total":  1.10 }', 1_700_000_000_123),
        [
            ("id", b"10711fa5-0000-4000-8000-000000000000"),
            ("type", b"OrderPlaced"),
            ("aggregate_type", b"order"),
            ("position", b"P.0000000003"),
            ("occurred_at", b"2026-01-02T03:04:05.600000Z"),
        ],
    ) == (
        (record.topic, record.key, record.value, record.timestamp_ms),
        record.headers,
    )


def test_a_trace_and_the_rows_own_headers_are_added():
    """
    Entries of the headers object follow: texts as they are, other values as JSON.
    """
    (record,) = Desk().records(
        traceparent=b"00-ab-cd-01",
        headers=b'{"schema": "shop.OrderPlaced:1", "n": 2, "gone": null}',
    )

    assert [
        ("traceparent", b"00-ab-cd-01"),
        ("schema", b"shop.OrderPlaced:1"),
        ("n", b"2"),
    ] == record.headers[5:]


def test_a_row_cannot_overwrite_our_headers():
    """
    Position, id and their like are ours, whatever the row says; that is counted.
    """
    desk = Desk()
    (record,) = desk.records(headers=b'{"position": "x", "id": "y", "snapshot": "z"}')

    assert (5, {OWN_NAME: 1}) == (len(record.headers), desk.skipped)


@pytest.mark.parametrize("empty", [None, b"null", b"{}"])
def test_no_headers_are_no_headers(empty: bytes | None):
    """
    NULL, JSON's null and an empty object add nothing.
    """
    (record,) = Desk().records(headers=empty)

    assert 5 == len(record.headers)


def test_a_null_payload_is_an_event_without_a_value():
    """
    A row without a payload keeps key and headers.
    """
    (record,) = Desk().records(payload=None)

    assert (None, b"42", 5) == (record.value, record.key, len(record.headers))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"aggregate_type": None}, NO_AGGREGATE_TYPE),
        ({"aggregate_type": b""}, ILLEGAL_TOPIC),
        ({"aggregate_type": b"or der"}, ILLEGAL_TOPIC),
        ({"aggregate_type": b"x" * 250}, ILLEGAL_TOPIC),
        ({"aggregate_type": "größe".encode()}, ILLEGAL_TOPIC),
        ({"headers": b"[1]"}, HEADERS_NOT_AN_OBJECT),
        ({"headers": b"{"}, HEADERS_NOT_AN_OBJECT),
        ({"occurred_at": b"yesterday"}, NO_INSTANT),
        ({"occurred_at": b"1767323045600"}, NO_INSTANT),
    ],
)
def test_a_row_without_a_place_is_a_dead_letter(columns: dict, reason: str):
    """
    The whole row goes to the dead letters with its reason, and is counted.
    """
    desk = Desk()
    (record,) = desk.records(**columns)
    marks = dict(record.headers)

    assert (
        ("towpath.dead.relay", reason.encode(), b"P.0000000003"),
        ("42", {reason: 1}),
    ) == (
        (record.topic, marks["reason"], marks["position"]),
        (json.loads(record.value or b"")["aggregate_id"], desk.buried),
    )


@pytest.mark.parametrize(
    "topic",
    [
        "towpath.relay-state",
        "towpath.shop.line",
        "towpath.relations",
        "towpath.dead.relay",
        "towpath-signal",
        "__consumer_offsets",
        "__debezium-heartbeat.towpath",
    ],
)
def test_no_event_goes_to_a_topic_that_keeps_house(topic: str):
    """
    An aggregate type cannot reach the relay's state, or Kafka's own topics.
    """
    desk = Desk(Outbox(topic="{aggregate_type}"))
    (record,) = desk.records(aggregate_type=topic.encode())

    assert ("towpath.dead.relay", {RESERVED_TOPIC: 1}) == (record.topic, desk.buried)


@pytest.mark.parametrize("topic", [".", "..", "x" * 250, ""])
def test_what_kafka_takes_for_no_topic_is_a_dead_letter(topic: str):
    """
    Kafka's rules for names hold for the whole name.
    """
    (record,) = Desk(Outbox(topic="{aggregate_type}")).records(
        aggregate_type=topic.encode()
    )

    assert ILLEGAL_TOPIC == dict(record.headers)["reason"].decode()


def test_later_events_of_the_aggregate_wait_behind_it():
    """
    Same type and id: parked with all that makes them; any other aggregate flows.
    """
    desk = Desk()
    desk.records(headers=b"[1]")
    (behind,) = desk.records(ordinal=4)
    (other,) = desk.records(ordinal=5, aggregate_id=b"43")
    (namesake,) = desk.records(ordinal=6, aggregate_type=b"customer")
    marks = dict(behind.headers)

    assert (
        ("towpath.dead.relay", b"42", ROW["payload"], BEHIND, b"outbox.event.order"),
        ("outbox.event.order", "outbox.event.customer"),
        1,
    ) == (
        (
            behind.topic,
            behind.key,
            behind.value,
            marks["reason"].decode(),
            marks["topic"],
        ),
        (other.topic, namesake.topic),
        len(desk.parked),
    )


def test_a_row_without_a_type_parks_its_id_for_every_type():
    """
    Nobody can know whose event it was; a row without an id parks nothing.
    """
    desk = Desk()
    desk.records(aggregate_type=None)
    desk.records(aggregate_type=None, aggregate_id=None)
    made = [
        desk.records(ordinal=4, aggregate_type=kind)[0].topic
        for kind in (b"order", b"customer")
    ]
    (keyless,) = desk.records(ordinal=5, aggregate_id=None)

    assert (["towpath.dead.relay"] * 2, "outbox.event.order") == (made, keyless.topic)


def test_a_null_aggregate_id_is_a_null_key():
    """
    Such an event has no order to keep; its partition is by its position (A47).
    """
    (record,) = Desk().records(aggregate_id=None)

    assert (None, -1) == (record.key, record.partition)


@pytest.mark.parametrize(
    ("on_update", "said"),
    [(OnUpdate.WARN, UPDATED), (OnUpdate.ERROR, WRONGLY_UPDATED)],
)
def test_an_update_is_counted_and_a_delete_is_silence(on_update: OnUpdate, said: str):
    """
    Only inserts are events (A43).
    """
    desk = Desk(Outbox(on_update=on_update))
    made = desk.records(Operation.UPDATE) + desk.records(Operation.DELETE)

    assert ([], {said: 1}) == (made, desk.skipped)


def test_an_update_can_stop_the_relay():
    """
    With ``halt`` an update is an error that names table and position (A43).
    """
    desk = Desk(Outbox(on_update=OnUpdate.HALT))

    with pytest.raises(OutboxUpdatedError, match=r"towpath\.outbox .* P\.0000000003"):
        desk.records(Operation.UPDATE)


def test_insert_then_delete_is_one_event():
    """
    The table may stay empty: the insert in the log is the event (A43).
    """
    desk = Desk()
    made = desk.records(ordinal=0) + desk.records(Operation.DELETE, ordinal=1)

    assert ["outbox.event.order"] == [record.topic for record in made]


def test_what_is_remembered_is_bounded():
    """
    A header that is unique per row does not grow the memory without bound.
    """
    desk = Desk()
    for number in range(3000):
        desk.records(headers=b'{"n": %d}' % number, aggregate_type=b"t%d" % number)
    writer = desk.route._writer

    assert max(len(writer._known_headers), len(writer._known_types)) <= 1024


def test_a_table_without_its_columns_is_refused():
    """
    An outbox table that lacks a column halts with its name.
    """
    bare = Relation(oid=5, schema="s", table="t", columns=(Column("id", 25),), key=())
    parked = Parked(1)
    with pytest.raises(NotPreparedError, match="payload"):
        OutboxRoute(
            bare, Outbox(), DeadLetters("p", print, parked), parked, frozenset(), print
        )


def test_the_size_is_an_upper_bound():
    """
    A record's stated size is not below what its parts add up to.
    """
    (record,) = Desk().records(
        headers=json.dumps({f"h{n}": "v" * n for n in range(90)}).encode(),
        payload=b"x" * 5000,
        traceparent=b"y" * 900,
        type=b"z" * 900,
    )
    parts = [record.key or b"", record.value or b""]
    parts += [name.encode() for name, _ in record.headers]
    parts += [value for _, value in record.headers if isinstance(value, bytes)]

    assert record.size >= sum(map(len, parts))

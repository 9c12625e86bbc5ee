"""The outbox route: the record for an outbox row."""

import json
from collections import Counter

import pytest

from towpath.relay.encode.dead_letters import BEHIND, DeadLetters
from towpath.relay.encode.outbox import (
    HEADERS_NOT_AN_OBJECT,
    NO_AGGREGATE_TYPE,
    NO_INSTANT,
    NUL_IN_HEADER,
    OWN_NAME,
    UPDATED,
    WRONGLY_UPDATED,
    OutboxRoute,
)
from towpath.relay.encode.outbox_columns import (
    ILLEGAL_TOPIC,
    RESERVED_TOPIC,
    ReservedTopics,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.errors import NotPreparedError, OutboxUpdatedError
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import MissingColumn, OnUpdate, Outbox

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


class RouteBench:
    """A route, and the counted events."""

    def __init__(self, outbox: Outbox | None = None) -> None:
        self.skipped: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.parked = ParkedAggregates(10)
        dead = DeadLetters(
            "towpath", lambda reason: self.refusals.update([reason]), self.parked
        )
        self.route = OutboxRoute(
            OUTBOX,
            outbox or Outbox(),
            dead,
            self.parked,
            ReservedTopics("towpath", ("towpath.shop.line",)),
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
    It has a topic, the key, the unchanged payload, headers and the commit time.
    """
    (record,) = RouteBench().records()

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
    Entries of the headers object become headers: strings verbatim, others as JSON.
    """
    (record,) = RouteBench().records(
        traceparent=b"00-ab-cd-01",
        headers=b'{"schema": "shop.OrderPlaced:1", "n": 2, "gone": null}',
    )

    assert [
        ("traceparent", b"00-ab-cd-01"),
        ("schema", b"shop.OrderPlaced:1"),
        ("n", b"2"),
    ] == record.headers[5:]


@pytest.mark.parametrize(
    "number",
    [b"12345678901234567890.125", b"1.10", b"12345678901234567890123"],
)
def test_a_number_in_the_rows_own_headers_keeps_its_digits(number: bytes):
    """
    This holds inside lists and objects, too, which are written without spaces.
    """
    (record,) = RouteBench().records(
        headers=b'{"n": ' + number + b', "more": {"of": [' + number + b', "x"]}}'
    )

    assert [
        ("n", number),
        ("more", b'{"of":[' + number + b',"x"]}'),
    ] == record.headers[5:]


def test_a_row_cannot_overwrite_the_relays_headers():
    """
    Position, id and some others are the relay's; an attempt to set one is counted.
    """
    bench = RouteBench()
    (record,) = bench.records(headers=b'{"position": "x", "id": "y", "snapshot": "z"}')

    assert (5, {OWN_NAME: 1}) == (len(record.headers), bench.skipped)


def test_each_attempt_to_set_a_header_of_the_relay_is_counted():
    """
    Rows with the same headers are counted, too, although the headers are parsed once.
    """
    bench = RouteBench()
    for _ in range(3):
        bench.records(headers=b'{"position": "x"}')

    assert {OWN_NAME: 3} == bench.skipped


def test_the_size_of_an_event_bounds_its_placed_headers():
    """
    If the stated size were too small, a broker could refuse the record forever.
    """
    placements = tuple(f"type:header:{'ä' * 40}{n}" for n in range(100))
    (record,) = RouteBench(Outbox(placements=placements)).records()
    framed = [
        len(name.encode()) + len(value or b"") + 2 for name, value in record.headers
    ]

    assert record.size > sum(framed) + len(record.value or b"")


def test_a_skipped_column_does_not_create_an_envelope():
    """
    A CloudEvent then has the content type of its payload.
    """
    outbox = Outbox(
        cloudevents="/shop",
        placements=("absent:envelope",),
        on_missing_column=MissingColumn.SKIP,
    )
    (record,) = RouteBench(outbox).records()

    assert (ROW["payload"], b"text/plain; charset=utf-8") == (
        record.value,
        dict(record.headers)["content-type"],
    )


@pytest.mark.parametrize("empty", [None, b"null", b"{}"])
def test_empty_headers_add_nothing(empty: bytes | None):
    """
    NULL, JSON's null and an empty object add nothing.
    """
    (record,) = RouteBench().records(headers=empty)

    assert 5 == len(record.headers)


def test_a_null_payload_is_an_event_without_a_value():
    """
    A row without a payload keeps key and headers.
    """
    (record,) = RouteBench().records(payload=None)

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
        (
            {"headers": b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"},
            HEADERS_NOT_AN_OBJECT,
        ),
        ({"headers": b'{"position\\u0000": "ffffffffffffff00.0"}'}, NUL_IN_HEADER),
        ({"occurred_at": b"yesterday"}, NO_INSTANT),
        ({"occurred_at": b"1767323045600"}, NO_INSTANT),
    ],
)
def test_an_invalid_row_is_a_dead_letter(columns: dict, reason: str):
    """
    The whole row goes to the dead letters with its reason, and is counted.
    """
    bench = RouteBench()
    (record,) = bench.records(**columns)
    headers = dict(record.headers)

    assert (
        ("towpath.dead.relay", reason.encode(), b"P.0000000003"),
        ("42", {reason: 1}),
    ) == (
        (record.topic, headers["reason"], headers["position"]),
        (json.loads(record.value or b"")["aggregate_id"], bench.refusals),
    )


@pytest.mark.parametrize(
    "topic",
    [
        "towpath.relay-state",
        "towpath.shop.line",
        "towpath.relations",
        "towpath.dead.relay",
        "towpath.dead.search",
        "towpath-sink-search",
        "towpath.outbox.order.backfill.search",
        "towpath-signal",
        "__consumer_offsets",
        "__debezium-heartbeat.towpath",
    ],
)
def test_no_event_goes_to_an_internal_topic(topic: str):
    """
    An aggregate type must not select the relay's state topic, or Kafka's own topics.
    """
    bench = RouteBench(Outbox(topic="{aggregate_type}"))
    (record,) = bench.records(aggregate_type=topic.encode())

    assert ("towpath.dead.relay", {RESERVED_TOPIC: 1}) == (record.topic, bench.refusals)


@pytest.mark.parametrize("topic", [".", "..", "x" * 250, ""])
def test_an_invalid_topic_name_is_a_dead_letter(topic: str):
    """
    Kafka's rules for names apply to the whole name.
    """
    (record,) = RouteBench(Outbox(topic="{aggregate_type}")).records(
        aggregate_type=topic.encode()
    )

    assert ILLEGAL_TOPIC == dict(record.headers)["reason"].decode()


def test_later_events_of_the_aggregate_are_parked():
    """
    Events of the same type and id are parked; other aggregates are published.
    """
    bench = RouteBench()
    bench.records(headers=b"[1]")
    (behind,) = bench.records(ordinal=4)
    (other,) = bench.records(ordinal=5, aggregate_id=b"43")
    (namesake,) = bench.records(ordinal=6, aggregate_type=b"customer")
    headers = dict(behind.headers)

    assert (
        ("towpath.dead.relay", b"42", ROW["payload"], BEHIND, b"outbox.event.order"),
        ("outbox.event.order", "outbox.event.customer"),
        1,
    ) == (
        (
            behind.topic,
            behind.key,
            behind.value,
            headers["reason"].decode(),
            headers["topic"],
        ),
        (other.topic, namesake.topic),
        len(bench.parked),
    )


def test_a_row_without_a_type_parks_its_id_for_every_type():
    """
    Its aggregate type is unknown; a row without an id parks nothing.
    """
    bench = RouteBench()
    bench.records(aggregate_type=None)
    bench.records(aggregate_type=None, aggregate_id=None)
    made = [
        bench.records(ordinal=4, aggregate_type=kind)[0].topic
        for kind in (b"order", b"customer")
    ]
    (keyless,) = bench.records(ordinal=5, aggregate_id=None)

    assert (["towpath.dead.relay"] * 2, "outbox.event.order") == (made, keyless.topic)


def test_a_null_aggregate_id_becomes_a_null_key():
    """
    Such an event has no order to keep; its position selects its partition (A47).
    """
    (record,) = RouteBench().records(aggregate_id=None)

    assert (None, -1) == (record.key, record.partition)


@pytest.mark.parametrize(
    ("on_update", "reason"),
    [(OnUpdate.WARN, UPDATED), (OnUpdate.ERROR, WRONGLY_UPDATED)],
)
def test_an_outbox_update_is_counted_and_a_delete_is_ignored(
    on_update: OnUpdate, reason: str
):
    """
    Only inserts are events (A43).
    """
    bench = RouteBench(Outbox(on_update=on_update))
    made = bench.records(Operation.UPDATE) + bench.records(Operation.DELETE)

    assert ([], {reason: 1}) == (made, bench.skipped)


def test_an_outbox_update_can_halt_the_relay():
    """
    With ``halt`` an update is an error that names table and position (A43).
    """
    bench = RouteBench(Outbox(on_update=OnUpdate.HALT))

    with pytest.raises(OutboxUpdatedError, match=r"towpath\.outbox .* P\.0000000003"):
        bench.records(Operation.UPDATE)


def test_an_insert_and_a_delete_are_one_event():
    """
    The table may remain empty: the insert in the log is the event (A43).
    """
    bench = RouteBench()
    made = bench.records(ordinal=0) + bench.records(Operation.DELETE, ordinal=1)

    assert ["outbox.event.order"] == [record.topic for record in made]


def test_the_caches_of_headers_and_types_are_bounded():
    """
    Headers and types that differ in every row do not make them grow without limit.
    """
    bench = RouteBench()
    for number in range(3000):
        bench.records(headers=b'{"n": %d}' % number, aggregate_type=b"t%d" % number)
    writer = bench.route._writer

    assert max(len(writer._cached_headers), len(writer._cached_types)) <= 1024


def test_an_outbox_table_without_its_columns_is_refused():
    """
    A missing column of the outbox table halts the relay with the column's name.
    """
    bare = Relation(oid=5, schema="s", table="t", columns=(Column("id", 25),), key=())
    parked = ParkedAggregates(1)
    with pytest.raises(NotPreparedError, match="payload"):
        OutboxRoute(
            bare, Outbox(), DeadLetters("p", print, parked), parked, frozenset(), print
        )


@pytest.mark.parametrize("cause", ["columns", "id", "aggregate_type", "numbers"])
def test_an_outbox_records_size_is_an_upper_bound(cause: str):
    """
    A record's stated size is at least the sum of its parts.

    In a header, a number may have more digits than in its row.
    """
    numbers = b'{"n":[' + b",".join([b"1e15"] * 900) + b"]}"
    columns = {
        "columns": {
            "headers": json.dumps({f"h{n}": "v" * n for n in range(90)}).encode(),
            "payload": b"x" * 5000,
            "traceparent": b"y" * 900,
            "type": b"z" * 900,
        },
        "id": {"id": b"i" * 900},
        "aggregate_type": {"aggregate_type": b"t" * 900},
        "numbers": {"headers": numbers},
    }[cause]
    bench = RouteBench(Outbox(route_regex="t+", route_replacement="x"))
    (record,) = bench.records(**columns)
    parts = [record.key or b"", record.value or b""]
    parts += [name.encode() for name, _ in record.headers]
    parts += [value for _, value in record.headers if isinstance(value, bytes)]

    assert record.size >= sum(map(len, parts))


def test_large_headers_of_a_row_do_not_count_twice():
    """
    An event just below the size limit is published and is not a dead letter.
    """
    text = json.dumps({"big": "v" * 100_000}).encode()
    (record,) = RouteBench().records(headers=text)

    assert 100_000 < record.size < 102_000

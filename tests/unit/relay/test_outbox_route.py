"""The outbox route: what an outbox row becomes."""

import json
from collections import Counter

import pytest

from towpath.relay.errors import NotPreparedError
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.outbox import (
    HEADERS_NOT_AN_OBJECT,
    ILLEGAL_TOPIC,
    NO_AGGREGATE_TYPE,
    UPDATED,
    OutboxRoute,
)
from towpath.relay.routing.record import Record
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas.envelope import Operation

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

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.buried: Counter[str] = Counter()
        dead = DeadLetters("towpath", lambda reason: self.buried.update([reason]))
        self.route = OutboxRoute(
            OUTBOX,
            "outbox.event.{aggregate_type}",
            dead,
            lambda reason: self.skipped.update([reason]),
        )

    def records(
        self, operation: Operation = Operation.CREATE, **columns: bytes | None
    ) -> list[Record]:
        """Route a change of an outbox row that differs in some columns."""
        row = tuple((ROW | columns)[name] for name in NAMES)
        new, old = (None, row) if operation is Operation.DELETE else (row, None)
        change = Change(operation, OUTBOX, new, old, False, TRANSACTION, 3, 120)
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
    Position, id and their like are ours, whatever the row says.
    """
    (record,) = Desk().records(headers=b'{"position": "x", "id": "y"}')

    assert 5 == len(record.headers)


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
        ({"headers": b"[1]"}, HEADERS_NOT_AN_OBJECT),
        ({"headers": b"{"}, HEADERS_NOT_AN_OBJECT),
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


def test_an_update_is_counted_and_a_delete_is_silence():
    """
    Only inserts are events.
    """
    desk = Desk()
    made = desk.records(Operation.UPDATE) + desk.records(Operation.DELETE)

    assert ([], {UPDATED: 1}) == (made, desk.skipped)


def test_what_is_remembered_is_bounded():
    """
    A header that is unique per row does not grow the memory without bound.
    """
    desk = Desk()
    for number in range(3000):
        desk.records(headers=b'{"n": %d}' % number, aggregate_type=b"t%d" % number)
    route = desk.route

    assert max(len(route._known_headers), len(route._known_types)) <= 1024


def test_a_table_without_its_columns_is_refused():
    """
    An outbox table that lacks a column halts with its name.
    """
    bare = Relation(oid=5, schema="s", table="t", columns=(Column("id", 25),), key=())
    with pytest.raises(NotPreparedError, match="payload"):
        OutboxRoute(bare, "{aggregate_type}", DeadLetters("p", print), print)


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

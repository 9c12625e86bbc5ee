"""The message route: outbox events from logical messages."""

import json
from collections import Counter
from typing import Any

import pytest

from towpath.relay.encode.dead_letters import BEHIND, DeadLetters
from towpath.relay.encode.logical import (
    BAD_TIME,
    MISSING_MEMBERS,
    NO_ID,
    NOT_AN_OBJECT,
    TOO_DEEP,
    LogicalEvents,
)
from towpath.relay.encode.outbox import (
    HEADERS_NOT_AN_OBJECT,
    NO_AGGREGATE_TYPE,
    OutboxRoute,
)
from towpath.relay.encode.outbox_columns import ILLEGAL_TOPIC
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, LogicalMessageEvent, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import Outbox
from towpath.settings.relay import Relay

NOW_US = 1_800_000_000_000_000
TRANSACTION = Transaction(
    xid=9, commit_lsn=160, log_lsn=160, committed_us=1_700_000_000_123_456, place=b"P."
)
EVENT = {
    "id": "10711fa5-0000-4000-8000-000000000000",
    "aggregate_type": "order",
    "aggregate_id": "42",
    "type": "OrderPlaced",
    "payload": {"total": 1},
    "headers": {"schema": "shop.OrderPlaced:1", "n": 1.50},
    "traceparent": "00-1",
    "occurred_at": "2026-01-02T03:04:05.600000Z",
}


class RouteBench:
    """A route for messages, and the counted events."""

    def __init__(self, outbox: Outbox | None = None) -> None:
        self.refusals: Counter[str] = Counter()
        self.parked = ParkedAggregates(10)
        dead = DeadLetters("towpath", lambda r: self.refusals.update([r]), self.parked)
        self.route = LogicalEvents(
            outbox or Outbox(), dead, self.parked, frozenset(), lambda _: None
        )

    def route_message(
        self,
        content: bytes | dict[str, Any],
        *,
        ordinal: int = 3,
        inside: bool = True,
        now_us: int = NOW_US,
    ) -> Record:
        """Route a message."""
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        transaction = TRANSACTION if inside else None
        number = ordinal if inside else -1
        message = LogicalMessageEvent(
            "towpath.outbox", text, 0x1F8, number, transaction, 0x1F8
        )
        (record,) = self.route.records(message, now_us)
        return record


def test_a_message_yields_the_same_record_as_a_row():
    """
    Topic, key, value, headers, position and time are the same for both.
    """
    names = tuple(EVENT)
    columns = tuple(Column(name, 114 if name == "payload" else 25) for name in names)
    relation = Relation(5, "towpath", "outbox", columns, ())
    texts = EVENT | {
        "payload": json.dumps(EVENT["payload"]),
        "headers": json.dumps(EVENT["headers"]),
        "occurred_at": "2026-01-02 03:04:05.6+00",
    }
    row = tuple(str(texts[name]).encode() for name in names)
    parked = ParkedAggregates(1)
    dead = DeadLetters("towpath", print, parked)
    change = Change(Operation.CREATE, relation, row, None, False, TRANSACTION, 3, 0)
    (expected,) = OutboxRoute(
        relation, Outbox(), dead, parked, frozenset(), print
    ).records(change, NOW_US)
    made = RouteBench().route_message(EVENT)

    assert expected[:6] == made[:6]


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (b'{ "n":  1.10, "big": 12345678901234567890123.0 }', None),
        (b"[1, 2]", None),
        (b"1.50", None),
        (b"true", None),
        (b'{"payload": {"payload": 1.0}}', None),
        (b'{"a": "\\u00e9\\"payload\\": 2"}', None),
        (b'"just text \\u00e9"', "just text é".encode()),
        (b'""', b""),
    ],
)
@pytest.mark.parametrize("name", [b"payload", b"p\\u0061yload"], ids=["bare", "hidden"])
def test_a_messages_payload_is_published_as_written(
    name: bytes, payload: bytes, value: bytes | None
):
    """
    No number is re-serialized and no space lost; a string becomes its text.
    """
    content = (
        b'{"a": {"payload": 0}, "id":"1","aggregate_type":"order", "aggregate_id":"4",'
        b' "type":"T" ,"%s" : %s }'
    )
    record = RouteBench().route_message(content % (name, payload))

    assert (payload if value is None else value) == record.value


def test_a_number_in_a_messages_headers_keeps_its_digits():
    """
    The same holds for a row's headers.
    """
    numbers = {"n": b"1.10", "big": b"12345678901234567890.125"}
    written = b", ".join(b'"%s": %s' % (k.encode(), n) for k, n in numbers.items())
    content = json.dumps(EVENT | {"headers": 0}).encode()
    record = RouteBench().route_message(
        content.replace(b'"headers": 0', b'"headers": {%s}' % written)
    )

    assert numbers == {n: v for n, v in record.headers if n in numbers}


def test_a_null_payload_is_an_event_without_a_value():
    """
    A null payload means the same as a row's NULL.

    Optional members may be null or absent.
    """
    record = RouteBench().route_message(
        {**EVENT, "payload": None, "headers": None, "traceparent": None}
        | {"occurred_at": None, "type": None}
    )

    assert (None, ["id", "aggregate_type", "position"]) == (
        record.value,
        [name for name, _ in record.headers],
    )


@pytest.mark.parametrize(
    ("inside", "position", "timestamp_ms"),
    [
        (True, b"P.0000000003", 1_700_000_000_123),
        (False, b"00000000000001f8.-", 1_767_323_045_600),
    ],
)
def test_a_message_has_a_position_in_its_transaction_or_its_own_lsn(
    inside: bool, position: bytes, timestamp_ms: int
):
    """
    Outside a transaction there is no commit, so the time is the event's own.
    """
    record = RouteBench().route_message(EVENT, inside=inside)

    assert (position, position, timestamp_ms) == (
        record.position,
        dict(record.headers)["position"],
        record.timestamp_ms,
    )


@pytest.mark.parametrize(
    ("occurred_at", "timestamp_ms"),
    [
        (None, NOW_US // 1000),
        ("2999-01-01T00:00:00Z", NOW_US // 1000),
        ("1960-01-01T00:00:00Z", 1),
        ("2004-03-15T07:55:47.472Z", 1_079_337_347_472),
    ],
)
def test_a_messages_time_is_limited_to_kafkas_range(
    occurred_at: str | None, timestamp_ms: int
):
    """
    Only the record's timestamp is limited: the header has the application's time.
    """
    record = RouteBench().route_message(
        {**EVENT, "occurred_at": occurred_at}, inside=False
    )

    assert timestamp_ms == record.timestamp_ms


@pytest.mark.parametrize(
    ("written", "header"),
    [
        ("2026-01-02T03:04:05+02:00", b"2026-01-02T01:04:05.000000Z"),
        ("2026-01-02T03:04:05.6Z", b"2026-01-02T03:04:05.600000Z"),
        ("2026-01-02T03:04:05.600000Z", b"2026-01-02T03:04:05.600000Z"),
    ],
)
def test_message_times_are_in_utc(written: str, header: bytes):
    """
    Times in every zone are converted.
    """
    record = RouteBench().route_message({**EVENT, "occurred_at": written})

    assert header == dict(record.headers)["occurred_at"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", NOT_AN_OBJECT),
        (b"[]", NOT_AN_OBJECT),
        (b"{", NOT_AN_OBJECT),
        (b"\xff", NOT_AN_OBJECT),
        (b'{"id": NaN}', NOT_AN_OBJECT),
        (b'{"id": "\\ud800"}', NOT_AN_OBJECT),
        (json.dumps(EVENT).encode() + b"x", NOT_AN_OBJECT),
        (b"{}", MISSING_MEMBERS),
        ({k: v for k, v in EVENT.items() if k != "payload"}, MISSING_MEMBERS),
        ({**EVENT, "id": 7}, NO_ID),
        ({**EVENT, "id": None}, NO_ID),
        ({**EVENT, "occurred_at": "now"}, BAD_TIME),
        ({**EVENT, "occurred_at": 7}, BAD_TIME),
        ({**EVENT, "occurred_at": "0001-01-01T00:00:00+14:00"}, BAD_TIME),
        ({**EVENT, "occurred_at": "2026-01-02T03:04:05"}, BAD_TIME),
        ({**EVENT, "headers": "{}"}, HEADERS_NOT_AN_OBJECT),
        ({**EVENT, "headers": [1]}, HEADERS_NOT_AN_OBJECT),
        ({**EVENT, "aggregate_type": None}, NO_AGGREGATE_TYPE),
        ({**EVENT, "aggregate_type": "a b"}, ILLEGAL_TOPIC),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_an_invalid_message_is_a_dead_letter(
    content: bytes | dict[str, Any], reason: str, inside: bool
):
    """
    It has the whole content and the reason, and is counted.
    """
    bench = RouteBench()
    record = bench.route_message(content, inside=inside)
    whole = content if isinstance(content, bytes) else json.dumps(content).encode()
    kept = {"base64": "/w=="} if content == b"\xff" else whole.decode()

    assert ("towpath.dead.relay", {reason: 1}, kept) == (
        record.topic,
        bench.refusals,
        json.loads(record.value or b"")["content"],
    )


def test_too_deeply_nested_json_is_a_dead_letter():
    """
    No content may halt the relay.
    """
    deep = b"[" * 1010 + b"]" * 1010
    content = json.dumps({**EVENT, "payload": None}).encode()
    bench = RouteBench()
    record = bench.route_message(
        content.replace(b'"payload": null', b'"payload": ' + deep)
    )

    assert ("towpath.dead.relay", 1, True) == (
        record.topic,
        bench.refusals.total(),
        bench.refusals.keys() <= {TOO_DEEP, NOT_AN_OBJECT},
    )


def test_an_invalid_message_parks_its_aggregate():
    """
    Rows and messages of one aggregate are parked together.
    """
    bench = RouteBench()
    bench.route_message({**EVENT, "headers": [1]})
    behind = bench.route_message(EVENT, ordinal=4)
    other = bench.route_message({**EVENT, "aggregate_id": "43"}, ordinal=5)

    assert (BEHIND.encode(), "outbox.event.order") == (
        dict(behind.headers)["reason"],
        other.topic,
    )


def test_a_numeric_aggregate_id_becomes_its_text():
    """
    The id is the number as it was written.
    """
    assert b"42" == RouteBench().route_message({**EVENT, "aggregate_id": 42}).key


def test_options_read_message_members_by_name():
    """
    Placements, routes and versions work; the preset accepts our own names, too.
    """
    outbox = Relay.model_validate(
        {
            "preset": "debezium",
            "outbox": {
                "route_by": "region",
                "placements": ["type:header:eventType", "p:partition", "x:envelope"],
            },
        }
    ).outbox
    record = RouteBench(outbox).route_message(
        {**EVENT, "region": "eu", "p": 2, "x": True}
    )
    headers = dict(record.headers)

    assert (
        ("outbox.event.eu", 2, b'{"payload":{"total": 1},"x":"true"}'),
        (b"OrderPlaced", b"2026-01-02T03:04:05.600000Z"),
    ) == (
        (record.topic, record.partition, record.value),
        (headers["eventType"], headers["occurred_at"]),
    )


@pytest.mark.parametrize("inside", [True, False])
def test_a_replayed_message_yields_the_same_record(inside: bool):
    """
    The position is the same, too, so published records are recognized (A83).
    """
    first, again = (
        RouteBench().route_message(EVENT, inside=inside, now_us=now_us)
        for now_us in (NOW_US, NOW_US + 60_000_000)
    )

    assert first == again

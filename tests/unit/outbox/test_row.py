"""Checks before an event is written: no undeliverable event is accepted."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from support.outbox_statements import Statements
from towpath.outbox import (
    Events,
    EventTooLargeError,
    InvalidEventError,
    Outbox,
    OutboxEvent,
    correlation_id,
)
from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.logical import LogicalEvents
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.wal.transactions import LogicalMessageEvent, Transaction
from towpath.schemas.failure import UsageError
from towpath.services.orders.events import shop_schemas
from towpath.settings.outbox import Outbox as OutboxSettings

AT = datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)
# The last datetime in a zone west of Greenwich, which in UTC is in the year 10,000.
LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENT = OutboxEvent(
    aggregate_type="customer",
    aggregate_id="7",
    type="CustomerRegistered",
    payload={
        "customer_id": "7",
        "name": "Adä",
        "email": "ada@example.org",
        "active": True,
        "created_at": AT,
        "updated_at": AT,
    },
    headers={"tenant": "a"},
    occurred_at=AT,
)
NOTE = OutboxEvent(
    aggregate_type="note", aggregate_id="1", type="Noted", payload={"text": "a"}
)


class StoppedClock:
    """A clock that always shows the same time."""

    @staticmethod
    def now():
        """Return the time."""
        return AT


def written(*events, **options):
    """Record events one by one, and return their rows, with each column as text."""
    statements = Statements()
    outbox = Outbox(Events(shop_schemas(), unknown="none"), **options)
    for event in events:
        outbox.record(statements, event)
    return [values for _, values in statements]


def test_an_event_becomes_a_row():
    """
    The row has the event's fields, a plain payload, and the schema as a header.
    """
    (row,) = written(dataclasses.replace(EVENT, traceparent=TRACE))
    time = "2026-01-02T03:04:05.600000Z"

    assert {
        "id": str(EVENT.id),
        "aggregate_type": "customer",
        "aggregate_id": "7",
        "type": "CustomerRegistered",
        "payload": {**EVENT.payload, "created_at": time, "updated_at": time},
        "headers": {"schema": "shop.CustomerRegistered:1", "tenant": "a"},
        "traceparent": TRACE,
        "occurred_at": time,
    } == row | {name: json.loads(row[name]) for name in ("payload", "headers")}


def test_each_event_has_an_id_of_its_own():
    """
    Two events are always different, even with the same contents.
    """
    first, second = (dataclasses.asdict(NOTE) for _ in range(2))
    del first["id"], second["id"]

    assert OutboxEvent(**first).id != OutboxEvent(**second).id


def test_an_event_without_a_time_gets_the_time_of_recording():
    """
    The outbox reads its clock when the event is recorded.
    """
    (row,) = written(NOTE, clock=StoppedClock())

    assert "2026-01-02T03:04:05.600000Z" == row["occurred_at"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": {**EVENT.payload, "name": 1}}, "name"),
        ({"payload": {**EVENT.payload, "name": object()}}, "name"),
        ({"payload": {**EVENT.payload, "name": "a\0b"}}, "payload"),
        ({"payload": {**EVENT.payload, "name": "\\\0"}}, "payload"),
        ({"type": "Noted", "payload": {"n": float("nan")}}, "payload"),
        ({"type": "Noted", "payload": {"n": object()}}, "payload"),
        ({"type": "Noted", "payload": {"n": "\ud800"}}, "payload"),
        ({"type": "Noted", "payload": {"at": AT.replace(tzinfo=None)}}, "payload"),
        ({"type": ""}, "type"),
        ({"type": "No\nted"}, "type"),
        ({"type": "N" * 201}, "type"),
        ({"type": 7}, "type"),
        ({"type": "Noted", "payload": {"at": LAST}}, "payload"),
        ({"type": "Noted", "payload": {("a", 1): 2}}, "payload"),
        ({"type": "Noted", "payload": {"in": ENDLESS}}, "payload"),
        ({"aggregate_type": ""}, "aggregate_type"),
        ({"aggregate_type": "cust omer"}, "aggregate_type"),
        ({"aggregate_type": "a" * 201}, "aggregate_type"),
        ({"aggregate_id": ""}, "aggregate_id"),
        ({"aggregate_id": 7}, "aggregate_id"),
        ({"aggregate_id": "a\0b"}, "aggregate_id"),
        ({"aggregate_id": "a\udfff"}, "aggregate_id"),
        ({"aggregate_id": "a\udfff", "type": "Noted", "payload": None}, "aggregate_id"),
        ({"id": "7"}, "id"),
        ({"traceparent": 7}, "traceparent"),
        ({"occurred_at": "now"}, "occurred_at"),
        ({"headers": None}, "headers"),
        ({"headers": {"tenant": "\ud800"}}, "headers.tenant"),
        ({"headers": {7: "a"}}, "headers.7"),
        ({"occurred_at": AT.replace(tzinfo=None)}, "occurred_at"),
        ({"occurred_at": LAST}, "occurred_at"),
        ({"headers": {"position": "0"}}, "headers.position"),
        ({"headers": {"parked": "a"}}, "headers.parked"),
        ({"headers": {"released": "a"}}, "headers.released"),
        ({"headers": {"claim_check": "x"}}, "headers.claim_check"),
        ({"headers": {"tenant": 7}}, "headers.tenant"),
        ({"headers": {"tenant": "\0"}}, "headers.tenant"),
        ({"headers": {"": "a"}}, "headers."),
    ],
)
@pytest.mark.parametrize("way", ["keep", "delete", "message"])
def test_a_bad_event_is_refused_before_anything_is_written(change, field, way):
    """
    The error names the field; of several events none is written.
    """
    statements = Statements()
    outbox = Outbox(Events(shop_schemas(), unknown="none"), way=way)

    with pytest.raises(InvalidEventError) as caught:
        outbox.record_all(statements, [EVENT, dataclasses.replace(EVENT, **change)])

    assert (field, []) == (caught.value.field, statements)


def test_an_escaped_backslash_before_u0000_is_not_a_nul():
    """
    Text that only looks like the escape of a NUL is delivered.
    """
    text = "\\u0000"
    (row,) = written(dataclasses.replace(NOTE, payload={"text": text}))

    assert {"text": text} == json.loads(row["payload"])


def test_decimals_and_absent_payloads_keep_their_meaning():
    """
    A decimal keeps its digits as text; a missing payload is NULL, not JSON's null.
    """
    rows = written(
        dataclasses.replace(NOTE, payload={"total": Decimal("1.10")}),
        dataclasses.replace(NOTE, payload=None),
    )

    assert ['{"total": "1.10"}', None] == [row["payload"] for row in rows]


def test_a_record_above_the_limit_is_refused_with_its_size():
    """
    The bytes of key, payload and headers count; a record of exactly the limit fits.
    """
    event = dataclasses.replace(NOTE, payload={"text": "ä" * 50})
    size = len('{"text": ""}') + 100 + len("1")

    assert 1 == len(written(event, max_bytes=size))
    with pytest.raises(EventTooLargeError, match=f"{size} bytes, above {size - 1}"):
        written(event, max_bytes=size - 1)


def test_headers_of_an_event_without_a_payload_count():
    """
    A claim check cannot help, because there is no payload to store.
    """
    event = dataclasses.replace(NOTE, payload=None, headers={"tenant": "a" * 50})

    with pytest.raises(EventTooLargeError, match="57 bytes, above 56"):
        written(event, max_bytes=56, claim_check=lambda *_: "location")
    assert 1 == len(written(event, max_bytes=57))


def test_a_claim_check_does_not_hide_a_record_above_the_limit():
    """
    Large headers are refused before a payload is stored, a long claim check afterwards.
    """
    stored = []

    def store(_event, payload):
        stored.append(payload)
        return "p" * 60

    large = dataclasses.replace(NOTE, payload={"text": "a" * 200})
    heavy = dataclasses.replace(large, headers={"tenant": "a" * 100})

    with pytest.raises(EventTooLargeError, match="107 bytes without its payload"):
        written(heavy, max_bytes=100, claim_check=store)
    assert [] == stored
    with pytest.raises(EventTooLargeError, match="with the location of its payload"):
        written(large, max_bytes=100, claim_check=store)
    assert 1 == len(stored)


def test_a_correlation_id_is_recorded_with_each_event():
    """
    The current context's id becomes a header, unless the event has its own.
    """
    token = correlation_id.set("c-1")
    try:
        rows = written(
            NOTE, dataclasses.replace(NOTE, headers={"correlation_id": "c-2"})
        )
    finally:
        correlation_id.reset(token)
    found = [json.loads(row["headers"]) for row in rows]

    assert [{"correlation_id": "c-1"}, {"correlation_id": "c-2"}] == found


def test_the_current_span_is_the_trace_context():
    """
    OpenTelemetry's span is used if there is one and the event has no context.
    """
    tracer = TracerProvider().get_tracer("test")
    (without,) = written(NOTE)
    with tracer.start_as_current_span("request") as span:
        (inside,) = written(NOTE)
        (own,) = written(dataclasses.replace(NOTE, traceparent=TRACE))
    context = span.get_span_context()
    trace_id = trace.format_trace_id(context.trace_id)
    span_id = trace.format_span_id(context.span_id)
    expected = f"00-{trace_id}-{span_id}-{context.trace_flags:02x}"

    assert [None, expected, TRACE] == [
        row["traceparent"] for row in (without, inside, own)
    ]


@pytest.mark.parametrize(
    "given",
    ["00\0", "00-1", "0" * 1_100_000, f"{TRACE}-{'0' * 1_100_000}", f"{TRACE}ä"],
    ids=["unprintable", "short", "large", "large suffix", "not hexadecimal"],
)
def test_an_invalid_trace_context_does_not_fail_the_request(given):
    """
    It comes from a client; the event is recorded without it.
    """
    (row,) = written(dataclasses.replace(NOTE, traceparent=given))

    assert row["traceparent"] is None


def test_recording_no_events_executes_no_statement():
    """
    An empty batch executes nothing in the session.
    """
    statements = Statements()

    assert ([], []) == (Outbox().record_all(statements, []), statements)


@pytest.mark.parametrize(
    "options",
    [
        {"way": "post"},
        {"columns": {"key": "k"}},
        {"way": "delete", "columns": {"id": ""}},
    ],
)
def test_an_outbox_with_an_unknown_option_is_refused(options):
    """
    ``way`` and the columns must be documented ones; deleting needs the id.
    """
    with pytest.raises(UsageError):
        Outbox(Events(unknown="none"), **options)


def test_the_relay_publishes_the_recorded_message_as_the_event():
    """
    The relay's route reads the library's message, so both agree on the format.
    """
    statements = Statements()
    event = dataclasses.replace(EVENT, traceparent=TRACE)
    Outbox(Events(shop_schemas()), way="message").record(statements, event)
    ((_, values),) = statements
    dead = DeadLetters("p", print, ParkedAggregates(1))
    transaction = Transaction(9, 160, 160, 1_700_000_000_123_456, b"P.")
    message = LogicalMessageEvent(
        values["prefix"], values["content"].encode(), 160, 0, transaction, 160
    )
    (record,) = LogicalEvents(
        OutboxSettings(), dead, ParkedAggregates(1), frozenset(), print
    ).records(message, 0)
    headers = dict(record.headers)

    assert (
        ("outbox.event.customer", b"7", "Adä"),
        (
            str(EVENT.id).encode(),
            b"shop.CustomerRegistered:1",
            b"a",
            b"2026-01-02T03:04:05.600000Z",
            TRACE.encode(),
        ),
    ) == (
        (record.topic, record.key, json.loads(record.value or b"")["name"]),
        tuple(
            headers[name]
            for name in ("id", "schema", "tenant", "occurred_at", "traceparent")
        ),
    )

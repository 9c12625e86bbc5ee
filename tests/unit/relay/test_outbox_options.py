"""The outbox route's options, and their effects on a row's record."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from towpath.relay.encode.dead_letters import DeadLetters
from towpath.relay.encode.event_options import BAD_PARTITION, NOT_A_CLOUDEVENT
from towpath.relay.encode.outbox import BAD_TIMESTAMP, NO_ROUTE, OutboxRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import Record
from towpath.relay.errors import NotPreparedError
from towpath.relay.wal.messages import Column, Relation
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import Outbox
from towpath.settings.relay import Relay

COMMITTED_MS = 1_700_000_000_123
TRANSACTION = Transaction(9, 160, 160, COMMITTED_MS * 1000 + 456, b"P.")
TEXT, JSON, BYTEA, INTEGER, BOOLEAN, DOUBLE = 25, 114, 17, 23, 16, 701
TIMESTAMP, TIMESTAMPTZ, BIGINT, UUID = 1114, 1184, 20, 2950

OUR_TYPES = {
    "id": UUID,
    "aggregate_type": TEXT,
    "aggregate_id": TEXT,
    "type": TEXT,
    "payload": JSON,
    "headers": JSON,
    "traceparent": TEXT,
    "occurred_at": TIMESTAMPTZ,
}
OUR_ROW: Mapping[str, bytes | None] = {
    "id": b"10711fa5-0000-4000-8000-000000000000",
    "aggregate_type": b"User",
    "aggregate_id": b"10711fa5",
    "type": b"UserCreated",
    "payload": b'{"total": 1.10}',
    "headers": None,
    "traceparent": None,
    "occurred_at": b"2026-01-02 03:04:05.6+00",
}
DEBEZIUM_TYPES = {
    "id": UUID,
    "aggregatetype": TEXT,
    "aggregateid": TEXT,
    "type": TEXT,
    "payload": JSON,
}


def route(
    options: Mapping[str, Any],
    more: Mapping[str, bytes | None],
    types: Mapping[str, int] | None = None,
) -> Record:
    """
    Route our usual row with more columns, which are text unless types say otherwise.
    """
    row = {**OUR_ROW, **more}
    kinds = {**dict.fromkeys(row, TEXT), **OUR_TYPES, **(types or {})}
    columns = tuple(Column(name, kinds[name]) for name in row)
    relation = Relation(5, "towpath", "outbox", columns, ())
    return routed(Outbox.model_validate(options), relation, tuple(row.values()))


def routed(outbox: Outbox, relation: Relation, row: tuple[bytes | None, ...]) -> Record:
    """Route one row."""
    parked = ParkedAggregates(10)
    dead = DeadLetters("towpath", lambda _: None, parked)
    made = OutboxRoute(relation, outbox, dead, parked, frozenset(), lambda _: None)
    change = Change(Operation.CREATE, relation, row, None, False, TRANSACTION, 3, 0)
    (record,) = made.records(change, 0)
    return record


def reason(record: Record) -> str | None:
    """Return why a record is a dead letter, or None if it is not one."""
    found = dict(record.headers).get("reason")
    return found.decode() if isinstance(found, bytes) else None


def test_the_debezium_preset_reads_its_table_and_writes_its_headers():
    """
    Topic, key, payload text, id and ``eventType`` match Debezium's router (A41).
    """
    outbox = Relay.model_validate({"preset": "debezium"}).outbox
    columns = tuple(Column(name, oid) for name, oid in DEBEZIUM_TYPES.items())
    relation = Relation(5, "public", "outbox", columns, ())
    row = (b"u-1", b"User", b"10711fa5", b"UserCreated", b'{"a":  1}')
    record = routed(outbox, relation, row)
    headers = dict(record.headers)

    assert (
        ("outbox.event.User", b"10711fa5", b'{"a":  1}'),
        (b"u-1", b"UserCreated"),
    ) == (
        (record.topic, record.key, record.value),
        (headers["id"], headers["eventType"]),
    )


def test_placements_become_headers_partition_and_envelope():
    """
    Placements work with and without an alias, and several work together (A42).
    """
    record = route(
        {
            "placements": [
                "tenant:header",
                "flag:header:isNew",
                "blob:header",
                "gone:header",
                "part:partition",
                "type:envelope:eventType",
                "n:envelope",
                "flag:envelope",
            ]
        },
        {
            "tenant": b"acme",
            "flag": b"t",
            "blob": b"\\x00ff",
            "gone": None,
            "part": b"2",
            "n": b"7",
        },
        {"flag": BOOLEAN, "blob": BYTEA, "part": INTEGER, "n": INTEGER},
    )

    assert (
        [("tenant", b"acme"), ("isNew", b"true"), ("blob", b"\0\xff"), ("gone", None)],
        2,
        b'{"payload":{"total": 1.10},"eventType":"UserCreated","n":7,"flag":true}',
    ) == (record.headers[5:], record.partition, record.value)


@pytest.mark.parametrize(
    ("oid", "value", "fragment", "member"),
    [
        (JSON, b'{"n": 1.10}', b'{"n": 1.10}', {"n": 1.1}),
        (TEXT, b'say "hi"', rb'"say \"hi\""', 'say "hi"'),
        (BYTEA, b"\\x00ff", b'"AP8="', "AP8="),
        (BYTEA, b"\\x", b'""', ""),
        (INTEGER, b"-5", b"-5", -5),
        (BOOLEAN, b"f", b"false", False),
        (DOUBLE, b"1.5e+10", b"1.5e+10", 1.5e10),
        (DOUBLE, b"-Infinity", b'"-Infinity"', "-Infinity"),
        (TEXT, None, b"null", None),
    ],
)
@pytest.mark.parametrize("column", ["payload", "extra"])
def test_an_envelope_has_each_types_json(
    column: str, oid: int, value: bytes | None, fragment: bytes, member: object
):
    """
    JSON is embedded verbatim, numbers remain numbers, bytes become base64 (A42).
    """
    placements = ["type:envelope:t"] if column == "payload" else ["extra:envelope"]
    record = route({"placements": placements}, {column: value}, {column: oid})
    expected = {
        "payload": b'{"payload":%s,"t":"UserCreated"}' % fragment,
        "extra": b'{"payload":{"total": 1.10},"extra":%s}' % fragment,
    }

    assert (expected[column], member) == (
        record.value,
        json.loads(record.value or b"{}")[column],
    )


@pytest.mark.parametrize("number", [None, b"-1", b"two", b"1.0", b"", b"99999999999"])
def test_an_invalid_partition_is_a_dead_letter(number: bytes | None):
    """
    A partition that is null, negative, not a number or too large is refused.
    """
    record = route({"placements": ["p:partition"]}, {"p": number})

    assert BAD_PARTITION == reason(record)


def test_a_standard_header_is_not_written_twice():
    """
    ``type:header`` names a header that every event already has.
    """
    record = route({"placements": ["type:header", "aggregate_type:header"]}, {})

    assert 5 == len(record.headers)


def test_a_placement_of_a_missing_column_is_an_error_or_is_skipped():
    """
    By default the table is refused, with the column's name (A50).
    """
    placements = ["absent:header"]
    skipped = route({"placements": placements, "on_missing_column": "skip"}, {})

    with pytest.raises(NotPreparedError, match="absent"):
        route({"placements": placements}, {})
    assert 5 == len(skipped.headers)


def test_a_different_column_can_determine_the_topic():
    """
    ``route_by`` replaces the template's input; the aggregate type is unchanged (A48).
    """
    record = route({"route_by": "region"}, {"region": b"eu"})
    null = route({"route_by": "region"}, {"region": None})

    assert ("outbox.event.eu", b"User", NO_ROUTE) == (
        record.topic,
        dict(record.headers)["aggregate_type"],
        reason(null),
    )


@pytest.mark.parametrize(
    ("oid", "payload", "option", "value"),
    [
        (JSON, None, "event", None),
        (TEXT, b"", "event", b""),
        (TEXT, b"  ", "event", b"  "),
        (JSON, b"null", "event", b"null"),
        (JSON, None, "tombstone", None),
        (TEXT, b"", "tombstone", None),
        (TEXT, b" \n", "tombstone", None),
        (BYTEA, b"\\x", "tombstone", None),
        (JSON, b"null", "tombstone", b"null"),
        (TEXT, b"x", "tombstone", b"x"),
    ],
)
def test_an_empty_payload_is_an_event_or_a_tombstone(
    oid: int, payload: bytes | None, option: str, value: bytes | None
):
    """
    Key and headers are kept in both cases (A45).
    """
    record = route({"on_empty_payload": option}, {"payload": payload}, {"payload": oid})

    assert (value, b"10711fa5", 5) == (record.value, record.key, len(record.headers))


@pytest.mark.parametrize(
    ("option", "value"),
    [("event", b'{"payload":null,"type":"UserCreated"}'), ("tombstone", None)],
)
def test_a_tombstone_has_no_envelope(option: str, value: bytes | None):
    """
    An event without a payload has an envelope, but a tombstone has no value at all.
    """
    options = {"on_empty_payload": option, "placements": ["type:envelope"]}

    assert value == route(options, {"payload": None}).value


@pytest.mark.parametrize(
    ("oid", "text", "key"),
    [
        (INTEGER, b"7", b"7"),
        (UUID, OUR_ROW["id"], OUR_ROW["id"]),
        (BYTEA, b"\\x00ff", b"\0\xff"),
        (TEXT, None, None),
    ],
)
def test_outbox_keys_are_texts_or_bytes(
    oid: int, text: bytes | None, key: bytes | None
):
    """
    Numbers and UUIDs are their text, bytes are bytes, null is null (A47).
    """
    record = route({}, {"aggregate_id": text}, {"aggregate_id": oid})

    assert key == record.key


def test_a_bytea_payload_is_published_as_its_bytes():
    """
    Framed payloads are published unchanged (A52).
    """
    record = route({}, {"payload": b"\\x0000000001deadbeef"}, {"payload": BYTEA})

    assert bytes.fromhex("0000000001deadbeef") == record.value


@pytest.mark.parametrize(
    ("oid", "text", "milliseconds"),
    [
        (TIMESTAMPTZ, b"2023-11-14 22:13:20.123+00", 1_700_000_000_123),
        (TIMESTAMP, b"2023-11-14 22:13:20.123456", 1_700_000_000_123),
        (TIMESTAMP, b"2023-11-14 22:13:20", 1_700_000_000_000),
        (TIMESTAMP, b"2004-03-15 07:55:47.472", 1_079_337_347_472),
        (BIGINT, b"1699999999999", 1_699_999_999_999),
        (TIMESTAMPTZ, None, COMMITTED_MS),
    ],
)
def test_a_column_can_provide_the_records_timestamp(
    oid: int, text: bytes | None, milliseconds: int
):
    """
    The timestamp is in milliseconds for any column type.

    Null means the commit time (A46).
    """
    options = {"columns": {"timestamp": "at"}}

    assert milliseconds == route(options, {"at": text}, {"at": oid}).timestamp_ms


@pytest.mark.parametrize(
    "text",
    [b"infinity", b"0044-03-15 00:00:00 BC", b"0", b"-5", b"1700009999999", b"soon"],
)
def test_an_invalid_timestamp_is_a_dead_letter(text: bytes):
    """
    A timestamp that brokers refuse, such as one far ahead, must not stop the relay.
    """
    record = route({"columns": {"timestamp": "at"}}, {"at": text})

    assert BAD_TIMESTAMP == reason(record)


def test_each_row_has_its_own_schema_version():
    """
    Two types with the same version are kept apart (A51).
    """
    options = {"columns": {"schema_version": "v"}}
    found = [
        route(options, {"aggregate_type": kind, "v": version})
        for kind, version in ((b"a", b"1"), (b"a", b"3"), (b"b", b"1"))
    ]

    assert [
        (b"a", b"1"),
        (b"a", b"3"),
        (b"b", b"1"),
    ] == [
        (headers["aggregate_type"], headers["schema_version"])
        for headers in (dict(record.headers) for record in found)
    ]


def test_outbox_columns_that_the_table_lacks_are_left_out():
    """
    An empty column name disables a column; a null type yields no header.
    """
    absent = {"headers": "", "traceparent": "", "occurred_at": "", "type": ""}
    record = route({"columns": absent}, {"headers": b"[1]", "traceparent": b"x"})

    assert ["id", "aggregate_type", "position"] == [name for name, _ in record.headers]


TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_is_continued_with_a_span_for_the_record():
    """
    Trace id and flags are kept.

    The parent is the same on a replay; tracestate is unchanged.
    """
    own = b'{"tracestate": "a=b"}'
    first, again = (
        dict(
            route(
                {"traceparent": "continue"}, {"traceparent": TRACE, "headers": own}
            ).headers
        )
        for _ in range(2)
    )
    version, trace_id, parent, flags = (first["traceparent"] or b"").split(b"-")

    assert (
        (b"00", b"0af7651916cd43dd8448eb211c80319c", 16, b"01", b"a=b"),
        True,
        True,
    ) == (
        (version, trace_id, len(parent), flags, first["tracestate"]),
        first == again,
        parent != b"b7ad6b7169203331",
    )


def test_a_trace_in_the_rows_own_headers_is_written_once():
    """
    The column takes precedence; if it is null, the row's own header is used.
    """
    own = b'{"traceparent": "own"}'
    both = route({}, {"traceparent": TRACE, "headers": own})
    only = route({}, {"headers": own})

    assert ([TRACE], [b"own"]) == tuple(
        [value for name, value in record.headers if name == "traceparent"]
        for record in (both, only)
    )


def test_debeziums_tracing_column_is_supported():
    """
    ``tracingspancontext`` contains Java properties, including the trace context.
    """
    record = route(
        {"columns": {"traceparent": "tracingspancontext"}},
        {"tracingspancontext": b"#Tue Jan 02\ntraceparent=" + TRACE + b"\n"},
    )

    assert TRACE == dict(record.headers)["traceparent"]


CE = {"cloudevents": "/shop"}


def cloudevent_headers(record: Record) -> dict[str, Any]:
    """Return the headers of binary mode."""
    return {
        name: value
        for name, value in record.headers
        if name.startswith("ce_") or name == "content-type"
    }


def test_an_event_can_be_a_cloudevent_in_binary_mode():
    """
    All attributes of the specification and the content type are set.

    The value is unchanged.
    """
    record = route(CE, {"headers": b'{"schema": "shop.UserCreated:1", "ce_id": "x"}'})

    assert (
        {
            "ce_specversion": b"1.0",
            "ce_id": OUR_ROW["id"],
            "ce_source": b"/shop",
            "ce_type": b"UserCreated",
            "ce_subject": b"10711fa5",
            "ce_time": b"2026-01-02T03:04:05.600000Z",
            "ce_dataschema": b"shop.UserCreated:1",
            "content-type": b"application/json",
        },
        OUR_ROW["payload"],
    ) == (cloudevent_headers(record), record.value)


@pytest.mark.parametrize(
    ("oid", "more", "content_type"),
    [
        (BYTEA, {"payload": b"\\x00"}, b"application/octet-stream"),
        (TEXT, {"payload": b"hi"}, b"text/plain; charset=utf-8"),
        (JSON, {"payload": None}, None),
        (BYTEA, {"payload": b"\\x00", "headers": b'{"content-type": "a/b"}'}, b"a/b"),
    ],
)
def test_a_cloudevent_has_the_content_type_of_its_payload(
    oid: int, more: Mapping[str, bytes | None], content_type: bytes | None
):
    """
    The column's type decides, unless the row has a header; an empty payload has none.
    """
    record = route(CE, more, {"payload": oid})

    assert content_type == cloudevent_headers(record).get("content-type")


def test_optional_cloudevent_attributes_are_left_out():
    """
    There is no subject without a key, and no time that RFC 3339 cannot express.
    """
    record = route(CE, {"aggregate_id": None, "occurred_at": b"infinity"})

    assert {"ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"} == (
        cloudevent_headers(record).keys()
    )


def test_a_row_without_a_type_cannot_become_a_cloudevent():
    """
    Consumers would refuse such an event, so it is a dead letter.
    """
    assert NOT_A_CLOUDEVENT == reason(route(CE, {"type": None}))


def test_with_every_option_the_size_is_still_an_upper_bound():
    """
    A record's stated size is at least the sum of its parts, with every option on.
    """
    record = route(
        {
            **CE,
            "traceparent": "continue",
            "columns": {"schema_version": "v"},
            "placements": ["big:header", "big:envelope:again"],
        },
        {"big": b'"' * 5000, "v": b"1" * 500, "traceparent": TRACE},
    )
    parts = [record.key or b"", record.value or b""]
    parts += [name.encode() for name, _ in record.headers]
    parts += [value for _, value in record.headers if isinstance(value, bytes)]

    assert record.size >= sum(map(len, parts))

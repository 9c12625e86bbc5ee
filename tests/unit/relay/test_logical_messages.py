"""Logical messages as records."""

import io
import json

import fastavro
import pytest

from support.copying import replace
from towpath.relay.encode.codecs.codec import TransactionPlace
from towpath.relay.encode.codecs.factory import Documents, avro_text
from towpath.relay.encode.logical import EXCLUDED, MessageRecords, value_schema
from towpath.relay.wal.transactions import LogicalMessageEvent, Transaction
from towpath.settings.relay import Messages, Relay
from towpath.settings.rows import Binaries, RecordFormat, Rows

NOW_US = 1_700_000_001_000_007
COMMITTED_US = 1_700_000_000_123_456
TRANSACTION = Transaction(755, 160, 1160, COMMITTED_US, b"%016x." % 1160, "far")
INSIDE = LogicalMessageEvent("foo", b"bar", 1160, 3, TRANSACTION, 120)
OUTSIDE = LogicalMessageEvent("foo", b"bar", 1120, -1, None, 120)


def message_route(relay: Relay | None = None, **more) -> MessageRecords:
    """Make the message route with a test's ``[relay]`` options."""
    settings = relay or Relay(messages=Messages(publish=True))
    more.setdefault("on_skipped", [].append)
    documents = Documents(settings.rows.format, lambda _subject, _schema: 7)
    return MessageRecords("shop", "db", settings, documents, **more)


def test_a_message_outside_a_transaction_has_no_transaction_block():
    """
    A81: it has op m, prefix, content and its own LSN, but no transaction id or commit.
    """
    record = message_route(place=lambda _: pytest.fail("counted")).record(
        OUTSIDE, NOW_US
    )
    envelope = json.loads(record.value)
    source = envelope["source"]

    assert (
        ("shop.message", b'{"prefix":"foo"}', b"0000000000000460.-"),
        ("m", {"prefix": "foo", "content": "YmFy"}, None, NOW_US // 1000),
        (None, None, None, 120, NOW_US // 1000),
    ) == (
        (record.topic, record.key, record.position),
        (
            envelope["op"],
            envelope["message"],
            envelope["transaction"],
            envelope["ts_ms"],
        ),
        (
            source["txId"],
            source["commit_lsn"],
            source["origin"],
            source["lsn"],
            source["ts_ms"],
        ),
    )


def test_a_transactional_message_has_its_ordinal():
    """
    A81: transaction id, commit, origin and position in the transaction are written.
    """
    counted = []

    def place(collection: str) -> TransactionPlace:
        counted.append(collection)
        return TransactionPlace("755:160", 4, 1)

    record = message_route(place=place).record(INSIDE, NOW_US)
    envelope = json.loads(record.value)
    source = envelope["source"]

    assert (
        b"0000000000000488.0000000003",
        (755, 160, "far", COMMITTED_US // 1000),
        {"id": "755:160", "total_order": 4, "data_collection_order": 1},
        ["message"],
    ) == (
        record.position,
        (source["txId"], source["commit_lsn"], source["origin"], source["ts_ms"]),
        envelope["transaction"],
        counted,
    )


def test_a_messages_position_is_a_header():
    """
    Readers find the position without parsing the value; the time is the commit's.
    """
    record = message_route().record(INSIDE, NOW_US)

    assert ([("position", record.position)], COMMITTED_US // 1000) == (
        record.headers,
        record.timestamp_ms,
    )


@pytest.mark.parametrize(
    ("include", "exclude", "is_published"),
    [
        ((), (), True),
        (("fo+",), (), True),
        (("fo",), (), False),
        (("bar", "foo"), (), True),
        ((), ("f.*",), False),
        ((), ("fo",), True),
        (("foo",), ("foo",), False),
    ],
)
def test_message_prefixes_are_matched_completely(
    include: tuple[str, ...], exclude: tuple[str, ...], *, is_published: bool
):
    """
    A81: include and exclude match the whole prefix; excluded messages are counted.
    """
    skipped: list[str] = []
    messages = Messages(publish=True, include=include, exclude=exclude)
    maker = message_route(Relay(messages=messages), on_skipped=skipped.append)
    record = maker.record(OUTSIDE, NOW_US)

    assert (is_published, [] if is_published else [EXCLUDED]) == (
        record is not None,
        skipped,
    )


@pytest.mark.parametrize(
    "prefix",
    [
        "towpath.watermark",
        "towpath.heartbeat",
        "towpath.table",
        "towpath.verify",
        "towpath.wait",
        "towpath.outbox",
    ],
)
def test_internal_messages_are_never_published(prefix: str):
    """
    Watermarks, heartbeats and outbox messages are not published as users' messages.
    """
    skipped: list[str] = []
    maker = message_route(on_skipped=skipped.append)
    message = replace(OUTSIDE, prefix=prefix)

    assert (None, []) == (maker.record(message, NOW_US), skipped)


@pytest.mark.parametrize(
    ("mode", "content"),
    [
        (Binaries.BYTES, "+/8A"),
        (Binaries.BASE64, "+/8A"),
        (Binaries.BASE64_URL_SAFE, "-_8A"),
        (Binaries.HEX, "fbff00"),
    ],
)
def test_message_content_is_written_like_other_bytes(mode: Binaries, content: str):
    """
    A81: any bytes are kept, in the configured form.
    """
    relay = Relay(messages=Messages(publish=True), rows=Rows(binaries=mode))
    message = replace(OUTSIDE, content=b"\xfb\xff\0")
    record = message_route(relay).record(message, NOW_US)

    assert content == json.loads(record.value)["message"]["content"]


def test_a_messages_value_has_exactly_the_schemas_fields():
    """
    Payload and schema agree, including the source.
    """
    rows = Rows(format=RecordFormat.JSON_SCHEMA)
    record = message_route(Relay(rows=rows)).record(INSIDE, NOW_US)
    key, value = json.loads(record.key), json.loads(record.value)
    fields = {field["field"]: field for field in value["schema"]["fields"]}
    source = {field["field"] for field in fields["source"]["fields"]}

    assert ({"prefix": "foo"}, fields.keys(), source, "bytes") == (
        key["payload"],
        value["payload"].keys(),
        value["payload"]["source"].keys(),
        fields["message"]["fields"][1]["type"],
    )


@pytest.mark.parametrize(
    ("mode", "content"), [(Binaries.BYTES, b"bar"), (Binaries.HEX, "626172")]
)
def test_message_content_in_avro_is_bytes_or_a_string(
    mode: Binaries, content: bytes | str
):
    """
    Bytes have Avro's bytes type; encoded texts are strings.
    """
    rows = Rows(format=RecordFormat.AVRO, binaries=mode)
    record = message_route(Relay(rows=rows)).record(INSIDE, NOW_US)
    text = avro_text(value_schema("bytes" if mode is Binaries.BYTES else "string"))
    schema = fastavro.parse_schema(json.loads(text))
    envelope = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema, None)

    assert (b"\0\0\0\0\7", "foo", content, 755) == (
        record.value[:5],
        envelope["message"]["prefix"],
        envelope["message"]["content"],
        envelope["source"]["txId"],
    )

"""Keys and envelopes in Avro, checked by fastavro, and in JSON with schemas."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from support.copying import replace
from towpath.relay.encode.codecs.codec import (
    Codec,
    EnvelopeFacts,
    TableNames,
    TransactionPlace,
)
from towpath.relay.encode.codecs.connect_schema import Field
from towpath.relay.encode.codecs.factory import CodecFactory
from towpath.relay.encode.types.nested import array
from towpath.relay.encode.types.scalar import INT16, INT32, TEXT, numeric
from towpath.relay.errors import MalformedMessageError, NameCollisionError
from towpath.relay.wal.messages import UNCHANGED
from towpath.settings.relay import Relay
from towpath.settings.rows import Decimals, RecordFormat, Rows

NAMES = TableNames("towpath", "db", "shop", "line", "towpath.shop.line")
PRICE = numeric((12 << 16 | 2) + 4, Decimals.PRECISE, lambda _: None)
TAGS = array(TEXT, b",", has_schema=True)
# The order of the key differs from that of the columns.
NO, ID = (
    Field(0, "no", INT32, is_nullable=False),
    Field(1, "id", TEXT, is_nullable=False),
)
COLUMNS = (
    NO,
    ID,
    Field(2, "price", PRICE, is_nullable=False),
    Field(3, "tags", TAGS, is_nullable=True),
    Field(4, "small", INT16, is_nullable=True),
)
FACTS = EnvelopeFacts(
    operation=b"u",
    committed_us=1_700_000_000_123_456,
    now_us=1_700_000_001_000_001,
    snapshot=b"false",
    xid=9,
    lsn=120,
    commit_lsn=160,
    origin=None,
    origin_lsn=None,
    transaction=None,
)


class Registry:
    """A registry that records each registered schema and assigns an id to it."""

    def __init__(self) -> None:
        self.schemas: dict[str, str] = {}

    def __call__(self, subject: str, schema: str) -> int:
        """Return the next id."""
        self.schemas[subject] = schema
        return 256 + len(self.schemas)

    def read(self, subject: str, data: bytes | None) -> dict[str, Any]:
        """Decode a record with the schema of its subject."""
        source = io.BytesIO(data or b"")
        source.read(5)
        document = fastavro.parse_schema(json.loads(self.schemas[subject]))
        found: Any = fastavro.schemaless_reader(source, document, None)
        assert source.read() == b""
        return found


def codec(registry: Registry, relay: Relay, *, key=(ID, NO)) -> Codec:
    """Make the codec of the only table."""
    return CodecFactory(relay, registry).make(NAMES, key, COLUMNS)


AVRO = Relay(rows=Rows(format=RecordFormat.AVRO))
ROW = (b"7", b"A", b"2.55", b"{a,b}", b"-3")


def test_an_avro_envelope_can_be_read_back():
    """
    Rows, source, times and the position in the transaction survive the round trip.
    """
    registry = Registry()
    made = codec(registry, AVRO)
    facts = replace(
        FACTS, origin="far", origin_lsn=88, transaction=TransactionPlace("9:160", 2, 1)
    )
    value = made.value(ROW, ROW, facts, is_full=True)
    row = {
        "no": 7,
        "id": "A",
        "price": Decimal("2.55"),
        "tags": ["a", "b"],
        "small": -3,
    }

    assert {
        "before": row,
        "after": row,
        "source": {
            "version": "0.1.0",
            "connector": "postgresql",
            "name": "towpath",
            "ts_ms": 1_700_000_000_123,
            "snapshot": "false",
            "ts_us": None,
            "ts_ns": None,
            "db": "db",
            "schema": "shop",
            "table": "line",
            "txId": 9,
            "lsn": 120,
            "commit_lsn": 160,
            "xmin": None,
            "origin": "far",
            "origin_lsn": 88,
            "sequence": None,
        },
        "op": "u",
        "ts_ms": 1_700_000_001_000,
        "ts_us": 1_700_000_001_000_001,
        "ts_ns": 1_700_000_001_000_001_000,
        "transaction": {
            "id": "9:160",
            "total_order": 2,
            "data_collection_order": 1,
        },
    } == registry.read("towpath.shop.line-value", value)


def test_each_envelope_has_its_own_transaction():
    """
    Values cached between rows change with the transaction and the time.
    """
    registry = Registry()
    made = codec(registry, AVRO)
    times = []
    for facts in (
        FACTS,
        replace(FACTS, lsn=121),
        replace(FACTS, xid=10, lsn=130, commit_lsn=170, committed_us=2_000_000),
        replace(FACTS, now_us=FACTS.now_us + 1000, origin="far"),
    ):
        value = made.value(None, ROW, facts, is_full=False)
        envelope = registry.read("towpath.shop.line-value", value)
        source = envelope["source"]
        names = ("txId", "lsn", "commit_lsn", "ts_ms", "origin")
        times.append((*(source[name] for name in names), envelope["ts_ms"]))
    committed_ms, now_ms = 1_700_000_000_123, 1_700_000_001_000

    assert [
        (9, 120, 160, committed_ms, None, now_ms),
        (9, 121, 160, committed_ms, None, now_ms),
        (10, 130, 170, 2000, None, now_ms),
        (9, 120, 160, committed_ms, "far", now_ms + 1),
    ] == times


def test_a_read_row_has_no_transaction():
    """
    A READ row has no xid and no LSN of its own, and is marked as part of a snapshot.
    """
    registry = Registry()
    facts = replace(
        FACTS,
        operation=b"r",
        snapshot=b"incremental",
        xid=None,
        lsn=None,
        commit_lsn=77,
    )
    value = codec(registry, AVRO).value(None, ROW, facts, is_full=True)
    envelope = registry.read("towpath.shop.line-value", value)
    source = envelope["source"]

    assert ("r", None, "incremental", None, None, 77, None) == (
        envelope["op"],
        envelope["before"],
        source["snapshot"],
        source["txId"],
        source["lsn"],
        source["commit_lsn"],
        envelope["transaction"],
    )


def test_records_have_confluents_framing():
    """
    Every key and value begins with a zero byte and the id of its subject's schema.
    """
    registry = Registry()
    made = codec(registry, AVRO)

    assert (
        b"\x00\x00\x00\x01\x01",
        {"id": "A", "no": 7},
        b"\x00\x00\x00\x01\x02",
        ["towpath.shop.line-key", "towpath.shop.line-value"],
    ) == (
        (made.key(ROW) or b"")[:5],
        registry.read("towpath.shop.line-key", made.key(ROW)),
        made.value(None, ROW, FACTS, is_full=False)[:5],
        list(registry.schemas),
    )


def test_a_table_without_a_key_has_no_key_schema():
    """
    Its records have no key, and no key subject is registered.
    """
    registry = Registry()
    made = codec(registry, AVRO, key=())

    assert (None, ["towpath.shop.line-value"]) == (
        made.key(ROW),
        list(registry.schemas),
    )


@pytest.mark.parametrize(
    ("placeholder", "expected"),
    [
        (None, {"no": 7, "id": "A", "price": None, "tags": None, "small": None}),
        ("?", {"no": 7, "id": "A", "price": None, "tags": ["?"], "small": None}),
        ("hex:3f", {"no": 7, "id": "A", "price": None, "tags": ["?"], "small": None}),
        ("", {"no": 7, "id": "A", "price": None, "tags": [""], "small": None}),
    ],
)
def test_an_unchanged_toast_value_is_null_or_the_placeholder(placeholder, expected):
    """
    A string has the placeholder, a list contains it, and other values are null.
    """
    registry = Registry()
    rows = Rows(format=RecordFormat.AVRO, placeholder=placeholder)
    made = codec(registry, Relay(rows=rows))
    row = (b"7", b"A", UNCHANGED, UNCHANGED, UNCHANGED)
    value = made.value(None, row, FACTS, is_full=False)

    assert expected == registry.read("towpath.shop.line-value", value)["after"]


def test_a_key_only_old_row_and_a_nan_decimal_are_null():
    """
    Absent values and NaN are null even in NOT NULL columns, like NULL itself.
    """
    registry = Registry()
    made = codec(registry, AVRO)
    old = (b"7", b"A", None, None, None)
    value = made.value(old, (b"7", b"A", b"NaN", None, b"1"), FACTS, is_full=False)
    envelope = registry.read("towpath.shop.line-value", value)

    assert (
        {"no": 7, "id": "A", "price": None, "tags": None, "small": None},
        {"no": 7, "id": "A", "price": None, "tags": None, "small": 1},
    ) == (envelope["before"], envelope["after"])


@pytest.mark.parametrize("missing", [None, UNCHANGED])
def test_a_row_without_its_key_is_malformed(missing):
    """
    A missing key column raises the same error in keys and in values.
    """
    made = codec(Registry(), AVRO)
    row = (b"7", missing, None, None, None)
    with pytest.raises(MalformedMessageError):
        made.key(row)
    with pytest.raises(MalformedMessageError) as raised:
        made.value(row, None, FACTS, is_full=False)

    assert "lacks a column of its key" in str(raised.value)


def test_a_nullable_column_of_a_configured_key_may_be_null():
    """
    A key that is not the primary key can contain NULL, and an old row may lack it.
    """
    registry = Registry()
    key = (replace(ID, is_nullable=True),)
    made = codec(registry, AVRO, key=key)
    row = (b"7", None, None, None, None)
    value = made.value(row, None, FACTS, is_full=False)

    assert ({"id": None}, None) == (
        registry.read("towpath.shop.line-key", made.key(row)),
        registry.read("towpath.shop.line-value", value)["before"]["id"],
    )


def test_json_with_schemas_wraps_what_json_writes():
    """
    Key and value consist of ``schema`` and ``payload``; a missing key remains missing.
    """
    relay = Relay(rows=Rows(format=RecordFormat.JSON_SCHEMA))
    made, keyless = codec(Registry(), relay), codec(Registry(), relay, key=())
    key = json.loads(made.key(ROW) or b"")
    value = json.loads(made.value(None, ROW, FACTS, is_full=False))

    assert (
        ("towpath.shop.line.Key", {"id": "A", "no": 7}),
        ("towpath.shop.line.Envelope", "u"),
        None,
    ) == (
        (key["schema"]["name"], key["payload"]),
        (value["schema"]["name"], value["payload"]["op"]),
        keyless.key(ROW),
    )


@pytest.mark.parametrize(
    ("lsn", "sequence"), [(120, '["160","120"]'), (None, '["160","160"]')]
)
def test_debeziums_preset_adds_finer_times_and_the_sequence(lsn, sequence):
    """
    The preset's ``source`` has the same fields as Debezium's, in Avro and in JSON.

    A row of a chunk has no LSN: its sequence has the commit's LSN instead.
    """
    registry, facts = Registry(), replace(FACTS, lsn=lsn)
    rows = {"format": "avro"}
    avro = codec(registry, Relay.model_validate({"preset": "debezium", "rows": rows}))
    json_schema = codec(registry, Relay.model_validate({"preset": "debezium"}))
    values = [
        each.value(None, ROW, facts, is_full=False) for each in (avro, json_schema)
    ]
    document = json.loads(values[1])
    columns = [[value] for value in ROW]

    assert (
        document["payload"]["source"]
        | {"origin": None, "origin_lsn": None, "sequence": sequence}
        == registry.read("towpath.shop.line-value", values[0])["source"]
    )
    assert sequence == document["payload"]["source"]["sequence"]
    assert values == [*avro.reads(columns, facts), *json_schema.reads(columns, facts)]


def test_two_tables_with_the_same_avro_name_are_an_error():
    """
    The error names both (E-21); a changed table does not conflict with itself.
    """
    factory = CodecFactory(AVRO, Registry())
    other = replace(NAMES, schema="a-b", topic="towpath.a-b.line")
    factory.make(other, (ID,), COLUMNS)
    factory.make(other, (), COLUMNS)
    with pytest.raises(NameCollisionError) as raised:
        factory.make(replace(other, schema="a_b", topic="x"), (ID,), COLUMNS)

    assert "'a-b.line' and 'a_b.line' are both named 'towpath.a_b.line'" in str(
        raised.value
    )


def test_keys_in_headers_are_plain_json_in_every_format():
    """
    They have the form in which Connect's converter writes a struct (JDBC sink).
    """
    registry = Registry()
    formats = [
        codec(registry, Relay.model_validate({"rows": {"format": name}}))
        for name in ("json", "json-schema", "avro")
    ]
    plain = formats[0].key(ROW)

    assert [plain] * 3 == [written.key_header(ROW) for written in formats]


def test_json_names_the_origin_of_a_replicated_change():
    """
    The origin's name and LSN are written; a local change has neither.
    """
    written = codec(Registry(), Relay.model_validate({"rows": {"format": "json"}}))
    far = replace(FACTS, origin="far", origin_lsn=88)
    sources = [
        json.loads(written.value(None, ROW, facts, is_full=False))["source"]
        for facts in (far, FACTS)
    ]

    assert [("far", 88), (None, None)] == [
        (source.get("origin"), source.get("origin_lsn")) for source in sources
    ]

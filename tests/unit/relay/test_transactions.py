"""Transaction metadata: BEGIN, positions in the transaction, and END."""

import io
import json

import fastavro
import pytest

from support.copying import replace
from towpath.relay.encode.codecs.factory import Documents
from towpath.relay.encode.transaction_metadata import TransactionMetadata
from towpath.relay.wal.transactions import Transaction
from towpath.settings.rows import RecordFormat

COMMITTED_US = 1_700_000_000_123_456
TRANSACTION = Transaction(
    571, 53195829, 53195829, COMMITTED_US, b"%016x." % 53195829, None
)


def no_registry(subject: str, _schema: str) -> int:
    """Fail, because the registry must not be used."""
    return pytest.fail(f"requested {subject}")


@pytest.fixture
def metadata() -> TransactionMetadata:
    """Make metadata of a transaction that has begun."""
    made = TransactionMetadata("shop", Documents(RecordFormat.JSON, no_registry))
    made.begin(TRANSACTION)
    return made


def test_begin_and_end_cover_two_tables(metadata: TransactionMetadata):
    """
    A78: total orders are 1 and 2, orders per table are 1 and 1, and END has the counts.
    """
    positions = [metadata.place("s1.a"), metadata.place("s2.a")]
    begin, end = metadata.due(), metadata.end(TRANSACTION, 2)

    assert (
        [(1, 1), (2, 1)],
        {
            "status": "BEGIN",
            "id": "571:53195829",
            "event_count": None,
            "data_collections": None,
            "ts_ms": COMMITTED_US // 1000,
            "commit_lsn": 53195829,
        },
        {
            "status": "END",
            "id": "571:53195829",
            "event_count": 2,
            "data_collections": [
                {"data_collection": "s1.a", "event_count": 1},
                {"data_collection": "s2.a", "event_count": 1},
            ],
            "ts_ms": COMMITTED_US // 1000,
            "commit_lsn": 53195829,
        },
    ) == (
        [place[1:] for place in positions],
        json.loads(begin.value),
        json.loads(end.value),
    )


def test_all_records_of_a_transaction_have_its_id(metadata: TransactionMetadata):
    """
    A80: BEGIN, every event and END have the same id, which is the records' key.
    """
    ids = [metadata.place("s.a").transaction_id for _ in range(5)]
    records = [metadata.due(), metadata.end(TRANSACTION, 5)]
    ids += [json.loads(record.value)["id"] for record in records]
    ids += [record.key.decode() for record in records]

    assert {"571:53195829"} == set(ids)


def test_begin_and_end_have_rising_positions_of_their_own(
    metadata: TransactionMetadata,
):
    """
    BEGIN has the ordinal 0, END follows the last message; both have a position header.
    """
    metadata.place("s.a")
    records = [metadata.due(), metadata.end(TRANSACTION, 12)]

    assert (
        [
            b"00000000032bb435.0000000000",
            b"00000000032bb435.0000000012.1",
        ],
        ["shop.transaction"] * 2,
    ) == (
        [dict(record.headers)["position"] for record in records],
        [record.topic for record in records],
    )


def test_begin_is_published_once_with_the_first_event(metadata: TransactionMetadata):
    """
    BEGIN is not published before the first event, and not again after it.
    """
    seen = [metadata.due()]
    metadata.place("s.a")
    seen += [metadata.due()]
    metadata.place("s.a")
    seen += [metadata.due()]

    assert [False, True, False] == [record is not None for record in seen]


def test_a_transaction_without_an_event_has_neither_begin_nor_end(
    metadata: TransactionMetadata,
):
    """
    Transactions that change no captured table do not flood the topic.
    """
    assert (None, None) == (metadata.due(), metadata.end(TRANSACTION, 3))


def test_each_transactions_event_orders_begin_at_one(metadata: TransactionMetadata):
    """
    The counts and collections of one transaction do not affect the next one.
    """
    metadata.place("s.a")
    metadata.end(TRANSACTION, 1)
    following = replace(TRANSACTION, xid=572, commit_lsn=53195900)
    metadata.begin(following)
    place = metadata.place("s.b")
    end = json.loads(metadata.end(following, 1).value)

    assert (
        ("572:53195900", 1, 1),
        [{"data_collection": "s.b", "event_count": 1}],
    ) == (place, end["data_collections"])


def test_transaction_metadata_in_json_has_schemas():
    """
    The schemas describe Debezium's structs; that of the key has a single field.
    """
    made = TransactionMetadata("shop", Documents(RecordFormat.JSON_SCHEMA, no_registry))
    made.begin(TRANSACTION)
    made.place("s.a")
    record = made.end(TRANSACTION, 1)
    key, value = json.loads(record.key), json.loads(record.value)

    assert (
        {"id": "571:53195829"},
        "io.debezium.connector.common.TransactionMetadataValue",
        {field["field"] for field in value["schema"]["fields"]},
    ) == (key["payload"], value["schema"]["name"], value["payload"].keys())


def test_transaction_metadata_in_avro_can_be_read_back():
    """
    After the schema's id come the same documents, including their nulls.
    """
    registered: list[tuple[str, str]] = []

    def register(subject: str, schema: str) -> int:
        registered.append((subject, schema))
        return len(registered)

    made = TransactionMetadata("shop", Documents(RecordFormat.AVRO, register))
    made.begin(TRANSACTION)
    made.place("s.a")
    records = [made.due(), made.end(TRANSACTION, 1)]
    schema = fastavro.parse_schema(json.loads(registered[1][1]))
    begin, end = (
        fastavro.schemaless_reader(io.BytesIO(record.value[5:]), schema, None)
        for record in records
    )

    assert (
        ["shop.transaction-key", "shop.transaction-value"],
        b"\0\0\0\0\2",
        ("BEGIN", None, None),
        ("END", 1, [{"data_collection": "s.a", "event_count": 1}]),
    ) == (
        [subject for subject, _ in registered],
        records[0].value[:5],
        (begin["status"], begin["event_count"], begin["data_collections"]),
        (end["status"], end["event_count"], end["data_collections"]),
    )

"""The table route: what a row change becomes."""

import json

import pytest

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.record import ANY_PARTITION, Record
from towpath.relay.routing.table import Place, TableRoute
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas.envelope import Operation

# The key's order is not the columns' order.
LINES = Relation(
    oid=7,
    schema="shop",
    table="order_lines",
    columns=(Column("line_no", 23), Column("order_id", 20), Column("note", 25)),
    key=(1, 0),
)
TRANSACTION = Transaction(
    xid=9, commit_lsn=160, log_lsn=1160, committed_us=1_700_000_000_123_456, place=b"P."
)
NOW_US = 1_700_000_001_000_001


def change(
    operation: Operation,
    new: Row | None,
    old: Row | None = None,
    *,
    is_full: bool = False,
) -> Change:
    """Make a change of an order line."""
    return Change(operation, LINES, new, old, is_full, TRANSACTION, 3, 120)


def records(made: Change) -> list[Record]:
    """Route a change."""
    return list(TableRoute(Place("towpath", "db"), LINES).records(made, NOW_US))


def told(record: Record) -> dict:
    """Read a record's envelope."""
    return json.loads(record.value or b"null")


def test_an_insert_is_one_create():
    """
    The envelope names operation, row, source and times in Debezium's shape.
    """
    (record,) = records(change(Operation.CREATE, (b"1", b"7", b'say "hi"')))

    assert {
        "before": None,
        "after": {"line_no": 1, "order_id": 7, "note": 'say "hi"'},
        "source": {
            "version": "0.1.0",
            "connector": "postgresql",
            "name": "towpath",
            "ts_ms": 1_700_000_000_123,
            "snapshot": "false",
            "db": "db",
            "schema": "shop",
            "table": "order_lines",
            "txId": 9,
            "lsn": 120,
            "commit_lsn": 160,
            "xmin": None,
        },
        "op": "c",
        "ts_ms": 1_700_000_001_000,
        "ts_us": NOW_US,
        "ts_ns": NOW_US * 1000,
        "transaction": None,
    } == told(record)


def test_a_record_is_keyed_in_key_order_and_timed_by_its_commit():
    """
    Topic, key, position and timestamp are what sinks build on.
    """
    (record,) = records(change(Operation.CREATE, (b"1", b"7", None)))

    assert (
        "towpath.shop.order_lines",
        b'{"order_id":7,"line_no":1}',
        [("position", b"P.0000000003")],
        1_700_000_000_123,
        ANY_PARTITION,
    ) == (
        record.topic,
        record.key,
        record.headers,
        record.timestamp_ms,
        record.partition,
    )


def test_a_value_left_out_is_named_and_not_null():
    """
    An unchanged TOASTed column is absent from after and stands in the header.
    """
    (record,) = records(change(Operation.UPDATE, (b"1", b"7", UNCHANGED)))

    assert ("u", {"line_no": 1, "order_id": 7}, ("unchanged", b'["note"]')) == (
        told(record)["op"],
        told(record)["after"],
        record.headers[-1],
    )


def test_a_whole_old_row_fills_what_was_left_out():
    """
    Under REPLICA IDENTITY FULL before is whole, and after is completed from it.
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", UNCHANGED), (b"1", b"7", b"big"), is_full=True
    )
    (record,) = records(made)

    assert ("big", "big", 1) == (
        told(record)["before"]["note"],
        told(record)["after"]["note"],
        len(record.headers),
    )


def test_a_delete_is_followed_by_its_tombstone():
    """
    The delete has the old key as before; the tombstone carries the number 1.
    """
    gone, tombstone = records(change(Operation.DELETE, None, (b"1", b"7", None)))

    assert (
        ("d", {"line_no": 1, "order_id": 7}, None),
        b"P.0000000003",
        (gone.key, None, b"P.0000000003.1"),
    ) == (
        (told(gone)["op"], told(gone)["before"], told(gone)["after"]),
        gone.position,
        (tombstone.key, tombstone.value, tombstone.position),
    )


def test_a_changed_key_is_delete_tombstone_create():
    """
    Both keys see the change, each record names the other key, numbers count up.
    """
    made = change(Operation.UPDATE, (b"2", b"7", b"n"), (b"1", b"7", None))
    gone, tombstone, came = records(made)
    old_key, new_key = b'{"order_id":7,"line_no":1}', b'{"order_id":7,"line_no":2}'

    assert [
        (old_key, "d", b"P.0000000003", ("__debezium.newkey", new_key)),
        (old_key, None, b"P.0000000003.1", None),
        (new_key, "c", b"P.0000000003.2", ("__debezium.oldkey", old_key)),
    ] == [
        (gone.key, told(gone)["op"], gone.position, gone.headers[-1]),
        (tombstone.key, told(tombstone), tombstone.position, None),
        (came.key, told(came)["op"], came.position, came.headers[-1]),
    ]


def test_a_whole_old_row_with_the_same_key_is_one_update():
    """
    An old row alone does not make a key change.
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", b"b"), (b"1", b"7", b"a"), is_full=True
    )
    (record,) = records(made)

    assert ("u", "a", "b") == (
        told(record)["op"],
        told(record)["before"]["note"],
        told(record)["after"]["note"],
    )


def test_a_key_left_out_is_taken_from_the_old_key():
    """
    A TOASTed key that did not change comes with the old key.
    """
    made = change(Operation.UPDATE, (UNCHANGED, b"7", b"n"), (b"1", b"7", None))
    (record,) = records(made)

    assert b'{"order_id":7,"line_no":1}' == record.key


def test_a_change_without_its_key_is_refused():
    """
    A change that lacks a key column is an error, not a record with a wrong key.
    """
    with pytest.raises(MalformedMessageError):
        records(change(Operation.UPDATE, (UNCHANGED, b"7", b"n")))


def test_a_row_of_another_width_is_refused():
    """
    A row that does not fit its relation is an error.
    """
    with pytest.raises(ValueError, match="zip"):
        records(change(Operation.CREATE, (b"1", b"7")))


def test_a_truncate_reaches_every_partition():
    """
    Each partition gets one record without a key, numbered like its partition.
    """
    route = TableRoute(Place("towpath", "db"), LINES)
    made = route.truncation(TRANSACTION, 0, 3, NOW_US)

    assert [
        (0, None, "t", b"P.0000000000"),
        (1, None, "t", b"P.0000000000.1"),
        (2, None, "t", b"P.0000000000.2"),
    ] == [(r.partition, r.key, told(r)["op"], r.position) for r in made]


def test_a_chunk_row_stands_at_its_low_watermark():
    """
    A READ row's position is (LOW, -1), and it names its snapshot.
    """
    route = TableRoute(Place("towpath", "db"), LINES)
    record = route.read((b"1", b"7", None), 0xABC, "sig", "topic", NOW_US)
    source = told(record)["source"]

    assert (
        ("topic", b'{"order_id":7,"line_no":1}'),
        [("position", b"0000000000000abc.-"), ("snapshot", b"sig")],
        ("r", {"line_no": 1, "order_id": 7, "note": None}),
        ("incremental", None, None, 0xABC),
    ) == (
        (record.topic, record.key),
        record.headers,
        (told(record)["op"], told(record)["after"]),
        (source["snapshot"], source["txId"], source["lsn"], source["commit_lsn"]),
    )


def test_a_table_without_a_key_has_no_key_and_no_tombstone():
    """
    Under REPLICA IDENTITY FULL such a table's delete is one record without a key.
    """
    bare = Relation(oid=8, schema="s", table="t", columns=LINES.columns, key=())
    route = TableRoute(Place("towpath", "db"), bare)
    row = (b"1", b"7", None)
    made = Change(Operation.DELETE, bare, None, row, True, TRANSACTION, 0, 1)

    assert [(None, "d")] == [
        (r.key, told(r)["op"]) for r in route.records(made, NOW_US)
    ]


def test_the_size_is_an_upper_bound():
    """
    A record's stated size is not below what its parts add up to.
    """
    (record,) = records(change(Operation.CREATE, (b"1", b"7", b"x" * 5000)))
    parts = [record.key or b"", record.value or b""]
    parts += [part.encode() for part, _ in record.headers]
    parts += [value for _, value in record.headers if isinstance(value, bytes)]

    assert record.size >= sum(map(len, parts))

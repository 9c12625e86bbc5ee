"""The table route: the records of a row change."""

import json
from base64 import b64encode

import pytest

from support.copying import replace
from towpath.relay.encode.codecs.codec import TableNames, TransactionPlace
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.record import ANY_PARTITION, Record
from towpath.relay.encode.relations import CatalogFacts
from towpath.relay.encode.rows import ReadSlice
from towpath.relay.encode.table import (
    INCOMPLETE_KEY,
    SKIPPED_OPERATION,
    SKIPPED_UNCHANGED,
    RouteCallbacks,
    TableRoute,
)
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import UNCHANGED, Column, Relation, Row
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.schemas.position import Position
from towpath.settings.relay import Relay

# The order of the key differs from that of the columns.
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
READ_SLICE = ReadSlice(0xABC, "sig", "topic", NOW_US)


def change(
    operation: Operation,
    new: Row | None,
    old: Row | None = None,
    *,
    is_full: bool = False,
) -> Change:
    """Make a change of an order line."""
    return Change(operation, LINES, new, old, is_full, TRANSACTION, 3, 120)


def route(
    relation: Relation = LINES, callbacks: RouteCallbacks | None = None, **rows: object
) -> TableRoute:
    """Make a route with these options of [relay.rows]."""
    relay = Relay.model_validate({"rows": rows})
    facts = CatalogFacts((), {}, frozenset(relation.key_names))
    plan = ColumnRules(relay).plan(relation, facts)
    names = TableNames("towpath", "db", relation.schema, relation.table, "")
    written = json_maker(relay)(names, plan.key, plan.columns)
    return TableRoute(
        "towpath", relation, plan, written, relay.rows, callbacks or RouteCallbacks()
    )


def records(made: Change, **rows: object) -> list[Record]:
    """Route a change."""
    return list(route(made.relation, **rows).records(made, NOW_US))


def envelope(record: Record) -> dict:
    """Parse a record's envelope."""
    return json.loads(record.value or b"null")


def test_an_insert_becomes_one_create():
    """
    The envelope has operation, row, source and times in Debezium's form.
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
    } == envelope(record)


def test_a_record_has_its_key_in_key_order_and_the_time_of_its_commit():
    """
    Sinks depend on topic, key, position and timestamp.
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


def test_an_unchanged_toast_value_is_listed_in_a_header():
    """
    An unchanged TOASTed column is absent from ``after`` and listed in the header.
    """
    (record,) = records(change(Operation.UPDATE, (b"1", b"7", UNCHANGED)))

    assert ("u", {"line_no": 1, "order_id": 7}, ("unchanged", b'["note"]')) == (
        envelope(record)["op"],
        envelope(record)["after"],
        record.headers[-1],
    )


def test_a_complete_old_row_fills_unchanged_toast_values():
    """
    With REPLICA IDENTITY FULL, ``before`` is complete and fills the gaps in ``after``.
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", UNCHANGED), (b"1", b"7", b"big"), is_full=True
    )
    (record,) = records(made)

    assert ("big", "big", 1) == (
        envelope(record)["before"]["note"],
        envelope(record)["after"]["note"],
        len(record.headers),
    )


def test_a_delete_is_followed_by_its_tombstone():
    """
    The delete has the old key in ``before``; the tombstone's position ends in ``.1``.
    """
    gone, tombstone = records(change(Operation.DELETE, None, (b"1", b"7", None)))

    assert (
        ("d", {"line_no": 1, "order_id": 7}, None),
        b"P.0000000003",
        (gone.key, None, b"P.0000000003.1"),
    ) == (
        (envelope(gone)["op"], envelope(gone)["before"], envelope(gone)["after"]),
        gone.position,
        (tombstone.key, tombstone.value, tombstone.position),
    )


def test_a_changed_key_becomes_delete_tombstone_and_create():
    """
    The delete and the create name each other's keys, and the records' positions rise.
    """
    made = change(Operation.UPDATE, (b"2", b"7", b"n"), (b"1", b"7", None))
    gone, tombstone, came = records(made)
    old_key, new_key = b'{"order_id":7,"line_no":1}', b'{"order_id":7,"line_no":2}'

    assert [
        (old_key, "d", b"P.0000000003", ("__debezium.newkey", new_key)),
        (old_key, None, b"P.0000000003.1", None),
        (new_key, "c", b"P.0000000003.2", ("__debezium.oldkey", old_key)),
    ] == [
        (gone.key, envelope(gone)["op"], gone.position, gone.headers[-1]),
        (tombstone.key, envelope(tombstone), tombstone.position, None),
        (came.key, envelope(came)["op"], came.position, came.headers[-1]),
    ]


def test_a_complete_old_row_with_the_same_key_is_one_update():
    """
    The presence of an old row does not mean that the key changed.
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", b"b"), (b"1", b"7", b"a"), is_full=True
    )
    (record,) = records(made)

    assert ("u", "a", "b") == (
        envelope(record)["op"],
        envelope(record)["before"]["note"],
        envelope(record)["after"]["note"],
    )


def test_an_unchanged_toasted_key_is_taken_from_the_old_key():
    """
    The message has the value of such a column only in the old key, not in the new row.
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


@pytest.mark.parametrize("row", [(b"1", b"7"), (b"1", b"7", b"", b"")])
def test_a_read_row_with_a_wrong_number_of_values_is_refused(row: tuple[bytes, ...]):
    """
    A row that does not match its relation is an error.
    """
    with pytest.raises(MalformedMessageError):
        route().reads([(b"1", b"7", b""), row], READ_SLICE)


def test_a_truncate_reaches_every_partition():
    """
    Each partition gets one record without a key, at the same position.
    """
    made = route().truncation(TRANSACTION, 0, 3, NOW_US)

    assert [
        (0, None, "t", b"P.0000000000"),
        (1, None, "t", b"P.0000000000"),
        (2, None, "t", b"P.0000000000"),
    ] == [(r.partition, r.key, envelope(r)["op"], r.position) for r in made]


def test_a_read_row_has_the_position_of_its_low_watermark():
    """
    A READ row's position is (LOW, -1), and it names its snapshot.
    """
    (record,) = route().reads([(b"1", b"7", None)], READ_SLICE)
    source = envelope(record)["source"]

    assert (
        ("topic", b'{"order_id":7,"line_no":1}'),
        [("position", b"0000000000000abc.-"), ("snapshot", b"sig")],
        ("r", {"line_no": 1, "order_id": 7, "note": None}),
        ("incremental", None, None, 0xABC),
    ) == (
        (record.topic, record.key),
        record.headers,
        (envelope(record)["op"], envelope(record)["after"]),
        (source["snapshot"], source["txId"], source["lsn"], source["commit_lsn"]),
    )


def test_an_empty_slice_yields_no_records():
    """
    The last slice of a chunk may have lost all of its rows.
    """
    assert () == route().reads([], READ_SLICE)


def test_rows_of_a_table_without_a_key_have_no_key():
    """
    Rows without a published column have no key, either.
    """
    bare = Relation(oid=8, schema="s", table="t", columns=LINES.columns, key=())
    rows = [(b"1", b"7", None), (b"2", b"7", b"n")]
    made = route(bare, exclude_columns=[r"s\.t\..*"]).reads(rows, READ_SLICE)

    assert [(None, {}), (None, {})] == [(r.key, envelope(r)["after"]) for r in made]


def test_a_read_row_without_its_key_is_refused():
    """
    Otherwise two rows would become one in Kafka.
    """
    with pytest.raises(MalformedMessageError):
        route().reads([(b"1", b"7", None), (b"1", None, None)], READ_SLICE)


@pytest.mark.parametrize("form", ["json", "json-schema"])
def test_a_sweep_record_has_its_floor(form: str):
    """
    Its envelope has neither row; plain JSON also has the floor as a message.
    """
    value = json.loads(route(format=form).sweep(0xDEF, READ_SLICE))
    content = b64encode(b"0000000000000def.-").decode()
    message = {"prefix": "towpath.sweep", "content": content}

    assert ("m", None, None, 0xABC, message if form == "json" else None) == (
        value["op"],
        value["before"],
        value["after"],
        value["source"]["commit_lsn"],
        value.get("message"),
    )


def test_a_table_without_a_key_has_no_key_and_no_tombstone():
    """
    With REPLICA IDENTITY FULL, such a table's delete is one record without a key.
    """
    bare = Relation(oid=8, schema="s", table="t", columns=LINES.columns, key=())
    row = (b"1", b"7", None)
    made = Change(Operation.DELETE, bare, None, row, True, TRANSACTION, 0, 1)

    assert [(None, "d")] == [(r.key, envelope(r)["op"]) for r in records(made)]


def test_a_table_records_size_is_an_upper_bound():
    """
    A record's stated size is at least the sum of its parts.
    """
    (record,) = records(change(Operation.CREATE, (b"1", b"7", b"x" * 5000)))
    parts = [record.key or b"", record.value or b""]
    parts += [part.encode() for part, _ in record.headers]
    parts += [value for _, value in record.headers if isinstance(value, bytes)]

    assert record.size >= sum(map(len, parts))


MOVE = change(Operation.UPDATE, (b"2", b"7", b"n"), (b"1", b"7", None))
INSERT = change(Operation.CREATE, (b"1", b"7", b"n"))
REMOVE = change(Operation.DELETE, None, (b"1", b"7", None))
SAME = change(Operation.UPDATE, (b"1", b"7", b"n"), (b"1", b"7", b"n"), is_full=True)


def test_an_update_with_the_default_identity_has_no_before():
    """
    Without an old row, ``before`` is null, but the new row is complete (A56).
    """
    (record,) = records(change(Operation.UPDATE, (b"1", b"7", b"n")))

    assert (None, "n") == (
        envelope(record)["before"],
        envelope(record)["after"]["note"],
    )


def test_without_tombstones_a_move_becomes_two_records():
    """
    The create then gets the number of the omitted tombstone (A57).
    """
    gone, came = records(MOVE, tombstones=False)

    assert [("d", b"P.0000000003"), ("c", b"P.0000000003.1")] == [
        (envelope(gone)["op"], gone.position),
        (envelope(came)["op"], came.position),
    ]


def test_an_incomplete_row_that_moved_needs_a_key_request():
    """
    No consumer has the unchanged values under the new key, so the row must be read.
    """
    requests: list[tuple[Relation, tuple[bytes, ...], Position]] = []
    callbacks = RouteCallbacks(on_incomplete=lambda *one: requests.append(one))
    made = change(Operation.UPDATE, (b"2", b"7", UNCHANGED), (b"1", b"7", None))
    *_, came = route(callbacks=callbacks).records(made, NOW_US)

    assert ([(LINES, (b"7", b"2"), Position(1160, 3))], ("unchanged", b'["note"]')) == (
        requests,
        came.headers[1],
    )


@pytest.mark.parametrize(
    "made",
    [
        MOVE,
        change(Operation.UPDATE, (b"1", b"7", UNCHANGED)),
        change(
            Operation.UPDATE,
            (b"2", b"7", UNCHANGED),
            (b"1", b"7", b"big"),
            is_full=True,
        ),
    ],
)
def test_a_complete_row_and_an_unchanged_key_need_no_key_request(made: Change):
    """
    Only a row that moved to a new key and lacks columns needs a request.
    """
    requests: list[Relation] = []
    callbacks = RouteCallbacks(
        on_incomplete=lambda relation, *_: requests.append(relation)
    )
    route(callbacks=callbacks).records(made, NOW_US)

    assert [] == requests


@pytest.mark.parametrize(
    ("letter", "made", "operations"),
    [
        ("c", INSERT, []),
        ("u", SAME, []),
        ("d", REMOVE, []),
        ("u", MOVE, ["d", None, "c"]),
        ("d", MOVE, ["c"]),
        ("c", MOVE, ["d", None]),
    ],
)
def test_a_skipped_operation_yields_no_record(
    letter: str, made: Change, operations: list[str | None]
):
    """
    The other records of the change are unaffected.
    """
    found = records(made, skipped_operations=[letter])

    assert operations == [(envelope(one) or {"op": None})["op"] for one in found]


def test_skipped_operations_are_counted():
    """
    A change and a truncate that the configuration skips are counted with their reason.
    """
    skipped: list[str] = []
    made = route(
        callbacks=RouteCallbacks(skipped.append), skipped_operations=["c", "t"]
    )
    made.records(INSERT, NOW_US)
    remaining = made.truncation(TRANSACTION, 0, 3, NOW_US)

    assert ([SKIPPED_OPERATION] * 2, ()) == (skipped, remaining)


def test_an_update_without_a_difference_is_skipped_only_if_configured():
    """
    A complete old row shows that nothing changed (A59).
    """
    skipped: list[str] = []
    none = route(callbacks=RouteCallbacks(skipped.append), skip_unchanged=True).records(
        SAME, NOW_US
    )

    assert (1, (), [SKIPPED_UNCHANGED]) == (len(records(SAME)), none, skipped)


def test_an_update_of_an_excluded_column_changes_nothing():
    """
    Only published columns count (A71).
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", b"b"), (b"1", b"7", b"a"), is_full=True
    )
    excluded = {"exclude_columns": [r"shop\.order_lines\.note"]}

    assert (1, 0) == (
        len(records(made, **excluded)),
        len(records(made, skip_unchanged=True, **excluded)),
    )


def test_a_configured_key_replaces_the_tables_own():
    """
    The record's key has the named columns in the given order (A71).
    """
    keys = {"shop.order_lines": ["note", "line_no"]}
    (record,) = records(INSERT, key_columns=keys)

    assert b'{"note":"n","line_no":1}' == record.key


def test_a_change_of_a_configured_key_is_a_move():
    """
    A complete old row shows that the record's key changed, even if the table's did not.
    """
    made = change(
        Operation.UPDATE, (b"1", b"7", b"b"), (b"1", b"7", b"a"), is_full=True
    )
    gone, tombstone, came = records(made, key_columns={"shop.order_lines": ["note"]})

    assert [b'{"note":"a"}', b'{"note":"a"}', b'{"note":"b"}'] == [
        gone.key,
        tombstone.key,
        came.key,
    ]


def test_an_unknown_value_of_a_configured_key_is_null_and_logged():
    """
    With the default identity, an old row lacks such columns.
    """
    skipped: list[str] = []
    keys = {"shop.order_lines": ["order_id", "note"]}
    made = route(callbacks=RouteCallbacks(skipped.append), key_columns=keys)
    gone, _ = made.records(REMOVE, NOW_US)

    assert (b'{"order_id":7,"note":null}', [INCOMPLETE_KEY]) == (gone.key, skipped)


def test_each_envelope_has_its_position_in_the_transaction():
    """
    A moved row is two events, and its tombstone is none; ``transaction`` numbers them.
    """
    counts: dict[str, int] = {}

    def enrich(table: str) -> TransactionPlace:
        counts[table] = counts.get(table, 0) + 1
        return TransactionPlace("9:160", counts[table], counts[table])

    gone, _, came = route(callbacks=RouteCallbacks(enrich=enrich)).records(MOVE, NOW_US)
    block = {"id": "9:160", "total_order": 2, "data_collection_order": 2}

    assert (1, block) == (
        envelope(gone)["transaction"]["total_order"],
        envelope(came)["transaction"],
    )


def test_a_truncate_is_one_event_for_all_partitions():
    """
    Each partition's record has the same position in the transaction.
    """
    numbers = iter(range(1, 9))
    callbacks = RouteCallbacks(
        enrich=lambda _: TransactionPlace("9:160", next(numbers), 1)
    )
    made = route(callbacks=callbacks).truncation(TRANSACTION, 0, 3, NOW_US)

    assert [1, 1, 1] == [envelope(r)["transaction"]["total_order"] for r in made]


def test_an_origin_is_part_of_the_source():
    """
    Only a change replicated to the source has an origin.
    """
    replicated = replace(INSERT, transaction=replace(TRANSACTION, origin='a"b'))
    (record,) = records(replicated)

    assert 'a"b' == envelope(record)["source"]["origin"]


def test_an_absent_key_is_deleted_at_its_low_watermark():
    """
    The delete and its tombstone have the position (LOW, -1) and name the snapshot.
    """
    gone, tombstone = route().absent((b"7", b"1"), READ_SLICE)
    key = b'{"order_id":7,"line_no":1}'

    assert (
        ("topic", key, "d", {"line_no": 1, "order_id": 7}, None),
        (key, None, [("position", b"0000000000000abc.-"), ("snapshot", b"sig")]),
    ) == (
        (
            gone.topic,
            gone.key,
            envelope(gone)["op"],
            envelope(gone)["before"],
            envelope(gone)["after"],
        ),
        (tombstone.key, tombstone.value, tombstone.headers),
    )


def test_skipped_deletes_include_those_of_absent_keys():
    """
    They are counted like streamed deletes.
    """
    skipped = []
    callbacks = RouteCallbacks(on_skipped=skipped.append)
    found = route(LINES, callbacks, skipped_operations=["d"])

    assert ((), [SKIPPED_OPERATION]) == (
        found.absent((b"7", b"1"), READ_SLICE),
        skipped,
    )


def test_an_absent_row_with_a_configured_key_is_not_deleted():
    """
    Its record key is unknown, so a delete could hit a different row.
    """
    keys = {LINES.name: [LINES.columns[-1].name]}
    with pytest.raises(MalformedMessageError, match="primary key of an absent row"):
        route(key_columns=keys).absent((b"7", b"1"), READ_SLICE)


def test_the_stated_size_of_a_move_includes_its_headers():
    """
    The other key, in the headers, is counted, so that no record is refused as too big.
    """
    long = b"k" * 3000
    keyed = Relation(oid=9, schema="s", table="t", columns=(Column("k", 25),), key=(0,))
    made = Change(
        Operation.UPDATE, keyed, (long + b"2",), (long,), False, TRANSACTION, 0, 1
    )

    for record in records(made):
        parts = [record.key or b"", record.value or b""]
        parts += [value for _, value in record.headers if isinstance(value, bytes)]

        assert record.size >= sum(map(len, parts))

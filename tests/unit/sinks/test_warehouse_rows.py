"""Changes and events are encoded as Arrow, and read back as values."""

import pytest

from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.targets.warehouse.rows import (
    encode_changes,
    encode_events,
    encode_keys,
    values_of,
)
from towpath.sinks.targets.warehouse.schema import current_state, event_log

TYPES = {
    "id": Column("id", "bigint"),
    "n": Column("n", "integer"),
    "flag": Column("flag", "boolean"),
    "total": Column("total", "numeric", (12 << 16 | 2) + 4),
    "tiny": Column("tiny", "numeric", (20 << 16 | 9) + 4),
    "weight": Column("weight", "numeric"),
    "at": Column("at", "timestamp with time zone"),
    "local": Column("local", "timestamp without time zone"),
    "day": Column("day", "date"),
    "x": Column("x", "double precision"),
    "raw": Column("raw", "bytea"),
    "body": Column("body", "jsonb"),
}
TABLE = current_state(
    "shop.t", RelationShape("shop", "t", tuple(TYPES.values()), ("id",), "0")
)
POSITION = "0000000000000008.0000000000"


def change(row, *, key=7, unchanged=()):
    """Make a change with one key."""
    full = None if row is None else {"id": key, **row}
    kept = frozenset(unchanged) or ALL_PRESENT
    origin = Origin("t", 0, 0)
    return Change("shop.t", (key,), ("id",), POSITION, full, kept, False, origin)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 2**63 - 1),
        ("n", -(2**31)),
        ("flag", False),
        ("total", "-9999999999.99"),
        ("tiny", "0.000000001"),
        ("weight", "12345678901234567890123456789012345678901.5"),
        ("weight", "NaN"),
        ("at", "0001-01-01T00:00:00.000000Z"),
        ("at", "9999-12-31T23:59:59.999999Z"),
        ("local", "2026-03-29T02:30:00.000001"),
        ("day", "1970-01-01"),
        ("x", 0.1),
        ("x", "NaN"),
        ("x", "-Infinity"),
        ("raw", "AAH/"),
        ("raw", ""),
        ("body", '{"a": "\\u00e4 😀"}'),
        ("body", None),
        ("total", None),
        ("at", None),
    ],
)
def test_a_warehouse_value_survives_the_round_trip(name, value):
    """
    A value that is encoded and read back equals the record's, to the last digit.
    """
    row = {} if name == "id" else {name: value}
    encoded = encode_changes(TABLE, [change(row, key=value if name == "id" else 7)])
    column = encoded.rows.column(name).combine_chunks()

    assert ((), [value]) == (encoded.refused, values_of(column))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2**31),
        ("n", 1.5),
        ("n", "7"),
        ("flag", 1),
        ("total", "1.005"),
        ("total", "10000000000.00"),
        ("total", "NaN"),
        ("at", "infinity"),
        ("at", "2026-01-01T00:00:00.000000"),
        ("local", "2026-01-01T00:00:00.000000Z"),
        ("day", "0044-03-15 BC"),
        ("x", "nought"),
        ("raw", "not base64!"),
        ("raw", 7),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name, value):
    """
    The reason names the column; the other rows are encoded.
    """
    encoded = encode_changes(TABLE, [change({"n": 1}, key=6), change({name: value})])
    ((refused, reason, _),) = encoded.refused

    assert ([(6,)], (7,), 1) == (
        [c.key for c in encoded.changes],
        refused.key,
        len(encoded.rows),
    )
    assert f"the value of {name} does not fit" in reason


def test_a_delete_of_a_key_that_does_not_fit_is_skipped():
    """
    No row of the table can have the key: it is neither encoded nor refused.
    """
    gone = [change(None, key=key) for key in (6, "NaN")]
    encoded = encode_changes(TABLE, gone)

    assert ([(6,)], (), 1) == (
        [c.key for c in encoded.changes],
        encoded.refused,
        len(encoded.rows),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("total", "NaN"),
        ("at", "infinity"),
        ("at", "-infinity"),
        ("at", "0044-03-15T00:00:00.000000Z BC"),
        ("local", "20260-01-01T00:00:00.000000"),
        ("day", "0044-03-15 BC"),
    ],
)
def test_an_unrepresentable_value_is_null_if_configured(name, value):
    """
    The rest of the row is unchanged, and each such value is counted (B63, B64).
    """
    changes = [change({"n": 1, name: None}, key=6), change({"n": 2, name: value})]
    encoded = encode_changes(TABLE, changes, treats_unfit_as_null=True)

    assert ((), {name: 1}, [1, 2], [None, None]) == (
        encoded.refused,
        encoded.nulled,
        encoded.rows.column("n").to_pylist(),
        encoded.rows.column(name).to_pylist(),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("total", "1.005"), ("n", 2**31), ("n", "NaN"), ("at", "soon"), ("id", "NaN")],
)
def test_an_invalid_value_is_refused_under_either_policy(name, value):
    """
    Unrepresentable values of other rows are made null; a refused row is not counted.
    """
    row = {"day": "infinity"} if name == "id" else {"day": "infinity", name: value}
    key = value if name == "id" else 7
    other = change({"day": "infinity"}, key=6)
    encoded = encode_changes(
        TABLE, [other, change(row, key=key)], treats_unfit_as_null=True
    )
    ((refused, reason, _),) = encoded.refused

    assert ([(6,)], (key,), {"day": 1}, [None]) == (
        [c.key for c in encoded.changes],
        refused.key,
        encoded.nulled,
        encoded.rows.column("day").to_pylist(),
    )
    assert f"the value of {name} does not fit" in reason
    assert "unfit" not in reason


def test_the_dead_letters_reason_names_the_remedy():
    """
    The reason of an unrepresentable value mentions the option that makes it null.
    """
    ((_, reason, _),) = encode_changes(TABLE, [change({"at": "infinity"})]).refused

    assert reason.endswith(
        "at does not fit timestamp; "
        "with warehouse.unfit = 'null' the row is written with null instead"
    )


def test_the_key_is_never_made_null():
    """
    A row whose key is not representable is refused under either policy.
    """
    days = Column("day", "date"), Column("n", "integer")
    table = current_state("shop.d", RelationShape("shop", "d", days, ("day",), "0"))
    origin = Origin("t", 0, 0)
    row = {"day": "infinity", "n": 1}
    given_change = Change(
        *("shop.d", ("infinity",), ("day",), POSITION, row), ALL_PRESENT, False, origin
    )
    encoded = encode_changes(table, [given_change], treats_unfit_as_null=True)

    assert (1, 0, {}) == (len(encoded.refused), len(encoded.rows), encoded.nulled)


def test_the_reason_does_not_contain_the_value():
    """
    The log never holds a row's contents.
    """
    ((_, reason, _),) = encode_changes(TABLE, [change({"total": "secret"})]).refused

    assert "secret" not in reason


def test_a_delete_has_only_its_key_and_the_tombstone_mark():
    """
    A deleted row keeps only its key and position.
    """
    (row,) = encode_changes(TABLE, [change(None)]).rows.to_pylist()
    values = {name: value for name, value in row.items() if value is not None}

    assert {"id": 7, "_position": POSITION, "_is_deleted": True} == values


def test_columns_left_out_of_a_partial_change_are_listed():
    """
    Only a batch with partial changes has the list.
    """
    whole = encode_changes(TABLE, [change({"n": 1})])
    partial = encode_changes(
        TABLE, [change({"n": 1}), change({"n": 2}, unchanged=["body", "x"])]
    )

    assert "_kept" not in whole.rows.column_names
    assert [[], ["body", "x"]] == partial.rows.column("_kept").to_pylist()


def test_a_column_that_the_table_lacks_is_left_out():
    """Only the table's columns are encoded."""
    encoded = encode_changes(TABLE, [change({"n": 1, "gone": "x"})])

    assert TABLE.schema.names == encoded.rows.column_names


def test_a_text_column_stores_numbers_of_older_records_as_text():
    """
    The type of the column was changed to text after these records were written.
    """
    encoded = encode_changes(TABLE, [change({"body": 7, "weight": 1})])

    assert (["7"], ["1"]) == (
        encoded.rows.column("body").to_pylist(),
        encoded.rows.column("weight").to_pylist(),
    )


def test_keys_are_numbered():
    """Each key has the number of its row."""
    keys = encode_keys(TABLE, [change({}, key=9), change(None, key=5)])

    assert {"id": [9, 5], "_row": [0, 1]} == keys.to_pydict()


def event(number, occurred_at):
    """Make an event."""
    return EventRow(
        "shop.events",
        f"id-{number}",
        "order",
        "7",
        "OrderPlaced",
        None,
        "{}",
        POSITION,
        occurred_at,
        Origin("t", 0, number),
    )


def test_events_have_a_span_of_time():
    """
    The span reaches from the earliest to the latest event of the batch.
    """
    times = [f"2026-01-0{day}T00:00:00.000001Z" for day in (2, 1, 3)]
    encoded = encode_events(
        event_log("shop.events"), [event(*e) for e in enumerate(times)]
    )

    assert (("2026-01-01 00:00:00.000001Z", "2026-01-03 00:00:00.000001Z"), 0) == (
        encoded.occurred_between,
        encoded.untimed,
    )


def test_an_event_without_a_time_is_kept_and_counted():
    """
    The event is not lost; because its time is unknown, the whole log is searched.
    """
    times = ["2026-01-01T00:00:00.000000Z", "infinity"]
    encoded = encode_events(
        event_log("shop.events"), [event(*e) for e in enumerate(times)]
    )

    assert (None, 1, ["id-0", "id-1"], 1) == (
        encoded.occurred_between,
        encoded.untimed,
        encoded.rows.column("id").to_pylist(),
        encoded.rows.column("occurred_at").null_count,
    )


def test_a_row_keeps_a_retained_column_that_it_lacks():
    """
    Only those records of a batch that have the column write it.
    """
    old, new = change({"n": 1, "body": "x"}), change({"n": 2})
    encoded = encode_changes(TABLE, [old, new], frozenset({"body"}))

    assert [[], ["body"]] == encoded.rows.column("_kept").to_pylist()

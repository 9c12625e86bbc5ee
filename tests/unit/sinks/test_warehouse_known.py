"""All keys of a table as hashes, and rows in slices of bounded size."""

import pyarrow as pa
import pytest

from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.targets.warehouse.rows import key_hashes, key_span, slices
from towpath.sinks.targets.warehouse.schema import current_state
from towpath.sinks.targets.warehouse.write import KnownKeys


def hashes_of(keys):
    """Hash plain integers."""
    return pa.array([hash(key) for key in keys], pa.int64())


def test_only_unknown_keys_are_new():
    """
    Learned keys remain known across any number of small batches.
    """
    known = KnownKeys(10_000)
    for number in range(200):
        assert known.learn(known.new_of(hashes_of([(number,), (number + 1,)])))
    new = known.new_of(hashes_of([(0,), (200,), (201,), ("x", None)]))

    assert hashes_of([(201,), ("x", None)]).to_pylist() == new.to_pylist()


def test_two_texts_of_one_number_are_one_key():
    """
    Values that are equal in the table are equal here, or the row would exist twice.
    """
    column = Column("id", "numeric", (12 << 16 | 2) + 4)
    table = current_state("s.t", RelationShape("s", "t", (column,), ("id",), "0"))
    kind = table.columns[0].type.arrow
    one, other, third = (
        key_hashes(table, pa.table({"id": pa.array([text]).cast(kind)}))
        for text in ("1.0", "1.00", "1.01")
    )

    assert (True, False) == (one == other, one == third)


def test_hashes_are_the_same_in_all_processes():
    """
    Tasks hash keys, and the driver compares them; recorded hashes reveal any change.
    """
    columns = (Column("a", "text"), Column("b", "double precision"))
    table = current_state("s.t", RelationShape("s", "t", columns, ("a", "b"), "0"))
    keys = pa.table({"a": ["x", "x", "1", "11"], "b": [0.0, -0.0, 11.0, 1.0]})
    hashes = key_hashes(table, keys).to_pylist()

    assert hashes[0] == hashes[1]
    assert [
        -3_905_612_323_551_264_434,
        -6_832_804_056_145_927_533,
        -1_405_009_716_136_634_941,
    ] == hashes[1:]


def test_keys_beyond_the_limit_are_reported():
    """
    From then on, not all keys are known, so none may be treated as new.
    """
    known = KnownKeys(3)

    assert [True, True, False] == [
        known.learn(known.new_of(hashes_of(keys))) for keys in ([1, 2], [2, 3], [4])
    ]


@pytest.mark.parametrize(("max_bytes", "expected"), [(10**6, [100]), (240, [25] * 4)])
def test_rows_are_split_by_their_bytes(max_bytes, expected):
    """
    Every row is in one slice, in order, and no slice is too large.
    """
    rows = pa.table({"n": pa.array(range(100), pa.int64())})
    parts = slices(rows, max_bytes)

    assert expected == [part.num_rows for part in parts]
    assert list(range(100)) == pa.concat_tables(parts).column("n").to_pylist()


def test_a_row_larger_than_a_slice_is_a_slice_of_its_own():
    """
    No row is left out.
    """
    rows = pa.table({"t": ["x" * 100, "y" * 100]})

    assert ([1, 1], []) == (
        [p.num_rows for p in slices(rows, 10)],
        slices(rows[:0], 10),
    )


def test_only_an_integer_key_has_a_span():
    """
    A text key has no span: its order differs between engines.
    """
    columns = (Column("id", "bigint"), Column("name", "text"))
    rows = pa.table({"id": [5, -3, 9], "name": ["a", "b", "c"]})
    tables = [
        current_state("s.t", RelationShape("s", "t", columns, (key,), "0"))
        for key in ("id", "name")
    ]

    assert [(-3, 9), None] == [key_span(table, rows) for table in tables]

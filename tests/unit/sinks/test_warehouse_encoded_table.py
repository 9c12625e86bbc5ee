"""Rows of tasks are merged if their key may exist; all others become files."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from towpath.sinks.apply.encoded import EncodedSummary
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.targets.warehouse.encode import TableForm
from towpath.sinks.targets.warehouse.encoded_table import EncodedTable
from towpath.sinks.targets.warehouse.schema import current_state
from towpath.sinks.targets.warehouse.write import KnownKeys

SHAPE = RelationShape(
    "s", "t", (Column("id", "bigint"), Column("note", "text")), ("id",), "0"
)
TABLE = current_state("s.t", SHAPE)
PLAIN, RETAINED = TableForm("s.t"), TableForm("s.t", has_retained=True)


def hashes(*keys):
    """Return integer keys as their own hashes."""
    return pa.array(keys, pa.int64())


def encoded(*tasks, rows=None, floor=None, retained=()):
    """Make the rows of tasks, each with some keys at position 5."""
    forms = {
        form: [
            EncodedSummary(form.text, len(k), None, hashes(*k), "5") for k in of_form
        ]
        for form, of_form in ((PLAIN, tasks), (RETAINED, retained))
        if of_form
    }
    return EncodedTable(TABLE, rows, forms, False, floor, None)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (encoded((10, 11), (12, 13)), []),
        (encoded((1, 11), (12, 13)), [1]),
        (encoded((1, 2, 3), (12,)), None),
        (encoded((10, 11, 12), (12, 13)), [12]),
        (encoded((10, 11, 12), retained=[(13,)]), [13]),
        (encoded((10, 11), floor="6"), None),
        (encoded((10, 11), floor="5"), []),
    ],
    ids=[
        "new keys",
        "a known key",
        "mostly known keys",
        "a key of two tasks",
        "a row with a dropped column",
        "rows below a floor",
        "rows at a floor",
    ],
)
def test_rows_are_merged_if_the_table_or_another_task_may_have_their_key(
    rows, expected
):
    """
    All other rows become files unchanged.
    """
    known = KnownKeys(100)
    known.learn(hashes(1, 2, 3))
    merged = rows.hashes_to_merge(rows.hashes, known.new_of(rows.hashes))

    assert expected == (None if merged is None else sorted(merged.to_pylist()))


def test_executors_write_only_the_rows_that_are_not_merged():
    """
    The statement writes the other rows.
    """
    given = pa.table({"id": [1, 2, 3]})
    engine = SimpleNamespace(collect=lambda statement, write: (statement, write(given)))
    found = encoded((1, 2, 3), rows=engine).write_files(
        hashes(2), lambda rows: rows.column("id").to_pylist()
    )

    assert (PLAIN.text, [1, 3]) == found


@pytest.mark.parametrize("route", ["shop.orders", "shop.my orders", "s.t retained"])
@pytest.mark.parametrize("has_retained", [False, True])
def test_a_form_is_read_from_the_name_of_its_statement(route, has_retained):
    """
    The name of a route may contain spaces.
    """
    form = TableForm(route, has_retained=has_retained)

    assert form == TableForm.parse(form.text)

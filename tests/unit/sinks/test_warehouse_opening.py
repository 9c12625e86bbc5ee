"""The changes to a table since a known commit."""

import pyarrow as pa
import pytest

from towpath.sinks.ports import Commit
from towpath.sinks.targets.warehouse.opening import adds_no_key
from towpath.sinks.targets.warehouse.schema import LakeName

APPENDED = {"added-data-files": "1", "total-data-files": "3"}
FOUND_NOTHING = {"total-data-files": "3"}


class Commits:
    """A table with the given commits: number, parent, operation and summary."""

    def __init__(self, *commits):
        names = ("snapshot_id", "parent_id", "operation", "summary")
        rows = [dict(zip(names, row, strict=True)) for row in commits]
        kinds = [*[pa.int64()] * 2, pa.string(), pa.map_(pa.string(), pa.string())]
        for row in rows:
            found = row["summary"]
            row["summary"] = None if found is None else [*found.items()]
        schema = pa.schema([*zip(names, kinds, strict=True)])
        self._history = pa.Table.from_pylist(rows, schema)

    def sql(self, _text):
        return self._history


def adds_nothing(commits, since, until):
    """Check the commits from one number to another; 0 is before the first."""
    known = Commit(since, {}) if since else None
    name = LakeName("shop", "orders")
    return adds_no_key(Commits(*commits), name, known, Commit(until, {}))


@pytest.mark.parametrize(
    ("operation", "summary", "expected"),
    [
        ("replace", APPENDED, True),
        ("delete", FOUND_NOTHING, True),
        ("overwrite", FOUND_NOTHING, True),
        ("overwrite", APPENDED, False),
        ("overwrite", {}, False),
        ("append", APPENDED, False),
        (None, None, False),
    ],
)
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_commit_that_may_have_added_rows_is_found_anywhere(
    operation, summary, expected, at
):
    """
    Every commit since ours counts, wherever it is in the chain.
    """
    commits = [(n, n - 1 or None, "replace", APPENDED) for n in range(1, 5)]
    commits[at - 1] = (at, at - 1, operation, summary)

    assert expected == adds_nothing(commits, 1, 4)


def test_the_newest_commit_has_no_successors():
    """
    Earlier commits are not checked.
    """
    assert adds_nothing([(1, None, "append", APPENDED)], 1, 1)


@pytest.mark.parametrize(("first", "expected"), [("delete", True), ("append", False)])
def test_a_table_without_a_commit_is_checked_from_its_first(first, expected):
    """
    Upkeep may create the first commit.
    """
    commits = [(1, None, first, APPENDED), (2, 1, "replace", APPENDED)]

    assert expected == adds_nothing(commits, 0, 2)


def test_our_own_commit_may_have_expired():
    """
    Its successor still names it as its parent.
    """
    assert adds_nothing([(2, 1, "replace", APPENDED)], 1, 2)


@pytest.mark.parametrize(
    "commits",
    [
        [(1, None, "append", APPENDED), (3, 2, "replace", APPENDED)],
        [(2, None, "replace", APPENDED), (3, 2, "replace", APPENDED)],
        [],
    ],
    ids=["one has expired", "ours was replaced", "all are gone"],
)
def test_a_broken_commit_chain_means_added_rows(commits):
    """
    If it is not known whether keys were added, the sink looks the keys up in the table.
    """
    assert not adds_nothing(commits, 1, 3)

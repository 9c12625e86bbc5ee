"""The chaos verdict: wrong records, and the final rows."""

import json

import pytest

from towpath.loadtests.chaos.fold import Fold, differences

KEY = b'{"id":1}'


def at(lsn: int, ordinal: int | None = 0) -> bytes:
    """Write a position: with an ordinal if streamed, without one if read."""
    return b"%016x." % lsn + (b"-" if ordinal is None else b"%010d" % ordinal)


class Topic:
    """One partition, written by hand."""

    def __init__(self, *, is_ordered: bool = True) -> None:
        self.fold = Fold("s.a", is_ordered=is_ordered)

    def change(self, lsn: int, op: str, after: dict | None, *missing: str) -> None:
        """Append a change."""
        headers = [("position", at(lsn))]
        if missing:
            headers.append(("unchanged", json.dumps(missing).encode()))
        value = json.dumps({"op": op, "after": after}).encode()
        self.fold.take(0, None if op == "t" else KEY, value, headers)

    def append_dropped(self, lsn: int, *more: tuple[str, bytes]) -> None:
        """Append the relay's record of a dropped or recreated table."""
        headers = [("position", at(lsn)), ("dropped", b"16384"), *more]
        self.fold.take(0, None, b'{"op": "t", "after": null}', headers)

    def read(self, lsn: int, after: dict | None) -> None:
        """Append a row of a snapshot, or its absence."""
        headers = [("position", at(lsn, None)), ("snapshot", b"s1")]
        op = "d" if after is None else "r"
        value = json.dumps({"op": op, "after": after}).encode()
        self.fold.take(0, KEY, value, headers)

    def rows(self) -> list[dict]:
        """Return the rows."""
        return list(self.fold.rows().values())


def row(version: int, **more: object) -> dict:
    """Make a row."""
    return {"id": 1, "v": version, **more}


def test_rows_of_a_recreated_table_may_be_read_again():
    """
    Without a sweep they are kept; after a sweep, such a row counts as resurrected.
    """
    swapped, emptied = Topic(), Topic()
    for topic in (swapped, emptied):
        topic.change(10, "c", row(1))
    swapped.append_dropped(20)
    emptied.append_dropped(20, ("sweep", at(20)), ("sweep_partitions", b"1"))
    kept = swapped.rows(), emptied.rows()
    for topic in (swapped, emptied):
        topic.read(30, row(1))

    assert ([row(1)], []) == kept
    assert ({}, {"resurrected": 1}) == (swapped.fold.wrong, emptied.fold.wrong)


def test_the_newest_position_wins():
    """
    A read row is newer than changes before its mark, and older than those after it.
    """
    topic = Topic()
    topic.change(10, "c", row(1))
    topic.read(20, row(2))
    topic.change(15, "u", row(2))
    topic.change(30, "u", row(3))

    assert [row(3)] == topic.rows()
    assert {} == topic.fold.wrong


@pytest.mark.parametrize(
    ("kind", "lsn", "version"), [("older", 5, 1), ("stale", 20, 0)]
)
def test_a_read_row_older_than_its_change_is_wrong(kind: str, lsn: int, version: int):
    """
    It is older by its position or by its counter.
    """
    topic = Topic()
    topic.change(10, "u", row(1))
    topic.read(lsn, row(version))

    assert {kind: 1} == topic.fold.wrong


def test_a_deleted_row_that_reappears_is_wrong():
    """
    Its counter is not above the last known one; that of a new row is.
    """
    topic = Topic()
    topic.change(10, "c", row(1))
    topic.change(20, "d", None)
    topic.read(30, row(1))
    topic.read(40, row(2))

    assert {"resurrected": 1} == topic.fold.wrong


def test_a_truncate_removes_older_rows():
    """
    The rows are gone, and a row that was read before the truncate counts as older.
    """
    topic = Topic()
    topic.read(10, row(1))
    topic.change(20, "t", None)
    gone = topic.rows()
    topic.read(15, row(1))

    assert ([], []) == (gone, topic.rows())
    assert {"older": 1} == topic.fold.wrong


def test_a_sweep_removes_rows_below_its_floor():
    """
    A row that was read or changed since the floor is kept.
    """
    topic = Topic()
    topic.change(10, "c", row(1))
    value = json.dumps({"op": "m", "after": None}).encode()
    headers = [("position", at(40, None)), ("snapshot", b"s1")]
    topic.fold.take(0, None, value, [*headers, ("sweep", at(10, None))])
    kept = topic.rows()
    topic.fold.take(0, None, value, [*headers, ("sweep", at(20, None))])

    assert ([row(1)], []) == (kept, topic.rows())


def test_reads_are_not_compared_with_reads():
    """
    The newer mark of two parallel snapshots wins, and neither is wrong.
    """
    topic = Topic()
    topic.read(20, row(2))
    topic.read(10, row(1))

    assert [row(2)] == topic.rows()
    assert {} == topic.fold.wrong


def test_a_repeated_record_is_wrong():
    """
    Streamed positions rise in each partition.
    """
    topic = Topic()
    topic.change(10, "c", row(1))
    topic.change(10, "c", row(1))

    assert {"twice": 1} == topic.fold.wrong


def test_a_partial_change_is_merged_with_the_row():
    """
    Omitted columns are kept; without an earlier row, the change is incomplete.
    """
    topic = Topic()
    topic.change(10, "u", row(1), "large")
    incomplete = topic.fold.incomplete()
    topic.read(20, row(1, large="x"))
    topic.change(30, "u", row(2), "large")

    assert ([KEY], []) == (incomplete, topic.fold.incomplete())
    assert [row(2, large="x")] == topic.rows()


def test_two_topics_complete_each_other():
    """
    A sink's own topic may be read later, with an older but complete row.
    """
    topic = Topic(is_ordered=False)
    topic.change(30, "u", row(2, note="new"), "large")
    topic.read(20, row(1, note="old", large="x"))

    assert [row(2, note="new", large="x")] == topic.rows()
    assert ({}, []) == (topic.fold.wrong, topic.fold.incomplete())


def test_differences_name_keys_and_columns():
    """
    Lost, surplus and different keys are reported with their first difference.
    """
    folded = {b'{"id":1}': {"id": 1, "b": True}, b'{"id":2}': {"id": 2}}
    table = {("1",): {"id": "1", "b": "false"}, ("3",): {"id": "3"}}

    assert [
        "('1',): b: 'true' is not 'false'",
        "('2',): not in the table",
        "('3',): lost",
    ] == sorted(differences(folded, table))
    assert [] == differences(
        {b'{"id":1}': {"id": 1, "b": None}}, {("1",): {"id": "1", "b": None}}
    )


def test_a_difference_far_inside_a_value_is_found():
    """
    Complete values are compared, but only their beginnings are shown.
    """
    same = "x" * 100
    folded = {KEY: {"id": 1, "large": f"{same}a"}}
    table = {("1",): {"id": "1", "large": f"{same}b"}}
    (found,) = differences(folded, table)

    assert found.startswith("('1',): large: ")

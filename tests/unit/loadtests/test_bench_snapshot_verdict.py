"""The verdict on a table's topic: lost, stale and wrong rows are counted."""

from array import array

import pytest

from support.copying import replace
from towpath.loadtests.bench.snapshot.check import (
    Delivered,
    Expected,
    TableCheck,
    check_table,
)
from towpath.loadtests.bench.snapshot.source import content

# Three rows; the second was updated twice, by transactions at LSNs 100 and 200.
EXPECTED = Expected(array("q", (0, 10, 22, 30)), {(2, 1): 1_000, (2, 2): 2_000})


def read(key: int, version: int = 0, log_lsn: int = 0) -> Delivered:
    """Make the record of a read row; its digest encodes key and version."""
    digest = key * 10 + version
    return Delivered(key % 2, key, version, digest, True, 5, log_lsn)


def update(version: int, log_lsn: int = 0) -> Delivered:
    """Make the record of an update of the second row."""
    return Delivered(0, 2, version, 20 + version, False, 6, log_lsn)


READ_1, READ_3 = read(1), read(3)
WHOLE = [READ_1, read(2), READ_3, update(1), update(2)]


@pytest.mark.parametrize(
    "records",
    [
        WHOLE,
        # Read between the updates, or after both of them.
        [READ_1, READ_3, update(1), read(2, 1), update(2)],
        [READ_1, READ_3, update(1), update(2), read(2, 2)],
        # Not read at all: the updates were newer.
        [READ_1, READ_3, update(1), update(2)],
        # Read a second time.
        [*WHOLE, READ_3],
        # Read at a watermark above the commit.
        [READ_1, READ_3, update(1, 100), update(2, 200), read(2, 2, 208)],
    ],
)
def test_a_complete_topic_is_clean(records):
    """
    It has every key, last value and update, and no older row after a newer one.
    """
    verdict, _ = check_table(EXPECTED, records)

    assert (TableCheck(3), ()) == (verdict, verdict.findings())


@pytest.mark.parametrize(
    ("records", "findings"),
    [
        (WHOLE[1:], ("1 lost",)),
        (WHOLE[:-1], ("1 missing", "1 changed")),
        ([*WHOLE[:3], update(2)], ("1 missing",)),
        ([*WHOLE[1:], replace(READ_1, digest=5)], ("1 changed",)),
        ([*WHOLE, read(2, 1)], ("1 stale", "1 outdated")),
        ([*WHOLE[:4], read(2), update(2)], ("1 stale",)),
        ([READ_1, READ_3, read(2, 2), update(1), update(2)], ("1 overtaken",)),
        ([*WHOLE, update(2)], ("1 repeated",)),
        ([*WHOLE[:3], update(2), update(1)], ("1 changed", "1 disordered")),
        ([*WHOLE, replace(READ_1, partition=0)], ("1 disordered",)),
        ([*WHOLE, replace(READ_1, key=4)], ("1 unknown",)),
        ([*WHOLE, update(3)], ("1 changed", "1 unknown")),
        # The key's last record is an update, not the stale row before it.
        ([*WHOLE, read(2, 1), update(1)], ("1 changed", "1 stale", "1 repeated")),
        ([*WHOLE, read(2, 1), update(3)], ("1 changed", "1 stale", "1 unknown")),
    ],
)
def test_each_kind_of_difference_is_counted_separately(records, findings):
    """
    Each kind of difference has its own count.
    """
    verdict, _ = check_table(EXPECTED, records)

    assert findings == verdict.findings()


@pytest.mark.parametrize("log_lsn", [100, 200])
def test_a_position_below_a_delivered_change_is_stale(log_lsn):
    """
    A watermark at a commit's LSN precedes its changes, whatever the row contains.
    """
    records = [READ_1, READ_3, update(1, 100), update(2, 200), read(2, 2, log_lsn)]
    verdict, _ = check_table(EXPECTED, records)

    assert 1 == verdict.stale


def test_stale_rows_of_other_systems_are_allowed_but_lost_ones_are_not():
    """
    Missing rows and wrong final values are findings; stale reads are not.
    """
    verdict, _ = check_table(EXPECTED, [*WHOLE[1:], read(2, 1)])

    assert (("1 lost",), 1) == (verdict.without_stale.findings(), verdict.stale)


@pytest.mark.parametrize(("is_initial", "missing"), [(True, 0), (False, 1)])
def test_an_initial_snapshot_need_not_stream_updates_that_it_has_read(
    is_initial, missing
):
    """
    A system that streams from before its snapshot must stream every update.
    """
    expected = replace(EXPECTED, is_initial=is_initial)
    verdict, _ = check_table(expected, [READ_1, READ_3, read(2, 1), update(2)])

    assert missing == verdict.missing


def test_appends_of_rows_and_of_updates_are_recorded_separately():
    """
    Rates are computed from read rows, latencies from streamed updates.
    """
    _, times = check_table(EXPECTED, WHOLE)

    assert ([5, 5, 5], [(1_000, 6), (2_000, 6)]) == (
        list(times.read_at_ms),
        times.updated_at,
    )


def test_a_row_is_the_same_in_every_format_of_its_columns():
    """
    COPY's text is compared with two JSON formats; a changed value is a different row.
    """
    row = {"version": 2, "amount": "0.25", "state": "changed", "note": "x"}
    copied = row | {"version": "2", "changed_at": "2026-01-01 00:00:00.5+00"}
    forms = [
        row | {"changed_at": "2026-01-01T00:00:00.500000Z"},
        row | {"changed_at": "2026-01-01T00:00:00.5Z"},
    ]
    others = [
        copied | {"changed_at": "2026-01-01 00:00:00.500001+00"},
        copied | {"amount": "0.26"},
        copied | {"note": "y"},
    ]

    assert ([True, True], [False, False, False]) == (
        [content(copied) == content(form) for form in forms],
        [content(copied) == content(other) for other in others],
    )


def test_a_topic_may_have_hundreds_of_partitions():
    """
    A partition number may need more than one byte.
    """
    verdict, _ = check_table(EXPECTED, [one._replace(partition=300) for one in WHOLE])

    assert TableCheck(3) == verdict

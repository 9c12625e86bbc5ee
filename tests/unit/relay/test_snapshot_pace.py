"""The pace at which a table is read."""

import dataclasses

import pytest

from towpath.relay.snapshot.pace import (
    ChunkSize,
    ReadRate,
    ScanPace,
    Throttle,
)
from towpath.relay.snapshot.shape import Chunk, TableShape
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.clock import Backoff


def test_a_rate_spaces_chunks_by_their_rows():
    """
    After 50 rows at 100 per second, the next chunk is read half a second later.
    """
    pace = ScanPace(ChunkSize(1000), max_rows_per_second=100)
    pace.now_s = 10.0
    pace.succeeded(50)
    early = pace.may_read
    pace.now_s = 10.5

    assert (100, False, True) == (pace.max_rows, early, pace.may_read)


def test_without_a_rate_chunks_do_not_wait():
    """
    The next chunk may be read at once.
    """
    pace = ScanPace(ChunkSize(1000))
    pace.succeeded(1000)

    assert (True, 1000) == (pace.may_read, pace.max_rows)


def test_failures_lengthen_the_pause_and_shrink_the_chunk():
    """
    Each consecutive failure halves the chunk and lengthens the pause.

    A success resets both.
    """
    pace = ScanPace(ChunkSize(1000), backoff=Backoff(first_s=1.0, ceiling_s=4.0))
    sizes = []
    for _ in range(5):
        pace.failed()
        sizes.append(pace.max_rows)
    early = pace.may_read
    pace.now_s = 5.0
    late = pace.may_read
    pace.succeeded(100)

    assert ([500, 250, 125, 100, 100], False, True, True) == (
        sizes,
        early,
        late,
        pace.may_read,
    )


def chunk(rows: int, *, size_bytes: int = 0, elapsed_s: float = 0.0) -> Chunk:
    """Return a chunk of this many rows, with more to follow."""
    relation = Relation(1, "s", "a", (Column("id", 20),), (0,))
    found = [(b"1",)] * rows
    sees_all = XidSnapshot(9, 9, frozenset())
    shape = TableShape(relation, ("bigint",))
    return Chunk(shape, found, sees_all, False, size_bytes, elapsed_s)


@pytest.mark.parametrize(
    ("size_bytes", "elapsed_s", "next_rows"),
    [
        # Quick and small: twice as many, the largest increase in one step.
        (1_000, 0.001, 2_000),
        # Twice the target time: half as many.
        (1_000, 0.4, 500),
        # Very slow: half as many, the largest decrease in one step.
        (1_000, 60.0, 500),
        # Exactly the target size: the same number again.
        (1024 * 1024, 0.001, 1_000),
    ],
)
def test_chunk_sizes_approach_a_target_time_and_size(
    size_bytes: int, elapsed_s: float, next_rows: int
):
    """
    The next chunk is closer to the target, and changes by at most a factor of two.
    """
    pace = ScanPace(ChunkSize(1000, time_s=0.2, size_bytes=1024 * 1024))
    pace.adapt(chunk(1000, size_bytes=size_bytes, elapsed_s=elapsed_s))

    assert next_rows == pace.max_rows


def test_rows_of_a_megabyte_are_read_in_small_chunks():
    """
    The rows' size determines the chunk, whatever first size is configured (B31).
    """
    pace = ScanPace(ChunkSize(1000, size_bytes=8 * 1024 * 1024))
    for _ in range(9):
        # The reader cuts off a larger chunk.
        pace.adapt(chunk(min(pace.max_rows, 8), size_bytes=8 * 1024 * 1024))

    assert 100 == pace.max_rows


def test_a_short_last_chunk_does_not_shrink_later_ones():
    """
    The end of a range says nothing about the rows' size.
    """
    pace = ScanPace(ChunkSize(1000))
    short = dataclasses.replace(chunk(3, size_bytes=30), is_last=True)
    pace.adapt(short)

    assert 1000 == pace.max_rows


def test_repeated_timeouts_at_the_smallest_chunk_fail_the_table():
    """
    Five consecutive timeouts at the smallest size are fatal; larger chunks only shrink.
    """
    pace = ScanPace(ChunkSize(1000))
    for _ in range(4):
        pace.failed(has_timed_out=True)
    for _ in range(4):
        pace.failed(has_timed_out=True)
    before = pace.is_too_slow
    pace.failed(has_timed_out=True)

    assert (False, True) == (before, pace.is_too_slow)


def test_reading_yields_while_the_stream_is_behind_or_the_source_is_busy():
    """
    Either reason suffices; reading resumes when neither holds.
    """
    throttle = Throttle(max_lag_s=10.0, max_active_sessions=3)
    pace = ScanPace(ChunkSize(1000), throttle=throttle)
    throttle.lag_s = 11.0
    behind = pace.may_read
    throttle.lag_s, throttle.active_sessions = 0.0, 4
    busy = pace.may_read
    throttle.active_sessions = 3

    assert (False, False, True) == (behind, busy, pace.may_read)


def test_the_reading_speed_is_a_moving_average():
    """
    The average adapts to a change of speed after a while.
    """
    rate = ReadRate()
    rates = []
    for second in range(3):
        rate.add(100, float(second))
        rates.append(rate.rows_per_second)
    for second in range(3, 60):
        rate.add(1000, float(second))

    assert ([None, 100.0, 100.0], True) == (rates, rate.rows_per_second > 990)

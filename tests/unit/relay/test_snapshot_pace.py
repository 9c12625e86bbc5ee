"""How fast a table is read."""

from towpath.relay.snapshot.pace import Pace
from towpath.schemas.backoff import Backoff


def test_a_rate_spaces_chunks_by_their_rows():
    """
    After 50 rows at 100 a second, the next chunk is read half a second later.
    """
    pace = Pace(chunk_rows=1000, max_rows_per_second=100)
    pace.now_s = 10.0
    pace.succeeded(50)
    early = pace.may_read
    pace.now_s = 10.5

    assert (100, False, True) == (pace.max_rows, early, pace.may_read)


def test_without_a_rate_nothing_waits():
    """
    Chunks follow each other at once.
    """
    pace = Pace(chunk_rows=1000)
    pace.succeeded(1000)

    assert (True, 1000) == (pace.may_read, pace.max_rows)


def test_failures_wait_longer_and_read_less():
    """
    Each failure in a row halves the chunk and lengthens the pause; success undoes it.
    """
    pace = Pace(1000, backoff=Backoff(first_s=1.0, ceiling_s=4.0))
    sizes = []
    for _ in range(5):
        pace.failed()
        sizes.append(pace.max_rows)
    early = pace.may_read
    pace.now_s = 5.0
    late = pace.may_read
    pace.succeeded(100)

    assert ([500, 250, 125, 100, 100], False, True, 200) == (
        sizes,
        early,
        late,
        pace.max_rows,
    )

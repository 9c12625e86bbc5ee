"""Rows of a batch are delivered as they arrive, or again from the start if needed."""

import pytest

from support.kafka_rows import batch_of, row, table
from support.parked_shop import ROUTES
from towpath.schemas.clock import SystemClock
from towpath.sinks.apply.slice import SliceContext, apply_slice
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.targets.memory import MemorySink


class Log:
    """Three slices of two records, from a broker that fails at given slices."""

    def __init__(self, *fails_at):
        self.fails_at = [*fails_at]
        self.begun = 0

    def __call__(self):
        """Read from the first slice."""
        self.begun += 1
        for slice_ in range(3):
            if [slice_] == self.fails_at[:1]:
                self.fails_at.pop(0)
                message = "no broker"
                raise BrokerUnavailableError(message)
            yield table(row(slice_ * 2, "c"), row(slice_ * 2 + 1, "u"))


def offsets(tables):
    """Return the offsets of the records in tables."""
    return [offset for one in tables for offset in one.column("offset").to_pylist()]


def test_batch_rows_are_read_once():
    """
    Every later reader gets the rows that were already read.
    """
    log = Log()
    rows = batch_of(log, 6)
    first = next(rows.slices())
    found = offsets(rows.slices())

    assert ([0, 1], [*range(6)], [*range(6)], 1) == (
        *(offsets([first]), found, offsets(rows.slices())),
        log.begun,
    )


def test_a_batch_that_could_not_be_read_is_read_from_its_start():
    """
    No row occurs twice.
    """
    log = Log(2, 0)
    rows = batch_of(log, 6)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError):
            [*rows.slices()]

    assert ([*range(6)], 3) == (offsets(rows.slices()), log.begun)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_batch_that_fails_halfway_is_delivered_completely(fails_at):
    """
    Rows delivered before the failure are delivered again, before the others.
    """
    log = Log(fails_at)
    rows = batch_of(log, 6)
    with pytest.raises(BrokerUnavailableError):
        [*rows.slices()]

    assert ([*range(6)], 2) == (offsets(rows.slices()), log.begun)


def test_a_batch_without_records_has_columns():
    """
    All of its offsets may be those of transaction markers.
    """
    rows = batch_of(lambda: iter(()), 2)
    context = SliceContext(
        *(ROUTES, MemorySink(), frozenset(), frozenset(), 0, SystemClock())
    )
    empty = apply_slice(context, rows.slices()).left

    assert (0, ["topic", "partition", "offset", "key", "value", "headers"]) == (
        len(empty),
        empty.column_names,
    )

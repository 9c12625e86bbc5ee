"""The records that a driver publishes about a sink, and their order."""

from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from support.published import MemoryProgress, SinkRun
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.engine.publisher import Activity, ProgressPublisher
from towpath.sinks.state import incomplete
from towpath.sinks.state.declare import READY_FILE, STARTING_OFFSETS_FILE
from towpath.sinks.state.progress import Progress, replace_file, sink_folder
from towpath.sinks.state.refetches import (
    PendingRefetch,
    StoredRefetches,
    encode_refetches,
    refetches_path,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROGRESS = Progress("cache", applied={"shop.orders": {"0": 7}})


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.time = NOW

    def now(self):
        """Return the set time."""
        return self.time

    def monotonic_s(self):
        """Return a fixed time."""
        return 0.0

    def wait(self, _delay_s):
        """Return immediately."""


@pytest.fixture
def clock():
    """Return the clock of all drivers."""
    return Clock()


@pytest.fixture
def store(clock):
    """Return the store of published records."""
    return MemoryProgress(clock)


@pytest.fixture
def begun(tmp_path, store, clock):
    """Return a function that begins a run of the sink."""
    return lambda: SinkRun(tmp_path, "cache", store, clock)


def store_refetches(folder, *keys):
    """Store the pending refetches of a sink."""
    rows = {
        ("orders", (key,)): PendingRefetch(ParkedKey("t", b"k"), "1", "1", key, 0.0)
        for key in keys
    }
    content = encode_refetches(StoredRefetches(rows))
    replace_file(refetches_path(folder, "cache"), content)


def test_a_later_run_has_a_higher_number_although_the_clock_was_set_back(
    begun, store, clock
):
    """
    Otherwise a reader would continue to use the records of the earlier run.
    """
    begun().publish(PROGRESS)
    clock.time = NOW - timedelta(days=1)
    begun().publish(PROGRESS)
    first, second = store.records

    assert second.run == first.run + 1
    assert store.read("cache").record == second


def test_a_run_after_a_drop_has_a_higher_number_than_earlier_runs(
    begun, tmp_path, store, clock
):
    """
    The topic has lost the earlier number, so the new one is derived from the time.
    """
    begun().publish(PROGRESS)
    (first,) = store.records
    clock.time = NOW + timedelta(seconds=1)
    other = MemoryProgress(clock)
    SinkRun(tmp_path, "cache", other, clock).publish(PROGRESS)

    assert other.records[0].run == first.run + 1000


def test_a_run_after_a_drop_and_a_clock_set_back_is_above_the_dropped_run(
    begun, store, clock
):
    """
    Readers ignore late records of the dropped run and of all runs below it.
    """
    begun().publish(PROGRESS)
    store.drop("cache")
    clock.time = NOW - timedelta(days=1)
    begun().publish(PROGRESS)
    first, second = store.records

    assert second.run == first.run + 1
    assert store.read("cache").record == second


def test_a_driver_takes_over_from_one_that_ended(tmp_path, store, clock):
    """
    While both run, readers follow the one that began last, and the other one logs it.
    """
    first, second = (
        ProgressPublisher(tmp_path / name, "cache", store, clock) for name in "ab"
    )
    with capture_logs() as logs:
        for publisher in (first, second, first, first):
            publisher.begin()
            publisher.publish(PROGRESS, Activity())
    followed = store.read("cache").record.run
    second.end(PROGRESS)
    first.begin()
    first.publish(PROGRESS, Activity())
    runs = [record.run for record in store.records]

    assert [0, 1, 0, 0, 1, 2] == [run - runs[0] for run in runs]
    assert followed == runs[1]
    assert ["sink also run by another driver: readers follow that run"] == [
        entry["event"] for entry in logs
    ]


def test_nothing_is_published_before_the_number_of_the_run_is_known(
    tmp_path, store, clock
):
    """
    A Kafka outage is logged once; the sink continues to run.
    """
    publisher = ProgressPublisher(tmp_path, "cache", store, clock)
    store.is_unreachable = True
    with capture_logs() as logs:
        for _ in range(2):
            publisher.begin()
            publisher.publish(PROGRESS, Activity())
    store.is_unreachable = False
    publisher.begin()
    publisher.publish(PROGRESS, Activity())

    assert [0] == [record.number for record in store.records]
    assert ["sink progress topic not read: retrying"] == [
        entry["event"] for entry in logs
    ]


def test_nothing_is_published_without_the_files_that_belong_to_it(
    begun, tmp_path, store
):
    """
    A record that left out a pending refetch would promise rows that are missing.
    """
    run = begun()
    run.publish(PROGRESS)
    replace_file(refetches_path(tmp_path, "cache"), b"{")
    with capture_logs() as logs:
        run.publish(PROGRESS)

    assert (1, ["warning"]) == (
        len(store.records),
        [entry["log_level"] for entry in logs],
    )


def test_refetches_are_numbered_as_they_begin(begun, tmp_path, store):
    """
    A reader waits for refetches below the next number, and not for those begun later.
    """
    run = begun()
    for keys in [(), ("a",), ("a", "b"), ("b", "c"), ("c",), ()]:
        store_refetches(tmp_path, *keys)
        run.publish(PROGRESS)
    found = [(one.refetches.next, one.refetches.oldest) for one in store.records]

    assert [(0, None), (1, 0), (2, 0), (3, 1), (3, 2), (3, None)] == found
    assert [False, True, True, True, False, False] == [
        one.refetches.has_any_below(2) for one in store.records
    ]


def test_a_record_shows_missing_rows_of_the_sink(begun, tmp_path, store):
    """
    A sink that is being filled, or has lost rows, has less than its offsets suggest.
    """
    run, folder = begun(), sink_folder(tmp_path, "cache")
    replace_file(folder / STARTING_OFFSETS_FILE, b"{}")
    incomplete.begin(tmp_path, "cache", "orders", "repair-1")
    run.publish(PROGRESS)
    replace_file(folder / READY_FILE, b"")
    incomplete.end(tmp_path, "cache", "orders", "repair-1")
    run.publish(PROGRESS, is_writing=True)

    assert [(True, ("orders",), False), (False, (), True)] == [
        (one.is_filling, one.unfilled, one.is_writing) for one in store.records
    ]


def test_lost_rows_are_published_immediately_and_once(tmp_path, store, clock):
    """
    A loss noticed between two batches is published before the next regular record.
    """
    publisher = ProgressPublisher(tmp_path, "cache", store, clock)
    publisher.begin()
    publisher.publish(PROGRESS, Activity())
    for _ in range(2):
        publisher.publish(PROGRESS, Activity(), only_if_changed=True)
        incomplete.begin(tmp_path, "cache", "orders", "repair-1")
    publisher.publish(PROGRESS, Activity(), only_if_changed=True)

    assert [(), ("orders",)] == [one.unfilled for one in store.records]


def test_nothing_follows_the_end_of_a_run(begun, store):
    """
    A batch that a stopping driver abandoned may still complete.
    """
    run = begun()
    run.publish(PROGRESS)
    run.end()
    run.publish(PROGRESS)

    assert [True, False] == [record.is_running for record in store.records]

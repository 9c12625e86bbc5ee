"""Snapshot statistics, derived from the driver's effects and their outcomes."""

from typing import Self

import pytest

from support.relay_bench import bench_settings
from towpath.relay.kafka import lineage
from towpath.relay.kafka.lineage import RelayDatasets, SnapshotRuns
from towpath.relay.snapshot.protocol import (
    KeysStored,
    SaveProgress,
    SignalStored,
    StoreKeys,
    StoreSignal,
    UnfinishedRead,
)
from towpath.relay.snapshot.stored import StoredTable
from towpath.relay.stats import SnapshotProgress, Stats
from towpath.relay.stream.snapshot_runner import OTHER, SnapshotStats
from towpath.schemas.clock import SystemClock


class StoppedClock(SystemClock):
    """A clock that always shows the same time."""

    def monotonic_s(self) -> float:
        return 77.0


def table(name: str = "shop.line", state: str = "planned", **more) -> StoredTable:
    """Make a table of the snapshot s1."""
    return StoredTable("s1", name, 0, state, 16_384, **more)


def snapshot_stats(stats: Stats) -> SnapshotStats:
    """Make the snapshot statistics of a connection."""
    return SnapshotStats(stats, StoppedClock())


def accepted(stats: Stats, *tables: StoredTable) -> SnapshotStats:
    """Make statistics after a signal with these tables has been stored."""
    made = snapshot_stats(stats)
    made.observe(StoreSignal("s1", "accepted", {}, tables))
    made.observe(SignalStored("s1", is_new=True))
    return made


def test_the_tables_in_each_state_are_counted():
    """
    Rows, dropped rows and the start time are shown, too.
    """
    stats = Stats(tables=("shop.line", "shop.item"))
    made = accepted(stats, table(), table("shop.item"))
    seen = [stats.snapshot]
    for progress in (
        table(state="running"),
        table(state="running", rows=10, dropped=2),
        table(state="completed", rows=15, dropped=3),
    ):
        made.observe(SaveProgress(1, progress))
        seen.append(stats.snapshot)

    assert (
        [
            SnapshotProgress(2, 0, 0, 0, 0, 0, {}, None),
            SnapshotProgress(1, 1, 0, 0, 0, 0, {}, 77.0),
            SnapshotProgress(1, 1, 0, 0, 0, 0, {"shop.line": 10}, 77.0),
            SnapshotProgress(1, 0, 1, 0, 0, 0, {"shop.line": 15}, None),
        ],
        3,
    ) == (seen, stats.snapshot_dropped_rows)


def test_an_already_answered_signal_counts_nothing():
    """
    A signal streamed again after a crash starts nothing, so no table waits.
    """
    stats = Stats()
    made = snapshot_stats(stats)
    made.observe(StoreSignal("s1", "accepted", {}, (table(),)))
    made.observe(SignalStored("s1", is_new=False))

    assert stats.snapshot is None


def test_refused_and_stopped_tables_are_counted_once():
    """
    A refused table counts as failed, a stopped one as stopped.
    """
    stats = Stats()
    made = accepted(stats, table(), table("shop.none", "failed"))
    made.observe(StoreSignal("s2", "completed", {}, (), (table(state="stopped"),)))
    made.observe(SignalStored("s2", is_new=True))
    made.observe(SaveProgress(1, table(state="stopped")))

    assert SnapshotProgress(0, 0, 0, 1, 1, 0, {}, None) == stats.snapshot


def test_a_resumed_snapshot_continues_its_counts():
    """
    After a reconnect, open tables are counted again, and ended ones are not forgotten.
    """
    stats = Stats()
    made = accepted(stats, table(), table("shop.item"))
    made.observe(SaveProgress(1, table(state="completed")))
    tables = (table(state="completed"), table("shop.item", "running", dropped=4))
    made = snapshot_stats(stats)
    made.observe(UnfinishedRead(tables))
    made.observe(SaveProgress(2, table("shop.item", "running", dropped=5)))

    assert (SnapshotProgress(0, 1, 1, 0, 0, 0, {}, 77.0), 1) == (
        stats.snapshot,
        stats.snapshot_dropped_rows,
    )


def test_a_table_that_is_read_again_does_not_lower_the_dropped_rows():
    """
    Its own count begins at zero again, and the metric is a counter.
    """
    stats = Stats()
    made = accepted(stats, table())
    for dropped in (5, 0, 2):
        made.observe(SaveProgress(1, table(state="running", dropped=dropped)))

    assert 7 == stats.snapshot_dropped_rows


def test_incomplete_tables_are_counted_after_a_reconnect():
    """
    A table with dead letters is not forgotten with the connection that read it.
    """
    stats = Stats()
    accepted(stats, table()).observe(SaveProgress(1, table(state="incomplete")))
    snapshot_stats(stats).observe(UnfinishedRead((table("shop.item"),)))

    assert SnapshotProgress(1, 0, 0, 0, 0, 0, {}, None, 1) == stats.snapshot


def test_rows_of_uncaptured_tables_share_one_label():
    """
    Labels are limited to the captured tables, whatever tables a signal names.
    """
    stats = Stats(tables=("shop.line",))
    made = snapshot_stats(stats)
    made.observe(StoreKeys("s1", (table("outbox.order"),), 9))
    made.observe(KeysStored("s1"))
    made.observe(SaveProgress(1, table("outbox.order", "running", rows=3)))

    assert {OTHER: 3} == stats.snapshot.rows


def test_rows_of_uncaptured_tables_are_summed():
    """
    Their label has the sum of their latest row counts, even in the next session.
    """
    stats = Stats(tables=("shop.line",))
    made = accepted(stats, table("a.b"), table("c.d"), table())
    seen = []
    for name, rows in (("a.b", 3), ("c.d", 10), ("a.b", 5), ("shop.line", 7)):
        made.observe(SaveProgress(1, table(name, "running", rows=rows)))
        seen.append(stats.snapshot.rows[OTHER])
    made = snapshot_stats(stats)
    made.observe(UnfinishedRead((table("c.d", "running", rows=12),)))

    assert [3, 13, 15, 15] == seen
    assert {OTHER: 17, "shop.line": 7} == stats.snapshot.rows


def test_the_reason_to_yield_is_logged_once():
    """
    Each reason is logged the first time; afterwards only the metric changes.
    """
    records: list[tuple[str, str]] = []
    stats = Stats(on_first=lambda *first: records.append(first))
    known = []
    for reason in ("behind", "behind", "", "behind", "busy"):
        stats.snapshots_yield(reason)
        known.append(stats.yielding)

    assert ["behind", "behind", "", "behind", "busy"] == known
    assert ["behind", "busy"] == [reason for _, reason in records]


def test_a_paused_table_neither_waits_nor_runs():
    """
    A paused table needs a signal to continue, unlike one that waits for its turn.
    """
    stats = Stats()
    made = accepted(stats, table(), table("shop.item"))
    made.observe(SaveProgress(1, table(state="running")))
    made.observe(StoreSignal("s2", "completed", {}, (), (table(state="paused"),)))
    made.observe(SignalStored("s2", is_new=True))

    assert (1, 0, 1) == (
        stats.snapshot.waiting,
        stats.snapshot.running,
        stats.snapshot.paused,
    )


class RecordedRuns:
    """A reporter that records the events of its runs with the name of the job."""

    def __init__(self):
        self.events = []

    def start(self, job):
        """Record the start of a run."""
        self.events.append((job.name, "START"))
        return RecordedRun(job.name, self.events)

    def close(self):
        """Do nothing."""


class RecordedRun:
    """A run that records its end."""

    def __init__(self, name, events):
        self._name = name
        self._events = events

    def end(self, failure=None, *, is_aborted=False):
        """Record the end of the run."""
        self._events.append((self._name, "ABORT" if is_aborted else failure))


def test_each_table_of_a_snapshot_is_a_run_for_catalogs():
    """
    A waiting table has no run yet; an unfinished run is aborted when the relay stops.
    """
    reporter = RecordedRuns()
    runs = SnapshotRuns(reporter, RelayDatasets(bench_settings(1, rows={}), {}, ()))
    stats = SnapshotStats(Stats(), StoppedClock(), runs.take)
    names = ("a.done", "a.broken", "a.stopped", "a.small", "a.left", "a.waits")
    stats.observe(UnfinishedRead(tuple(map(table, names))))
    for name in (*names[:3], names[4]):
        for _ in range(2):
            stats.observe(SaveProgress(1, table(name, "running")))
    stats.observe(SaveProgress(1, table("a.done", "completed")))
    stats.observe(SaveProgress(1, table("a.broken", "failed", error="it is gone")))
    stats.observe(SaveProgress(1, table("a.stopped", "stopped")))
    stats.observe(SaveProgress(1, table("a.small", "completed")))
    runs.close()
    runs.close()

    begun = ("a.done", "a.broken", "a.stopped", "a.left")
    assert [*((job(name), "START") for name in begun)] == reporter.events[:4]
    assert [
        (job("a.done"), None),
        (job("a.broken"), "it is gone"),
        (job("a.stopped"), "ABORT"),
        (job("a.small"), "START"),
        (job("a.small"), None),
        (job("a.left"), "ABORT"),
    ] == reporter.events[4:]


def job(name: str) -> str:
    """Return the name of a table's job."""
    return f"towpath.snapshot.{name}"


@pytest.mark.parametrize(
    ("target", "topic"),
    [(None, "event.order"), ("search", "event.order.backfill.search")],
)
def test_a_snapshot_of_a_view_writes_the_topic_of_its_events(
    target: str | None, topic: str
):
    """
    The collection is not a table: it has neither columns nor a topic of its own.
    """
    view = {"aggregate_type": "order", "view": "shop.order_state"}
    outbox = {"topic": "event.{aggregate_type}", "view": [view]}
    settings = bench_settings(1, outbox=outbox)
    datasets = RelayDatasets(settings, {"dbname": "db"}, ())
    job = datasets.snapshot_job(table("outbox.order", target=target))
    inputs, outputs = job.datasets()

    assert (["db.shop.order_state"], [topic]) == (
        [each.name.name for each in inputs],
        [each.name.name for each in outputs],
    )


class ListedTopics:
    """A reader of a cluster with topics of several kinds."""

    def __init__(self, _kafka: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def partition_counts(self) -> dict[str, int]:
        """Return one partition for each topic."""
        names = ("order", "order.backfill.search", "towpath.message", "towpath.a.b")
        return dict.fromkeys((*names, "__consumer_offsets"), 1)


def test_a_topic_with_a_different_use_is_not_an_event_topic(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    This holds even if the template of event topics is only the aggregate type.
    """
    monkeypatch.setattr(lineage, "TopicReader", ListedTopics)
    monkeypatch.setattr(lineage, "read_announced_tables", lambda *_: {})
    settings = bench_settings(1, outbox={"topic": "{aggregate_type}"})
    datasets = RelayDatasets(settings, {"dbname": "db"}, ("a.b",)).read()

    assert ["order"] == [each.name.name for each in datasets.outputs]

"""
A sink's report: its progress file across restarts, and the metrics derived from it.
"""

import resource
import shutil
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest
from structlog.testing import capture_logs

from support.exposition import mistakes
from support.published import MemoryProgress, SinkRun
from support.waiting import TIMEOUT_S
from towpath.schemas.lineage import Job, JobDatasets
from towpath.settings import Settings, Sink
from towpath.sinks.apply.batch import BatchResult
from towpath.sinks.engine.lineage import SinkRuns
from towpath.sinks.engine.metrics import MetricsPort
from towpath.sinks.engine.monitor import EngineListener, Monitor
from towpath.sinks.engine.report import Report
from towpath.sinks.errors import BrokerUnavailableError, MetricsPortError
from towpath.sinks.state.progress import (
    Progress,
    State,
    progress_path,
    replace_file,
    sink_folder,
    stored_progress,
    write_progress,
)
from towpath.sinks.state.published import PublishedVerification

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOPIC = "towpath.shop.orders"
POSITION = "0000000000000100.0000000001"
RESULT = BatchResult(
    records=9,
    rows=5,
    stale=2,
    dead_letters=1,
    skipped=1,
    refetches_requested=4,
    nulled=6,
    parked=3,
    pending_refetches=8,
    tombstones=2,
    position=POSITION,
    decode_ms=1,
    apply_ms=20,
    flush_ms=300,
)
SINK = Sink.model_validate(
    {
        "name": "cache",
        "kind": "cache",
        "url": "redis://unused",
        "route": [{"topic": TOPIC, "name": "orders"}],
    }
)
SETTINGS = Settings.model_validate(
    {
        "version": 1,
        "source": [{"dsn": "postgresql://unused/shop"}],
        "kafka": {"bootstrap_servers": "unused"},
        "registry": {"url": "http://unused"},
    }
)


class Clock:
    """A clock that stands still."""

    def now(self):
        """Return a fixed time."""
        return NOW

    def monotonic_s(self):
        """Return a fixed time."""
        return 0.0

    def wait(self, _delay_s):
        """Return immediately."""


class Cluster:
    """One topic with some records, or an unavailable broker."""

    def __init__(self, end):
        self.end = end

    def names(self):
        """List the topic."""
        if self.end is None:
            message = "Kafka does not answer"
            raise BrokerUnavailableError(message)
        return [TOPIC]

    def end_offsets(self, names):
        """Return its end."""
        return {name: {"0": self.end} for name in names}


class Oldest:
    """Reports the same age for every record."""

    def __init__(self, age_s):
        self.age_s = age_s

    def oldest_ms(self, _offsets):
        """Return the time of every record."""
        return round((NOW.timestamp() - self.age_s) * 1000)


@pytest.fixture
def cluster():
    """Return the monitor's cluster."""
    return Cluster(9)


@pytest.fixture
def oldest():
    """Return the monitor's reader of the ages of records."""
    return Oldest(25.0)


@pytest.fixture
def store():
    """Return the store to which the monitor publishes."""
    return MemoryProgress(Clock())


@pytest.fixture
def monitor(cluster, oldest, store):
    """Return a monitor that has not been started."""
    made = Monitor(cluster, oldest, store, Clock())
    yield made
    made.close()


def values(page: bytes) -> dict[str, float]:
    """Read the page's samples."""
    lines = (line for line in page.decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines)}


def test_sink_counters_continue_across_restarts(tmp_path):
    """
    A batch's counts are added to those on disk; parked keys are a gauge.
    """
    for end in (9, 18):
        Report(tmp_path, "cache", Clock()).done(RESULT, {TOPIC: {"0": end}}, 330)
    read = stored_progress(progress_path(tmp_path, "cache"), "cache")

    assert (18, 10, 4, 2, 2, 8, 4, 3, 2, POSITION) == (
        *(read.records, read.rows, read.stale, read.dead_letters, read.skipped),
        *(read.asked, read.tombstones, read.parked, read.batches, read.position),
    )
    assert {"decode": 1, "apply": 20, "flush": 300} == read.last_stages_ms


def test_a_batch_that_the_engine_repeats_is_counted_once(tmp_path):
    """
    For example, its report was stored, but the copies of the state were not.
    """
    for _ in range(2):
        Report(tmp_path, "cache", Clock()).done(RESULT, {TOPIC: {"0": 9}}, 330)
    read = stored_progress(progress_path(tmp_path, "cache"), "cache")

    assert (9, 5, 2, 1, 3) == (
        *(read.records, read.rows, read.stale, read.batches, read.parked),
    )


def test_counts_that_only_the_repeated_batch_has_are_added(tmp_path):
    """
    Only the attempt that writes a dead letter or a request counts it.
    """
    report, applied = Report(tmp_path, "cache", Clock()), {TOPIC: {"0": 9}}
    for result in (BatchResult(9, 9, 0, 0), RESULT):
        report.done(result, applied, 1)
    found = report.progress

    assert (9, 9, 1, 4) == (found.records, found.rows, found.dead_letters, found.asked)


def test_a_first_batch_without_records_is_counted(tmp_path):
    """
    A new sink has applied its starting offsets; the batch shows that it has run.
    """
    started = Progress(sink="cache", applied={TOPIC: {"0": 9}})
    write_progress(progress_path(tmp_path, "cache"), started)
    report = Report(tmp_path, "cache", Clock())
    for _ in range(2):
        report.done(BatchResult(0, 0, 0, 0), started.applied, 1)

    assert 1 == report.progress.batches


def test_the_sinks_position_never_goes_back(tmp_path):
    """
    A repeated batch, or one with only older rows, keeps the highest position.
    """
    report = Report(tmp_path, "cache", Clock())
    report.done(RESULT, {}, 1)
    older = BatchResult(1, 0, 1, 0, position="0000000000000008.-")
    report.done(older, {}, 1)

    assert POSITION == report.progress.position


def test_a_lost_progress_file_is_rebuilt_from_the_checkpoint(tmp_path):
    """
    The newest batch that the engine has committed counts, not one that it has begun.
    """
    checkpoint = sink_folder(tmp_path, "cache") / "checkpoint"
    for batch, offset in ((9, 90), (10, 100), (11, 110)):
        text = f'v1\n{{}}\n{{"{TOPIC}":{{"0":{offset}}}}}'
        replace_file(checkpoint / "offsets" / str(batch), text.encode())
    for batch in (9, 10):
        replace_file(checkpoint / "commits" / str(batch), b"v1")
    report = Report(tmp_path, "cache", Clock())
    report.starting()

    assert {TOPIC: {"0": 100}} == report.progress.applied


@pytest.mark.parametrize("content", [b"", b"v1\n{", b"\0" * 64])
def test_a_broken_checkpoint_does_not_keep_a_sink_from_starting(tmp_path, content):
    """
    A machine crash may leave an empty file; the recovery runs after this report.
    """
    checkpoint = sink_folder(tmp_path, "cache") / "checkpoint"
    replace_file(checkpoint / "offsets" / "0", content)
    replace_file(checkpoint / "commits" / "0", b"v1")
    report = Report(tmp_path, "cache", Clock())
    report.starting()

    assert ({}, State.STARTING) == (report.progress.applied, report.progress.state)


def test_a_failure_counts_as_a_retry(tmp_path):
    """
    State and reason are shown until a batch is written.
    """
    report = Report(tmp_path, "cache", Clock())
    report.failed("Redis does not answer.", remedy="Start it.", retry_after_s=1)
    failed = report.progress
    report.done(RESULT, {}, 1)

    assert (State.FAILED, "Redis does not answer. Start it.", 1, None, 1) == (
        *(failed.state, failed.error, failed.retries),
        *(report.progress.error, report.progress.retries),
    )


def test_progress_of_a_different_version_is_read(tmp_path):
    """
    Unknown fields are ignored; missing ones have their defaults.
    """
    text = b'{"sink": "cache", "state": "ready", "rows": 7, "invented": [1]}'
    replace_file(progress_path(tmp_path, "cache"), text)
    read = stored_progress(progress_path(tmp_path, "cache"), "cache")

    assert (State.READY, 7, 0) == (read.state, read.rows, read.retries)


def test_the_metrics_page_shows_the_sinks_work(monitor, tmp_path):
    """
    It has counters, the lag and its budget, the state, and the stages of batches.
    """
    report = monitor.report(tmp_path, SINK)
    unknown = values(monitor.metrics.page())
    report.done(RESULT, {TOPIC: {"0": 4}}, 330)
    monitor.check()
    metrics = values(monitor.metrics.page())
    label = '{sink="cache"}'

    assert f"towpath_sink_lag_seconds{label}" not in unknown
    assert f"towpath_sink_applied_lsn_bytes{label}" not in unknown
    assert {
        "lag_records": 5,
        "lag_seconds": 25,
        "lag_alarm": 1,
        "budget_seconds": 10,
        "applied_lsn_bytes": 256,
        "parked_keys": 3,
        "pending_refetches": 8,
        "rows_total": 5,
        "records_total": 9,
        "stale_total": 2,
        "tombstones_total": 2,
        "dead_letters_total": 1,
        "skipped_total": 1,
        "asked_total": 4,
        "nulled_total": 6,
        "retries_total": 0,
        "batches_total": 1,
    } == {
        name: metrics[f"towpath_sink_{name}{label}"]
        for name in (
            *("lag_records", "lag_seconds", "lag_alarm", "budget_seconds"),
            *("applied_lsn_bytes", "parked_keys", "pending_refetches"),
            *(
                "rows_total",
                "records_total",
                "stale_total",
                "tombstones_total",
                "dead_letters_total",
            ),
            *("skipped_total", "asked_total", "nulled_total", "retries_total"),
            "batches_total",
        )
    }
    assert (1, 0, 0.3, 0.33) == (
        metrics['towpath_sink_state{sink="cache",state="running"}'],
        metrics['towpath_sink_state{sink="cache",state="failed"}'],
        metrics['towpath_sink_batch_seconds_sum{sink="cache",stage="flush"}'],
        metrics['towpath_sink_batch_seconds_sum{sink="cache",stage="batch"}'],
    )


def test_the_page_shows_the_time_from_commit_to_applied(monitor, tmp_path):
    """
    Each batch with a known oldest record counts: as 0 if the source's clock is ahead.
    """
    report = monitor.report(tmp_path, SINK)
    now_ms = round(NOW.timestamp() * 1000)
    for oldest_ms in (now_ms - 4_000, None, now_ms + 60_000):
        report.done(RESULT, {}, 1, oldest_ms)
    shown = values(monitor.metrics.page())
    latency = "towpath_sink_commit_to_applied_seconds"

    assert (2, 4.0, 1, 2) == (
        shown[latency + '_count{sink="cache"}'],
        shown[latency + '_sum{sink="cache"}'],
        shown[latency + '_bucket{le="2.5",sink="cache"}'],
        shown[latency + '_bucket{le="5.0",sink="cache"}'],
    )


def test_pending_refetches_remain_until_a_batch_changes_them(tmp_path):
    """
    A batch in slices completes no refetches, and does not report their number.
    """
    report = Report(tmp_path, "cache", Clock())
    pending = []
    for reported in (8, None, 0, None):
        report.done(replace(RESULT, pending_refetches=reported), {}, 1)
        stored = stored_progress(progress_path(tmp_path, "cache"), "cache")
        pending.append(stored.pending_refetches)

    assert [8, 8, 0, 0] == pending


def test_the_page_of_sinks_matches_the_metric_registry(monitor, tmp_path):
    """
    Each metric has its registered kind, labels and meaning; there are no others.
    """
    monitor.report(tmp_path, SINK)
    monitor.metrics.batch("cache", {"apply": 1.0})
    monitor.metrics.engine("cache", {"addBatch": 1.0})
    monitor.metrics.applied("cache", 1.0)

    assert [] == mistakes(monitor.metrics.page().decode(), ("towpath_sink_",))


def test_a_lag_alarm_is_logged_when_it_begins_and_when_it_ends(
    monitor, oldest, tmp_path
):
    """
    D-11: above twice the budget, one warning is logged; back within it, one all-clear.
    """
    monitor.report(tmp_path, SINK)
    with capture_logs() as logs:
        for age_s in (20, 21, 22, 12, 9, 9):
            oldest.age_s = age_s
            monitor.check()

    assert [("warning", 21.0), ("info", 9.0)] == [
        (entry["log_level"], entry["lag_s"]) for entry in logs
    ]


def test_an_unknown_lag_is_not_shown(monitor, cluster, tmp_path):
    """
    While the broker is unavailable, no lag is shown, and this is logged once.
    """
    monitor.report(tmp_path, SINK)
    monitor.check()
    cluster.end = None
    with capture_logs() as logs:
        monitor.check()
        monitor.check()
    metrics = values(monitor.metrics.page())

    assert ["sink lag unknown: retrying"] == [entry["event"] for entry in logs]
    assert 'towpath_sink_lag_seconds{sink="cache"}' not in metrics


class FadingLag:
    """A watched sink whose lag becomes unknown each time it is read."""

    def __init__(self, watched):
        self._watched = watched

    def __getattr__(self, name):
        return getattr(self._watched, name)

    @property
    def lag(self):
        """Return the lag, and forget it."""
        lag, self._watched.lag = self._watched.lag, None
        return lag


def test_a_lag_that_becomes_unknown_during_a_request_does_not_fail_it(
    monitor, tmp_path
):
    """
    The monitor's thread writes the lag while the thread of a request reads it.
    """
    monitor.report(tmp_path, SINK)
    monitor.check()
    sinks = monitor.metrics.sinks
    sinks["cache"] = FadingLag(sinks["cache"])
    metrics = values(monitor.metrics.page())

    assert 25.0 == metrics['towpath_sink_lag_seconds{sink="cache"}']
    assert 'towpath_sink_lag_records{sink="cache"}' not in metrics


def test_a_run_is_open_once_it_has_compared_its_offsets(monitor, store, tmp_path):
    """
    Until then, its offsets are those of an earlier run; a restart closes it again.
    """
    report = monitor.report(tmp_path, SINK)
    report.starting()
    monitor.check()
    report.running()
    report.done(RESULT, {TOPIC: {"0": 9}}, 330)
    report.failed("Redis does not answer.", remedy="Start it.", retry_after_s=1)
    report.starting()
    monitor.forget("cache")

    assert [
        ("starting", False, True),
        ("running", True, True),
        ("running", True, True),
        ("failed", True, True),
        ("starting", False, True),
        ("starting", False, False),
    ] == [(one.progress.state, one.is_open, one.is_running) for one in store.records]
    done = store.records[2]
    assert ({TOPIC: {"0": 9}}, NOW.isoformat()) == (
        done.applied,
        done.progress.updated_at,
    )


def test_a_batch_that_cannot_be_published_is_counted(monitor, store, tmp_path):
    """
    The sink continues; the next record includes everything that the lost one did.
    """
    report = monitor.report(tmp_path, SINK)
    monitor.check()
    store.is_unreachable = True
    report.done(RESULT, {TOPIC: {"0": 9}}, 330)
    lost = values(monitor.metrics.page())
    store.is_unreachable = False
    monitor.check()

    assert 1 == lost['towpath_sink_unpublished_total{sink="cache"}']
    assert 9 == store.records[-1].progress.records


def test_the_page_shows_when_each_sink_last_published(monitor, store, tmp_path):
    """
    Sinks of other drivers are shown too; a driver without sinks shows none.
    """
    SinkRun(tmp_path, "other", store, Clock()).publish(Progress("other"))
    silent = values(monitor.metrics.page())
    monitor.report(tmp_path, SINK).starting()
    monitor.check()
    heard = values(monitor.metrics.page())
    monitor.forget("cache")
    published = "towpath_sink_published_timestamp_seconds"
    labels = ['{sink="cache"}', '{sink="other"}']

    assert [] == [name for name in silent if name.startswith(published)]
    assert [NOW.timestamp()] * 2 == [heard[published + label] for label in labels]
    assert published + labels[1] not in values(monitor.metrics.page())


def test_the_page_shows_the_free_space_of_the_state_folder(monitor, tmp_path):
    """
    It is the free space for the sink's own folder, once that folder exists.
    """
    report = monitor.report(tmp_path, SINK)
    free = 'towpath_sink_state_free_bytes{sink="cache"}'
    before = values(monitor.metrics.page())
    report.starting()
    found = values(monitor.metrics.page())[free]

    assert free not in before
    assert found == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)


def test_the_page_shows_the_last_verification(monitor, store, tmp_path):
    """
    A sink that was never verified has no value, because zero would be a result.
    """
    monitor.report(tmp_path, SINK).starting()
    never = values(monitor.metrics.page())
    ended = datetime(2026, 1, 2, tzinfo=UTC)
    found = PublishedVerification("cache", ended.isoformat(), 3, 100)
    store.verifications["cache"] = found
    shown = values(monitor.metrics.page())

    assert not [name for name in never if "verif" in name]
    assert (3, ended.timestamp()) == (
        shown['towpath_sink_verify_differences{sink="cache"}'],
        shown['towpath_sink_verified_timestamp_seconds{sink="cache"}'],
    )


class RecordedRuns:
    """A reporter of runs that records what happens."""

    def __init__(self):
        self.events = []

    def start(self, job):
        """Begin a run."""
        self.events.append(job.name)
        return self

    def end(self, failure=None, *, is_aborted=False):
        """End the run."""
        self.events.append(failure or is_aborted)


def test_a_run_of_a_sink_ends_with_its_first_failure(tmp_path):
    """
    A batch written after the failure begins the next run; a stop completes that run.
    """
    kept = RecordedRuns()
    runs = SinkRuns(kept, Job("towpath.sink.cache", "SINK", JobDatasets))
    report = Report(tmp_path, "cache", Clock(), runs=runs)
    report.starting()
    report.running()
    for _ in range(2):
        report.done(RESULT, {}, 1)
    for why in ("Redis does not answer.", "It still does not."):
        report.failed(why, remedy="Start it.", retry_after_s=1)
    report.done(RESULT, {}, 1)
    report.end()
    report.end()

    name = "towpath.sink.cache"
    assert [name, "Redis does not answer.", name, False] == kept.events


def test_a_stopped_sink_is_no_longer_shown(monitor, tmp_path):
    """
    Its metrics are gone, and its folder is not created again.
    """
    monitor.report(tmp_path, SINK).starting()
    monitor.check()
    monitor.forget("cache")
    shutil.rmtree(sink_folder(tmp_path, "cache"))
    monitor.check()

    assert "cache" not in monitor.metrics.page().decode()
    assert [] == list((tmp_path / "sinks").iterdir())


def test_the_duration_of_the_engines_steps_is_measured(monitor, tmp_path):
    """
    Only triggers that ran a batch are counted, and only those of watched sinks.
    """

    class Event:
        """The engine's event of one trigger."""

        def __init__(self, name, **steps):
            self.document = {"name": name, "durationMs": steps, "numInputRows": 0}

        def progress(self):
            """Return itself as the progress."""
            return self

        def json(self):
            """Return it as JSON."""
            return orjson.dumps(self.document).decode()

    monitor.report(tmp_path, SINK)
    listener = EngineListener(monitor.metrics)
    batch = {"addBatch": 120, "walCommit": 30}
    idle = Event("cache", latestOffset=4)
    for event in (Event("cache", **batch), idle, Event("stranger", **batch)):
        listener.onQueryProgress(event)
    metrics = values(monitor.metrics.page())
    name = "towpath_sink_engine_seconds"

    assert {
        f'{name}_sum{{sink="cache",stage="addBatch"}}': 0.12,
        f'{name}_sum{{sink="cache",stage="walCommit"}}': 0.03,
    } == {key: value for key, value in metrics.items() if key.startswith(f"{name}_sum")}


def test_the_metrics_port_serves_only_the_page(monitor, tmp_path):
    """
    Prometheus finds the page on a free port; a second listener is refused.
    """
    monitor.report(tmp_path, SINK)
    port = monitor.start(SETTINGS, "sinks")
    address = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{address}/metrics", timeout=TIMEOUT_S) as response:  # noqa: S310 - our own
        body = response.read()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/etc", timeout=TIMEOUT_S)  # noqa: S310 - our own
    refused.value.close()
    with pytest.raises(MetricsPortError):
        MetricsPort("127.0.0.1", port, bytes)

    assert (404, 10.0) == (
        refused.value.code,
        values(body)['towpath_sink_budget_seconds{sink="cache"}'],
    )


def test_the_metrics_port_listens_on_an_ipv6_address():
    """
    An IPv6 cluster configures ``::``.
    """
    port = MetricsPort("::1", 0, lambda: b"sinks 1\n")
    address = f"http://[::1]:{port.port}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as page:
            assert b"sinks 1\n" == page.read()
    finally:
        port.close()


def write_limit(size):
    """Limit the size of files that this process writes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def full_disk():
    """Return a function that limits the size of written files, as a full disk does."""
    yield write_limit
    write_limit(resource.RLIM_INFINITY)


def test_progress_that_cannot_be_written_is_published(
    monitor, store, tmp_path, full_disk
):
    """
    Every reader sees the sink as failed; once there is space, all counts are stored.
    """
    report = monitor.report(tmp_path, SINK)
    report.running()
    monitor.check()
    path = progress_path(tmp_path, "cache")
    with capture_logs() as logs:
        full_disk(0)
        report.done(RESULT, {TOPIC: {"0": 9}}, 1)
        monitor.check()
        read = store.records[-1]
        full_disk(resource.RLIM_INFINITY)
        monitor.check()
    stored = orjson.loads(path.read_bytes())

    assert (State.FAILED, True, 9) == (
        read.progress.state,
        read.progress.error.startswith("disk full: "),
        read.applied[TOPIC]["0"],
    )
    assert ("running", None, 9) == (
        stored["state"],
        stored["error"],
        stored["records"],
    )
    assert [
        "sink progress not written: retrying",
        "sink progress written again",
    ] == [
        e["event"]
        for e in logs
        if e["event"].startswith("sink ") and "written" in e["event"]
    ]


def test_the_last_record_shows_progress_that_was_not_written(
    monitor, store, tmp_path, full_disk
):
    """
    The sink was stopped while the disk was full: the next driver finds older counts.
    """
    report = monitor.report(tmp_path, SINK)
    report.running()
    monitor.check()
    with capture_logs():
        full_disk(0)
        report.done(RESULT, {TOPIC: {"0": 9}}, 1)
        report.end()
        full_disk(resource.RLIM_INFINITY)
    read = store.records[-1]

    assert (False, State.FAILED, 9) == (
        read.is_running,
        read.progress.state,
        read.progress.applied[TOPIC]["0"],
    )
    assert read.progress.error.startswith("disk full: ")

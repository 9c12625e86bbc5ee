"""
A sink's report: the progress file, over restarts, and the driver's metrics from it.
"""

import resource
import shutil
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from towpath.schemas import telemetry
from towpath.settings import Settings, Sink
from towpath.sinks.apply.batch import BatchResult
from towpath.sinks.engine.metrics import MetricsPort
from towpath.sinks.engine.monitor import EngineListener, Monitor
from towpath.sinks.engine.report import Report
from towpath.sinks.errors import BrokerUnavailableError, MetricsPortError
from towpath.sinks.state.progress import (
    State,
    is_alive,
    progress_path,
    read_progress,
    replace_file,
    sink_folder,
)

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
        """Wait for nothing."""


class Cluster:
    """One topic with some records, or a broker that is away."""

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
    """Every record has the same age."""

    def __init__(self, age_s):
        self.age_s = age_s

    def oldest_ms(self, _places):
        """Return its time."""
        return round((NOW.timestamp() - self.age_s) * 1000)


@pytest.fixture
def cluster():
    """Return the monitor's cluster."""
    return Cluster(9)


@pytest.fixture
def oldest():
    """Return the monitor's reader of records' ages."""
    return Oldest(25.0)


@pytest.fixture
def monitor(cluster, oldest):
    """Return a monitor that is not started."""
    made = Monitor(cluster, oldest, Clock())
    yield made
    made.close()


def values(page: bytes) -> dict[str, float]:
    """Read the page's samples."""
    lines = (line for line in page.decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines)}


def test_sink_counters_continue_over_restarts(tmp_path):
    """
    A batch's counts are added to those on disk; parked keys are a gauge.
    """
    for _ in range(2):
        Report(tmp_path, "cache", Clock()).done(RESULT, {TOPIC: {"0": 9}}, 330)
    read = read_progress(progress_path(tmp_path, "cache"), "cache")

    assert (18, 10, 4, 2, 2, 8, 4, 3, 2, POSITION) == (
        *(read.records, read.rows, read.stale, read.dead_letters, read.skipped),
        *(read.asked, read.tombstones, read.parked, read.batches, read.position),
    )
    assert {"decode": 1, "apply": 20, "flush": 300} == read.last_stages_ms


def test_the_sinks_position_never_goes_back(tmp_path):
    """
    A repeated batch, or one with older rows only, leaves the highest one.
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


def test_progress_of_another_version_is_read(tmp_path):
    """
    Unknown fields are left out, missing ones are empty.
    """
    text = b'{"sink": "cache", "state": "ready", "rows": 7, "invented": [1]}'
    replace_file(progress_path(tmp_path, "cache"), text)
    read = read_progress(progress_path(tmp_path, "cache"), "cache")

    assert (State.READY, 7, 0) == (read.state, read.rows, read.retries)


def test_the_metrics_page_shows_the_sinks_work(monitor, tmp_path):
    """
    Counters, lag against the budget, the state, and the stages of batches.
    """
    report = monitor.report(tmp_path, SINK)
    unknown = values(monitor.metrics.page())
    report.done(RESULT, {TOPIC: {"0": 4}}, 330)
    monitor.check()
    told = values(monitor.metrics.page())
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
        "owed_rows": 8,
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
        name: told[f"towpath_sink_{name}{label}"]
        for name in (
            *("lag_records", "lag_seconds", "lag_alarm", "budget_seconds"),
            *("applied_lsn_bytes", "parked_keys", "owed_rows"),
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
        told['towpath_sink_state{sink="cache",state="running"}'],
        told['towpath_sink_state{sink="cache",state="failed"}'],
        told['towpath_sink_batch_seconds_sum{sink="cache",stage="flush"}'],
        told['towpath_sink_batch_seconds_sum{sink="cache",stage="batch"}'],
    )


def test_pending_refetches_stay_until_a_batch_changes_them(tmp_path):
    """
    A batch in slices settles none of them, and reports none.
    """
    report = Report(tmp_path, "cache", Clock())
    owed = []
    for said in (8, None, 0, None):
        report.done(replace(RESULT, pending_refetches=said), {}, 1)
        owed.append(read_progress(progress_path(tmp_path, "cache"), "cache").owed)

    assert [8, 8, 0, 0] == owed


def test_every_metric_of_sinks_is_shown_and_documented(monitor, tmp_path):
    """
    The page, the published names and their documentation are the same set.
    """
    monitor.report(tmp_path, SINK)
    published = {name for key, name in vars(telemetry).items() if "SINK_" in key}
    lines = monitor.metrics.page().decode().splitlines()
    shown = {line.split()[2] for line in lines if line.startswith("# HELP")}
    text = (Path(__file__).parents[3] / "docs/metrics.md").read_text(encoding="utf-8")

    assert published == shown
    assert [] == [name for name in published if f"`{name}" not in text]


def test_a_lag_alarm_is_logged_when_it_begins_and_when_it_ends(
    monitor, oldest, tmp_path
):
    """
    D-11: above twice the budget one warning is logged, within it one all-clear.
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
    While the broker is unavailable no lag is shown, and that is logged once.
    """
    monitor.report(tmp_path, SINK)
    monitor.check()
    cluster.end = None
    with capture_logs() as logs:
        monitor.check()
        monitor.check()
    told = values(monitor.metrics.page())

    assert ["sink lag unknown: retrying"] == [entry["event"] for entry in logs]
    assert 'towpath_sink_lag_seconds{sink="cache"}' not in told


def test_a_driver_is_alive_until_it_signs_off(monitor, tmp_path):
    """
    A sink's folder shows whether a driver runs it.
    """
    monitor.report(tmp_path, SINK).starting()
    seen = [is_alive(tmp_path, "cache", NOW)]
    monitor.check()
    later = NOW.replace(minute=NOW.minute + 1)
    seen += [is_alive(tmp_path, "cache", NOW), is_alive(tmp_path, "cache", later)]
    monitor.close()

    assert [False, True, False, False] == [*seen, is_alive(tmp_path, "cache", NOW)]


def test_a_stopped_sink_is_not_shown_any_more(monitor, tmp_path):
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
    Triggers with records count, of the watched sinks.
    """

    class Event:
        """The engine's event of one trigger."""

        def __init__(self, name, **steps):
            self.told = {"name": name, "durationMs": steps, "numInputRows": 0}

        def progress(self):
            """Return itself as the progress."""
            return self

        def json(self):
            """Return it as JSON."""
            return orjson.dumps(self.told).decode()

    monitor.report(tmp_path, SINK)
    listener = EngineListener(monitor.metrics)
    batch = {"addBatch": 120, "walCommit": 30}
    idle = Event("cache", latestOffset=4)
    for event in (Event("cache", **batch), idle, Event("stranger", **batch)):
        listener.onQueryProgress(event)
    told = values(monitor.metrics.page())
    name = "towpath_sink_engine_seconds"

    assert {
        f'{name}_sum{{sink="cache",stage="addBatch"}}': 0.12,
        f'{name}_sum{{sink="cache",stage="walCommit"}}': 0.03,
    } == {key: value for key, value in told.items() if key.startswith(f"{name}_sum")}


def test_the_metrics_port_serves_only_the_page(monitor, tmp_path):
    """
    Prometheus finds the page on a free port; a second listener is refused by name.
    """
    monitor.report(tmp_path, SINK)
    port = monitor.start(SETTINGS, "sinks")
    address = f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{address}/metrics", timeout=2) as answer:  # noqa: S310 - our own
        body = answer.read()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/etc", timeout=2)  # noqa: S310 - our own
    refused.value.close()
    with pytest.raises(MetricsPortError):
        MetricsPort("127.0.0.1", port, bytes, bytes)

    assert (404, 10.0) == (
        refused.value.code,
        values(body)['towpath_sink_budget_seconds{sink="cache"}'],
    )


def write_limit(size):
    """Limit the size of files that this process writes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def full_disk():
    """Return a disk that is full until the test frees it."""
    yield write_limit
    write_limit(resource.RLIM_INFINITY)


def test_a_progress_that_cannot_be_written_is_served_by_the_port(
    monitor, tmp_path, full_disk
):
    """
    The sink has failed for a reader that asks; with space all counts are kept.
    """
    report = monitor.report(tmp_path, SINK)
    monitor.start(SETTINGS, "sinks")
    report.running()
    monitor.check()
    path = progress_path(tmp_path, "cache")
    with capture_logs() as logs:
        full_disk(0)
        report.done(RESULT, {TOPIC: {"0": 9}}, 1)
        monitor.check()
        read = read_progress(path, "cache")
        full_disk(resource.RLIM_INFINITY)
        monitor.check()
    stored = orjson.loads(path.read_bytes())

    assert (State.FAILED, True, 9) == (
        read.state,
        read.error.startswith("disk full: "),
        read.applied[TOPIC]["0"],
    )
    assert ("running", None, 9) == (
        stored["state"],
        stored["error"],
        stored["records"],
    )
    assert [
        "sink progress not written: retrying",
        "sink heartbeat not written: retrying",
        "sink progress written again",
    ] == [
        e["event"]
        for e in logs
        if e["event"].startswith("sink ") and "written" in e["event"]
    ]

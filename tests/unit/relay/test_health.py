"""The admin port: pages built from the statistics, with a clock that the test sets."""

from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from support.exposition import mistakes
from support.waiting import TIMEOUT_S
from towpath.relay.admin_http import AdminPages, HealthServer
from towpath.relay.commands.status import (
    RunState,
    read_process_state,
    write_process_state,
)
from towpath.relay.stats import (
    BOUNDS_S,
    OTHER_REASONS,
    STUCK_AFTER_S,
    SlotStats,
    SnapshotProgress,
    Stats,
)
from towpath.relay.wal.transactions import Transaction
from towpath.schemas import telemetry
from towpath.schemas.clock import SystemClock

SECOND_US = 1_000_000


class ManualClock(SystemClock):
    """A clock that always shows ``now_s``, which a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> ManualClock:
    """Make a clock."""
    return ManualClock()


@pytest.fixture
def stats() -> Stats:
    """Make the statistics of a streaming process."""
    return Stats(
        is_streaming=True,
        run_id="mine",
        heartbeat_interval_s=10.0,
        last_turn_at_s=1000.0,
    )


@pytest.fixture
def pages(stats: Stats, clock: ManualClock) -> AdminPages:
    """Make the pages from the statistics."""
    return AdminPages(stats, clock)


def metrics(pages: AdminPages) -> dict[str, dict[tuple[str, ...], float]]:
    """Scrape like Prometheus: return values by name and label values."""
    text = pages.get("/metrics").body.decode()
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            values.setdefault(sample.name, {})[labels] = sample.value
    return values


RELAYS = ("towpath_build_", "towpath_relay_", "towpath_snapshot_")


def fetch(port: int, path: str, address: str = "127.0.0.1") -> tuple[int, bytes]:
    """Request a page from the admin port of this host."""
    connection = HTTPConnection(address, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_each_drop_reason_is_logged_once_but_always_counted():
    """
    The first occurrence of a reason is logged; every one is counted.
    """
    records: list[tuple[str, str]] = []
    stats = Stats(on_first=lambda kind, reason: records.append((kind, reason)))
    for reason in ("a", "a", "b"):
        stats.count_dead_letter(reason)
        stats.skip(reason)

    assert (4, {"a": 2, "b": 1}) == (len(records), dict(stats.dead_letters))


def test_reasons_beyond_the_limit_are_counted_as_other():
    """
    The number of different reasons in the metrics and the log is limited.
    """
    reasons: list[str] = []
    stats = Stats(on_first=lambda _, reason: reasons.append(reason))
    for number in range(1000):
        stats.skip(f"reason {number}")

    assert (101, 900, OTHER_REASONS) == (
        len(stats.skipped),
        stats.skipped[OTHER_REASONS],
        reasons[-1],
    )


def test_ready_needs_the_stream_and_a_heartbeat_of_its_own(
    stats: Stats, clock: ManualClock, pages: AdminPages
):
    """
    The relay is ready once its own heartbeat is streamed back, until the stream ends.
    """
    seen = [pages.get("/health/ready").status]
    stats.heartbeat_seen(7, "other", clock.now_s)
    seen.append(pages.get("/health/ready").status)
    stats.heartbeat_seen(8, "mine", clock.now_s)
    seen.append(pages.get("/health/ready").status)
    stats.is_streaming = False
    seen.append(pages.get("/health/ready").status)
    unready, ready = HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.OK

    assert [unready, unready, ready, unready] == seen


@pytest.mark.parametrize(
    ("age_s", "status"),
    [
        (0.0, HTTPStatus.OK),
        (29.9, HTTPStatus.OK),
        (30.1, HTTPStatus.SERVICE_UNAVAILABLE),
    ],
)
def test_ready_ends_three_intervals_after_the_last_heartbeat(
    stats: Stats,
    clock: ManualClock,
    pages: AdminPages,
    age_s: float,
    status: HTTPStatus,
):
    """
    Two heartbeats may be missed; a third missed one ends readiness.
    """
    stats.heartbeat_seen(1, "mine", clock.now_s)
    clock.now_s += age_s

    assert status == pages.get("/health/ready").status


def test_live_ends_when_the_loop_stops_turning(
    stats: Stats, clock: ManualClock, pages: AdminPages
):
    """
    A stuck loop is not live, but one that is waiting for a connection is.
    """
    stats.last_turn_at_s = clock.now_s
    seen = [pages.get("/health/live").status]
    clock.now_s += STUCK_AFTER_S + 1
    seen.append(pages.get("/health/live").status)
    stats.is_streaming = False
    seen.append(pages.get("/health/live").status)

    assert [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.OK] == seen


def test_the_error_for_an_unknown_page_lists_the_known_pages(pages: AdminPages):
    """
    The response to an unknown path lists the paths that exist.
    """
    response = pages.get("/")

    assert (HTTPStatus.NOT_FOUND, True) == (
        response.status,
        b"/metrics" in response.body,
    )


def test_every_published_metric_of_the_relay_is_shown(
    stats: Stats, clock: ManualClock, pages: AdminPages
):
    """
    With every metric set, the scrape has exactly the registered metrics.
    """
    stats.tables = ("shop.line",)
    stats.dropped_tables = ("shop.gone",)
    stats.slot = SlotStats(
        *(5, 3, 9, "extended"),
        is_active=False,
        inactive_s=4.0,
        is_archive_failing=False,
    )
    stats.snapshot = SnapshotProgress(
        1, 2, 3, 4, 5, 6, {"shop.line": 6}, clock.now_s - 7
    )
    stats.committed(Transaction(1, 8, 8, SECOND_US, b""), 16, 3, 2 * SECOND_US)
    stats.heartbeat_seen(1, "mine", clock.now_s)
    stats.count_dead_letter("a")
    stats.skip("b")
    stats.alter("c")
    page = pages.get("/metrics").body.decode()

    assert [] == mistakes(page, RELAYS)


def test_an_unknown_metric_value_is_left_out(pages: AdminPages):
    """
    Until a slot, heartbeat or transaction has been seen, its metrics are absent.
    """
    names = (
        telemetry.SLOT_RETAINED,
        telemetry.RELAY_HEARTBEAT_AGE,
        telemetry.RELAY_BEHIND,
        telemetry.SNAPSHOT_TABLES,
    )

    assert [] == [name for name in names if name in metrics(pages)]


def test_the_slots_status_is_one_of_four(stats: Stats, pages: AdminPages):
    """
    The status has a gauge for each state, so that an alert can select one.
    """
    stats.slot = SlotStats(
        *(5, 3, None, "lost"),
        is_active=False,
        inactive_s=None,
        is_archive_failing=True,
    )
    values = metrics(pages)

    assert (
        {("reserved",): 0, ("extended",): 0, ("unreserved",): 0, ("lost",): 1},
        False,
        {(): 1},
    ) == (
        values[telemetry.SLOT_STATUS],
        telemetry.SLOT_SAFE in values,
        values[telemetry.SOURCE_ARCHIVE_FAILING],
    )


def test_latencies_are_counted_by_bucket(stats: Stats, pages: AdminPages):
    """
    Times until the acknowledgement use the source's clock, and are never negative.
    """
    stats.source_clock.observe(sent_us=10 * SECOND_US, now_us=15 * SECOND_US)
    stats.settled(10 * SECOND_US, 3, 15 * SECOND_US + 4000)
    stats.settled(11 * SECOND_US, 1, 15 * SECOND_US)
    values = metrics(pages)
    buckets = values[telemetry.RELAY_LATENCY + "_bucket"]

    assert (1, 1, 4, len(BOUNDS_S) + 1, 4) == (
        buckets["0.001",],
        buckets["0.003",],
        buckets["0.005",],
        len(buckets),
        values[telemetry.RELAY_LATENCY + "_count"][()],
    )


def test_the_admin_server_responds_on_this_host_until_it_is_closed(
    stats: Stats, clock: ManualClock
):
    """
    Pages and statuses are served over HTTP; after closing, connections fail.
    """
    server = HealthServer(0, AdminPages(stats, clock))
    seen = [fetch(server.port, "/health/live"), fetch(server.port, "/health/ready")]
    server.close()
    with pytest.raises(ConnectionRefusedError):
        fetch(server.port, "/health/live")

    assert [(200, b"live\n"), (503, b"no heartbeat has come back yet\n")] == seen


def test_the_admin_server_listens_on_an_ipv6_address(stats: Stats, clock: ManualClock):
    """
    In an IPv6 cluster, ``::`` is configured.
    """
    server = HealthServer(0, AdminPages(stats, clock), "::1")
    try:
        assert (200, b"live\n") == fetch(server.port, "/health/live", "::1")
    finally:
        server.close()


def test_a_state_file_that_cannot_be_written_does_not_stop_the_relay(tmp_path: Path):
    """
    A full disk on the relay's machine gives a log record, and no state to show.
    """
    (tmp_path / "relay").write_text("a file instead of the folder")
    with capture_logs() as records:
        write_process_state(tmp_path, "slot", RunState.RUNNING, SystemClock().now())

    assert ["relay state file not written"] == [each["event"] for each in records]
    assert read_process_state(tmp_path, "slot") is None

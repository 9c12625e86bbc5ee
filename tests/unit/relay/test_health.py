"""The admin port: pages told from the tally, by a clock that the test turns."""

from http import HTTPStatus
from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families

from towpath.relay.health import HealthServer, Pages
from towpath.relay.latency import BOUNDS_S
from towpath.relay.tally import (
    OTHER_REASONS,
    STUCK_AFTER_S,
    SlotView,
    SnapshotView,
    Tally,
)
from towpath.relay.wal.sequencer import Transaction
from towpath.schemas import telemetry
from towpath.schemas.clock import SystemClock

SECOND_US = 1_000_000


class TurnedClock(SystemClock):
    """A clock that stands at ``now_s`` until the test turns it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> TurnedClock:
    """Make a clock."""
    return TurnedClock()


@pytest.fixture
def tally() -> Tally:
    """Make the tally of a process that streams."""
    return Tally(
        is_streaming=True, run_id="mine", heartbeat_interval_s=10.0, turned_at_s=1000.0
    )


@pytest.fixture
def pages(tally: Tally, clock: TurnedClock) -> Pages:
    """Make the pages that are told from the tally."""
    return Pages(tally, clock)


def metrics(pages: Pages) -> dict[str, dict[tuple[str, ...], float]]:
    """Scrape as Prometheus does: values by name and label values."""
    text = pages.answer("/metrics").body.decode()
    told: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels.values())
            told.setdefault(sample.name, {})[labels] = sample.value
    return told


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """Ask the admin port of this host for a page."""
    connection = HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_each_reason_is_told_once_and_counted_always():
    """
    The first occurrence of a reason is logged; every one is counted.
    """
    told: list[tuple[str, str]] = []
    tally = Tally(on_first=lambda what, reason: told.append((what, reason)))
    for reason in ("a", "a", "b"):
        tally.bury(reason)
        tally.skip(reason)

    assert (4, {"a": 2, "b": 1}) == (len(told), dict(tally.dead_letters))


def test_reasons_without_end_are_counted_as_others():
    """
    No number of different reasons floods the metrics or the log.
    """
    told: list[str] = []
    tally = Tally(on_first=lambda _, reason: told.append(reason))
    for number in range(1000):
        tally.skip(f"reason {number}")

    assert (101, 900, OTHER_REASONS) == (
        len(tally.skipped),
        tally.skipped[OTHER_REASONS],
        told[-1],
    )


def test_ready_needs_the_stream_and_a_heartbeat_of_its_own(
    tally: Tally, clock: TurnedClock, pages: Pages
):
    """
    Ready begins when this process's own beat comes round, and ends with the stream.
    """
    seen = [pages.answer("/health/ready").status]
    tally.heartbeat_seen(7, "another", clock.now_s)
    seen.append(pages.answer("/health/ready").status)
    tally.heartbeat_seen(8, "mine", clock.now_s)
    seen.append(pages.answer("/health/ready").status)
    tally.is_streaming = False
    seen.append(pages.answer("/health/ready").status)
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
def test_ready_ends_three_intervals_after_the_last_beat(
    tally: Tally, clock: TurnedClock, pages: Pages, age_s: float, status: HTTPStatus
):
    """
    Two beats may be missed; a third is not chance.
    """
    tally.heartbeat_seen(1, "mine", clock.now_s)
    clock.now_s += age_s

    assert status == pages.answer("/health/ready").status


def test_live_ends_when_the_loop_no_longer_turns(
    tally: Tally, clock: TurnedClock, pages: Pages
):
    """
    A loop that stands still is not live; one that waits to be connected is.
    """
    tally.turned_at_s = clock.now_s
    seen = [pages.answer("/health/live").status]
    clock.now_s += STUCK_AFTER_S + 1
    seen.append(pages.answer("/health/live").status)
    tally.is_streaming = False
    seen.append(pages.answer("/health/live").status)

    assert [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.OK] == seen


def test_an_unknown_page_names_the_known_ones(pages: Pages):
    """
    Whoever mistypes a path is told which there are.
    """
    answer = pages.answer("/")

    assert (HTTPStatus.NOT_FOUND, True) == (answer.status, b"/metrics" in answer.body)


def test_every_published_name_of_the_relay_is_shown(
    tally: Tally, clock: TurnedClock, pages: Pages
):
    """
    Once everything was seen, each metric name of the relay stands in the scrape.
    """
    tally.tables = ("shop.line",)
    tally.dropped_tables = ("shop.gone",)
    tally.slot = SlotView(5, 3, 9, "extended", is_active=False, inactive_s=4.0)
    tally.snapshot = SnapshotView(1, 2, 3, 4, 5, 6, {"shop.line": 6}, clock.now_s - 7)
    tally.committed(Transaction(1, 8, 8, SECOND_US, b""), 16, 3, 2 * SECOND_US)
    tally.heartbeat_seen(1, "mine", clock.now_s)
    tally.bury("a")
    tally.skip("b")
    tally.alter("c")
    told = metrics(pages)
    names = {
        name
        for name in vars(telemetry).values()
        if isinstance(name, str)
        and name.startswith(("towpath_relay_", "towpath_snapshot_", "towpath_build_"))
    }
    shown = told.keys() | {name.removesuffix("_count") for name in told}

    assert set() == names - shown


def test_what_is_not_known_is_left_out(pages: Pages):
    """
    Before a slot, a heartbeat or a transaction was seen, nothing claims to be zero.
    """
    names = (
        telemetry.SLOT_RETAINED,
        telemetry.RELAY_HEARTBEAT_AGE,
        telemetry.RELAY_BEHIND,
        telemetry.SNAPSHOT_TABLES,
    )

    assert [] == [name for name in names if name in metrics(pages)]


def test_the_slots_status_is_one_of_four(tally: Tally, pages: Pages):
    """
    The status is a gauge per state, so that an alert can name one.
    """
    tally.slot = SlotView(5, 3, None, "lost", is_active=False, inactive_s=None)
    told = metrics(pages)

    assert (
        {("reserved",): 0, ("extended",): 0, ("unreserved",): 0, ("lost",): 1},
        False,
    ) == (told[telemetry.SLOT_STATUS], telemetry.SLOT_SAFE in told)


def test_latencies_are_counted_by_bound(tally: Tally, pages: Pages):
    """
    From commit to acknowledgement, by the source's clock; never below zero.
    """
    tally.source_clock.observe(sent_us=10 * SECOND_US, now_us=15 * SECOND_US)
    tally.settled(10 * SECOND_US, 3, 15 * SECOND_US + 4000)
    tally.settled(11 * SECOND_US, 1, 15 * SECOND_US)
    told = metrics(pages)
    buckets = told[telemetry.RELAY_LATENCY + "_bucket"]

    assert (1, 1, 4, len(BOUNDS_S) + 1, 4) == (
        buckets["0.001",],
        buckets["0.003",],
        buckets["0.005",],
        len(buckets),
        told[telemetry.RELAY_LATENCY + "_count"][()],
    )


def test_the_server_answers_on_this_host_until_it_is_closed(
    tally: Tally, clock: TurnedClock
):
    """
    Pages and statuses come through HTTP; after closing nobody answers.
    """
    server = HealthServer(0, Pages(tally, clock))
    seen = [fetch(server.port, "/health/live"), fetch(server.port, "/health/ready")]
    server.close()
    with pytest.raises(ConnectionRefusedError):
        fetch(server.port, "/health/live")

    assert [(200, b"live\n"), (503, b"no heartbeat has come round yet\n")] == seen

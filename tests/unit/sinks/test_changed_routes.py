"""A block that has changed since the sink ran: what is named, what is asked for."""

from datetime import UTC, datetime

import orjson
import pytest
import structlog

from towpath.settings import Kafka, Sink
from towpath.sinks import unfilled
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.jobs.query import QueryPlan
from towpath.sinks.jobs.rerouting import BLOCK_FILE, Change, Rerouted, Rerouting

ORDERS = {"topic": "towpath.shop.orders", "name": "orders"}
LINES = {"topic": "towpath.shop.lines", "name": "lines"}
EVENTS = {"topic": "outbox.*", "name": "lake.events", "kind": "event_log"}
CACHE = {"kind": "cache", "url": "redis://me:secret@cache:6379/0"}
HOOK = {
    "kind": "webhook",
    "url": "https://shop/hook",
    "webhook": {"secrets": ["whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"]},
}


class Clock:
    """A clock that stands still."""

    def now(self):
        """Tell a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)


class Repairs:
    """Takes note of what is asked for, unless nobody can be asked."""

    def __init__(self):
        self.asked = []
        self.can = True
        self.fail = False

    def ask_all(self, route, _why):
        """Take note."""
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.asked.append(route)
        return self.can


@pytest.fixture
def repairs():
    """Lend whom to ask."""
    return Repairs()


@pytest.fixture
def run(tmp_path, repairs):
    """Lend a start of the sink with these routes."""

    def start(*routes, **block):
        told = {"name": "s", **CACHE, **block, "route": routes}
        plan = QueryPlan(
            Sink.model_validate(told), Kafka(bootstrap_servers="kafka:9092"), tmp_path
        )
        return Rerouting(plan, repairs, Clock()).run()

    return start


def test_a_new_sink_and_one_that_did_not_change_ask_for_nothing(run, repairs):
    """Whoever adds a sink fills it; a restart is no change."""
    found = [run(ORDERS), run(ORDERS), run(ORDERS, trigger_ms=7, budget_s=3)]

    assert ([(), (), ()], []) == (found, repairs.asked)


@pytest.mark.parametrize(
    "said",
    [
        {"exclude": ["note"]},
        {"include": ["id"]},
        {"rename": {"note": "remark"}},
        {"constants": {"region": "eu"}},
        {"key": "order-{id}"},
        {"topic": "towpath.shop.old_orders"},
    ],
)
def test_a_route_that_says_something_else_is_filled_anew(run, repairs, said):
    """Once; the others are left alone, and the next start finds nothing."""
    run(ORDERS, LINES)
    found = [run(ORDERS | said, LINES), run(ORDERS | said, LINES)]

    assert ([(Change(Rerouted.ROUTE_CHANGED, "orders"),), ()], ["orders"]) == (
        found,
        repairs.asked,
    )


def test_routes_come_and_go(run, repairs, tmp_path):
    """One that came is filled; one that is gone is not waited for any more."""
    run(ORDERS)
    unfilled.begin(tmp_path, "s", "orders", "repair-1")
    found = run(LINES)

    assert (
        (
            Change(Rerouted.ROUTE_ADDED, "lines"),
            Change(Rerouted.ROUTE_REMOVED, "orders"),
        ),
        ["lines"],
        (),
    ) == (found, repairs.asked, unfilled.routes(tmp_path, "s"))


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("redis://other:6379/0", ["orders"]),
        ("redis://cache:6379/1", ["orders"]),
        ("redis://me:another@cache:6379/0", []),
    ],
)
def test_another_target_is_filled_and_another_password_is_none(
    run, repairs, url, asked
):
    """What the old one holds, the new one lacks."""
    run(ORDERS)
    run(ORDERS, url=url)

    assert asked == repairs.asked


def test_a_receiver_that_moves_is_told_nothing_twice(run, repairs):
    """Nobody can read back what it has."""
    run(ORDERS, **HOOK)

    assert ((), []) == (run(ORDERS, **HOOK | {"url": "https://eu/"}), repairs.asked)


def test_no_password_is_written_down(run, tmp_path):
    """The state folder is read by many."""
    run(ORDERS)

    assert b"secret" not in (tmp_path / "sinks/s" / BLOCK_FILE).read_bytes()


def test_what_could_not_be_asked_for_is_asked_for_at_the_next_start(run, repairs):
    """The block counts as taken only then."""
    run(ORDERS)
    repairs.fail = True
    with pytest.raises(BrokerUnavailableError):
        run(ORDERS, LINES)
    repairs.fail = False
    run(ORDERS, LINES)

    assert ["lines"] == repairs.asked


def test_what_nobody_can_fill_is_told_with_its_command(run, repairs, tmp_path):
    """Of an event log there is none; each change can be looked up."""
    warehouse = {"kind": "warehouse", "url": "postgresql://c/w", "folder": "/lake"}
    lines = LINES | {"name": "shop.lines"}
    repairs.can = False
    run(ORDERS | {"name": "shop.orders"}, **warehouse)
    with structlog.testing.capture_logs() as logs:
        run(ORDERS | {"name": "shop.orders"}, lines, EVENTS, **warehouse)
    kept = (tmp_path / "sinks/s/recoveries.jsonl").read_text().splitlines()

    assert (
        [
            "Fill it: towpath sink refill s --route shop.lines",
            "Nothing: events of before cannot be read again.",
        ],
        [("route_added", "shop.lines"), ("route_added", "lake.events")],
    ) == (
        [log["remedy"] for log in logs if log["log_level"] == "error"],
        [(one["outcome"], one["route"]) for one in map(orjson.loads, kept)],
    )

"""A sink's changed block: what is reported, and what is refetched."""

from datetime import UTC, datetime

import orjson
import pytest
import structlog

from towpath.settings import Kafka, Sink
from towpath.sinks.engine.block_changes import (
    BLOCK_FILE,
    BlockChange,
    BlockChangeOutcome,
    BlockChanges,
)
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.state import incomplete

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
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)


class Repairs:
    """Records requests for whole routes; may refuse them or fail."""

    def __init__(self):
        self.requested = []
        self.can_request = True
        self.fail = False

    def request_all(self, route, _why):
        """Record the request."""
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.requested.append(route)
        return self.can_request


@pytest.fixture
def repairs():
    """Return the recorder of refetch requests."""
    return Repairs()


@pytest.fixture
def run(tmp_path, repairs):
    """Return a function that starts the sink with the given routes."""

    def start(*routes, **block):
        values = {"name": "s", **CACHE, **block, "route": routes}
        plan = QueryPlan(
            Sink.model_validate(values), Kafka(bootstrap_servers="kafka:9092"), tmp_path
        )
        return BlockChanges(plan, repairs, Clock()).run()

    return start


def test_an_unchanged_or_new_sink_refetches_nothing(run, repairs):
    """
    A new sink is filled when it is added; a restart is not a change.
    """
    found = [run(ORDERS), run(ORDERS), run(ORDERS, trigger_ms=7, budget_s=3)]

    assert ([(), (), ()], []) == (found, repairs.requested)


@pytest.mark.parametrize(
    "option",
    [
        {"exclude": ["note"]},
        {"include": ["id"]},
        {"rename": {"note": "remark"}},
        {"constants": {"region": "eu"}},
        {"key": "order-{id}"},
        {"topic": "towpath.shop.old_orders"},
    ],
)
def test_a_changed_route_is_refetched(run, repairs, option):
    """
    Only that route is refetched, and the next start finds no change.
    """
    run(ORDERS, LINES)
    found = [run(ORDERS | option, LINES), run(ORDERS | option, LINES)]

    assert (
        [(BlockChange(BlockChangeOutcome.ROUTE_CHANGED, "orders"),), ()],
        ["orders"],
    ) == (
        found,
        repairs.requested,
    )


def test_added_routes_are_filled_and_removed_ones_forgotten(run, repairs, tmp_path):
    """
    A new route is filled; the sink no longer waits for a removed one.
    """
    run(ORDERS)
    incomplete.begin(tmp_path, "s", "orders", "repair-1")
    found = run(LINES)

    assert (
        (
            BlockChange(BlockChangeOutcome.ROUTE_ADDED, "lines"),
            BlockChange(BlockChangeOutcome.ROUTE_REMOVED, "orders"),
        ),
        ["lines"],
        (),
    ) == (found, repairs.requested, incomplete.routes(tmp_path, "s"))


@pytest.mark.parametrize(
    ("url", "requested"),
    [
        ("redis://other:6379/0", ["orders"]),
        ("redis://cache:6379/1", ["orders"]),
        ("redis://me:another@cache:6379/0", []),
    ],
)
def test_a_new_target_is_filled_but_a_new_password_changes_nothing(
    run, repairs, url, requested
):
    """
    The new target lacks the old one's rows.
    """
    run(ORDERS)
    run(ORDERS, url=url)

    assert requested == repairs.requested


@pytest.mark.parametrize(
    ("before", "now", "requested"),
    [
        ("host=a dbname=d password=x", "host=a dbname=d password=y", []),
        ("host=a dbname=d", "host=b dbname=d", ["orders"]),
        ("postgresql:///d?host=a", "postgresql:///d?host=b", ["orders"]),
        ("postgresql:///d?sslmode=require", "postgresql:///d?sslmode=disable", []),
        ("postgresql://u@a/d", "host=a dbname=d user=u", []),
    ],
)
def test_a_different_database_is_filled_however_its_address_is_written(
    run, repairs, before, now, requested
):
    """
    A connection string may consist of pairs or be a URL, and may contain a password.
    """
    run(ORDERS, kind="postgres", url=before)
    run(ORDERS, kind="postgres", url=now)

    assert requested == repairs.requested


def test_a_moved_receiver_gets_nothing_twice(run, repairs):
    """
    A receiver's contents cannot be read back.
    """
    run(ORDERS, **HOOK)

    assert ((), []) == (run(ORDERS, **HOOK | {"url": "https://eu/"}), repairs.requested)


def test_no_password_is_stored(run, tmp_path):
    """
    Several users can read the state folder.
    """
    run(ORDERS)

    assert b"secret" not in (tmp_path / "sinks/s" / BLOCK_FILE).read_bytes()


def test_a_failed_request_is_repeated_at_the_next_start(run, repairs):
    """
    The changed block is stored only once the request has succeeded.
    """
    run(ORDERS)
    repairs.fail = True
    with pytest.raises(BrokerUnavailableError):
        run(ORDERS, LINES)
    repairs.fail = False
    run(ORDERS, LINES)

    assert ["lines"] == repairs.requested


def test_a_route_that_cannot_be_filled_is_logged_with_its_command(
    run, repairs, tmp_path
):
    """
    An event log has no such command; both changes are logged.
    """
    warehouse = {"kind": "warehouse", "url": "postgresql://c/w", "folder": "/lake"}
    lines = LINES | {"name": "shop.lines"}
    repairs.can_request = False
    run(ORDERS | {"name": "shop.orders"}, **warehouse)
    with structlog.testing.capture_logs() as logs:
        run(ORDERS | {"name": "shop.orders"}, lines, EVENTS, **warehouse)
    kept = (tmp_path / "sinks/s/recoveries.jsonl").read_text().splitlines()

    assert (
        [
            "Fill it: towpath sink refill s --route shop.lines",
            "No action is possible: earlier events cannot be read again.",
        ],
        [("route_added", "shop.lines"), ("route_added", "lake.events")],
    ) == (
        [log["remedy"] for log in logs if log["log_level"] == "error"],
        [(one["outcome"], one["route"]) for one in map(orjson.loads, kept)],
    )

"""Altered columns: which rows are refetched, how often, and what is stored."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import structlog

from towpath.settings import Kafka, Sink
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.engine.column_changes import ColumnChanges, ShapeCheckedWriter
from towpath.sinks.engine.query import QueryPlan
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.state import incomplete

ORDERS = {"topic": "towpath.shop.orders", "name": "orders"}
ID, NOTE, TOTAL = Column("id", "integer"), Column("note", "text"), Column("n", "real")
LAKE = {"kind": "warehouse", "url": "postgresql://lake", "folder": "/lake"}


def number(scale):
    """Make a numeric column with a given scale."""
    return Column("n", "numeric", (12 << 16 | scale) + 4)


class AnnouncedShapes:
    """Announces the newest shape of the only table."""

    shape = None

    def refresh(self):
        """Do nothing."""

    def known(self, _topic):
        """Return the shape."""
        return self.shape


class Repairs:
    """Records refetch requests, or fails as if the broker were unavailable."""

    def __init__(self, folder):
        self.folder = folder
        self.requested = []
        self.fail = False

    def request_columns(self, route, columns, _why):
        """Record the request, as the real class does."""
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.requested.append((route, *columns))
        snapshot_id = f"repair-{len(self.requested)}"
        incomplete.note(self.folder, "s", route, snapshot_id)
        return snapshot_id


class AlteredBench:
    """One sink that can be started repeatedly."""

    def __init__(self, folder):
        self.folder = folder
        self.announced = AnnouncedShapes()
        self.repairs = Repairs(folder)
        self.block = {"kind": "cache", "url": "redis://cache"}
        self.route = ORDERS
        self.begin()

    def begin(self):
        """Start as a driver does."""
        values = {"name": "s", **self.block, "route": [self.route]}
        plan = QueryPlan(
            Sink.model_validate(values),
            Kafka(bootstrap_servers="kafka:9092"),
            self.folder,
        )
        clock = SimpleNamespace(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.made = ColumnChanges(plan, self.announced, self.repairs, clock)

    def change_to(self, *columns):
        """Announce a shape and check it; return all requests made so far."""
        self.announced.shape = RelationShape("shop", "orders", columns, ("id",), "0")
        self.made.check()
        return self.repairs.requested

    @property
    def pending_refetches(self):
        """Return the stored refetches."""
        return incomplete.noted(self.folder, "s", ["orders"])


@pytest.fixture
def bench(tmp_path):
    """Return a bench with one sink."""
    return AlteredBench(tmp_path)


def test_an_unchanged_shape_refetches_nothing(bench):
    """
    A new sink is filled anyway; a restart or an unannounced table is not a change.
    """
    bench.made.check()
    bench.change_to(ID, NOTE)
    bench.begin()

    assert [] == bench.change_to(NOTE, ID)


def test_added_and_renamed_columns_are_refetched_once(bench):
    """
    One snapshot serves both, even if the sink did not run in the meantime.
    """
    bench.change_to(ID, NOTE)
    bench.begin()
    bench.change_to(ID, Column("remark", "text"), TOTAL)
    bench.change_to(ID, Column("remark", "text"), TOTAL)
    bench.begin()

    assert [("orders", "remark", "n")] == bench.change_to(
        ID, TOTAL, Column("remark", "text")
    )
    assert (("orders", "repair-1"),) == bench.pending_refetches


@pytest.mark.parametrize(
    ("before", "after", "is_requested"),
    [
        (number(2), number(4), True),
        (Column("n", "integer"), Column("n", "text"), True),
        (number(2), Column("n", "numeric", (20 << 16 | 2) + 4), False),
        (Column("n", "character varying", 14), Column("n", "text"), False),
        (TOTAL, Column("n", "real", nullable=False), False),
    ],
)
def test_a_type_change_that_rewrites_values_is_refetched(
    bench, before, after, is_requested
):
    """
    A wider type for the same values rewrites none of them.
    """
    bench.change_to(ID, before)

    assert is_requested == bool(bench.change_to(ID, after))


@pytest.mark.parametrize(
    ("block", "remedy"),
    [
        (LAKE, "Fill it: towpath sink refill s --route orders"),
        (
            {"kind": "search", "url": "http://search"},
            "Rebuild the index: towpath sink rebuild s",
        ),
    ],
)
def test_a_typed_target_is_not_refetched_when_a_type_changes(bench, block, remedy):
    """
    The target could refuse every row, so the log names the command to run instead.

    Added columns are still refetched.
    """
    bench.block = block
    bench.begin()
    bench.change_to(ID, TOTAL)
    with structlog.testing.capture_logs() as logged:
        requested = bench.change_to(ID, Column("n", "text"), NOTE)

    assert ([("orders", "note")], [remedy]) == (
        requested,
        [line["remedy"] for line in logged if "column retyped" in line["event"]],
    )


def test_a_route_refetches_only_columns_that_it_writes(bench):
    """
    An excluded column does not affect the rows; column names may be sanitized.
    """
    bench.route = {**ORDERS, "exclude": ["note"], "rename": {"n": "total"}}
    bench.begin()
    bench.change_to(ID)
    bench.change_to(ID, NOTE)

    assert [("orders", "n-1")] == bench.change_to(
        ID, NOTE, Column("n", "real", source_name="n-1")
    )


def test_without_automatic_filling_the_command_is_logged(bench):
    """
    With ``fill_added_columns = false``, no column counts as missing.
    """
    bench.block = {**LAKE, "warehouse": {"fill_added_columns": False}}
    bench.begin()
    bench.change_to(ID)
    with structlog.testing.capture_logs() as logged:
        requested = bench.change_to(ID, NOTE)

    assert ([], (), ["Fill them: towpath sink refill s --route orders"]) == (
        requested,
        bench.pending_refetches,
        [line["remedy"] for line in logged],
    )


def test_a_failed_refetch_of_columns_is_requested_again(bench):
    """
    The batch is not written until the request succeeds.
    """
    written = []
    writing = SimpleNamespace(write=lambda *batch: written.append(batch))
    bench.change_to(ID)
    bench.repairs.fail = True
    bench.announced.shape = RelationShape("shop", "orders", (ID, NOTE), ("id",), "1")
    with pytest.raises(BrokerUnavailableError):
        ShapeCheckedWriter(bench.made, writing).write(None, 7)
    bench.repairs.fail = False
    before = list(written)
    ShapeCheckedWriter(bench.made, writing).write(None, 7)

    assert ([], [(None, 7)], [("orders", "note")]) == (
        before,
        written,
        bench.repairs.requested,
    )


def test_a_column_dropped_meanwhile_leaves_no_route_incomplete(bench):
    """
    The snapshot of that column fails; the other columns are requested again.
    """
    bench.change_to(ID)
    bench.change_to(ID, NOTE, TOTAL)
    bench.begin()
    bench.change_to(ID, TOTAL)
    pending = bench.pending_refetches
    bench.change_to(ID)

    assert [("orders", "note", "n"), ("orders", "n")] == bench.repairs.requested
    assert ((("orders", "repair-2"),), ()) == (pending, bench.pending_refetches)

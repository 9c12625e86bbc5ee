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
    """Make a numeric column with so many digits behind the point."""
    return Column("n", "numeric", (12 << 16 | scale) + 4)


class AnnouncedShapes:
    """The newest shape of the one table."""

    shape = None

    def refresh(self):
        """Do nothing."""

    def known(self, _topic):
        """Return it."""
        return self.shape


class Repairs:
    """Records refetch requests, unless requests are impossible."""

    def __init__(self, folder):
        self.folder = folder
        self.asked = []
        self.fail = False

    def request_columns(self, route, columns, _why):
        """Record the request, as the real ones do."""
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.asked.append((route, *columns))
        snapshot_id = f"repair-{len(self.asked)}"
        incomplete.note(self.folder, "s", route, snapshot_id)
        return snapshot_id


class AlteredBench:
    """One sink that starts again and again."""

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

    def become(self, *columns):
        """Announce a shape and check it; return all requests until now."""
        self.announced.shape = RelationShape("shop", "orders", columns, ("id",), "0")
        self.made.check()
        return self.repairs.asked

    @property
    def lacking(self):
        """Return the stored refetches."""
        return incomplete.noted(self.folder, "s", ["orders"])


@pytest.fixture
def place(tmp_path):
    """Return a sink."""
    return AlteredBench(tmp_path)


def test_an_unchanged_shape_refetches_nothing(place):
    """
    A new sink is filled anyway; a restart, and an unannounced table, alter none.
    """
    place.made.check()
    place.become(ID, NOTE)
    place.begin()

    assert [] == place.become(NOTE, ID)


def test_added_and_renamed_columns_are_refetched_once(place):
    """
    One snapshot serves both, also if the sink did not run meanwhile.
    """
    place.become(ID, NOTE)
    place.begin()
    place.become(ID, Column("remark", "text"), TOTAL)
    place.become(ID, Column("remark", "text"), TOTAL)
    place.begin()

    assert [("orders", "remark", "n")] == place.become(
        ID, TOTAL, Column("remark", "text")
    )
    assert (("orders", "repair-1"),) == place.lacking


@pytest.mark.parametrize(
    ("before", "after", "is_asked"),
    [
        (number(2), number(4), True),
        (Column("n", "integer"), Column("n", "text"), True),
        (number(2), Column("n", "numeric", (20 << 16 | 2) + 4), False),
        (Column("n", "character varying", 14), Column("n", "text"), False),
        (TOTAL, Column("n", "real", nullable=False), False),
    ],
)
def test_a_type_change_that_rewrites_values_is_refetched(
    place, before, after, is_asked
):
    """
    More room for the same values alters none of them.
    """
    place.become(ID, before)

    assert is_asked == bool(place.become(ID, after))


@pytest.mark.parametrize(
    ("block", "cure"),
    [
        (LAKE, "Fill it: towpath sink refill s --route orders"),
        (
            {"kind": "search", "url": "http://search"},
            "Rebuild the index: towpath sink rebuild s",
        ),
    ],
)
def test_a_typed_target_is_not_refetched_for_another_type(place, block, cure):
    """
    It could refuse every row: the log names the command; columns are still added.
    """
    place.block = block
    place.begin()
    place.become(ID, TOTAL)
    with structlog.testing.capture_logs() as logged:
        asked = place.become(ID, Column("n", "text"), NOTE)

    assert ([("orders", "note")], [cure]) == (
        asked,
        [line["remedy"] for line in logged if "column retyped" in line["event"]],
    )


def test_a_route_refetches_only_columns_that_it_takes(place):
    """
    An excluded column alters none of its rows; names may be sanitised.
    """
    place.route = {**ORDERS, "exclude": ["note"], "rename": {"n": "total"}}
    place.begin()
    place.become(ID)
    place.become(ID, NOTE)

    assert [("orders", "n-1")] == place.become(
        ID, NOTE, Column("n", "real", source_name="n-1")
    )


def test_without_filling_the_command_is_logged(place):
    """
    ``fill_added_columns = false``: it is logged, and nothing counts as missing.
    """
    place.block = {**LAKE, "warehouse": {"fill_added_columns": False}}
    place.begin()
    place.become(ID)
    with structlog.testing.capture_logs() as logged:
        asked = place.become(ID, NOTE)

    assert ([], (), ["Fill them: towpath sink refill s --route orders"]) == (
        asked,
        place.lacking,
        [line["remedy"] for line in logged],
    )


def test_a_failed_refetch_of_columns_is_requested_again(place):
    """
    The batch is not written before.
    """
    written = []
    writing = SimpleNamespace(write=lambda *batch: written.append(batch))
    place.become(ID)
    place.repairs.fail = True
    place.announced.shape = RelationShape("shop", "orders", (ID, NOTE), ("id",), "1")
    with pytest.raises(BrokerUnavailableError):
        ShapeCheckedWriter(place.made, writing).write(None, 7)
    place.repairs.fail = False
    before = list(written)
    ShapeCheckedWriter(place.made, writing).write(None, 7)

    assert ([], [(None, 7)], [("orders", "note")]) == (
        before,
        written,
        place.repairs.asked,
    )


def test_a_column_dropped_meanwhile_leaves_no_route_incomplete(place):
    """
    Its snapshot fails; the other columns of the request are requested again.
    """
    place.become(ID)
    place.become(ID, NOTE, TOTAL)
    place.begin()
    place.become(ID, TOTAL)
    one = place.lacking
    place.become(ID)

    assert [("orders", "note", "n"), ("orders", "n")] == place.repairs.asked
    assert ((("orders", "repair-2"),), ()) == (one, place.lacking)

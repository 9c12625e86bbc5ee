"""Columns that were altered: which rows are asked for, how often, and what is kept."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import structlog

from towpath.settings import Kafka, Sink
from towpath.sinks import unfilled
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.jobs.query import QueryPlan
from towpath.sinks.jobs.reshaping import AfterLook, Reshaping
from towpath.sinks.relations import Column, RelationShape

ORDERS = {"topic": "towpath.shop.orders", "name": "orders"}
ID, NOTE, TOTAL = Column("id", "integer"), Column("note", "text"), Column("n", "real")
LAKE = {"kind": "warehouse", "url": "postgresql://lake", "folder": "/lake"}


def number(scale):
    """Make a numeric column with so many digits behind the point."""
    return Column("n", "numeric", (12 << 16 | scale) + 4)


class Announced:
    """The newest shape of the one table."""

    shape = None

    def refresh(self):
        """Learn nothing."""

    def known(self, _topic):
        """Return it."""
        return self.shape


class Repairs:
    """Takes note of what is asked for, unless nobody can be asked."""

    def __init__(self, folder):
        self.folder = folder
        self.asked = []
        self.fail = False

    def ask_columns(self, route, columns, _why):
        """Take note, as the real ones do."""
        if self.fail:
            message = "no broker"
            raise BrokerUnavailableError(message)
        self.asked.append((route, *columns))
        snapshot_id = f"repair-{len(self.asked)}"
        unfilled.note(self.folder, "s", route, snapshot_id)
        return snapshot_id


class Place:
    """One sink that begins again and again."""

    def __init__(self, folder):
        self.folder = folder
        self.announced = Announced()
        self.repairs = Repairs(folder)
        self.block = {"kind": "cache", "url": "redis://cache"}
        self.route = ORDERS
        self.begin()

    def begin(self):
        """Start as a driver does."""
        told = {"name": "s", **self.block, "route": [self.route]}
        plan = QueryPlan(
            Sink.model_validate(told),
            Kafka(bootstrap_servers="kafka:9092"),
            self.folder,
        )
        clock = SimpleNamespace(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        self.made = Reshaping(plan, self.announced, self.repairs, clock)

    def become(self, *columns):
        """Announce a shape and look; return what was asked for until now."""
        self.announced.shape = RelationShape("shop", "orders", columns, ("id",), "0")
        self.made.look()
        return self.repairs.asked

    @property
    def lacking(self):
        """What is noted to be read."""
        return unfilled.noted(self.folder, "s", ["orders"])


@pytest.fixture
def place(tmp_path):
    """Lend a sink."""
    return Place(tmp_path)


def test_a_first_shape_and_the_same_again_ask_for_nothing(place):
    """Whoever adds a sink fills it; a restart, and an unannounced table, alter none."""
    place.made.look()
    place.become(ID, NOTE)
    place.begin()

    assert [] == place.become(NOTE, ID)


def test_an_added_and_a_renamed_column_are_asked_for_once(place):
    """By one snapshot for both, also when the sink did not run meanwhile."""
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
def test_a_type_is_another_where_values_are_written_again(
    place, before, after, is_asked
):
    """More room for the same values alters none of them."""
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
def test_a_target_with_types_is_not_filled_with_values_of_another(place, block, cure):
    """It could refuse every row: the log names the command; columns are still added."""
    place.block = block
    place.begin()
    place.become(ID, TOTAL)
    with structlog.testing.capture_logs() as logged:
        asked = place.become(ID, Column("n", "text"), NOTE)

    assert ([("orders", "note")], [cure]) == (
        asked,
        [line["remedy"] for line in logged if "another type" in line["event"]],
    )


def test_a_route_asks_for_columns_that_it_takes_by_the_name_in_the_source(place):
    """What it leaves out alters none of its rows; names may be sanitised."""
    place.route = {**ORDERS, "exclude": ["note"], "rename": {"n": "total"}}
    place.begin()
    place.become(ID)
    place.become(ID, NOTE)

    assert [("orders", "n-1")] == place.become(
        ID, NOTE, Column("n", "real", source_name="n-1")
    )


def test_who_is_not_to_be_filled_names_the_command(place):
    """``fill_added_columns = false``: it is logged, and nothing counts as lacking."""
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


def test_what_could_not_be_asked_for_is_asked_for_again(place):
    """The batch is not written before."""
    written = []
    writing = SimpleNamespace(write=lambda *batch: written.append(batch))
    place.become(ID)
    place.repairs.fail = True
    place.announced.shape = RelationShape("shop", "orders", (ID, NOTE), ("id",), "1")
    with pytest.raises(BrokerUnavailableError):
        AfterLook(place.made, writing).write(None, 7)
    place.repairs.fail = False
    before = list(written)
    AfterLook(place.made, writing).write(None, 7)

    assert ([], [(None, 7)], [("orders", "note")]) == (
        before,
        written,
        place.repairs.asked,
    )


def test_a_column_that_is_dropped_meanwhile_does_not_leave_a_route_lacking(place):
    """Its snapshot fails; what else it was to read is asked for again."""
    place.become(ID)
    place.become(ID, NOTE, TOTAL)
    place.begin()
    place.become(ID, TOTAL)
    one = place.lacking
    place.become(ID)

    assert [("orders", "note", "n"), ("orders", "n")] == place.repairs.asked
    assert ((("orders", "repair-2"),), ()) == (one, place.lacking)

"""How tests are shared out among workers: what stays together, and what comes first."""

from pathlib import Path

import pytest

from support import workers

TESTS = Path(__file__).parents[2]


class Item:
    """As much of a test as sharing out looks at."""

    def __init__(self, place, *markers, fixtures=(), parameters=None):
        self.path = TESTS / place
        self.nodeid = f"tests/{place}::test_it"
        self.fixturenames = fixtures
        self.markers = list(markers)
        if parameters:
            self.callspec = type("Callspec", (), {"params": parameters})

    def get_closest_marker(self, name):
        """Return the first marker of a name."""
        return next((m for m in self.markers if m.name == name), None)

    def add_marker(self, marker, *, append=True):
        """Add a marker behind or before the others."""
        self.markers.insert(len(self.markers) if append else 0, marker.mark)

    @property
    def piece(self):
        """The piece that the test belongs to; None if it is one of its own."""
        marker = self.get_closest_marker("xdist_group")
        return marker and marker.args[0]


def marker(name, *words):
    """Make a marker, as an item has them."""
    return getattr(pytest.mark, name)(*words).mark


SPARK = marker("spark")
DEMO = "e2e/test_demo.py"
BENCH = "integration/test_bench.py"
SINKS = "contract/test_sinks.py"
WAREHOUSE = "integration/sinks/test_warehouse.py"
DRIVER = "integration/test_serving_driver.py"


def test_what_shares_something_is_one_piece():
    """
    The busy ones are one, those of one Spark are one, the rest goes by its file.
    """
    pieces = {
        Item(DEMO): "busy",
        Item(BENCH): "busy",
        Item(WAREHOUSE, SPARK, fixtures=("lake",)): "lake",
        Item(SINKS, SPARK, parameters={"target": "warehouse"}): "lake",
        Item(SINKS, parameters={"target": "cache"}): f"tests/{SINKS}",
        Item("unit/relay/test_tally.py"): "tests/unit/relay/test_tally.py",
        Item(DRIVER, SPARK): None,
        Item("faults/test_holes.py"): None,
        Item("property/test_fold.py"): None,
    }
    workers.share_out(list(pieces), 5.0)

    assert list(pieces.values()) == [item.piece for item in pieces]


def test_the_long_ones_begin_first_and_the_quick_ones_last():
    """
    Of one turn the more patient come first; among equals the given order stays.
    """
    expected = [
        Item(DEMO, marker("timeout", 600)),
        Item(BENCH, marker("timeout", 90)),
        Item("faults/test_holes.py", marker("timeout", 300)),
        Item("integration/test_relay.py", marker("timeout", 90)),
        Item("integration/test_orders.py", marker("timeout", 90)),
        Item(WAREHOUSE, SPARK, fixtures=("lake",)),
        Item(DRIVER, SPARK),
        Item("property/test_fold.py", marker("timeout", 60)),
        Item("unit/relay/test_tally.py"),
    ]
    equals = expected[3:5]
    items = [*equals, *(item for item in reversed(expected) if item not in equals)]
    workers.share_out(items, 5.0)

    assert expected == items
    assert [600, 90, 300, 90, 90, 5, 5, 60, 5] == [
        item.get_closest_marker("timeout").args[0] / workers.SLOWER for item in items
    ]


@pytest.mark.parametrize("pattern", [*workers.BUSY, *workers.DRIVERS])
def test_what_is_named_is_there(pattern):
    """
    A file that was renamed would be shared out as any other.
    """
    assert [path for path in TESTS.rglob("test_*.py") if path.match(pattern)]


@pytest.mark.parametrize(
    ("told", "plain"),
    [
        ("tests/a.py::test_it@busy", "tests/a.py::test_it"),
        ("tests/a.py::test_it[x@y]@tests/a.py", "tests/a.py::test_it[x@y]"),
        ("tests/a.py::test_it[x@y]", "tests/a.py::test_it[x@y]"),
        ("tests/a.py::test_it", "tests/a.py::test_it"),
    ],
)
def test_a_test_is_told_by_its_own_id(told, plain):
    """
    The piece is left out; an @ of a parameter stays.
    """
    assert plain == workers.plain_id(told)

"""Tests are distributed among workers: pieces that stay together, and their order."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from support import waiting, workers

TESTS = Path(__file__).parents[2]


class Item:
    """The attributes of a test that the distribution uses."""

    def __init__(self, path, *markers):
        self.path = TESTS / path
        self.nodeid = f"tests/{path}::test_it"
        self.markers = list(markers)

    def get_closest_marker(self, name):
        """Return the first marker with a name."""
        return next((m for m in self.markers if m.name == name), None)

    def add_marker(self, marker, *, append=True):
        """Add a marker after or before the others."""
        self.markers.insert(len(self.markers) if append else 0, marker.mark)


def marker(name, *arguments):
    """Make a marker like that of a test item."""
    return getattr(pytest.mark, name)(*arguments).mark


SPARK = marker("spark")
DEMO = "e2e/test_demo.py"
BENCH = "integration/test_bench.py"
SINKS = "contract/test_sinks.py"
WAREHOUSE = "integration/sinks/test_warehouse.py"
DRIVER = "integration/test_serving_driver.py"


@pytest.mark.parametrize(
    ("paths", "pieces"),
    [
        ((DEMO, BENCH), 1),
        ((DRIVER, DRIVER), 1),
        ((SINKS, DRIVER), 2),
        ((SINKS, "integration/sinks/test_verify.py"), 1),
        ((WAREHOUSE, "integration/sinks/test_warehouse_rest.py"), 1),
        ((SINKS, WAREHOUSE), 2),
        (("faults/test_partitions.py", "faults/test_partitions.py"), 2),
        (("faults/test_known_failures.py", "integration/test_relay.py"), 1),
        (("property/test_fold.py", "property/test_fold.py"), 2),
        (("faults/test_sink_deaths.py", "faults/test_sink_deaths.py"), 2),
        (("faults/test_takeover.py", "faults/test_takeover.py"), 1),
        (("faults/test_chaos_snapshot.py", DEMO), 1),
    ],
)
def test_the_tests_of_a_group_of_files_are_one_piece(paths, pieces):
    """
    Any other file is a piece, too, unless its tests are long.
    """
    ids = [f"tests/{path}::test_{n}[x::y]" for n, path in enumerate(paths)]

    assert pieces == len({workers.piece_of(one) for one in ids})


def test_long_tests_begin_first_and_quick_ones_last(monkeypatch):
    """
    Within a turn, longer time limits come first; equal ones keep their order.
    """
    expected = [
        Item(DEMO, marker("timeout", 600)),
        Item(BENCH, marker("timeout", 90)),
        Item(WAREHOUSE, SPARK),
        Item("faults/test_known_failures.py", marker("timeout", 300)),
        Item("integration/test_relay.py", marker("timeout", 90)),
        Item("integration/test_orders.py", marker("timeout", 90)),
        Item(DRIVER, SPARK),
        Item("property/test_fold.py", marker("timeout", 60)),
        Item("unit/relay/test_tally.py"),
    ]
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    equals = expected[4:6]
    items = [*equals, *(item for item in reversed(expected) if item not in equals)]
    workers.put_in_order(items, 5.0)

    assert expected == items
    assert [600, 90, 5, 300, 90, 90, 5, 60, 5] == [
        item.get_closest_marker("timeout").args[0] / waiting.SLOWER for item in items
    ]


class Node:
    """A worker that runs nothing, and records the requests that it receives."""

    def __init__(self, name):
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.ran = []

    def send_runtest_some(self, indices):
        """Record the requested tests."""
        self.ran += indices

    def shutdown(self):
        """Record that no more tests follow."""
        self.shutting_down = True


def scheduled(paths, *nodes):
    """Distribute four tests of each file among workers, and return the scheduler."""
    tests = [f"tests/{path}::test_{n}" for path in paths for n in range(4)]
    config = SimpleNamespace(
        getvalue=lambda _: ["2*popen"], option=SimpleNamespace(loadscopereorder=False)
    )
    pieces = workers.Pieces(config, None)
    for node in nodes:
        pieces.add_node(node)
        pieces.add_node_collection(node, tests)
    pieces.schedule()
    return pieces


def test_the_worker_in_the_background_runs_only_unit_tests():
    """
    It begins once the busy tests are done, and ends if there are no unit tests.
    """
    paths = (BENCH, DRIVER, "property/test_fold.py", "unit/relay/test_a.py")
    usual, background = Node("gw0"), Node(waiting.BACKGROUND)
    pieces = scheduled(paths, usual, background)
    before = background.ran.copy()
    for index in range(4):
        pieces.mark_test_complete(usual, index)
    is_ended = background.shutting_down
    for index in background.ran.copy():
        pieces.mark_test_complete(background, index)

    assert ([], [12, 13, 14, 15]) == (before, background.ran)
    assert [0, 1, 2, 3, 4, 5, 6, 7] == usual.ran
    assert (False, True) == (is_ended, background.shutting_down)
    assert not usual.shutting_down


def test_a_late_worker_begins_once_the_busy_tests_are_done():
    """
    Busy tests keep every core busy, so fewer workers run beside them.
    """
    paths = (BENCH, DRIVER, "integration/test_orders.py", "integration/test_saga.py")
    usual, late = Node("gw0"), Node(min(workers.LATE))
    pieces = scheduled(paths, usual, late)
    for index in range(3):
        pieces.mark_test_complete(usual, index)
    before = late.ran.copy()
    pieces.mark_test_complete(usual, 3)

    assert ([], [8, 9, 10, 11]) == (before, late.ran)
    assert [0, 1, 2, 3, 4, 5, 6, 7] == usual.ran


def test_the_first_worker_runs_the_busy_tests_whatever_the_order():
    """
    If that worker dies, another one runs them.
    """
    paths = (BENCH, DRIVER, "integration/test_orders.py", "integration/test_saga.py")
    first, other = Node(workers.FIRST), Node("gw1")
    pieces = scheduled(paths, other, first)
    ran = (first.ran.copy(), other.ran.copy())
    pieces.remove_node(first)
    # The list grows while its tests are completed.
    for index in other.ran:
        pieces.mark_test_complete(other, index)

    assert ([0, 1, 2, 3], [4, 5, 6, 7]) == ran
    # It died in the first of them, which counts as failed.
    assert {1, 2, 3} < {*other.ran}


def test_an_inner_deadline_is_stretched_like_the_limit_of_a_test(monkeypatch):
    """
    With several workers, the same factor stretches both; with one, neither is longer.

    Both are longest in the worker with a lower priority.
    """
    stretched = []
    for worker in ("gw0", waiting.BACKGROUND):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        item = Item(BENCH, marker("timeout", 20))
        workers.put_in_order([item], 5.0)
        assert waiting.stretched(20) == item.get_closest_marker("timeout").args[0]
        stretched.append(waiting.stretched(20))
    monkeypatch.delenv("PYTEST_XDIST_WORKER")

    assert 20 == waiting.stretched(20) < stretched[0] < stretched[1]


@pytest.mark.parametrize(
    "pattern",
    [
        *workers.BUSY,
        *workers.OWN_SERVERS,
        *sum(workers.LAKES, ()),
    ],
)
def test_every_pattern_matches_a_test_file(pattern):
    """
    A renamed file would be distributed like any other file.
    """
    assert [path for path in TESTS.rglob("test_*.py") if path.match(pattern)]

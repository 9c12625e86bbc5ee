"""
How the tests are shared out among workers that run side by side.

Each worker is a process with a stack of its own. It takes one piece of work after the
other: a file, as a rule, so that what the file's tests share is made once. Some tests
are pieces of their own, because they are long; what keeps every core busy is one piece
together, so that two of these never run at once.

The pieces begin in the order of ``Turn``; of one turn, those first that may take
longest. Beside the busy ones run those that mostly wait; then come the engines. In the
end the quick ones fill the time while another worker is at its last long test.
"""

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.waiting import SLOWER

# Whole demos and benchmarks, chaos, loads with a rate, Spark in several processes.
BUSY: Final = (
    "*/e2e/*.py",
    "*/soak/*.py",
    "*/faults/test_chaos_snapshot.py",
    "*/integration/test_bench*.py",
    "*/integration/sinks/test_cluster_driver.py",
)
# All tests of the file look at one recorded stack, whose start takes a minute.
RECORDED: Final = ("*/faults/test_takeover.py",)
# Each test starts an engine of its own.
DRIVERS: Final = ("*/faults/test_sink_deaths.py",)


class Turn(enum.IntEnum):
    """When a test's piece begins: the lower, the earlier."""

    BUSY = 0
    USUAL = 1
    LAKE = 2
    DRIVER = 3
    QUICK = 4


def put_in_order(items: list[pytest.Item], timeout_s: float) -> None:
    """
    Order tests by their turns, and be more patient with each.

    Args:
        items: The tests; among equals their order stays.
        timeout_s: Of a test that has none of its own.
    """
    for item in items:
        patient_s = SLOWER * _timeout_s(item, timeout_s)
        item.add_marker(pytest.mark.timeout(patient_s), append=False)
    items.sort(key=lambda item: (_turn(item), -_timeout_s(item, timeout_s)))


class Pieces(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Gives workers one piece after the other, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)


def piece_of(node_id: str) -> str:
    """Name the piece that a test belongs to."""
    path = Path(node_id.partition("::")[0])
    if _is_in(path, BUSY):
        return Turn.BUSY.name
    is_long = _is_in(path, DRIVERS) or _is_below(path, "faults", "property")
    is_alone = is_long and not _is_in(path, RECORDED)
    return node_id if is_alone else path.as_posix()


def _turn(item: pytest.Item) -> Turn:
    if _is_in(item.path, BUSY):
        return Turn.BUSY
    if is_quick(item.path):
        return Turn.QUICK
    if _writes_the_lake(item):
        return Turn.LAKE
    is_driver = item.get_closest_marker("spark") or _is_in(item.path, DRIVERS)
    return Turn.DRIVER if is_driver else Turn.USUAL


def _writes_the_lake(item: pytest.Item) -> bool:
    """Return whether a test asks for ``lake``, be it by a parameter that names it."""
    called = getattr(item, "callspec", None)
    named = called.params.values() if called else ()
    return "lake" in getattr(item, "fixturenames", ()) or (
        item.get_closest_marker("spark") is not None
        and any(isinstance(name, str) and name == "warehouse" for name in named)
    )


def is_quick(path: Path) -> bool:
    """Tell whether the tests of a file take less than a second and start no part."""
    return _is_below(path, "unit", "property")


def _is_below(path: Path, *folders: str) -> bool:
    return not set(folders).isdisjoint(path.parts)


def _is_in(path: Path, patterns: Sequence[str]) -> bool:
    return any(path.match(pattern) for pattern in patterns)


def _timeout_s(item: pytest.Item, otherwise_s: float) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else otherwise_s

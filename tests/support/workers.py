"""
How the tests are shared out among workers that run side by side.

Each worker is a process with a stack of its own. It takes one piece of work after the
other: a file, as a rule, so that what the file's tests share is made once. Some tests
are pieces of their own, because they are long; others are one piece together:

- What keeps every core busy, so that two of these never run at once.
- What writes the warehouse through the run's one Spark, which takes long to start and
  much memory.

The pieces begin in the order of ``Turn``; of one turn, those first that may take
longest. Beside the busy ones run those that mostly wait; then come the engines. In the
end the quick ones fill the time while another worker is at its last long test.
"""

import enum
from collections.abc import Sequence
from typing import Final

import pytest

# Whole demos and benchmarks, chaos, loads with a rate, Spark in several processes.
BUSY: Final = (
    "*/e2e/*.py",
    "*/soak/*.py",
    "*/faults/test_chaos_snapshot.py",
    "*/integration/test_bench*.py",
    "*/integration/sinks/test_cluster_driver.py",
)
# Their engine starts anew in each test.
DRIVERS: Final = ("*/faults/test_sink_deaths.py",)
# The bound of a test ends what hangs; beside others everything takes longer.
SLOWER: Final = 3


class Turn(enum.IntEnum):
    """When a test's piece begins: the lower, the earlier."""

    BUSY = 0
    USUAL = 1
    LAKE = 2
    DRIVER = 3
    QUICK = 4


def share_out(items: list[pytest.Item], timeout_s: float) -> None:
    """
    Order tests by their turns, name the pieces, and be more patient with each.

    Args:
        items: The tests; among equals their order stays.
        timeout_s: Of a test that has none of its own.
    """
    for item in items:
        piece = _piece(item)
        if piece:
            item.add_marker(pytest.mark.xdist_group(piece))
        patient_s = SLOWER * _timeout_s(item, timeout_s)
        item.add_marker(pytest.mark.timeout(patient_s), append=False)
    items.sort(key=lambda item: (_turn(item), -_timeout_s(item, timeout_s)))


def plain_id(node_id: str) -> str:
    """Return a test's id without the piece, as pytest takes it on its command line."""
    whole, at, piece = node_id.rpartition("@")
    return whole if at and "]" not in piece else node_id


def _piece(item: pytest.Item) -> str:
    """Name the piece that a test belongs to; empty if it is one of its own."""
    turn = _turn(item)
    if turn in {Turn.BUSY, Turn.LAKE}:
        return turn.name.lower()
    is_long = turn == Turn.DRIVER or _is_below(item, "faults", "property")
    return "" if is_long else item.nodeid.partition("::")[0]


def _turn(item: pytest.Item) -> Turn:
    if _is_in(item, BUSY):
        return Turn.BUSY
    if _is_below(item, "unit", "property"):
        return Turn.QUICK
    if _writes_the_lake(item):
        return Turn.LAKE
    is_driver = item.get_closest_marker("spark") or _is_in(item, DRIVERS)
    return Turn.DRIVER if is_driver else Turn.USUAL


def _writes_the_lake(item: pytest.Item) -> bool:
    """Tell whether a test asks for ``lake``, be it by a parameter that names it."""
    called = getattr(item, "callspec", None)
    named = called.params.values() if called else ()
    return "lake" in getattr(item, "fixturenames", ()) or (
        item.get_closest_marker("spark") is not None
        and any(isinstance(name, str) and name == "warehouse" for name in named)
    )


def _is_below(item: pytest.Item, *folders: str) -> bool:
    return not set(folders).isdisjoint(item.path.parts)


def _is_in(item: pytest.Item, patterns: Sequence[str]) -> bool:
    return any(item.path.match(pattern) for pattern in patterns)


def _timeout_s(item: pytest.Item, otherwise_s: float) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else otherwise_s

"""
The distribution of tests among workers that run in parallel.

Each worker is a process with a stack, some of whose servers it shares with the others.
It takes one piece of work after another. A piece is usually a file, so that the
fixtures that its tests share are created once. Some long tests are separate pieces. All
tests that keep every core busy are one piece, so that two of them never run at the same
time.

The pieces begin in the order of ``Turn``; within a turn, those with the longest limits
begin first. The first worker runs the busy tests, at a higher priority than the others:
a demo takes CPU time for as long as it lasts. Two run the lake tests, while others run
tests that mostly wait. Then the tests that start their own engines run. At the end,
quick tests fill the time while another worker runs its last long test.

Until the busy tests are done, four workers run. After that, four workers would leave a
tenth of two cores idle, because they sometimes all wait. So two more workers start, and
a third runs unit tests at a lower priority; it starts no stack.
"""

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from support.waiting import BACKGROUND, stretched

# The worker, by xdist's name, that runs the busy tests.
FIRST: Final = "gw0"
# The workers that begin once the busy tests are done.
LATE: Final = frozenset({"gw4", "gw5", BACKGROUND})
# A process of the first worker gets 1.6 times the CPU share of another worker's, and
# that one twice the share of the worker in the background.
_NICENESS: Final = 2
_NICENESS_IN_BACKGROUND: Final = 5

# Whole demos, benchmarks, chaos, loads at a fixed rate, and Spark in several processes.
BUSY: Final = (
    "*/e2e/*.py",
    "*/soak/*.py",
    "*/faults/test_chaos_snapshot.py",
    "*/integration/test_bench*.py",
    "*/integration/sinks/test_cluster_*.py",
)
# All tests in this file use one recorded stack, which takes a minute to start.
RECORDED: Final = ("*/faults/test_takeover.py",)
# These tests stop and configure servers, so they use a worker's own servers.
OWN_SERVERS: Final = (
    "*/browser/test_console_failures.py",
    "*/faults/test_known_failures.py",
    "*/integration/test_doctor_old_servers.py",
    "*/integration/test_relay.py",
    "*/integration/test_relay_operations.py",
)
# The tests that use a worker's one Spark session: two workers start one each.
LAKES: Final = (
    ("*/integration/sinks/test_warehouse*.py",),
    (
        "*/contract/test_sinks.py",
        "*/integration/sinks/test_erase.py",
        "*/integration/sinks/test_parked_row_refetch.py",
        "*/integration/sinks/test_recovery.py",
        "*/integration/sinks/test_transforms.py",
        "*/integration/sinks/test_verify.py",
        "*/integration/sinks/test_verify_repair.py",
        "*/integration/test_secure_kafka.py",
    ),
)


class Turn(enum.IntEnum):
    """The order of the pieces: a lower turn begins earlier."""

    BUSY = 0
    LAKE = 1
    USUAL = 2
    DRIVER = 3
    QUICK = 4


BUSY_PIECE: Final = Turn.BUSY.name


def put_in_order(items: list[pytest.Item], timeout_s: float) -> None:
    """
    Order tests by their turns, and extend the limit of each.

    Args:
        items: The tests; those with the same turn and limit keep their order.
        timeout_s: The limit of a test that has none of its own.
    """
    for item in items:
        patient_s = stretched(_timeout_s(item, timeout_s))
        item.add_marker(pytest.mark.timeout(patient_s), append=False)
    items.sort(key=lambda item: (_turn(item), -_timeout_s(item, timeout_s)))


class Pieces(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives workers one piece at a time, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Record a finished test; the late workers may then start."""
        super().mark_test_complete(node, item_index, duration)
        for other in self.nodes:
            if other.gateway.id in LATE:
                self._reschedule(other)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id in LATE and self._has_busy_tests():
            return
        if node.gateway.id == BACKGROUND:
            piece = next(filter(is_for_background, self.workqueue), None)
            if piece is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(piece, last=False)
        elif node.gateway.id != FIRST and self._has_first():
            piece = next((each for each in self.workqueue if each != BUSY_PIECE), None)
            if piece is not None:
                self.workqueue.move_to_end(piece, last=False)
        super()._assign_work_unit(node)

    def _has_first(self) -> bool:
        return any(node.gateway.id == FIRST for node in self.nodes)

    def _has_busy_tests(self) -> bool:
        """Return whether tests that keep every core busy are waiting or running."""
        assigned = (
            pieces.get(BUSY_PIECE, {}) for pieces in self.assigned_work.values()
        )
        is_running = any(not all(tests.values()) for tests in assigned)
        return is_running or BUSY_PIECE in self.workqueue


def lower_priority() -> None:
    """Lower the priority of this process if it is a worker other than the first."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", FIRST)  # noqa: TID251 - by xdist
    if worker != FIRST:
        os.nice(_NICENESS_IN_BACKGROUND if worker == BACKGROUND else _NICENESS)


def piece_of(node_id: str) -> str:
    """Return the name of the piece that a test belongs to."""
    path = Path(node_id.partition("::")[0])
    if _is_in(path, BUSY):
        return BUSY_PIECE
    for number, patterns in enumerate(LAKES):
        if _is_in(path, patterns):
            return f"{Turn.LAKE.name} {number}"
    if _is_in(path, OWN_SERVERS):
        return "OWN_SERVERS"
    is_long = _is_below(path, "faults", "property")
    is_alone = is_long and not _is_in(path, RECORDED)
    return node_id if is_alone else path.as_posix()


def is_for_background(piece: str) -> bool:
    """Return whether the worker in the background may run a piece."""
    return _is_below(Path(piece), "unit")


def _turn(item: pytest.Item) -> Turn:
    if _is_in(item.path, BUSY):
        return Turn.BUSY
    if is_quick(item.path):
        return Turn.QUICK
    if any(_is_in(item.path, patterns) for patterns in LAKES):
        return Turn.LAKE
    return Turn.DRIVER if item.get_closest_marker("spark") else Turn.USUAL


def is_quick(path: Path) -> bool:
    """Return whether a file has unit or property tests, which start no server."""
    return _is_below(path, "unit", "property")


def _is_below(path: Path, *folders: str) -> bool:
    return not set(folders).isdisjoint(path.parts)


def _is_in(path: Path, patterns: Sequence[str]) -> bool:
    return any(path.match(pattern) for pattern in patterns)


def _timeout_s(item: pytest.Item, otherwise_s: float) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else otherwise_s

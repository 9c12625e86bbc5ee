"""
Which processes belong to whom, and what they hold, in one walk over the system.

Every process of the demo is below it, so nobody else's is counted. Shared pages are
counted once: a process is charged its proportional share of them.
"""

from collections.abc import Mapping

import psutil

OURSELVES = "demo"


def memory_bytes(parts: Mapping[str, int]) -> dict[str, int]:
    """
    Sum up memory per part; what belongs to none, the caller included, is our own.

    Args:
        parts: Each part's name and the process it began with.
    """
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    parents = {member.pid: _parent(member) for member in family}
    names = {pid: name for name, pid in parts.items()}
    totals = dict.fromkeys([*parts, OURSELVES], 0)
    for member in family:
        totals[owner(member.pid, parents, names)] += _held_bytes(member)
    return totals


def owner(pid: int, parents: Mapping[int, int], names: Mapping[int, str]) -> str:
    """Find the part that a process belongs to: its own or its nearest ancestor's."""
    while pid not in names and pid in parents:
        pid = parents[pid]
    return names.get(pid, OURSELVES)


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def _held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0

"""
The machine of a benchmark: its description, and the CPU time of processes.

Figures from different machines are not comparable. Samples are infrequent, because they
take CPU time from the systems that are being measured. A process that was already
running is charged only for its use while watched; a process that ended keeps the
figures of its last sample. The memory of a new process is its peak resident set; the
memory of an older process is the largest one sampled. A backend's memory includes the
pages of the server's shared memory that it used.
"""

import contextlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from towpath.loadtests.bench import interpreter
from towpath.loadtests.bench.figures import Figures

_GIBIBYTE: Final = 1024**3


def summary() -> str:
    """Describe this machine in a few words."""
    memory_gib = psutil.virtual_memory().total / _GIBIBYTE
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"
        f" {platform.machine()}, Python {interpreter.describe()}"
    )


def machine() -> dict[str, object]:
    """Return processor, cores, memory, system and Python of this machine."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / _GIBIBYTE, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": interpreter.describe(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = (
        line.partition(":")[2] for line in text.splitlines() if "model name" in line
    )
    return next(names, platform.machine()).strip()


_MICROSECONDS: Final = 1_000_000
_KIBIBYTE: Final = 1024
_PEAK: Final = "VmHWM:"


@dataclass(slots=True)
class _Usage:
    process: psutil.Process
    is_new: bool
    began_s: float
    cpu_s: float = 0.0
    peak_bytes: int = 0


class ProcessWatch:
    """The processes of one run, by the names used in their figures."""

    def __init__(self) -> None:
        self._usages: dict[str, _Usage] = {}
        # The benchmark's own process uses the same cores.
        self.add("observer", psutil.Process().pid, is_new=False)

    def add(self, name: str, pid: int | None, *, is_new: bool) -> None:
        """Watch a process, if there is one; charge a new process from its start."""
        if pid is None or name in self._usages:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            began_s = 0.0 if is_new else _cpu_s(process)
            self._usages[name] = _Usage(process, is_new, began_s)

    def sample(self) -> None:
        """Sample all processes."""
        for usage in self._usages.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                usage.cpu_s = _cpu_s(usage.process) - usage.began_s
                usage.peak_bytes = max(usage.peak_bytes, _held_bytes(usage))

    def restart(self) -> None:
        """Count CPU time from now on; keep the memory peaks."""
        for usage in self._usages.values():
            usage.cpu_s = 0.0
            with contextlib.suppress(psutil.NoSuchProcess):
                usage.began_s = _cpu_s(usage.process)

    def figures(self) -> Figures:
        """Return ``<name>_cpu_s`` and ``<name>_peak_rss_bytes`` of each process."""
        found: Figures = {}
        for name, usage in self._usages.items():
            found[f"{name}_cpu_s"] = usage.cpu_s
            found[f"{name}_peak_rss_bytes"] = float(usage.peak_bytes)
        return found


def per_event_us(cpu_s: float, events: int) -> float:
    """Return CPU time per event."""
    return cpu_s * _MICROSECONDS / events if events else 0.0


def _held_bytes(usage: _Usage) -> int:
    if not usage.is_new:
        return int(usage.process.memory_info().rss)
    try:
        status = Path(f"/proc/{usage.process.pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next((n for n in status.splitlines() if n.startswith(_PEAK)), f"{_PEAK} 0")
    return int(line.split()[1]) * _KIBIBYTE


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

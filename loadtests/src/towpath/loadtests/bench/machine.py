"""What the benchmark ran on: figures of another machine compare with nothing."""

import os
import platform
from pathlib import Path
from typing import Final

import psutil

_GIBIBYTE: Final = 1024**3


def summary() -> str:
    """Describe this machine in a few words."""
    memory_gib = psutil.virtual_memory().total / _GIBIBYTE
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"
        f" {platform.machine()}, Python {platform.python_version()}"
    )


def machine() -> dict[str, object]:
    """Tell the processor, its cores, the memory, the system and the Python."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / _GIBIBYTE, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
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

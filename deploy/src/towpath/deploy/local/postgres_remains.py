"""What a killed Postgres leaves: backends that live on, and a stale lock file."""

import contextlib
import signal
from pathlib import Path
from typing import Final

import psutil

_GONE_WITHIN_S: Final = 10


def clear(data: Path) -> None:
    """
    Clear away what a killed server left of a data folder; only when none runs on it.

    Backends end by themselves as soon as they notice; one that is busy is asked to quit
    at once. A lock file that stayed may name a pid that is somebody else's by now.
    """
    orphans = [p for p in psutil.process_iter() if _works_in(p, data)]
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.send_signal(signal.SIGQUIT)
    _, alive = psutil.wait_procs(orphans, timeout=_GONE_WITHIN_S)
    for orphan in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(alive, timeout=_GONE_WITHIN_S)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    """Tell whether a process works in a folder: Postgres moves into its data."""
    with contextlib.suppress(OSError, psutil.Error):
        return Path(f"/proc/{process.pid}/cwd").readlink() == folder
    return False

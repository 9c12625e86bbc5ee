"""What this process has started and not stopped in any better way."""

import contextlib
import os

import psutil


def kill_children(within_s: float) -> None:
    """Kill what was just being started at an interruption; wait until it is gone."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=within_s)

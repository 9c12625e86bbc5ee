"""Stopping a process that a test has started."""

from support.forked import Running


def stop(process: Running, within_s: float) -> None:
    """
    Stop a process with SIGTERM; kill it if it does not end in time.

    Raises:
        subprocess.TimeoutExpired: The process had to be killed.
    """
    process.terminate()
    try:
        process.wait(within_s)
    finally:
        process.kill()
        process.wait()

"""The end of a process that a test has started."""

import subprocess


def stop(process: subprocess.Popen[bytes], within_s: float) -> None:
    """
    Stop a process by SIGTERM; kill it if it does not end in time.

    Raises:
        subprocess.TimeoutExpired: It had to be killed.
    """
    process.terminate()
    try:
        process.wait(within_s)
    finally:
        process.kill()
        process.wait()

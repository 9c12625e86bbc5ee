"""The command line as a process, with a temporary folder of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def towpath(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the block; it creates its temporary files in the folder."""
    with subprocess.Popen(
        [sys.executable, "-m", "towpath.cli", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},  # noqa: TID251 - a root
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()

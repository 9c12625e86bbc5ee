"""
The code of an earlier release, run with the interpreter and libraries of the tests.

It is taken from the repository's history, which a shallow clone lacks. Its code imports
only the members that existed then.
"""

import io
import subprocess
import tarfile
from pathlib import Path

from towpath.sinks.jars.store import refuse_outside_paths

# Version 0.1.0, whose stack is the one in tests/data/recording.
COMMIT = "5bf10c84"

_ROOT = Path(__file__).parents[2]
_MEMBERS = ("schemas", "settings", "outbox", "relay", "sinks", "deploy")
_FORMER = {"towpath.cli": "towpath.deploy.cli"}
# The release's code is found first; ``alter_sys`` sets ``sys.argv[0]`` as a command
# does.
_RUN = """
import sys
sys.path[:0] = {paths!r}
import runpy
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


class OlderRelease:
    """The unpacked code of version 0.1.0."""

    def __init__(self, folder: Path) -> None:
        """
        Unpack the code.

        Raises:
            AssertionError: The history is missing.
        """
        self._folder = folder
        command = ("git", "-C", str(_ROOT), "archive", COMMIT, *_MEMBERS)
        done = subprocess.run(command, capture_output=True, check=False)
        remedy = "fetch the history: git fetch --unshallow"
        assert 0 == done.returncode, f"{done.stderr.decode()}; {remedy}"
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            refuse_outside_paths(archive)
            archive.extractall(folder)  # noqa: S202 - our own history

    def module(self, name: str) -> tuple[str, str]:
        """Return Python's arguments for running a module, without the module's own."""
        paths = [str(self._folder / member / "src") for member in _MEMBERS]
        return "-c", _RUN.format(paths=paths, module=_FORMER.get(name, name))

"""The configuration file of a long-lived process: read again when it has changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from towpath.settings.load import load
from towpath.settings.model import Settings

# What tells one state of a file from another: a replaced file has another inode.
_Stamp: TypeAlias = tuple[int, int, int]


class WatchedFile:
    """One configuration file; looking at it costs a call unless it has changed."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        """Name the file and the overrides; nothing is read yet."""
        self._path = path
        self._environ = environ
        self._seen: _Stamp | None = None

    def changed(self) -> Settings | None:
        """
        Read the file if it is not as it was at the last look.

        Raises:
            ConfigurationError: It has mistakes; they are told once for each change.
        """
        stamp = self._stamp()
        if stamp is not None and stamp == self._seen:
            return None
        self._seen = stamp
        return load(self._path, self._environ)

    def _stamp(self) -> _Stamp | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

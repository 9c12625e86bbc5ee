"""
The state folder: where every part keeps its data, log and process file.

::

    <state>/
      jars/<lock>/      archives, fetched once (only in the clone's own state folder)
      stack/<part>/     data of a part     stack/ports.json   its port, kept
      run/<part>.pid    its process        logs/<part>.log    what it printed
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from towpath.deploy.errors import StateFolderError


class StateFolder(NamedTuple):
    """Paths below one state folder; nothing is created by naming it."""

    root: Path

    @property
    def name(self) -> str:
        """A short name that no other state folder of this machine has."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def stack(self) -> Path:
        """Data of the parts."""
        return self.root / "stack"

    def data(self, part: str) -> Path:
        """Data of one part."""
        return self.stack / part

    def log(self, part: str) -> Path:
        """Log file of one part."""
        return self.root / "logs" / f"{part}.log"

    def process_file(self, part: str) -> Path:
        """File that names the process of one part."""
        return self.root / "run" / f"{part}.pid"

    def parts(self) -> list[str]:
        """Names of all parts that were ever started here, in order of name."""
        return sorted(p.stem for p in (self.root / "run").glob("*.pid"))

    def create(self) -> None:
        """
        Make the folders; safe to repeat.

        Raises:
            StateFolderError: They cannot be made.
        """
        for folder in (self.stack, self.root / "logs", self.root / "run"):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"{folder}: {error.strerror}"
                raise StateFolderError(message) from error

"""
What a sink keeps by name over its restarts: a small JSON file in its folder.

The file is replaced as a whole, so that a crash leaves what was kept before. One that
cannot be read is no reason to stop: whoever kept it begins anew, and a warning tells.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import orjson
import structlog

from towpath.sinks.progress import replace_file

Kept = TypeVar("Kept")

_log = structlog.get_logger("towpath.sinks")


class KeptFile(Generic[Kept]):
    """One such file; it is read whenever it is asked, and held nowhere else."""

    def __init__(self, path: Path) -> None:
        """Describe where it is; nothing is read yet."""
        self._path = path

    def read(self) -> dict[str, Kept]:
        """Return what was kept last; nothing, if there is none or it cannot be read."""
        try:
            kept: dict[str, Kept] = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError:
            _log.warning(
                "what a sink kept cannot be read: beginning anew", file=str(self._path)
            )
            return {}
        return kept

    def keep(self, content: Mapping[str, Kept]) -> None:
        """Keep this in place of what was kept before; the same is not written again."""
        told = orjson.dumps(content)
        if not self._path.exists() or self._path.read_bytes() != told:
            replace_file(self._path, told)

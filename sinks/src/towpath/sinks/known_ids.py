"""
The ids of what a sink writes to, route by route, kept in a file of the sink's own.

Who finds another id than the known one finds another thing under the same name: made
anew, or put there by somebody else. What the old one held need not be there.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson
import structlog

from towpath.sinks.progress import replace_file

_log = structlog.get_logger("towpath.sinks")


class KnownIds:
    """What one sink knows; without a file, for as long as it runs."""

    def __init__(self, file: Path | None) -> None:
        """Describe where the ids are kept; nothing is read yet."""
        self._file = file
        self._ids: Mapping[str, str] = {}

    def recall(self) -> None:
        """Read what was known."""
        if self._file is None:
            return
        try:
            self._ids = orjson.loads(self._file.read_bytes())
        except FileNotFoundError:
            self._ids = {}
        except orjson.JSONDecodeError:
            _log.warning(
                "what was known of a target cannot be read: beginning anew",
                file=self._file.name,
            )
            self._ids = {}

    def of(self, route: str) -> str | None:
        """Return the id that was known last, if any was."""
        return self._ids.get(route)

    def learn(self, route: str, id_: str) -> None:
        """Know an id from now on."""
        if self._ids.get(route) != id_:
            self._keep({**self._ids, route: id_})

    def forget(self, route: str) -> None:
        """Know none from now on."""
        self._keep({name: id_ for name, id_ in self._ids.items() if name != route})

    def _keep(self, ids: Mapping[str, str]) -> None:
        if self._file is not None:
            replace_file(self._file, orjson.dumps(ids))
        self._ids = ids

"""
The ids of what a sink writes to, route by route, kept in a file of the sink's own.

Who finds another id than the known one finds another thing under the same name: made
anew, or put there by somebody else. What the old one held need not be there.
"""

from collections.abc import Mapping
from pathlib import Path

from towpath.sinks.kept import KeptFile


class KnownIds:
    """What one sink knows; without a file, for as long as it runs."""

    def __init__(self, file: Path | None) -> None:
        """Describe where the ids are kept; nothing is read yet."""
        self._file = KeptFile[str](file) if file is not None else None
        self._ids: Mapping[str, str] = {}

    def recall(self) -> None:
        """Read what was known."""
        if self._file is not None:
            self._ids = self._file.read()

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
            self._file.keep(ids)
        self._ids = ids

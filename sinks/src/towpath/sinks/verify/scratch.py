"""A temporary database of one comparison: it goes with its connection."""

import sqlite3
from types import TracebackType
from typing import Self


class Scratch:
    """Rows on disk while a block runs; ``statements`` make their place."""

    statements: tuple[str, ...]

    def __enter__(self) -> Self:
        # An empty name is a temporary file that goes with the connection.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute("pragma journal_mode = off")
        for statement in self.statements:
            self._file.execute(statement)
        self._file.execute("begin")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

"""
What a sink holds, kept by key on disk while it is compared.

A sink gives its rows in any order, the source gives them by key. Laid on a shelf in a
temporary file, they are found by key whatever their number, and memory stays small.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

from towpath.sinks.verify.compare import Held

# Keys of one statement. SQLite takes at most 32,766; more than this gains nothing.
_AT_ONCE: Final = 1000


class Shelf:
    """Rows by key; a key that comes twice is noticed."""

    def __init__(self) -> None:
        self.twice: list[str] = []
        self.live_rows = 0
        self.tombstones = 0

    def __enter__(self) -> Self:
        # An empty name is a temporary file that goes with the connection.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.execute("pragma journal_mode = off")
        self._file.execute(
            "create table row (key text primary key, is_deleted int, packed blob)"
            " without rowid"
        )
        self._file.execute("begin")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def put(self, rows: Iterable[Held]) -> None:
        """Lay rows on the shelf; of a key that comes twice the first stays."""
        waiting = iter(rows)
        while some := list(islice(waiting, _AT_ONCE)):
            self.twice += self._already_there(some)
            self._file.executemany("insert or ignore into row values (?, ?, ?)", some)
            deleted = sum(row.is_deleted for row in some)
            self.tombstones += deleted
            self.live_rows += len(some) - deleted

    def take(self, keys: Sequence[str]) -> dict[str, Held]:
        """Take rows off the shelf; keys that are not there are left out."""
        taken: dict[str, Held] = {}
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            marks = ",".join("?" * len(some))
            found = self._file.execute(
                f"delete from row where key in ({marks}) returning *",  # noqa: S608 - marks only
                some,
            )
            taken |= {row[0]: _held(row) for row in found}
        return taken

    def rest(self) -> Iterator[Held]:
        """Go through what is still there, by key."""
        for row in self._file.execute("select * from row order by key"):
            yield _held(row)

    def _already_there(self, rows: Sequence[Held]) -> list[str]:
        keys = [row.key for row in rows]
        marks = ",".join("?" * len(keys))
        found = self._file.execute(
            f"select key from row where key in ({marks})",  # noqa: S608 - marks only
            keys,
        )
        seen: set[str] = {row[0] for row in found}
        again = []
        for key in keys:
            if key in seen:
                again.append(key)
            seen.add(key)
        return again


def _held(row: tuple[str, int, bytes]) -> Held:
    return Held(row[0], bool(row[1]), row[2])

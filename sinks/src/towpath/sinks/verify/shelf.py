"""
What a sink holds, kept by key on disk while it is compared.

A sink gives its rows in any order, the source gives them by key. Laid on a shelf in a
temporary file, they are found by key whatever their number, and memory stays small. Of
each row a digest is kept: whatever differs is looked at again anyway.

Hot path, once per row of both sides.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from towpath.sinks.verify.compare import Held, digest_of
from towpath.sinks.verify.scratch import Scratch

# Keys of one statement. SQLite takes at most 32,766; more than this gains nothing.
_AT_ONCE: Final = 1000

# Rows come in no order, so most of the table is touched all the time: with two million
# rows on it the shelf takes about 120 MB, and half as much time as with SQLite's 2 MB.
_KEPT_IN_MEMORY: Final = "pragma cache_size = -65536"

_PUT: Final = """
    insert into row (key, digest) values (?, ?)
    on conflict do update set copies = copies + 1
"""
_DELETED: Final = b""
_TABLE: Final = (
    "create table row (key text primary key, digest blob,"
    " copies int not null default 1) without rowid"
)


class Shelf(Scratch):
    """Rows by key; a key that comes twice is noticed."""

    statements = (_KEPT_IN_MEMORY, _TABLE)

    def __init__(self) -> None:
        self.live_rows = 0
        self.tombstones = 0

    def put(self, rows: Iterable[Held]) -> None:
        """Lay rows on the shelf; of a key that comes twice the first stays."""
        waiting = iter(rows)
        while some := [
            (key, _DELETED if is_deleted else digest_of(packed))
            for key, is_deleted, packed, _ in islice(waiting, _AT_ONCE)
        ]:
            self._file.executemany(_PUT, some)
            deleted = sum(digest == _DELETED for _, digest in some)
            self.tombstones += deleted
            self.live_rows += len(some) - deleted

    @property
    def twice(self) -> Sequence[str]:
        """Keys that were put there more than once."""
        found = self._file.execute("select key from row where copies > 1 order by key")
        return [key for (key,) in found]

    def take(self, keys: Sequence[str]) -> dict[str, bytes]:
        """
        Take rows off the shelf, as the digests of their texts; a tombstone has none.

        Keys that are not there are left out.
        """
        taken: dict[str, bytes] = {}
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            marks = ",".join("?" * len(some))
            found = self._file.execute(
                f"delete from row where key in ({marks}) returning key, digest",  # noqa: S608 - marks only
                some,
            )
            taken.update(found)
        return taken

    def rest(self) -> Iterator[Held]:
        """Go through what is still there, by key."""
        for key, digest in self._file.execute(
            "select key, digest from row order by key"
        ):
            yield Held(key, is_deleted=digest == _DELETED, packed=digest)

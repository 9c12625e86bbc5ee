"""
Temporary databases on disk: the sink's rows by key, and the suspects.

Memory use does not grow with the number of rows: after a sink has lost its rows, every
key is a suspect. A sink returns rows in any order, the source in key order. The
sink's rows are stored as digests only, because differing rows are read again anyway. A
database is deleted when its connection is closed.

Hot path, once per row of both sides.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Self

from towpath.sinks.verify.compare import SinkRow, Suspect, digest_of


class Scratch:
    """A temporary database, created by ``statements``."""

    statements: tuple[str, ...]

    def __enter__(self) -> Self:
        # An empty name means a temporary file, deleted when the connection is closed.
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


SUSPECTS_PER_BATCH: Final = 1000

_TABLE: Final = """
    create table suspect (
        key text primary key, source blob, copies int not null default 0,
        is_wrong int not null default 0,
        before_deleted int, before_packed blob, before_position text,
        after_deleted int, after_packed blob, after_position text
    ) without rowid
"""
_ADD: Final = """
    insert or ignore into suspect
        (key, source, before_deleted, before_packed, before_position)
    values (?, ?, ?, ?, ?)
"""
_RECORD_SINK_ROW: Final = """
    update suspect set after_deleted = ?, after_packed = ?, after_position = ?,
        copies = copies + 1
    where key = ? and not is_wrong
"""
_START_ROUND: Final = """
    update suspect set source = null, copies = 0, before_deleted = after_deleted,
        before_packed = after_packed, before_position = after_position,
        after_deleted = null, after_packed = null, after_position = null
    where not is_wrong
"""
_FIRST: Final = (
    "select * from suspect where is_wrong = ? and key >= ? order by key limit ?"
)
_NEXT: Final = _FIRST.replace(">=", ">")

_Row = tuple[
    *tuple[str, bytes | None, int, int],
    *tuple[int | None, bytes | None, str | None],
    *tuple[int | None, bytes | None, str | None],
]


class Suspects(Scratch):
    """
    Keys that may differ, until they are marked wrong or dropped.

    Call order: ``with``; ``add``; then rounds of ``record_sink_rows`` and a judgment.
    Each round but the first begins with ``start_round`` and ``record_source_rows``.
    """

    statements = (_TABLE,)

    def __init__(self) -> None:
        self.open_count = 0
        self.wrong_count = 0

    def add(self, found: Iterable[Suspect]) -> None:
        """Add suspects; an existing one is left unchanged."""
        rows = ((each.key, each.source, *_columns(each.before)) for each in found)
        self.open_count += max(0, self._file.executemany(_ADD, rows).rowcount)

    def record_source_rows(self, rows: Mapping[str, bytes]) -> None:
        """Store the source's packed rows of open suspects."""
        self._file.executemany(
            "update suspect set source = ? where key = ? and not is_wrong",
            [(packed, key) for key, packed in rows.items()],
        )

    def record_sink_rows(self, rows: Iterable[SinkRow]) -> None:
        """Store the sink's rows of open suspects; other keys are ignored."""
        remaining = iter(rows)
        while batch := list(islice(remaining, SUSPECTS_PER_BATCH)):
            self._file.executemany(
                _RECORD_SINK_ROW, ((*_columns(row), row.key) for row in batch)
            )

    def start_round(self) -> None:
        """Start a round: each ``after`` row becomes the ``before`` row."""
        self._file.execute(_START_ROUND)

    def open(self) -> Iterator[list[Suspect]]:
        """Yield the unsettled suspects, in batches."""
        return self._batches(is_wrong=False)

    def wrong(self) -> Iterator[list[Suspect]]:
        """Yield the wrong suspects, in batches."""
        return self._batches(is_wrong=True)

    def drop(self, keys: Sequence[str]) -> None:
        """Remove open suspects that are equal."""
        self._file.executemany("delete from suspect where key = ?", zip(keys))
        self.open_count -= len(keys)

    def mark_wrong(self, keys: Sequence[str]) -> None:
        """Mark open suspects as wrong."""
        self._file.executemany(
            "update suspect set is_wrong = 1 where key = ?",
            zip(keys),
        )
        self.open_count -= len(keys)
        self.wrong_count += len(keys)

    def reopen(self) -> None:
        """Open the wrong suspects again: they are being repaired."""
        self._file.execute("update suspect set is_wrong = 0")
        self.open_count += self.wrong_count
        self.wrong_count = 0

    def _batches(self, *, is_wrong: bool) -> Iterator[list[Suspect]]:
        # The empty string is a key, too.
        query, last = _FIRST, ""
        while rows := self._file.execute(
            query, (is_wrong, last, SUSPECTS_PER_BATCH)
        ).fetchall():
            query, last = _NEXT, rows[-1][0]
            yield [_suspect(row) for row in rows]


def _columns(held: SinkRow | None) -> tuple[int | None, bytes | None, str | None]:
    if held is None:
        return None, None, None
    return held.is_deleted, held.packed, held.position


def _suspect(row: _Row) -> Suspect:
    key, source, copies, _is_wrong, *seen = row
    before, after = (_held(key, *seen[n : n + 3]) for n in (0, 3))
    return Suspect(key, source, before, after, copies)


def _held(key: str, *columns: object) -> SinkRow | None:
    is_deleted, packed, position = columns
    if position is None or not isinstance(packed, bytes):
        return None
    return SinkRow(key, bool(is_deleted), packed, str(position))


# Keys per statement. SQLite allows at most 32,766; going above 1,000 gains nothing.
_KEYS_PER_STATEMENT: Final = 1000

# Rows arrive in any order, so most of the table is in use all the time: two million
# rows take about 120 MB. This cache halves the time needed, compared with SQLite's
# default of 2 MB.
_KEPT_IN_MEMORY: Final = "pragma cache_size = -65536"

_PUT: Final = """
    insert into row (key, digest) values (?, ?)
    on conflict do update set copies = copies + 1
"""
_DELETED: Final = b""
_DIGEST_TABLE: Final = (
    "create table row (key text primary key, digest blob,"
    " copies int not null default 1) without rowid"
)


class DigestTable(Scratch):
    """The digests of a sink's rows by key, with repeated keys counted."""

    statements = (_KEPT_IN_MEMORY, _DIGEST_TABLE)

    def __init__(self) -> None:
        self.live_rows = 0
        self.tombstones = 0

    def put(self, rows: Iterable[SinkRow]) -> None:
        """Add rows; only the first row of a repeated key is stored."""
        remaining = iter(rows)
        while batch := [
            (key, _DELETED if is_deleted else digest_of(packed))
            for key, is_deleted, packed, _ in islice(remaining, _KEYS_PER_STATEMENT)
        ]:
            self._file.executemany(_PUT, batch)
            deleted = sum(digest == _DELETED for _, digest in batch)
            self.tombstones += deleted
            self.live_rows += len(batch) - deleted

    @property
    def duplicate_keys(self) -> Sequence[str]:
        """Keys that were added more than once."""
        found = self._file.execute("select key from row where copies > 1 order by key")
        return [key for (key,) in found]

    def take(self, keys: Sequence[str]) -> dict[str, bytes]:
        """
        Remove rows and return the digests of their text values.

        A tombstone has an empty digest. Missing keys are left out.
        """
        taken: dict[str, bytes] = {}
        for first in range(0, len(keys), _KEYS_PER_STATEMENT):
            batch = keys[first : first + _KEYS_PER_STATEMENT]
            marks = ",".join("?" * len(batch))
            found = self._file.execute(
                f"delete from row where key in ({marks}) returning key, digest",  # noqa: S608 - marks only
                batch,
            )
            taken.update(found)
        return taken

    def rest(self) -> Iterator[SinkRow]:
        """Yield the remaining rows, ordered by key."""
        for key, digest in self._file.execute(
            "select key, digest from row order by key"
        ):
            yield SinkRow(key, is_deleted=digest == _DELETED, packed=digest)

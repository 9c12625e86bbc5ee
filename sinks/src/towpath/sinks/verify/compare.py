"""
Tell the differences between source and sink: every key, every column. Pure.

Rows come as texts packed into one, so that equal rows cost one comparison; only those
that differ are taken apart.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import orjson


class Kind(enum.StrEnum):
    """What is wrong with a row of the sink."""

    MISSING = "missing"
    DELETED = "deleted"
    EXTRA = "extra"
    CHANGED = "changed"
    TWICE = "twice"


class Held(NamedTuple):
    """A row that the sink holds, or the tombstone of one."""

    key: str
    is_deleted: bool
    packed: bytes


class Difference(NamedTuple):
    """
    One difference.

    Attributes:
        kind: Missing or deleted: the source has the row. Extra: it has not, because it
            never had or because the row was deleted and came back. Changed: a column
            has another value. Twice: the sink holds the key more than once.
        column: The column that is changed.
        source: Its text in the source; null has none.
        sink: Its text in the sink.
    """

    kind: Kind
    key: str
    column: str | None = None
    source: str | None = None
    sink: str | None = None

    def __str__(self) -> str:
        return _SENTENCES[self.kind].format(
            key=self.key,
            column=self.column,
            source=_shown(self.source),
            sink=_shown(self.sink),
        )


class Shelved(Protocol):
    """What the comparison needs of the sink's rows: found by key, each taken once."""

    @property
    def twice(self) -> Sequence[str]:
        """Keys that were there more than once."""

    def take(self, keys: Sequence[str]) -> dict[str, Held]:
        """Take rows off; keys that are not there are left out."""

    def rest(self) -> Iterator[Held]:
        """Go through what was never taken."""


class SourceRow(NamedTuple):
    """A row of the source, as the texts of its columns."""

    key: str
    texts: Sequence[str | None]


def pack(texts: Sequence[str | None]) -> bytes:
    """Write a row's texts as one, so that no two rows have the same."""
    return orjson.dumps(texts)


def differences(
    columns: Sequence[str], source: Iterable[Sequence[SourceRow]], sink: Shelved
) -> Iterator[Difference]:
    """
    Compare all rows.

    Args:
        columns: Names of the columns, in the order of the texts.
        source: Rows of the source, some at a time.
        sink: The sink's rows. It is empty of what the source has afterwards.
    """
    for rows in source:
        found = sink.take([row.key for row in rows])
        for row in rows:
            yield from _of_row(columns, row, found.get(row.key))
    for held in sink.rest():
        if not held.is_deleted:
            yield Difference(Kind.EXTRA, held.key)
    for key in sink.twice:
        yield Difference(Kind.TWICE, key)


def _of_row(
    columns: Sequence[str], row: SourceRow, held: Held | None
) -> Iterator[Difference]:
    if held is None:
        yield Difference(Kind.MISSING, row.key)
        return
    if held.is_deleted:
        yield Difference(Kind.DELETED, row.key)
        return
    if held.packed == pack(row.texts):
        return
    stored = orjson.loads(held.packed)
    for column, source, sink in zip(columns, row.texts, stored, strict=True):
        if source != sink:
            yield Difference(Kind.CHANGED, row.key, column, source, sink)


_LONGEST_SHOWN = 80

_SENTENCES = {
    Kind.MISSING: "{key}: the sink does not have it",
    Kind.DELETED: "{key}: the sink holds it as deleted, the source has it",
    Kind.EXTRA: "{key}: the sink has it, the source does not",
    Kind.CHANGED: "{key}: {column} is {source} in the source and {sink} in the sink",
    Kind.TWICE: "{key}: the sink has it more than once",
}


def _shown(text: str | None) -> str:
    if text is None:
        return "null"
    if len(text) > _LONGEST_SHOWN:
        return f"{text[:_LONGEST_SHOWN]!r}... ({len(text)} characters)"
    return repr(text)

"""
Find the differences between source and sink, by key and column.

The texts of a row are packed into one value, so that equal rows cost one comparison;
only differing rows are unpacked.

Both sides can change while they are compared, so a difference is a suspect at first. It
is judged by two reads of the sink, with a read of the source in between::

    the sink before  <  the source  <  the sink after, which has passed the source

A row with the same position before and after did not change in between: if its content
differs from the source's, the sink is wrong. A row that has changed is read again,
unless it has the source's content now.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import orjson


class DifferenceKind(enum.StrEnum):
    """The kind of a difference."""

    MISSING = "missing"
    DELETED = "deleted"
    EXTRA = "extra"
    CHANGED = "changed"
    TWICE = "twice"
    SURPLUS = "surplus"


class SinkRow(NamedTuple):
    """A row or a tombstone of the sink."""

    key: str
    is_deleted: bool
    packed: bytes
    position: str = ""


class SourceRow(NamedTuple):
    """A row of the source, as the texts of its columns."""

    key: str
    texts: Sequence[str | None]


class Suspect(NamedTuple):
    """
    A key whose row may differ.

    Attributes:
        source: The source's texts, packed; ``None`` if it has no row.
        before: The sink's row before the source was read. The first round, which marks
            no key wrong, gives it only for keys that the source lacks.
        after: The sink's row once the sink has passed the source.
        copies: The number of rows that the read of ``after`` found for the key.
    """

    key: str
    source: bytes | None
    before: SinkRow | None
    after: SinkRow | None = None
    copies: int = 0


class SuspectState(enum.Enum):
    """The state of a suspect after two reads."""

    EQUAL = "equal"
    WRONG = "wrong"
    MOVING = "moving"


class Difference(NamedTuple):
    """
    One difference.

    Attributes:
        kind: Missing or deleted: only the source has the row. Extra: only the sink has
            it. Changed: a column has a different value. Twice: the sink has the key
            more than once. Surplus: the sink has a field that no column of the route
            has.
        column: The changed column, or the surplus field.
        source: Its text in the source; ``None`` for null.
        sink: Its text in the sink; ``None`` for null.
    """

    kind: DifferenceKind
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


class SinkDigests(Protocol):
    """The sink's rows by key; each row is removed when it is compared."""

    @property
    def duplicate_keys(self) -> Sequence[str]:
        """Keys with more than one row."""

    def take(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Remove rows and return their digests; missing keys are left out."""

    def rest(self) -> Iterator[SinkRow]:
        """Yield the rows that were never removed, packed as digests."""


def pack(texts: Sequence[str | None]) -> bytes:
    """Pack a row's texts; different rows have different results."""
    return orjson.dumps(texts)


def digest_of(packed: bytes) -> bytes:
    """Return a digest of packed texts."""
    return blake2b(packed, digest_size=16).digest()


def suspects(
    source: Iterable[Sequence[SourceRow]], sink: SinkDigests, *, is_pruned: bool = False
) -> Iterator[Suspect]:
    """
    Compare all rows, and yield those that differ; a key may be repeated.

    Args:
        source: Rows of the source, in batches.
        sink: The sink's rows; rows that the source has are removed.
        is_pruned: Whether rows that only the sink has are ignored, unless repeated.
    """
    duplicate_keys = set(sink.duplicate_keys)
    for rows in source:
        found = sink.take([row.key for row in rows])
        for key, texts in rows:
            packed = pack(texts)
            if found.get(key) != digest_of(packed) or key in duplicate_keys:
                yield Suspect(key, packed, None)
    for held in sink.rest():
        is_extra = not held.is_deleted and not is_pruned
        if is_extra or held.key in duplicate_keys:
            yield Suspect(held.key, None, held)


def is_same(source: bytes | None, held: SinkRow | None) -> bool:
    """Return whether a sink's row is equal to the source's."""
    if held is None or held.is_deleted:
        return source is None
    return held.packed == source


def state_of(suspect: Suspect, *, is_pruned: bool = False) -> SuspectState:
    """Judge a suspect from both reads."""
    # A pruned source may have deleted a row that the sink keeps.
    if suspect.copies <= 1 and suspect.source is None and is_pruned:
        return SuspectState.EQUAL
    if suspect.copies <= 1 and is_same(suspect.source, suspect.after):
        return SuspectState.EQUAL
    if suspect.before == suspect.after:
        return SuspectState.WRONG
    # The row was equal before it changed; the next verification compares it again.
    if suspect.copies <= 1 and is_same(suspect.source, suspect.before):
        return SuspectState.EQUAL
    return SuspectState.MOVING


def differences(columns: Sequence[str], suspect: Suspect) -> Iterator[Difference]:
    """
    Yield the differences of a row.

    Args:
        columns: Names of the columns, in the order of the texts.
        suspect: Both sides of the row.
    """
    held = suspect.after
    if suspect.copies > 1:
        yield Difference(DifferenceKind.TWICE, suspect.key)
    elif suspect.source is None:
        yield Difference(DifferenceKind.EXTRA, suspect.key)
    elif held is None:
        yield Difference(DifferenceKind.MISSING, suspect.key)
    elif held.is_deleted:
        yield Difference(DifferenceKind.DELETED, suspect.key)
    else:
        expected, texts = orjson.loads(suspect.source), orjson.loads(held.packed)
        own, surplus = texts[: len(columns)], texts[len(columns) :]
        for column, source, sink in zip(columns, expected, own, strict=True):
            if source != sink:
                yield Difference(
                    DifferenceKind.CHANGED, suspect.key, column, source, sink
                )
        for name in surplus:
            yield Difference(DifferenceKind.SURPLUS, suspect.key, name)


_LONGEST_SHOWN = 80

_SENTENCES = {
    DifferenceKind.MISSING: "{key}: the sink does not have it",
    DifferenceKind.DELETED: "{key}: the source has it, but the sink has a tombstone",
    DifferenceKind.EXTRA: "{key}: the sink has it, but the source does not",
    DifferenceKind.CHANGED: (
        "{key}: {column} is {source} in the source and {sink} in the sink"
    ),
    DifferenceKind.TWICE: "{key}: the sink has it more than once",
    DifferenceKind.SURPLUS: (
        "{key}: the sink has a field {column} that the source does not have"
    ),
}


def _shown(text: str | None) -> str:
    if text is None:
        return "null"
    if len(text) > _LONGEST_SHOWN:
        return f"{text[:_LONGEST_SHOWN]!r}... ({len(text)} characters)"
    return repr(text)

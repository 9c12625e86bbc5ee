"""
Tell the differences between source and sink: every key, every column. Pure.

Rows come as texts packed into one, so that equal rows cost one comparison; only those
that differ are taken apart.

Both sides may change while they are compared, so what differs is a suspect at first. It
is judged by two looks at the sink with the source in between::

    the sink before  <  the source  <  the sink after, which has passed the source

A row that the sink holds at the same position before and after did not change between:
if the source has another content, the sink is wrong. A row that moved on explains
itself, and is looked at again, unless it came to what the source had.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import orjson


class DifferenceKind(enum.StrEnum):
    """What is wrong with a row of the sink."""

    MISSING = "missing"
    DELETED = "deleted"
    EXTRA = "extra"
    CHANGED = "changed"
    TWICE = "twice"
    SURPLUS = "surplus"


class SinkRow(NamedTuple):
    """A row that the sink holds, or the tombstone of one."""

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
        source: The source's texts, packed; none: it has no row.
        before: What the sink held before the source was read. At first that something
            was there is enough: the first look convicts nobody.
        after: What it holds since it passed what the source had.
        copies: How many rows of the key the sink held then.
    """

    key: str
    source: bytes | None
    before: SinkRow | None
    after: SinkRow | None = None
    copies: int = 0


class SuspectState(enum.Enum):
    """What two looks at a suspect come to."""

    EQUAL = "equal"
    WRONG = "wrong"
    MOVING = "moving"


class Difference(NamedTuple):
    """
    One difference.

    Attributes:
        kind: Missing or deleted: the source has the row. Extra: it has not, because it
            never had or because the row was deleted and came back. Changed: a column
            has another value. Twice: the sink holds the key more than once. Surplus: it
            holds a field that no column of the route has.
        column: The column that is changed, or the field that no column has.
        source: Its text in the source; null has none.
        sink: Its text in the sink.
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
    """What the comparison needs of the sink's rows: found by key, each taken once."""

    @property
    def twice(self) -> Sequence[str]:
        """Keys that were there more than once."""

    def take(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Take rows off, as digests; keys that are not there are left out."""

    def rest(self) -> Iterator[SinkRow]:
        """Go through what was never taken; what is packed is a digest."""


def pack(texts: Sequence[str | None]) -> bytes:
    """Write a row's texts as one, so that no two rows have the same."""
    return orjson.dumps(texts)


def digest_of(packed: bytes) -> bytes:
    """Return what stands for a row's texts; another row has another."""
    return blake2b(packed, digest_size=16).digest()


def suspects(
    source: Iterable[Sequence[SourceRow]], sink: SinkDigests, *, is_pruned: bool = False
) -> Iterator[Suspect]:
    """
    Compare all rows, and tell which are not the same; a key may come again.

    Args:
        source: Rows of the source, some at a time.
        sink: The sink's rows. It is empty of what the source has afterwards.
        is_pruned: Whether what only the sink has tells nothing, unless it comes twice.
    """
    twice = set(sink.twice)
    for rows in source:
        found = sink.take([row.key for row in rows])
        for key, texts in rows:
            packed = pack(texts)
            if found.get(key) != digest_of(packed) or key in twice:
                yield Suspect(key, packed, None)
    for held in sink.rest():
        is_extra = not held.is_deleted and not is_pruned
        if is_extra or held.key in twice:
            yield Suspect(held.key, None, held)


def is_same(source: bytes | None, held: SinkRow | None) -> bool:
    """Tell whether a sink holds what the source has."""
    if held is None or held.is_deleted:
        return source is None
    return held.packed == source


def state_of(suspect: Suspect, *, is_pruned: bool = False) -> SuspectState:
    """Judge a suspect by both looks; of a pruned source no row is no word."""
    if suspect.copies <= 1 and suspect.source is None and is_pruned:
        return SuspectState.EQUAL
    if suspect.copies <= 1 and is_same(suspect.source, suspect.after):
        return SuspectState.EQUAL
    if suspect.before == suspect.after:
        return SuspectState.WRONG
    # It was what the source had, and moved on: the next look is the next look's.
    if suspect.copies <= 1 and is_same(suspect.source, suspect.before):
        return SuspectState.EQUAL
    return SuspectState.MOVING


def differences(columns: Sequence[str], suspect: Suspect) -> Iterator[Difference]:
    """
    Tell how a row differs.

    Args:
        columns: Names of the columns, in the order of the texts.
        suspect: What both sides have of it.
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
        told, texts = orjson.loads(suspect.source), orjson.loads(held.packed)
        own, surplus = texts[: len(columns)], texts[len(columns) :]
        for column, source, sink in zip(columns, told, own, strict=True):
            if source != sink:
                yield Difference(
                    DifferenceKind.CHANGED, suspect.key, column, source, sink
                )
        for name in surplus:
            yield Difference(DifferenceKind.SURPLUS, suspect.key, name)


_LONGEST_SHOWN = 80

_SENTENCES = {
    DifferenceKind.MISSING: "{key}: the sink does not have it",
    DifferenceKind.DELETED: "{key}: the sink holds it as deleted, the source has it",
    DifferenceKind.EXTRA: "{key}: the sink has it, the source does not",
    DifferenceKind.CHANGED: "{key}: {column} is {source} in the source and {sink} in the sink",
    DifferenceKind.TWICE: "{key}: the sink has it more than once",
    DifferenceKind.SURPLUS: "{key}: the sink has a field {column} that the source has not",
}


def _shown(text: str | None) -> str:
    if text is None:
        return "null"
    if len(text) > _LONGEST_SHOWN:
        return f"{text[:_LONGEST_SHOWN]!r}... ({len(text)} characters)"
    return repr(text)

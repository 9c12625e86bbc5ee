"""
Rows as a bulk call takes them, cut by count and size.

Hot path, once per row. A document is the whole row with its position; a delete is a
document that keeps the key, the position and the mark. The version is the position
packed into 63 bits, and ``external_gte`` lets the index refuse what is older.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import orjson

from towpath.schemas.position import (
    READ_ORDINAL,
    SHARED_ORDINAL,
    Position,
    version,
)
from towpath.settings import SearchOptions
from towpath.sinks.change import Change
from towpath.sinks.key_text import key_text
from towpath.sinks.search.mapping import DELETED_FIELD, POSITION_FIELD

LONGEST_ID_BYTES: Final = 512

# Where a position's text tells the ordinal; from the first shared one on, the text of
# the place sorts above. That of a READ row sorts below every digit.
_PLACE: Final = 17
_FIRST_SHARED: Final = f"{SHARED_ORDINAL - 1:010d}"


class Document(NamedTuple):
    """
    One item of a bulk call.

    ``counts`` is whether its outcome is that of the change: of a route with two indexes
    the new one decides, which is about to take the other's place.
    """

    change: Change
    counts: bool
    lines: bytes


def document_id(change: Change) -> str:
    """Name the document of a change's row."""
    return key_text(change.key)


def has_shared_version(change: Change) -> bool:
    """Tell whether the version alone cannot say which of two changes is newer."""
    return change.position[_PLACE:] >= _FIRST_SHARED


def opening(alias: str) -> bytes:
    """Write what every item for an alias begins with."""
    return b'{"index":{"_index":%b,' % orjson.dumps(alias)


def documents(change: Change, openings: Sequence[bytes]) -> Iterator[Document]:
    """Write one change for each of its aliases; it must hold the whole row."""
    rest = b'"_id":%b,"version":%d,"version_type":"external_gte"}}\n%b\n' % (
        orjson.dumps(document_id(change)),
        _version(change.position),
        _source(change),
    )
    *old, newest = openings
    for one in old:
        yield Document(change, False, one + rest)  # noqa: FBT003 - by name is slower
    yield Document(change, True, newest + rest)  # noqa: FBT003


def _version(position: str) -> int:
    """Pack a position that was checked when it was read."""
    place = position[_PLACE:]
    ordinal = READ_ORDINAL if place == "-" else int(place)
    return version(Position(int(position[: _PLACE - 1], 16), ordinal))


def _source(change: Change) -> bytes:
    if change.row is None:
        key = dict(zip(change.key_columns, change.key, strict=bool(change.key_columns)))
        own = {POSITION_FIELD: change.position, DELETED_FIELD: True}
        return orjson.dumps({**key, **own})
    if change.text is None or not change.row:
        return orjson.dumps({**change.row, POSITION_FIELD: change.position})
    # As it came, because its numbers may have more digits than a double: the position
    # goes in front of the last brace. Between lines there is nothing but blanks.
    body = change.text.rstrip()[:-1].replace(b"\n", b" ").replace(b"\r", b" ")
    return body + f',"{POSITION_FIELD}":"{change.position}"}}'.encode()


def calls(
    given: Iterable[Document], options: SearchOptions
) -> Iterator[list[Document]]:
    """Cut documents into calls, by count and size."""
    taken: list[Document] = []
    size_bytes = 0
    for one in given:
        one_bytes = len(one.lines)
        if taken and (
            len(taken) == options.call_documents
            or size_bytes + one_bytes > options.call_bytes
        ):
            yield taken
            taken, size_bytes = [], 0
        taken.append(one)
        size_bytes += one_bytes
    if taken:
        yield taken


def body_of(call: Iterable[Document]) -> bytes:
    """Return a call as newline-delimited JSON."""
    return b"".join([document.lines for document in call])

"""
Rows as a bulk call takes them, cut by count and size.

Hot path, once per row. A document is the whole row with its position; a delete is a
document that keeps the key, the position and the mark. The version is the position
packed into 63 bits, and ``external_gte`` lets the index refuse what is older.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import orjson

from towpath.schemas.position import is_shared, parse_position, version
from towpath.sinks.change import Change
from towpath.sinks.key_text import key_text
from towpath.sinks.search.mapping import DELETED_FIELD, POSITION_FIELD

# The index's own documents say a bulk call should be of 5 to 15 MB at most; more rows
# per call did not make it quicker, and make a retry of it dearer.
DOCUMENTS_PER_CALL: Final = 1000
BYTES_PER_CALL: Final = 5 * 1024 * 1024

LONGEST_ID_BYTES: Final = 512


class Document(NamedTuple):
    """One item of a bulk call, and the change that it carries."""

    change: Change
    lines: bytes


class Call(NamedTuple):
    """One bulk call."""

    documents: tuple[Document, ...]

    @property
    def body(self) -> bytes:
        """The call as newline-delimited JSON."""
        return b"".join(document.lines for document in self.documents)


def document_id(change: Change) -> str:
    """Name the document of a change's row."""
    return key_text(change.key)


def has_shared_version(change: Change) -> bool:
    """Tell whether the version alone cannot say which of two changes is newer."""
    return is_shared(version(parse_position(change.position)))


def document(change: Change) -> Document:
    """Write one change; it must hold the whole row."""
    action = {
        "_index": change.route,
        "_id": document_id(change),
        "version": version(parse_position(change.position)),
        "version_type": "external_gte",
    }
    line = orjson.dumps({"index": action})
    return Document(change, line + b"\n" + _source(change) + b"\n")


def _source(change: Change) -> bytes:
    if change.row is None:
        key = dict(zip(change.key_columns, change.key, strict=bool(change.key_columns)))
        own = {POSITION_FIELD: change.position, DELETED_FIELD: True}
        return orjson.dumps({**key, **own})
    if change.text is None:
        return orjson.dumps({**change.row, POSITION_FIELD: change.position})
    # As it came, because its numbers may have more digits than a double: the position
    # goes in front of the last brace. Between lines there is nothing but blanks.
    body = change.text.rstrip()[:-1].replace(b"\n", b" ").replace(b"\r", b" ")
    return body + f',"{POSITION_FIELD}":"{change.position}"}}'.encode()


def calls(documents: Iterable[Document]) -> Iterator[Call]:
    """Cut documents into calls."""
    taken: list[Document] = []
    size_bytes = 0
    for one in documents:
        if taken and (
            len(taken) == DOCUMENTS_PER_CALL
            or size_bytes + len(one.lines) > BYTES_PER_CALL
        ):
            yield Call(tuple(taken))
            taken, size_bytes = [], 0
        taken.append(one)
        size_bytes += len(one.lines)
    if taken:
        yield Call(tuple(taken))

"""
Parts of a record, read or refused: position, text, JSON object. Pure.

What cannot be read raises ``UnreadableError`` with its reason; ``decode`` makes poison
of it.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias

import orjson

from towpath.schemas import headers as names

_POSITION: Final = re.compile(rb"([0-9a-f]{16}\.(?:-|[0-9]{10}))(?:\.[0-9]+)?\Z")

# What sinks write beside a row's own columns.
RESERVED_COLUMNS: Final = frozenset({"_position", "_deleted", "_x"})

Headers: TypeAlias = Mapping[str, bytes]


class UnreadableError(ValueError):
    """The record says nothing that a sink could apply."""


def position_in(headers: Headers, name: str = names.POSITION) -> str:
    """Return a position without the number among records of one change."""
    match = _POSITION.match(headers.get(name, b""))
    if match is None:
        refuse(f"the header {name} is missing or is not a position")
    return match[1].decode()


def object_in(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object that is not empty."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        refuse(f"the {what} is not JSON")
    if not isinstance(document, dict) or not document:
        refuse(f"the {what} is not a JSON object")
    return document


def text_in(value: bytes | None, what: str) -> str:
    """Return a text that is not empty."""
    if not value:
        refuse(f"the {what} is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        refuse(f"the {what} is not text")


def refuse(reason: str) -> NoReturn:
    """Give the record up."""
    raise UnreadableError(reason)

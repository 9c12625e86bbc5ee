"""
A JSON object as it was written: each member's value, and its text byte for byte.

A payload must not be re-serialised: numbers would lose digits, and spaces and the
order of members would change. Values come from a strict parser; a member's text is cut
out of the content. Where a name occurs only once, that is quick; otherwise all members
are walked.
"""

import json
import re
from typing import Any, Final

import orjson

from towpath.relay.errors import UnroutableError

NOT_AN_OBJECT: Final = "the message is not a JSON object"
TOO_DEEP: Final = "the message's JSON is nested too deeply"

# Numbers stay texts: only where they end is asked for.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
# Names that a search finds, and how their letters can be hidden from it.
_PLAIN: Final = re.compile(r"[A-Za-z_]+\Z")
_HIDDEN: Final = ("\\u004", "\\u005", "\\u006", "\\u007")


class Told:
    """One object. Members by name; the last of a name counts."""

    def __init__(self, content: bytes) -> None:
        """
        Read the object.

        Raises:
            UnroutableError: The content is no JSON object.
        """
        try:
            members = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise UnroutableError(NOT_AN_OBJECT) from error
        if not isinstance(members, dict):
            raise UnroutableError(NOT_AN_OBJECT)
        self.members: dict[str, Any] = members
        self._content = content.decode()
        self._texts: dict[str, str] | None = None

    def text(self, name: str) -> bytes | None:
        """Return a string's text, null's absence, or anything else as written."""
        value = self.members.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return value.encode()
        try:
            return self._as_written(name).encode()
        except RecursionError as error:
            raise UnroutableError(TOO_DEEP) from error

    def _as_written(self, name: str) -> str:
        content = self._content
        quoted = f'"{name}"'
        is_bare = _PLAIN.match(name) and not any(h in content for h in _HIDDEN)
        if is_bare and content.count(quoted) == 1:
            found = _COLON.match(content, content.index(quoted) + len(quoted))
            if found is not None:
                start = found.end()
                return content[start : _end(content, start)]
        if self._texts is None:
            self._texts = _walk(content)
        return self._texts[name]


def _end(content: str, start: int) -> int:
    """Return where the value ends that begins here."""
    end: int = _DECODER.raw_decode(content, start)[1]
    return end


def _walk(content: str) -> dict[str, str]:
    """Return the text of every member of an object that is known to be one."""
    texts: dict[str, str] = {}
    at = _skip(content, _skip(content, 0) + 1)
    while content[at] != "}":
        name, at = _DECODER.raw_decode(content, at)
        start = _skip(content, _skip(content, at) + 1)
        end = _end(content, start)
        texts[name] = content[start:end]
        at = _skip(content, end)
        if content[at] == ",":
            at = _skip(content, at + 1)
    return texts


def _skip(content: str, at: int) -> int:
    found = _SPACE.match(content, at)
    return at if found is None else found.end()

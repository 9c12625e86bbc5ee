r"""
Arrays: ``{1,NULL,"a\"b",{..}}`` to lists of the element's form. Hot path if flat.

NULL without quotes is null; everything that could be mistaken is quoted. Bounds before
the braces (``[0:1]={..}``) say how the database counts, not what is in the array, and
are left out. JSON without schemas keeps every dimension as a list of lists; a schema
has one dimension only (Postgres does not fix a column's), so that there the elements
follow each other, row by row.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Form, Schema

Nested = "list[bytes | Nested | None]"

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_QUOTE: Final = b'"'
_NULL: Final = b"null"


def array(element: Form, delimiter: bytes, *, has_schema: bool) -> Form:
    """Return the form of an array."""
    write = _flat_writer(element, delimiter) if has_schema else None
    nested = _nested_writer(element, delimiter)

    def json(text: bytes) -> bytes:
        if write is None or is_flat(text):
            return nested(text)
        return write(text)

    def value(text: bytes) -> list[object]:
        leaves = flatten(parse_array(text, delimiter))
        return [None if leaf is None else element.value(leaf) for leaf in leaves]

    schema = Schema("array", items=element.schema.optional())
    return Form(schema, json, value)


def is_flat(text: bytes) -> bool:
    """Tell whether an array has one dimension, and nothing in it is quoted."""
    has_braces = text[:1] == b"{" and text.count(b"{") == text.count(b"}") == 1
    return has_braces and _QUOTE not in text


def parse_array(text: bytes, delimiter: bytes = b",") -> list[object]:
    """
    Return the elements: texts, None for NULL, and lists of further dimensions.

    Raises:
        MalformedMessageError: It is not an array.
    """
    body = text[text.index(b"=") + 1 :] if text[:1] == b"[" and b"=" in text else text
    if is_flat(body):
        if body[-1:] != b"}":
            raise _malformed(text)
        inside = body[1:-1]
        flat = inside.split(delimiter) if inside else []
        return [None if item == b"NULL" else item for item in flat]
    return _parse_nested(body, delimiter)


def flatten(elements: list[object]) -> Iterator[bytes | None]:
    """Walk the elements of every dimension, row by row."""
    for element in elements:
        if isinstance(element, list):
            yield from flatten(element)
        elif element is None or isinstance(element, bytes):
            yield element


def _parse_nested(text: bytes, delimiter: bytes) -> list[object]:
    root: list[object] = []
    open_lists = [root]
    end = 0
    for token in _tokens(delimiter).finditer(text):
        if token.start() != end or not open_lists:
            raise _malformed(text)
        end = token.end()
        _take(token, open_lists)
    if end != len(text) or len(open_lists) != 1 or len(root) != 1:
        raise _malformed(text)
    (whole,) = root
    if not isinstance(whole, list):
        raise _malformed(text)
    return whole


def _take(token: re.Match[bytes], open_lists: list[list[object]]) -> None:
    """Add an element to the innermost list, or open or close one."""
    quoted, plain = token.groups()
    if quoted is not None:
        open_lists[-1].append(_ESCAPED.sub(rb"\1", quoted))
    elif plain is not None:
        open_lists[-1].append(None if plain == b"NULL" else plain)
    elif token[0] == b"{":
        inner: list[object] = []
        open_lists[-1].append(inner)
        open_lists.append(inner)
    elif token[0] == b"}":
        open_lists.pop()


def _tokens(delimiter: bytes) -> re.Pattern[bytes]:
    found = _TOKENS.get(delimiter)
    if found is None:
        mark = re.escape(delimiter)
        found = _TOKENS[delimiter] = re.compile(
            rb'"((?:[^"\\]|\\.)*)"|[{}]|' + mark + rb'|([^{}"\\' + mark + rb"]+)",
            re.DOTALL,
        )
    return found


# One per delimiter: the comma, and the semicolon of boxes.
_TOKENS: Final[dict[bytes, re.Pattern[bytes]]] = {}


def _nested_writer(element: Form, delimiter: bytes) -> Callable[[bytes], bytes]:
    encode = element.json

    def write(elements: list[object]) -> bytes:
        parts = [
            encode(item)
            if isinstance(item, bytes)
            else write(item)
            if isinstance(item, list)
            else _NULL
            for item in elements
        ]
        return b"[" + b",".join(parts) + b"]"

    return lambda text: write(parse_array(text, delimiter))


def _flat_writer(element: Form, delimiter: bytes) -> Callable[[bytes], bytes]:
    encode = element.json

    def write(text: bytes) -> bytes:
        leaves = flatten(parse_array(text, delimiter))
        parts = [_NULL if leaf is None else encode(leaf) for leaf in leaves]
        return b"[" + b",".join(parts) + b"]"

    return write


def _malformed(text: bytes) -> MalformedMessageError:
    return MalformedMessageError(f"not an array: {len(text)} bytes")

r"""
Composite types: ``(1,"a b",)`` to an object of their fields, by name.

Nothing between commas is NULL, two quotes are the empty text; in quotes a backslash or
a quote protects what follows. A row may be older or younger than what is known of its
type: a value with another number of fields stays its text where there is no schema;
with one, what the type lacks by now is left out and told to ``on_lost``, and what the
value lacks is null.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.decimals import OnLost
from towpath.relay.routing.forms.form import Form, Schema
from towpath.relay.routing.forms.texts import text_json

FIELDS_LOST: Final = "a composite value has more fields than its type has by now"

_FIELD: Final = re.compile(rb'(?:"((?:[^"\\]|""|\\.)*)"|([^,()"\\]*))([,)])', re.DOTALL)
_ESCAPED: Final = re.compile(rb'(?:\\|"(?="))(.)', re.DOTALL)
_NULL: Final = b"null"

Field = tuple[str, Form]


def composite(
    name: str, fields: Sequence[Field], on_lost: OnLost, *, has_schema: bool
) -> Form:
    """Return the form of a composite type."""
    schema = Schema(
        "struct",
        name=name,
        fields=tuple((field, form.schema.optional()) for field, form in fields),
    )

    def value(text: bytes) -> dict[str, object]:
        parts = _fitted(parse_composite(text), len(fields), on_lost)
        return {
            field: None if part is None else form.value(part)
            for (field, form), part in zip(fields, parts, strict=True)
        }

    return Form(schema, _writer(fields, on_lost, has_schema=has_schema), value)


def parse_composite(text: bytes) -> list[bytes | None]:
    """
    Return the texts of a composite's fields; None for NULL.

    Raises:
        MalformedMessageError: It is not a composite.
    """
    if text[:1] != b"(":
        raise _malformed(text)
    parts: list[bytes | None] = []
    at = 1
    while True:
        match = _FIELD.match(text, at)
        if match is None:
            raise _malformed(text)
        quoted, plain, end = match.groups()
        parts.append(
            _ESCAPED.sub(rb"\1", quoted) if quoted is not None else plain or None
        )
        at = match.end()
        if end == b")":
            break
    if at != len(text):
        raise _malformed(text)
    return parts


def _writer(
    fields: Sequence[Field], on_lost: OnLost, *, has_schema: bool
) -> Callable[[bytes], bytes]:
    heads = [(orjson.dumps(name) + b":", form.json) for name, form in fields]

    def json(text: bytes) -> bytes:
        parts = parse_composite(text)
        if len(parts) != len(heads):
            if not has_schema:
                return text_json(text)
            parts = _fitted(parts, len(heads), on_lost)
        written = [
            head + (_NULL if part is None else encode(part))
            for (head, encode), part in zip(heads, parts, strict=True)
        ]
        return b"{" + b",".join(written) + b"}"

    return json


def _fitted(
    parts: list[bytes | None], count: int, on_lost: OnLost
) -> list[bytes | None]:
    if len(parts) > count:
        on_lost(FIELDS_LOST)
    return (parts + [None] * count)[:count]


def _malformed(text: bytes) -> MalformedMessageError:
    return MalformedMessageError(f"not a composite value: {len(text)} bytes")

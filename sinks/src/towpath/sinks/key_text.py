"""
A key as one string, unique among the keys of its table.

Parts are joined by colons. A colon or percent sign in a part is percent-encoded, and an
empty part is ``%00`` (Postgres's text holds no NUL, and a search index accepts no empty
id). All keys of one table have the same number of parts.

Records have integers and floats as numbers, booleans as booleans, all the rest as text.
"""

from collections.abc import Sequence

import orjson

from towpath.schemas.envelope import Value


def text_of(value: Value) -> str:
    """
    Return a value as text.

    Null is ``null``, so that each part of a key has text.
    """
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    # Integers beyond 64 bits do not occur: such columns are numeric, hence text.
    return orjson.dumps(value).decode()


_EMPTY_PART = "%00"


def key_text(key: Sequence[Value]) -> str:
    """Return the values of a key, in key order, as one string."""
    if len(key) == 1 and type(key[0]) is int:
        return str(key[0])
    return ":".join([_part(value) for value in key])


def key_parts(text: str) -> tuple[str, ...]:
    """Split a key's text into its values, each as text."""
    return tuple([_value(part) for part in text.split(":")])


def _part(value: Value) -> str:
    text = text_of(value)
    if ":" in text or "%" in text:
        text = text.replace("%", "%25").replace(":", "%3A")
    return text or _EMPTY_PART


def _value(part: str) -> str:
    if part == _EMPTY_PART:
        return ""
    return part.replace("%3A", ":").replace("%25", "%")

"""
Write a key as one text, so that no two keys of a table share it.

The parts are joined by colons; a colon or a percent sign inside a part is
percent-encoded, and an empty part is written ``%00`` (Postgres's text holds no NUL, and
a search index takes no empty id). So the text tells the parts apart, and one table's
key has always the same number of them.

Column values as text, for targets that know only text.

Records carry integers and floats as numbers, booleans as booleans, everything else as
text already. Null has no text: whoever writes a value decides what null becomes.
"""

from collections.abc import Sequence

import orjson

from towpath.sinks.change import Value


def text_of(value: Value) -> str:
    """Write one value; null is written ``null``, so that a key's part has a text."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    # Integers beyond 64 bits do not come: such columns are numeric, hence text.
    return orjson.dumps(value).decode()


_EMPTY_PART = "%00"


def key_text(key: Sequence[Value]) -> str:
    """Write the values of a key, in key order, as one text."""
    if len(key) == 1 and type(key[0]) is int:
        return str(key[0])
    return ":".join([_part(value) for value in key])


def key_parts(text: str) -> tuple[str, ...]:
    """Take a key's text apart into the texts of its values."""
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

"""
Keys and values of many rows as text, a column at a time. Pure.

Each text is what ``key_text`` and ``text_of`` write of that value alone. Whatever Arrow
reads as less than it was is asked for one by one: a float may have been an integer of
more digits or may be written in another way, and lists and objects are JSON.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from towpath.sinks.key_text import key_text
from towpath.sinks.values import text_of

# How parts of a key are written if their text is their value's: integers that keep
# their digits, texts without escapes.
_FORMS: Final[Mapping[type, str]] = {
    int: "(?P<{name}>0|[1-9][0-9]{{0,18}}|-[1-9][0-9]{{0,17}})",
    str: r'"(?P<{name}>[^"\\\x00-\x1f]*)"',
    bool: "(?P<{name}>true|false)",
}
# In this order: what stands for a colon holds a percent sign.
_CODED: Final = [(sign, key_text((sign,))) for sign in "%:"]
_EMPTY: Final = key_text(("",))

_READ_WHOLE: Final = (pa.string(), pa.int64(), pa.bool_())

# What stands in no JSON text as it is.
_ESCAPED: Final = r'[\x00-\x1f"\\]'


def key_texts(keys: pa.ChunkedArray) -> pa.StringArray | None:
    """
    Write keys as ``key_text`` does, null where a key has another form than the first.

    Returns:
        Their texts; ``None`` if the first has no such form.

    Raises:
        pa.ArrowInvalid: A key is not UTF-8.
        orjson.JSONDecodeError: The first is not JSON.
    """
    encoded = keys.cast(pa.string()).combine_chunks()
    first = orjson.loads(encoded[0].as_py())
    if not isinstance(first, dict) or not first:
        return None
    kinds = [type(value) for value in first.values()]
    if not _FORMS.keys() >= set(kinds):
        return None
    columns = (
        f"{re.escape(orjson.dumps(column).decode())}:{_FORMS[kind].format(name=f'p{n}')}"
        for n, (column, kind) in enumerate(zip(first, kinds, strict=True))
    )
    found = pc.extract_regex(encoded, rf"^\{{{','.join(columns)}\}}$")
    parts = [_coded(pc.struct_field(found, [n]), kind) for n, kind in enumerate(kinds)]
    return pc.binary_join_element_wise(*parts, ":")


def is_read_whole(kind: pa.DataType) -> bool:
    """Tell whether what Arrow reads as a type is all that a value was."""
    return kind in _READ_WHOLE


def value_texts(column: pa.Array) -> pa.StringArray:
    """Write values as ``text_of`` does, of a type that ``is_read_whole``."""
    return column.cast(pa.string())


def texts_of_each(values: Sequence[Any]) -> pa.StringArray:
    """Write values one by one; null stays null."""
    return pa.array([None if v is None else text_of(v) for v in values], pa.string())


def escaped(texts: pa.StringArray) -> pa.StringArray:
    """Write texts as they stand between the quotes of JSON."""
    is_escaped = pc.fill_null(
        pc.match_substring_regex(texts, _ESCAPED), fill_value=False
    )
    if not pc.any(is_escaped).as_py():
        return texts
    written = [_json_text(text) for text in texts.filter(is_escaped).to_pylist()]
    return pc.replace_with_mask(texts, is_escaped, pa.array(written, pa.string()))


def _json_text(text: str) -> str:
    """Write one text as it stands between the quotes of JSON."""
    return orjson.dumps(text)[1:-1].decode()


def _coded(part: pa.StringArray, kind: type) -> pa.StringArray:
    """Write a part of keys so that it holds no joint."""
    if kind is not str:
        return part
    for sign, code in _CODED:
        part = pc.replace_substring(part, sign, code)
    return pc.if_else(pc.equal(part, ""), _EMPTY, part)

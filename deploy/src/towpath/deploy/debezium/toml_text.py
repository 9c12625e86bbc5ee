"""
A document as TOML: plain keys first, then sections, then lists of sections.

It needs no more than what a configuration holds: text, numbers, booleans, lists, and
tables of them.
"""

import json
import re
from collections.abc import Iterator, Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(document: Mapping[str, object], comment: str = "") -> str:
    """Write a document; the comment stands above it, a ``#`` before each line."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return head + "\n".join(_lines(document, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, object], above: tuple[str, ...]) -> Iterator[str]:
    for name, value in table.items():
        if not _is_section(value):
            yield f"{_key(name)} = {_value(value)}"
    for name, value in table.items():
        path = (*above, name)
        title = ".".join(map(_key, path))
        if isinstance(value, Mapping) and value:
            yield from _section(f"[{title}]", value, path)
        elif isinstance(value, list) and _is_section(value):
            for each in value:
                yield from _section(f"[[{title}]]", each, path)


def _section(
    title: str, table: Mapping[str, object], path: tuple[str, ...]
) -> Iterator[str]:
    has_plain = any(not _is_section(value) for value in table.values())
    if has_plain or title.startswith("[["):
        yield ""
        yield title
    yield from _lines(table, path)


def _is_section(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(str(k))} = {_value(v)}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    return json.dumps(value)


def _text(text: str) -> str:
    """Write a basic string; JSON's escapes are TOML's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

r"""
Values inside values, as records carry them: arrays, composites and hstore. Pure.

SQL gives such a value as one text, in which every value has its own text; so here, and
only here, are they taken apart. The forms are those that the records' documentation
names, arrived at independently of the relay::

    {1,NULL,"a\"b",{..}}    a list; bounds before the braces say nothing of the values
    (1,"a b",)              an object of its type's fields; nothing at all is null
    "a"=>"1", "b"=>NULL     a text that holds JSON, or an object
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import orjson

from towpath.sinks.verify.singles import SINGLES

Json: TypeAlias = Any

HSTORE: Final = "hstore"
HSTORE_MAP: Final = "hstore as a map"

_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_BOUNDS: Final = re.compile(r"(?:\[[-\d]+:[-\d]+\])+=")
_FIELD: Final = re.compile(r'(?:"((?:[^"\\]|""|\\.)*)"|([^,"()\\]*))([,)])', re.DOTALL)
_ESCAPED_FIELD: Final = re.compile(r'(?:\\|"(?="))(.)', re.DOTALL)
_PAIR: Final = re.compile(
    r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, )?', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class SourceType:
    """
    A type of the source, domains taken off.

    Attributes:
        name: Postgres's own name of it; an extension's without its schema.
        element: Of what it is an array.
        delimiter: What stands between the elements of such an array.
        fields: The names and types of a composite's fields, in their order.
        has_plain_order: Whether its order is what plain operators mean.
    """

    name: str
    element: "SourceType | None" = None
    delimiter: str = ","
    fields: "tuple[tuple[str, SourceType], ...]" = ()
    has_plain_order: bool = True

    @property
    def is_nested(self) -> bool:
        """Whether there are values inside its values."""
        is_hstore = self.name in {HSTORE, HSTORE_MAP}
        return self.element is not None or bool(self.fields) or is_hstore


def nested_text(kind: SourceType, text: str | None) -> str | None:
    """
    Write a value as the text of what a record carries.

    Raises:
        ValueError: The text is none of its type.
    """
    return None if text is None else text_of_nested(_value(kind, text))


def text_of_nested(value: Json) -> str | None:
    """Write what a sink holds in the same way; text is taken for written already."""
    if value is None or isinstance(value, str):
        return value
    # Who must not lose a digit of a document reads the floats of all as decimals.
    return orjson.dumps(value, default=float).decode()


def _value(kind: SourceType, text: str | None) -> Json:
    if text is None:
        return None
    if kind.element is not None:
        return _array(kind.element, _elements(text, kind.delimiter))
    if kind.fields:
        return _composite(kind, text)
    match kind.name:
        case "hstore":
            return orjson.dumps(_pairs(text)).decode()
        case "hstore as a map":
            return _pairs(text)
        case single:
            written = SINGLES.get(single)
            return text if written is None else written(text)


def _array(element: SourceType, values: list[Json]) -> list[Json]:
    return [
        _array(element, one) if isinstance(one, list) else _value(element, one)
        for one in values
    ]


def _elements(text: str, delimiter: str) -> list[Json]:
    """Read an array's elements: texts, null, and lists of further dimensions."""
    mark = re.escape(delimiter)
    token = re.compile(
        rf'"((?:[^"\\]|\\.)*)"|([{{}}])|((?:[^{{}}"\\{mark}]|\\.)+)|{mark}', re.DOTALL
    )
    root: list[Json] = []
    lists = [root]
    for quoted, brace, bare in _tokens(token, text, _BOUNDS.match(text)):
        if brace == "{":
            lists[-1].append([])
            lists.append(lists[-1][-1])
        elif brace:
            lists.pop()
        elif bare:
            lists[-1].append(None if bare == "NULL" else _ESCAPED.sub(r"\1", bare))
        elif quoted is not None:
            lists[-1].append(_ESCAPED.sub(r"\1", quoted))
    (whole,) = root
    return list(whole)


def _tokens(
    token: re.Pattern[str], text: str, bounds: re.Match[str] | None
) -> Iterator[tuple[str | None, str | None, str | None]]:
    at = bounds.end() if bounds else 0
    while at < len(text):
        found = token.match(text, at)
        if found is None:
            message = "not an array"
            raise ValueError(message)
        quoted, brace, bare = found.groups()
        yield quoted, brace, bare
        at = found.end()


def _composite(kind: SourceType, text: str) -> Json:
    values: list[str | None] = []
    at, end = 1, ","
    while end == ",":
        found = _FIELD.match(text, at)
        if found is None:
            message = "not a composite value"
            raise ValueError(message)
        quoted, bare, end = found.groups()
        written = None if quoted is None else _ESCAPED_FIELD.sub(r"\1", quoted)
        values.append(bare or None if written is None else written)
        at = found.end()
    return {
        name: _value(field, value)
        for (name, field), value in zip(kind.fields, values, strict=True)
    }


def _pairs(text: str) -> dict[str, str | None]:
    found = (pair.groups() for pair in _PAIR.finditer(text))
    return {
        _ESCAPED.sub(r"\1", name): None if value is None else _ESCAPED.sub(r"\1", value)
        for name, value in found
    }

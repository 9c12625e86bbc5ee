r"""
Parse nested values into the form of records: arrays, composites and hstore.

Postgres writes a nested value as one string that contains the strings of the inner
values; this module parses that string. The forms follow the documentation of records,
without any code of the relay::

    {1,NULL,"a\"b",{..}}    a list; bounds before the braces are ignored
    (1,"a b",)              an object of its type's fields; an empty field is null
    "a"=>"1", "b"=>NULL     a string that holds JSON, or an object

``SINGLES`` converts inner values from the text of Postgres; values of other types
remain strings.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import orjson

Single: TypeAlias = str | int | float | bool

_TIMESTAMP: Final = re.compile(
    r"(\d+-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00)?( BC)?\Z"
)
_TIMETZ: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)(\.\d+)?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?\Z"
)
_INTERVAL: Final = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?\Z"
)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DAY_S: Final = 86_400


def _float(text: str) -> Single:
    if text in _NO_NUMBERS:
        return text
    number: int | float = orjson.loads(text)
    return number


def _timestamp(text: str) -> str:
    found = _TIMESTAMP.match(text)
    if found is None:
        return text
    day, time, fraction, zone, era = found.groups()
    digits = (fraction or "").ljust(6, "0")
    return f"{day}T{time}.{digits}{'Z' if zone else ''}{era or ''}"


def _utc_time(text: str) -> str:
    found = _TIMETZ.match(text)
    if found is None:
        return text
    hours, minutes, seconds, fraction, sign, *zone = found.groups()
    east_s = _seconds(*(part or "0" for part in zone)) * (1 if sign == "+" else -1)
    time_s = (_seconds(hours, minutes, seconds) - east_s) % _DAY_S
    clock = f"{time_s // 3600:02d}:{time_s // 60 % 60:02d}:{time_s % 60:02d}"
    return f"{clock}{fraction or ''}Z"


def _seconds(hours: str, minutes: str, seconds: str) -> int:
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _interval(text: str) -> str:
    found = _INTERVAL.match(text)
    if found is None:
        return text
    years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
    direction = -1 if sign == "-" else 1
    whole, digits = int(seconds or 0), (fraction or "").rstrip("0")
    minus = "-" if direction < 0 and (whole or digits) else ""
    second = f"{minus}{whole}.{digits}" if digits else f"{minus}{whole}"
    return (
        f"P{int(years or 0)}Y{int(months or 0)}M{int(days or 0)}D"
        f"T{direction * int(hours or 0)}H{direction * int(minutes or 0)}M{second}S"
    )


def _money(text: str) -> str:
    return re.sub(r"[^-\d.]", "", text)


def _bytes(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix(r"\x"))).decode()


SINGLES: Final[Mapping[str, Callable[[str], Single]]] = MappingProxyType(
    {
        "boolean": lambda text: text == "t",
        "smallint": int,
        "integer": int,
        "bigint": int,
        "oid": int,
        "real": _float,
        "double precision": _float,
        "timestamp with time zone": _timestamp,
        "timestamp without time zone": _timestamp,
        "time with time zone": _utc_time,
        "interval": _interval,
        "money": _money,
        "bytea": _bytes,
    }
)


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
    A type of the source, with domains resolved.

    Attributes:
        name: Its name in Postgres; ``hstore`` is named without its schema.
        element: The type of its elements, if it is an array.
        delimiter: The separator of its elements.
        fields: The names and types of a composite's fields, in order.
        has_plain_order: Whether Postgres's own operators order it, not an extension's.
    """

    name: str
    element: "SourceType | None" = None
    delimiter: str = ","
    fields: "tuple[tuple[str, SourceType], ...]" = ()
    has_plain_order: bool = True

    @property
    def is_nested(self) -> bool:
        """Whether its values contain other values."""
        is_hstore = self.name in {HSTORE, HSTORE_MAP}
        return self.element is not None or bool(self.fields) or is_hstore


def nested_text(kind: SourceType, text: str | None) -> str | None:
    """
    Convert a Postgres text to the text in a record.

    Raises:
        ValueError: The text is not a value of its type.
    """
    return None if text is None else text_of_nested(nested_value(kind, text))


def text_of_nested(value: Json) -> str | None:
    """Convert a sink's nested value to the text in a record; a string is unchanged."""
    if value is None or isinstance(value, str):
        return value
    # A reader that keeps all digits returns all floats as decimals.
    return orjson.dumps(value, default=float).decode()


def nested_value(kind: SourceType, text: str | None) -> Json:
    """
    Convert a Postgres text to the value in a record.

    Raises:
        ValueError: The text is not a value of its type.
    """
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
        _array(element, one) if isinstance(one, list) else nested_value(element, one)
        for one in values
    ]


def _elements(text: str, delimiter: str) -> list[Json]:
    """Parse an array's elements: strings, nulls, and lists of further dimensions."""
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
        name: nested_value(field, value)
        for (name, field), value in zip(kind.fields, values, strict=True)
    }


def _pairs(text: str) -> dict[str, str | None]:
    found = (pair.groups() for pair in _PAIR.finditer(text))
    return {
        _ESCAPED.sub(r"\1", name): None if value is None else _ESCAPED.sub(r"\1", value)
        for name, value in found
    }

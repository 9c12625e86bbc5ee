"""
Canonical names of rows, and canonical texts of values and documents.

A row's name is the text of its key's parts (see ``key_text``), which a template may
have formatted; both steps can be reversed. The name of a row that the sink did not
write need not belong to any key.

Equal values have the same text. Numbers and booleans are written as text, floats as the
shortest text of the same value. A document's names are sorted; its numbers are equal if
they have the same value, however they are written, and no digit is lost.
"""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

from towpath.sinks.change import Value, is_nan, is_unrepresentable_time
from towpath.sinks.changes.routing import Routing
from towpath.sinks.key_text import key_parts, key_text, text_of
from towpath.sinks.verify.compare import Difference, DifferenceKind
from towpath.sinks.verify.table import UTC_TIMESTAMP

Key = tuple[str, ...]


class KeyNames:
    """The names of one route's rows, and the source keys that they represent."""

    def __init__(self, columns: Sequence[str], routing: Routing | None) -> None:
        self._columns = tuple(columns)
        self._routing = routing

    def name(self, values: Sequence[str | None]) -> str:
        """Return the row name of a source key."""
        if self._routing is None:
            (first, *others) = values
            is_plain = first and not others and ":" not in first and "%" not in first
            return first if is_plain and first else key_text(values)
        return key_text(self._routing.key(self._columns, tuple(values))[1])

    def key(self, name: str) -> Key | None:
        """Return the source key of a row name; ``None`` if it has no source key."""
        parts = key_parts(name)
        try:
            values = self._routing.source_key(parts) if self._routing else parts
        except ValueError:
            return None
        key = tuple(map(str, values))
        is_reversible = len(key) == len(self._columns) and self.name(key) == name
        return key if is_reversible else None


Canonical = Callable[[Value], str | None]


def canonical(value: Value) -> str | None:
    """Return the canonical text of any value except a float."""
    if value is None:
        return None
    try:
        return text_of(value)
    except TypeError:
        # A Decimal from an exact reader, stored before its column had this type.
        return str(value)


# Adding this removes the sign of a zero. Some JSON parsers read -0 as an integer, so a
# target may have it with or without the sign. In Postgres, too, both zeros are equal.
_ZERO: Final = 0.0


def canonical_double(value: Value) -> str | None:
    """
    Return the canonical text of a 64-bit float.

    A value that is not a float was stored before its column had this type.
    """
    if value is None:
        return None
    try:
        return repr(float(value) + _ZERO)
    except (ValueError, TypeError, OverflowError):
        return text_of(value)


def canonical_real(value: Value) -> str | None:
    """Return the canonical text of a 32-bit float; some sinks store it in 64 bits."""
    if value is None:
        return None
    try:
        return repr(struct.unpack("f", struct.pack("f", float(value)))[0] + _ZERO)
    except (ValueError, TypeError, OverflowError):
        return text_of(value)


_BY_TYPE: Final[dict[str, Canonical]] = {
    "real": canonical_real,
    "double precision": canonical_double,
}

# Values that a warehouse can store as null.
_UNFIT: Final[dict[str, Callable[[Value], bool]]] = {
    "numeric": is_nan,
    "date": is_unrepresentable_time,
    "timestamp with time zone": is_unrepresentable_time,
    "timestamp without time zone": is_unrepresentable_time,
    UTC_TIMESTAMP: is_unrepresentable_time,
}


def canonical_of(type_name: str, *, treats_unfit_as_null: bool = False) -> Canonical:
    """
    Return the function that converts values of a Postgres type to canonical texts.

    Args:
        type_name: The type's name in Postgres.
        treats_unfit_as_null: Whether unrepresentable values are null on both sides.
    """
    is_unfit = _UNFIT.get(type_name) if treats_unfit_as_null else None
    if is_unfit is None:
        return _BY_TYPE.get(type_name, canonical)
    return lambda value: None if is_unfit(value) else canonical(value)


# A number with more zeros is written with an exponent.
_MOST_ZEROS: Final = 40

Json: TypeAlias = Any


def canonical_document(value: Json) -> str:
    """Return the canonical text of a JSON value; equal values have the same text."""
    match value:
        case dict():
            parts = (
                f"{_text(name)}:{canonical_document(value[name])}"
                for name in sorted(value)
            )
            return "{" + ",".join(parts) + "}"
        case list():
            return "[" + ",".join(map(canonical_document, value)) + "]"
        case bool() | None | str():
            return _text(value)
        case _:
            return _number(Decimal(value))


def parsed(text: str) -> Json:
    """Parse JSON without losing a digit."""
    return json.loads(text, parse_float=Decimal)


def value_differences(difference: Difference) -> Iterator[Difference]:
    """Yield a changed document's differing values; yield other differences as is."""
    if difference.kind is not DifferenceKind.CHANGED:
        yield difference
        return
    source, sink = (
        dict(_leaves(parsed(text or "null"), ()))
        for text in (difference.source, difference.sink)
    )
    for path in sorted(source.keys() | sink.keys(), key=str):
        values = source.get(path), sink.get(path)
        if values[0] != values[1]:
            shown = "".join(
                f"[{step}]" if isinstance(step, int) else f".{step}" for step in path
            )
            name = shown.removeprefix(".")
            yield Difference(DifferenceKind.CHANGED, difference.key, name, *values)


# The steps of a path: as a single text, the field "a.b" would look like b in a.
_Path: TypeAlias = tuple[str | int, ...]


def _leaves(value: Json, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _leaves(part, (*path, index))
    else:
        yield path, canonical_document(value)


def _text(value: str | bool | None) -> str:  # noqa: FBT001 - a JSON value
    return json.dumps(value, ensure_ascii=False)


def _number(number: Decimal) -> str:
    """Write a number without insignificant zeros."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or not number:
        return "0" if not number else str(number)
    while not digits[-1]:
        digits, exponent = digits[:-1], exponent + 1
    exact = Decimal((sign, digits, exponent))
    return format(exact, "f") if abs(exponent) <= _MOST_ZEROS else str(exact)

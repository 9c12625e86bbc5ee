"""
Documents compared as JSON values: names in any order, every digit. Pure.

A document is compared as one canonical text; only where two differ are they taken
apart, down to the values that do. Numbers are equal if they are the same number,
however it is written; none of their digits is lost on the way.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, TypeAlias

from towpath.sinks.verify.compare import Difference, Kind

DOCUMENT: Final = "document"

# A number of more zeros is written with an exponent.
_MOST_ZEROS: Final = 40

Json: TypeAlias = Any


def canonical_document(value: Json) -> str:
    """Write a JSON value so that equal values have one text."""
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
    """Read JSON without losing a digit."""
    return json.loads(text, parse_float=Decimal)


def taken_apart(difference: Difference) -> Iterator[Difference]:
    """Tell which values of two documents differ; any other difference is kept."""
    if difference.kind is not Kind.CHANGED:
        yield difference
        return
    source, sink = (
        dict(_leaves(parsed(text or "null"), ""))
        for text in (difference.source, difference.sink)
    )
    for path in sorted(source.keys() | sink.keys()):
        values = source.get(path), sink.get(path)
        if values[0] != values[1]:
            yield Difference(Kind.CHANGED, difference.key, path, *values)


def _leaves(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, canonical_document(value)


def _text(value: str | bool | None) -> str:  # noqa: FBT001 - a JSON value
    return json.dumps(value, ensure_ascii=False)


def _number(number: Decimal) -> str:
    """Write a number without the zeros at its end, which say nothing."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or not number:
        return "0" if not number else str(number)
    while not digits[-1]:
        digits, exponent = digits[:-1], exponent + 1
    exact = Decimal((sign, digits, exponent))
    return format(exact, "f") if abs(exponent) <= _MOST_ZEROS else str(exact)

"""
Conversions between the forms that values have in records. No I/O.

Integers and floats are numbers, booleans are booleans, and everything else is text
(docs/row-forms.md). A value that the wanted type cannot express is refused.
"""

import re
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from math import isfinite
from types import MappingProxyType
from typing import Final

from towpath.settings.transforms import ValueType
from towpath.sinks.change import Value, refuse
from towpath.sinks.key_text import text_of

INTEGERS: Final[Mapping[str, int]] = MappingProxyType(
    {"smallint": 16, "integer": 32, "bigint": 64}
)
FLOATS: Final = frozenset({"real", "double precision"})

_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
# The digits of a numeric before and after its point, as Postgres limits them.
_MOST_DIGITS: Final = 131_072
_MOST_DECIMALS: Final = 16_383
_TRUE: Final = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE: Final = frozenset({"false", "f", "no", "n", "off", "0"})
_LONGEST_SHOWN: Final = 40


def plain_text(value: Value, column: str) -> str:
    """
    Return the text of a value.

    Raises:
        UnreadableError: The value is a list or an object.
    """
    if isinstance(value, list | dict):
        refuse(f"the value of {column} is not a single value")
    return text_of(value)


def number_of(value: Value) -> Decimal | None:
    """Return the number that a value is or spells, if a numeric can hold it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = value if isinstance(value, str) else repr(value)
    if _NUMBER.fullmatch(text) is None:
        return None
    try:
        number = Decimal(text)
    except ArithmeticError:
        # The exponent is beyond that of any Decimal.
        return None
    _, _, exponent = number.as_tuple()
    is_small = isinstance(exponent, int) and -exponent <= _MOST_DECIMALS
    return number if is_small and number.adjusted() < _MOST_DIGITS else None


def cast_to(kind: ValueType) -> Callable[[Value, str], Value]:
    """
    Return the function that converts a value of a column.

    The function raises ``UnreadableError`` for a value that the type cannot express.
    """
    convert = _CASTS[kind.name]

    def cast(value: Value, column: str) -> Value:
        if isinstance(value, list | dict):
            refuse(f"the value of {column} is not a single value")
        try:
            converted = convert(value, kind)
        except (ValueError, OverflowError):
            converted = None
        if converted is None:
            shown = text_of(value)
            cut = (
                f"{shown[:_LONGEST_SHOWN]}..." if len(shown) > _LONGEST_SHOWN else shown
            )
            refuse(f"the value {cut!r} of {column} cannot be cast to {kind.name}")
        return converted

    return cast


def _text(value: Value, _: ValueType) -> Value:
    return text_of(value)


def _integer(value: Value, kind: ValueType) -> Value:
    number = Decimal(int(value)) if isinstance(value, bool) else number_of(value)
    if number is None or (number and number.adjusted() > len(str(2**63))):
        return None
    # Postgres rounds a numeric this way: halves away from zero.
    whole = int(number.to_integral_value(ROUND_HALF_UP))
    limit = 2 ** (INTEGERS[kind.name] - 1)
    return whole if -limit <= whole < limit else None


def _numeric(value: Value, kind: ValueType) -> Value:
    number = number_of(value)
    if number is None:
        return None
    if not kind.precision:
        # As in Postgres, zero has no sign.
        return format(number or number.copy_abs(), "f")
    if number and number.adjusted() >= kind.precision - kind.scale:
        return None
    sign, digits, exponent = number.as_tuple()
    scaled = Decimal((sign, digits, int(exponent) + kind.scale))
    whole = scaled.to_integral_value(ROUND_HALF_UP)
    if not whole:
        # Zero fits, whatever its exponent.
        return format(Decimal(0), f".{kind.scale}f")
    if whole.adjusted() >= kind.precision:
        return None
    sign, digits, exponent = whole.as_tuple()
    return format(
        Decimal((sign, digits, int(exponent) - kind.scale)), f".{kind.scale}f"
    )


def _double(value: Value, _: ValueType) -> Value:
    number = number_of(value)
    found = None if number is None else float(number)
    return found if found is not None and isfinite(found) else None


def _boolean(value: Value, _: ValueType) -> Value:
    text = text_of(value).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _date(value: Value, _: ValueType) -> Value:
    return datetime.fromisoformat(text_of(value)).date().isoformat()


def _instant(value: Value, _: ValueType) -> Value:
    moment = datetime.fromisoformat(text_of(value))
    zoned = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    in_utc = zoned.astimezone(UTC).replace(tzinfo=None)
    return in_utc.isoformat(timespec="microseconds") + "Z"


def _uuid(value: Value, _: ValueType) -> Value:
    return str(uuid.UUID(text_of(value)))


_CASTS: Final[Mapping[str, Callable[[Value, ValueType], Value]]] = MappingProxyType(
    {
        "text": _text,
        **dict.fromkeys(INTEGERS, _integer),
        "numeric": _numeric,
        "double precision": _double,
        "boolean": _boolean,
        "date": _date,
        "timestamp with time zone": _instant,
        "uuid": _uuid,
    }
)

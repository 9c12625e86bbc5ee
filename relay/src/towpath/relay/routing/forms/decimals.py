"""
``numeric`` and ``money``: text, Connect's Decimal, or a double.

==========  ===========================================================================
string      ``"1.10"``; ``NaN`` and the infinities by their names; money without its
            currency: ``"-1234.56"`` (the connection speaks the C locale)
precise     Decimal with the column's precision and scale; without them a struct of
            scale and value. Values are two's complement, big-endian. What is no number
            has no such form: it is null, and told to ``on_lost``
double      a number; ``NaN`` and the infinities as floats write them
==========  ===========================================================================
"""

import base64
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypedDict, TypeVar

from towpath.relay.routing.forms.form import Form, Schema
from towpath.relay.routing.forms.numbers import float_json
from towpath.relay.routing.forms.texts import PLAIN
from towpath.settings.rows import Decimals

OnLost = Callable[[str], None]
_Made = TypeVar("_Made")

NO_DECIMAL: Final = "a numeric that is no number has no precise form and became null"

_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_VARIABLE: Final = Schema(
    "struct",
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    fields=(("scale", Schema("int32")), ("value", Schema("bytes"))),
)
_MONEY_SCALE: Final = 2

# How Postgres packs precision and scale: behind an offset, the scale in eleven bits,
# signed since version 15.
_TYPMOD_OFFSET: Final = 4
_SCALE_SIGN: Final = 1 << 10
_SCALE_MASK: Final = (1 << 11) - 1


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Return what a numeric's modifier says; None without one."""
    if typmod < _TYPMOD_OFFSET:
        return None
    packed = typmod - _TYPMOD_OFFSET
    scale = ((packed & _SCALE_MASK) ^ _SCALE_SIGN) - _SCALE_SIGN
    return packed >> 16 & 0xFFFF, scale


def numeric(typmod: int, mode: Decimals, on_lost: OnLost) -> Form:
    """Return the form of a numeric."""
    if mode is Decimals.STRING:
        return PLAIN
    if mode is Decimals.DOUBLE:
        return Form(Schema("double"), double_json, float)
    packed = precision_and_scale(typmod)
    if packed is None:
        return _nullable(_VARIABLE, _variable, _variable_json, on_lost)
    precision, scale = packed
    schema = _decimal_schema(scale, precision)
    return _nullable(schema, lambda text: _scaled(text, scale), base64_json, on_lost)


def money(mode: Decimals) -> Form:
    """Return the form of money, which is a decimal of two digits."""
    if mode is Decimals.STRING:
        return Form(PLAIN.schema, lambda text: b'"' + amount(text) + b'"', _amount_text)
    if mode is Decimals.DOUBLE:
        return Form(
            Schema("double"),
            lambda text: double_json(amount(text)),
            lambda text: float(amount(text)),
        )

    def value(text: bytes) -> bytes:
        return _scaled(amount(text), _MONEY_SCALE) or b""

    schema = _decimal_schema(_MONEY_SCALE)
    return Form(schema, lambda text: base64_json(value(text)), value)


def amount(text: bytes) -> bytes:
    """Return money's text in the C locale (``-$1,234.56``) as a plain decimal."""
    sign = b"-" if b"-" in text or b"(" in text else b""
    return sign + bytes(c for c in text if c in b"0123456789.")


def double_json(text: bytes) -> bytes:
    """Write a decimal as the nearest double."""
    return float_json(_float_text(float(text)))


def _float_text(number: float) -> bytes:
    if number != number:  # noqa: PLR0124 - only NaN differs from itself
        return b"NaN"
    return repr(number).replace("inf", "Infinity").encode()


def _amount_text(text: bytes) -> str:
    return amount(text).decode()


def _decimal_schema(scale: int, precision: int | None = None) -> Schema:
    parameters = {"scale": str(scale)}
    if precision is not None:
        parameters["connect.decimal.precision"] = str(precision)
    return Schema(
        "bytes", name=_DECIMAL, version=1, parameters=MappingProxyType(parameters)
    )


def _nullable(
    schema: Schema,
    value: Callable[[bytes], _Made | None],
    json: Callable[[_Made], bytes],
    on_lost: OnLost,
) -> Form:
    """Return a form that has null for what is no number."""

    def checked(text: bytes) -> _Made | None:
        found = None if text[-1:] in b"Ny" else value(text)
        if found is None:
            on_lost(NO_DECIMAL)
        return found

    def written(text: bytes) -> bytes:
        found = checked(text)
        return b"null" if found is None else json(found)

    return Form(schema, written, checked)


def _scaled(text: bytes, scale: int) -> bytes | None:
    """Return the unscaled value; None for digits that the scale has no room for."""
    whole, _, fraction = text.partition(b".")
    unscaled = int(whole + fraction)
    shift = scale - len(fraction)
    if shift >= 0:
        return twos_complement(unscaled * 10**shift)
    unscaled, rest = divmod(unscaled, 10**-shift)
    return None if rest else twos_complement(unscaled)


class _Variable(TypedDict):
    scale: int
    value: bytes


def _variable(text: bytes) -> _Variable:
    whole, _, fraction = text.partition(b".")
    return {"scale": len(fraction), "value": twos_complement(int(whole + fraction))}


def _variable_json(value: _Variable) -> bytes:
    return b'{"scale":%d,"value":%b}' % (value["scale"], base64_json(value["value"]))


def base64_json(value: bytes) -> bytes:
    """Quote bytes as base64."""
    return b'"' + base64.b64encode(value) + b'"'


def twos_complement(number: int) -> bytes:
    """Return the shortest big-endian bytes of a signed number, as Java has them."""
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)

"""
Scalar types: strings, booleans, numbers, decimals and bytes. Hot path.

Characters, documents, network addresses and enums keep their text; their forms differ
only in the semantic name. A document (json, jsonb, xml) is a string with its text, so
that a JSON ``null`` in a column is not a NULL.

Booleans become JSON booleans; integers and floats are numbers as Postgres writes them.
JSON has no numbers for ``NaN`` and the infinities: they are strings with their names.

``numeric`` and ``money``: text, Connect's Decimal, or a double.

==========  ===========================================================================
string      ``"1.10"``; ``NaN`` and the infinities by their names; money without its
            currency: ``"-1234.56"`` (the connection uses the C locale)
precise     Decimal with the column's precision and scale; without them a struct of
            scale and value. Values are two's complement, big-endian. ``NaN`` and the
            infinities are null, and reported to ``on_lost``
double      a number; ``NaN`` and the infinities as for floats
==========  ===========================================================================

``bytea``, and unknown types as opaque bytes, are written as ``[relay.rows] binaries``
specifies: bytes are base64 in JSON. Bit strings are their digits by default; Debezium's
are a boolean for ``bit(1)``, and otherwise little-endian bytes with the length in the
schema.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Final, TypedDict, TypeVar

import orjson

from towpath.relay.encode.types.form import Form, Fragments, Schema
from towpath.settings.rows import Binaries, Decimals

_QUOTE: Final = b'"'

# Text from Postgres never contains a NUL, and JSON always escapes NULs.
_NUL: Final = b"\0"
_ESCAPED_NUL: Final = b"\\u0000"
_ESCAPE_BYTES: Final = len(_ESCAPED_NUL) - len(_NUL)


def text_json(text: bytes) -> bytes:
    """Return text as a JSON string."""
    return orjson.dumps(text.decode())


def text_column(texts: Sequence[bytes]) -> Fragments:
    """
    Return values as JSON strings.

    They are joined with NULs and encoded in one call. If only the NULs were escaped,
    the values are used unchanged; otherwise the result is split at the NULs.
    """
    joined = _NUL.join(texts)
    written = orjson.dumps(joined.decode())[1:-1]
    if len(written) == len(joined) + _ESCAPE_BYTES * (len(texts) - 1):
        return Fragments(texts, _QUOTE)
    parts = written.split(_ESCAPED_NUL)
    if len(parts) == len(texts):
        return Fragments(parts, _QUOTE)
    # A value itself contains the characters of an escaped NUL.
    return Fragments(list(map(text_json, texts)))


def plain_json(text: bytes) -> bytes:
    """Quote text that has no characters to escape in JSON."""
    return b'"' + text + b'"'


def plain_column(texts: Sequence[bytes]) -> Fragments:
    """Quote values that have no characters to escape in JSON."""
    return Fragments(texts, _QUOTE)


def text_value(text: bytes) -> str:
    """Decode text."""
    return text.decode()


def named_text(name: str | None, *, is_plain: bool = False) -> Form:
    """Return the form of text with a semantic name; plain text needs no escapes."""
    schema = Schema("string", name=name, version=None if name is None else 1)
    if is_plain:
        return Form(schema, plain_json, text_value, plain_column)
    return Form(schema, text_json, text_value, text_column)


TEXT: Final = named_text(None)
PLAIN: Final = named_text(None, is_plain=True)
JSON: Final = named_text("io.debezium.data.Json")
XML: Final = named_text("io.debezium.data.Xml")
UUID: Final = named_text("io.debezium.data.Uuid", is_plain=True)
LTREE: Final = named_text("io.debezium.data.Ltree")
TSVECTOR: Final = named_text("io.debezium.data.Tsvector")


def enum(labels: tuple[str, ...]) -> Form:
    """Return the form of an enum; the schema has its labels, in order."""
    schema = Schema(
        "string",
        name="io.debezium.data.Enum",
        version=1,
        parameters=MappingProxyType({"allowed": ",".join(labels)}),
    )
    return Form(schema, text_json, text_value, text_column)


_BOOLEANS: Final = MappingProxyType({b"t": b"true", b"f": b"false"})
NON_FINITE: Final = MappingProxyType(
    {b"NaN": b'"NaN"', b"Infinity": b'"Infinity"', b"-Infinity": b'"-Infinity"'}
)


def number_json(text: bytes) -> bytes:
    """Return text that is already a JSON number."""
    return text


def number_column(texts: Sequence[bytes]) -> Fragments:
    """Return values that are already JSON numbers."""
    return Fragments(texts)


def float_json(text: bytes) -> bytes:
    """Return a float's text as JSON."""
    return NON_FINITE.get(text, text)


def float_column(texts: Sequence[bytes]) -> Fragments:
    """Return floats as JSON."""
    if NON_FINITE.keys().isdisjoint(texts):
        return Fragments(texts)
    return Fragments(list(map(float_json, texts)))


def boolean_json(text: bytes) -> bytes:
    """Return the text ``t`` or ``f`` as a JSON boolean."""
    return _BOOLEANS[text]


def boolean_column(texts: Sequence[bytes]) -> Fragments:
    """Return values ``t`` or ``f`` as JSON booleans."""
    return Fragments(list(map(_BOOLEANS.__getitem__, texts)))


def boolean_value(text: bytes) -> bool:
    """Return the text ``t`` or ``f`` as a boolean."""
    return text == b"t"


BOOLEAN: Final = Form(
    Schema("boolean"), boolean_json, boolean_value, column=boolean_column
)
INT16: Final = Form(Schema("int16"), number_json, int, column=number_column)
INT32: Final = Form(Schema("int32"), number_json, int, column=number_column)
INT64: Final = Form(Schema("int64"), number_json, int, column=number_column)
FLOAT: Final = Form(Schema("float"), float_json, float, column=float_column)
DOUBLE: Final = Form(Schema("double"), float_json, float, column=float_column)


OnLost = Callable[[str], None]
_Made = TypeVar("_Made")

NO_DECIMAL: Final = "a numeric value has no precise form and became null"

_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_VARIABLE: Final = Schema(
    "struct",
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    fields=(("scale", Schema("int32")), ("value", Schema("bytes"))),
)
# The names of the schemas that have no value for NaN and the infinities.
PRECISE_NAMES: Final = frozenset({_DECIMAL, _VARIABLE.name})
_MONEY_SCALE: Final = 2

# Postgres packs precision and scale, and adds an offset; the scale has eleven bits, and
# has been signed since version 15.
_TYPMOD_OFFSET: Final = 4
_SCALE_SIGN: Final = 1 << 10
_SCALE_MASK: Final = (1 << 11) - 1


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Return the precision and scale in a numeric's modifier; None if it has none."""
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
    """Return the form of money, a decimal with two fractional digits."""
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
    """Return a form that writes null for values that it cannot express."""

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
    """Return the unscaled value; None if the scale would cut off non-zero digits."""
    whole, _, fraction = text.partition(b".")
    unscaled = int(whole + fraction)
    shift = scale - len(fraction)
    if shift >= 0:
        return twos_complement(unscaled * 10**shift)
    unscaled, remainder = divmod(unscaled, 10**-shift)
    return None if remainder else twos_complement(unscaled)


class _Variable(TypedDict):
    scale: int
    value: bytes


def _variable(text: bytes) -> _Variable:
    whole, _, fraction = text.partition(b".")
    digits = whole + fraction
    try:
        unscaled = int(digits)
    except ValueError:
        # ``int`` refuses a string of more than 4,300 digits; ``Decimal`` does not.
        unscaled = int(Decimal(digits.decode()))
    return {"scale": len(fraction), "value": twos_complement(unscaled)}


def _variable_json(value: _Variable) -> bytes:
    return b'{"scale":%d,"value":%b}' % (value["scale"], base64_json(value["value"]))


def base64_json(value: bytes) -> bytes:
    """Quote bytes as base64."""
    return b'"' + base64.b64encode(value) + b'"'


def twos_complement(number: int) -> bytes:
    """Return the shortest big-endian bytes of a signed number, as Java writes them."""
    magnitude = number if number >= 0 else ~number
    return number.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


_UNBOUNDED_BITS: Final = 2**31 - 1

_WRITERS: Final[Mapping[Binaries, Callable[[bytes], bytes]]] = MappingProxyType(
    {
        Binaries.BYTES: base64.b64encode,
        Binaries.BASE64: base64.b64encode,
        Binaries.BASE64_URL_SAFE: base64.urlsafe_b64encode,
        Binaries.HEX: binascii.hexlify,
    }
)


def bytea(mode: Binaries) -> Form:
    """Return the form of bytea."""
    return binary(mode, unhex)


def binary(mode: Binaries, read: Callable[[bytes], bytes]) -> Form:
    """Return the form of values that ``read`` converts to bytes."""
    write = _WRITERS[mode]

    def json(text: bytes) -> bytes:
        return b'"' + write(read(text)) + b'"'

    if mode is Binaries.BYTES:
        return Form(Schema("bytes"), json, read)
    return Form(Schema("string"), json, lambda text: write(read(text)).decode())


def unhex(text: bytes) -> bytes:
    r"""Read bytea's hex output, ``\x00ff``."""
    return binascii.unhexlify(text[2:])


def bits(typmod: int, *, is_varying: bool, is_debezium: bool) -> Form:
    """Return the form of a bit string."""
    if not is_debezium:
        return PLAIN
    if typmod == 1 and not is_varying:
        return Form(Schema("boolean"), _bit_json, lambda text: text == b"1")
    length = typmod if typmod >= 0 else _UNBOUNDED_BITS
    schema = Schema(
        "bytes",
        name="io.debezium.data.Bits",
        version=1,
        parameters=MappingProxyType({"length": str(length)}),
    )
    return Form(
        schema,
        lambda text: b'"' + base64.b64encode(little_endian(text)) + b'"',
        little_endian,
    )


def little_endian(text: bytes) -> bytes:
    """Pack binary digits into as many bytes as they need, the last digit first."""
    return int(text or b"0", 2).to_bytes((len(text) + 7) // 8, "little")


def _bit_json(text: bytes) -> bytes:
    return b"true" if text == b"1" else b"false"

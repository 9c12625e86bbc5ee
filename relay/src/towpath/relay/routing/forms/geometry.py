"""
Points and PostGIS's types as Debezium's structs, and geometric texts as Java has them.

==================================  ==================================================
point                               ``x``, ``y``, ``wkb`` (little-endian), ``srid`` null
geometry, geography                 ``wkb`` (PostGIS's own bytes), ``srid`` if they say
line, lseg, box, path, polygon,     where unknown types are opaque bytes: the text with
circle                              every number as Java writes a double
==================================  ==================================================
"""

import base64
import binascii
import re
import struct
from decimal import Decimal
from typing import Final, Literal

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Form, Schema
from towpath.relay.routing.forms.numbers import float_json

_POINT_WKB: Final = struct.Struct("<BIdd")
_POINT_TYPE: Final = 1
_LITTLE_ENDIAN: Final = 1
_HAS_SRID: Final = 0x2000_0000

_NUMBER: Final = re.compile(rb"[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|Infinity|NaN)")
# Where Java's doubles begin to be written with an exponent.
_JAVA_PLAIN_FROM: Final = 1e-3
_JAVA_PLAIN_BELOW: Final = 1e7

_POINT_SCHEMA: Final = Schema(
    "struct",
    name="io.debezium.data.geometry.Point",
    version=1,
    fields=(
        ("x", Schema("double")),
        ("y", Schema("double")),
        ("wkb", Schema("bytes", is_optional=True)),
        ("srid", Schema("int32", is_optional=True)),
    ),
)


def point_value(text: bytes) -> dict[str, object]:
    """
    Read a point.

    Raises:
        MalformedMessageError: It is not one.
    """
    x, y = (float(number) for number in _coordinates(text))
    wkb = _POINT_WKB.pack(_LITTLE_ENDIAN, _POINT_TYPE, x, y)
    return {"x": x, "y": y, "wkb": wkb, "srid": None}


def point_json(text: bytes) -> bytes:
    """
    Write a point.

    Raises:
        MalformedMessageError: It is not one.
    """
    x, y = _coordinates(text)
    wkb = _POINT_WKB.pack(_LITTLE_ENDIAN, _POINT_TYPE, float(x), float(y))
    return b'{"x":%b,"y":%b,"wkb":"%b","srid":null}' % (
        float_json(x),
        float_json(y),
        base64.b64encode(wkb),
    )


POINT: Final = Form(_POINT_SCHEMA, point_json, point_value)


def postgis(name: Literal["Geometry", "Geography"]) -> Form:
    """Return the form of a type of PostGIS, whose text is extended WKB in hex."""
    schema = Schema(
        "struct",
        name=f"io.debezium.data.geometry.{name}",
        version=1,
        fields=(
            ("wkb", Schema("bytes")),
            ("srid", Schema("int32", is_optional=True)),
        ),
    )
    return Form(schema, _postgis_json, _postgis_value)


def java_numbers(text: bytes) -> bytes:
    """Rewrite every number of a text as Java writes a double."""
    return _NUMBER.sub(lambda match: java_double(float(match[0])), text)


def java_double(number: float) -> bytes:
    """Write a double as Java's ``toString`` does."""
    if number != number:  # noqa: PLR0124 - only NaN differs from itself
        return b"NaN"
    text = repr(number)
    if "inf" in text:
        return text.replace("inf", "Infinity").encode()
    if number == 0 or _JAVA_PLAIN_FROM <= abs(number) < _JAVA_PLAIN_BELOW:
        return text.encode()
    sign, digits, power = Decimal(text).normalize().as_tuple()
    first, *rest = map(str, digits)
    exponent = len(rest) + int(power)
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{exponent}".encode()


def _coordinates(text: bytes) -> list[bytes]:
    numbers = text.removeprefix(b"(").removesuffix(b")").split(b",")
    if len(numbers) != 2 or text[:1] != b"(":  # noqa: PLR2004 - x and y
        reason = f"not a point: {len(text)} bytes"
        raise MalformedMessageError(reason)
    return numbers


def _postgis_json(text: bytes) -> bytes:
    wkb, srid = _postgis(text)
    code = b"null" if srid is None else b"%d" % srid
    return b'{"wkb":"%b","srid":%b}' % (base64.b64encode(wkb), code)


def _postgis_value(text: bytes) -> dict[str, object]:
    wkb, srid = _postgis(text)
    return {"wkb": wkb, "srid": srid}


def _postgis(text: bytes) -> tuple[bytes, int | None]:
    """Return the bytes, and the reference system if the type's flag says there is."""
    try:
        wkb = binascii.unhexlify(text)
        order = "<" if wkb[0] == _LITTLE_ENDIAN else ">"
        (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
        if not kind & _HAS_SRID:
            return wkb, None
        (srid,) = struct.unpack_from(f"{order}i", wkb, 5)
    except (binascii.Error, IndexError, struct.error) as error:
        reason = f"not extended WKB in hex: {len(text)} bytes"
        raise MalformedMessageError(reason) from error
    return wkb, srid

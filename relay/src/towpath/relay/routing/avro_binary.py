"""
Avro's binary encoding: one function per schema, made once. Hot path.

::

    boolean           one byte
    int, long         zigzag, then seven bits a byte, lowest first
    float, double     IEEE 754, little-endian
    string, bytes     length as a long, then the bytes
    array, map        count as a long, the entries, then a count of 0
    record            its fields, one after the other
    union             the branch's number as a long, then its value

A record's values come as a mapping by the schema's own, unsanitised names; one that is
missing is null.
"""

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from towpath.relay.routing.connect_schema import items_of
from towpath.relay.routing.forms.form import Kind, Schema

Write = Callable[[Any], bytes]

_ONE_BYTE: Final = 0x80

# Longs up to this number are looked up: lengths of texts, above all.
_KNOWN_LONGS: Final = 1024


def _compute(number: int) -> bytes:
    left = number << 1 if number >= 0 else ~(number << 1)
    if left < _ONE_BYTE:
        return left.to_bytes(1, "little")
    digits = bytearray()
    while left >= _ONE_BYTE:
        digits.append(left & 0x7F | _ONE_BYTE)
        left >>= 7
    digits.append(left)
    return bytes(digits)


_LONGS: Final = tuple(_compute(number) for number in range(_KNOWN_LONGS))
_BOOLEANS: Final = MappingProxyType({False: b"\x00", True: b"\x01"})
_END: Final = b"\x00"
NULL_FIRST: Final = b"\x00"
VALUE_SECOND: Final = b"\x02"


def write_long(number: int) -> bytes:
    """Write an int or a long."""
    return _LONGS[number] if 0 <= number < _KNOWN_LONGS else _compute(number)


def write_bytes(value: bytes) -> bytes:
    """Write bytes behind their length."""
    return write_long(len(value)) + value


def write_text(value: str) -> bytes:
    """Write a string's UTF-8 behind its length."""
    return write_bytes(value.encode())


_PRIMITIVES: Final[Mapping[Kind, Write]] = MappingProxyType(
    {
        "boolean": _BOOLEANS.__getitem__,
        "int16": write_long,
        "int32": write_long,
        "int64": write_long,
        "float": struct.Struct("<f").pack,
        "double": struct.Struct("<d").pack,
        "string": write_text,
        "bytes": write_bytes,
    }
)


def writer(schema: Schema) -> Write:
    """Return the function that writes values of a schema."""
    plain = _plain(schema)
    if not schema.is_optional:
        return plain
    null, value = NULL_FIRST, VALUE_SECOND
    if schema.default is not None:
        null, value = value, null

    def write(told: object) -> bytes:
        return null if told is None else value + plain(told)

    return write


def _plain(schema: Schema) -> Write:
    if schema.kind == "struct":
        return _record(schema)
    if schema.kind == "array":
        return _array(writer(items_of(schema)))
    if schema.kind == "map":
        return _map(writer(items_of(schema)))
    return _PRIMITIVES[schema.kind]


def _record(schema: Schema) -> Write:
    fields = [(name, writer(of)) for name, of in schema.fields]

    def write(values: Mapping[str, object]) -> bytes:
        return b"".join([put(values.get(name)) for name, put in fields])

    return write


def _array(put: Write) -> Write:
    def write(values: list[object]) -> bytes:
        if not values:
            return _END
        entries = b"".join([put(value) for value in values])
        return write_long(len(values)) + entries + _END

    return write


def _map(put: Write) -> Write:
    def write(values: Mapping[str, object]) -> bytes:
        if not values:
            return _END
        entries = [write_text(name) + put(value) for name, value in values.items()]
        return write_long(len(values)) + b"".join(entries) + _END

    return write

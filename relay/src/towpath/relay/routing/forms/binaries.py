"""
``bytea``, bit strings, and texts that go as opaque bytes.

Bytes are base64 where the format has no bytes. Bit strings are their digits by default;
Debezium's are a boolean for ``bit(1)``, and little-endian bytes that the schema gives a
length for all others.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from towpath.relay.routing.forms.form import Form, Schema
from towpath.relay.routing.forms.texts import PLAIN
from towpath.settings.rows import Binaries

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
    """Return the form of what ``read`` makes bytes of."""
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

"""
Postgres's text forms to JSON fragments: one function per type, looked up once.

==================================  =============================================
smallint, integer, bigint, oid      number
boolean                             true, false
real, double precision              number; NaN and the infinities as strings
numeric, uuid, text, enums, ranges  string
json, jsonb                         string that holds its text
timestamptz                         "YYYY-MM-DDTHH:MM:SS.ffffffZ", always six digits
timestamp                           the same without Z
date                                "YYYY-MM-DD"
bytea                               base64
everything else                     string that holds its text
==================================  =============================================

The connection speaks UTC, ISO dates, hex bytea and UTF-8, so a value has one form.
Infinite dates stay words; dates before the year 1 keep Postgres's " BC" at the end.
This is the hot path.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import orjson

from towpath.relay.errors import MalformedMessageError

Encode = Callable[[bytes], bytes]

_BOOLEANS: Final = {b"t": b"true", b"f": b"false"}
_NO_NUMBERS: Final = {
    b"NaN": b'"NaN"',
    b"Infinity": b'"Infinity"',
    b"-Infinity": b'"-Infinity"',
}
_TIMESTAMP: Final = re.compile(
    rb"(\d{4,}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?:\+00)?( BC)?\Z"
)
_MICROSECONDS: Final = 26
_WHOLE_SECONDS: Final = 19
_FULL_INSTANT: Final = 29
_SPACE: Final = ord(" ")


def _number(text: bytes) -> bytes:
    return text


def _boolean(text: bytes) -> bytes:
    return _BOOLEANS[text]


def _float(text: bytes) -> bytes:
    return _NO_NUMBERS.get(text, text)


def _plain(text: bytes) -> bytes:
    """Quote a text that never holds what JSON escapes."""
    return b'"' + text + b'"'


def _text(text: bytes) -> bytes:
    return orjson.dumps(text.decode())


def _bytea(text: bytes) -> bytes:
    return b'"' + base64.b64encode(binascii.unhexlify(text[2:])) + b'"'


def timestamp(text: bytes) -> bytes:
    """
    Rewrite a timestamp that has no zone, or UTC's, with a T and six digits.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
    """
    if text[-3:] == b"+00":
        text = text[:-3]
    length = len(text)
    if text[10:11] == b" " and text[4:5] == b"-" and text[-3:] != b" BC":
        if length == _MICROSECONDS:
            return text[:10] + b"T" + text[11:]
        if length == _WHOLE_SECONDS:
            return text[:10] + b"T" + text[11:] + b".000000"
        if length < _MICROSECONDS and text[19:20] == b".":
            return text[:10] + b"T" + text[11:].ljust(15, b"0")
    if text in {b"infinity", b"-infinity"}:
        return text
    match = _TIMESTAMP.match(text)
    if match is None:
        reason = f"not a timestamp in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    day, time, fraction, era = match.groups()
    return day + b"T" + time + b"." + (fraction or b"").ljust(6, b"0") + (era or b"")


def instant(text: bytes) -> bytes:
    """
    Rewrite a timestamptz as RFC 3339 in UTC with six digits.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
    """
    if len(text) == _FULL_INSTANT and text[10] == _SPACE and text[26:] == b"+00":
        return text[:10] + b"T" + text[11:26] + b"Z"
    form = timestamp(text)
    if form[-3:] == b" BC":
        return form[:-3] + b"Z BC"
    return form if form[-1:] == b"y" else form + b"Z"


def _timestamp(text: bytes) -> bytes:
    return b'"' + timestamp(text) + b'"'


def _instant(text: bytes) -> bytes:
    return b'"' + instant(text) + b'"'


# By oid, which for built-in types never changes.
_ENCODERS: Final[Mapping[int, Encode]] = MappingProxyType(
    {
        16: _boolean,
        17: _bytea,
        20: _number,
        21: _number,
        23: _number,
        26: _number,
        700: _float,
        701: _float,
        1082: _plain,
        1114: _timestamp,
        1184: _instant,
        1700: _plain,
        2950: _plain,
    }
)


def encoder(type_oid: int) -> Encode:
    """Return the function that turns text forms of a type into JSON."""
    return _ENCODERS.get(type_oid, _text)

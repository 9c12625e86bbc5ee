"""
``interval``: ISO 8601 text with every field, or microseconds. Postgres's style is read.

A month is 365.25 / 12 days, as Debezium counts; the infinities of Postgres 17 are their
words, or the lowest and highest number of 64 bits.
"""

import re
from types import MappingProxyType
from typing import Final

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Form, Schema
from towpath.relay.routing.forms.iso import INFINITIES
from towpath.settings.rows import Intervals

_STYLE: Final = re.compile(
    r"(?:(-?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?\Z"
)
_INFINITE: Final = MappingProxyType({b"infinity": 2**63 - 1, b"-infinity": -(2**63)})
_MONTH_US: Final = 2_629_800_000_000
_DAY_US: Final = 86_400_000_000

# years, months, days, hours, minutes, seconds, microseconds; each with its sign
_Parts = tuple[int, int, int, int, int, int, int]


def interval(mode: Intervals) -> Form:
    """Return the form of an interval."""
    if mode is Intervals.NUMERIC:
        schema = Schema("int64", name="io.debezium.time.MicroDuration", version=1)
        return Form(schema, lambda text: b"%d" % microseconds(text), microseconds)
    schema = Schema("string", name="io.debezium.time.Interval", version=1)
    return Form(schema, lambda text: b'"' + iso(text).encode() + b'"', iso)


def microseconds(text: bytes) -> int:
    """
    Return an interval's approximate length.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
    """
    if text in INFINITIES:
        return _INFINITE[text]
    years, months, days, hours, minutes, seconds, micros = _parts(text)
    return (
        (years * 12 + months) * _MONTH_US
        + days * _DAY_US
        + (hours * 3600 + minutes * 60 + seconds) * 1_000_000
        + micros
    )


def iso(text: bytes) -> str:
    """
    Write an interval as ``P1Y2M3DT4H5M6.78S``; each part has its own sign.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
    """
    if text in INFINITIES:
        return text.decode()
    years, months, days, hours, minutes, seconds, micros = _parts(text)
    sign = "-" if seconds < 0 or micros < 0 else ""
    fraction = f".{abs(micros):06d}".rstrip("0") if micros else ""
    day = f"P{years}Y{months}M{days}D"
    return f"{day}T{hours}H{minutes}M{sign}{abs(seconds)}{fraction}S"


def _parts(text: bytes) -> _Parts:
    match = _STYLE.match(text.decode())
    if match is None or not text:
        reason = f"not an interval in Postgres's style: {len(text)} bytes"
        raise MalformedMessageError(reason)
    years, months, days, sign, hours, minutes, seconds, fraction = match.groups()
    way = -1 if sign == "-" else 1
    micros = int((fraction or "").ljust(6, "0"))
    return (
        int(years or 0),
        int(months or 0),
        int(days or 0),
        way * int(hours or 0),
        way * int(minutes or 0),
        way * int(seconds or 0),
        way * micros,
    )

"""
Single values inside others, from Postgres's text to what records carry. Pure.

What is not among them is its text.
"""

import base64
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import orjson

Single: TypeAlias = str | int | float | bool

_TIMESTAMP: Final = re.compile(
    r"(\d+-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?(\+00)?( BC)?\Z"
)
_TIMETZ: Final = re.compile(
    r"(\d\d):(\d\d):(\d\d)(\.\d+)?([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?\Z"
)
_INTERVAL: Final = re.compile(
    r"(?:([+-]?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?\Z"
)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_DAY_S: Final = 86_400


def _float(text: str) -> Single:
    if text in _NO_NUMBERS:
        return text
    number: int | float = orjson.loads(text)
    return number


def _timestamp(text: str) -> str:
    found = _TIMESTAMP.match(text)
    if found is None:
        return text
    day, time, fraction, zone, era = found.groups()
    digits = (fraction or "").ljust(6, "0")
    return f"{day}T{time}.{digits}{'Z' if zone else ''}{era or ''}"


def _utc_time(text: str) -> str:
    found = _TIMETZ.match(text)
    if found is None:
        return text
    hours, minutes, seconds, fraction, sign, *zone = found.groups()
    east_s = _seconds(*(part or "0" for part in zone)) * (1 if sign == "+" else -1)
    time_s = (_seconds(hours, minutes, seconds) - east_s) % _DAY_S
    clock = f"{time_s // 3600:02d}:{time_s // 60 % 60:02d}:{time_s % 60:02d}"
    return f"{clock}{fraction or ''}Z"


def _seconds(hours: str, minutes: str, seconds: str) -> int:
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _interval(text: str) -> str:
    found = _INTERVAL.match(text)
    if found is None:
        return text
    years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
    way = -1 if sign == "-" else 1
    whole, digits = int(seconds or 0), (fraction or "").rstrip("0")
    minus = "-" if way < 0 and (whole or digits) else ""
    second = f"{minus}{whole}.{digits}" if digits else f"{minus}{whole}"
    return (
        f"P{int(years or 0)}Y{int(months or 0)}M{int(days or 0)}D"
        f"T{way * int(hours or 0)}H{way * int(minutes or 0)}M{second}S"
    )


def _money(text: str) -> str:
    return re.sub(r"[^-\d.]", "", text)


def _bytes(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix(r"\x"))).decode()


SINGLES: Final[Mapping[str, Callable[[str], Single]]] = MappingProxyType(
    {
        "boolean": lambda text: text == "t",
        "smallint": int,
        "integer": int,
        "bigint": int,
        "oid": int,
        "real": _float,
        "double precision": _float,
        "timestamp with time zone": _timestamp,
        "timestamp without time zone": _timestamp,
        "time with time zone": _utc_time,
        "interval": _interval,
        "money": _money,
        "bytea": _bytes,
    }
)

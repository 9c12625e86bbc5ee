"""
Dates and times as the numbers that Debezium uses for the column's precision.

=========================  ========================  ==============  ===============
mode                       date                      time            timestamp
=========================  ========================  ==============  ===============
adaptive, precision <= 3   days                      ms, int32       ms
adaptive, precision > 3    days                      us              us
... time_microseconds      days                      us              as adaptive
connect                    days (Connect's types)    ms, int32       ms
=========================  ========================  ==============  ===============

Instants are counted from 1970 in the proleptic Gregorian calendar, as in Postgres, so
years before 1 and after 9999 are ordinary numbers too. The infinities are the numbers
that Debezium streams: for timestamps, the two sentinels of its JDBC driver, the same in
ms and in us; for dates, Postgres's lowest day and the highest int32. A connect time is
int32, as Connect's converters require, although Debezium documents int64. Zoned
timestamps are strings in every mode: ISO 8601 in UTC with the column's precision,
``infinity`` and ``-infinity``, and years beyond four digits with their sign. Zoned
times are written as in the next table.

Times as strings: Postgres's ISO output rewritten as ISO 8601 in UTC. Hot path.

===========  ==========================================================================
timestamptz  ``YYYY-MM-DDTHH:MM:SS.ffffffZ``, always six digits
timestamp    the same without Z
timetz       ``HH:MM:SS[.f..]Z``, converted to UTC
date, time   as Postgres writes them
===========  ==========================================================================

Infinities remain words. Years before 1 keep Postgres's `` BC`` at the end, and years
after 9999 keep all their digits. The connection uses UTC and ISO dates.

An ``interval``, read in the style ``postgres``, becomes an ISO 8601 string with every
field, or a number of microseconds. A month is 365.25 / 12 days, as in Debezium; the
infinities of Postgres 17 are written as words, or as the lowest and highest 64-bit
integers.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date
from types import MappingProxyType
from typing import Final

from towpath.relay.encode.types.form import Form, Fragments, Schema
from towpath.relay.errors import MalformedMessageError
from towpath.settings.rows import Intervals, Times

_TIMESTAMP: Final = re.compile(
    rb"(\d{4,}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(?:\+00)?( BC)?\Z"
)
_TIMETZ: Final = re.compile(
    rb"(\d\d):(\d\d):(\d\d)(\.\d{1,6})?([+-])(\d\d)(?::(\d\d)(?::(\d\d))?)?\Z"
)
_MICROSECONDS: Final = 26
_WHOLE_SECONDS: Final = 19
_FULL_INSTANT: Final = 29
_SPACE: Final = ord(" ")
_QUOTE: Final = b'"'
_DAY_S: Final = 86_400

INFINITIES: Final = frozenset({b"infinity", b"-infinity"})


def timestamp(text: bytes) -> bytes:
    """
    Rewrite a timestamp, without a zone or in UTC, with a T and six fractional digits.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
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
    if text in INFINITIES:
        return text
    match = _TIMESTAMP.match(text)
    if match is None:
        reason = f"not a timestamp in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    day, time, fraction, era = match.groups()
    return day + b"T" + time + b"." + (fraction or b"").ljust(6, b"0") + (era or b"")


def instant(text: bytes) -> bytes:
    """
    Rewrite a timestamptz as RFC 3339 in UTC with six fractional digits.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    if len(text) == _FULL_INSTANT and text[10] == _SPACE and text[26:] == b"+00":
        return text[:10] + b"T" + text[11:26] + b"Z"
    form = timestamp(text)
    if form[-3:] == b" BC":
        return form[:-3] + b"Z BC"
    return form if form[-1:] == b"y" else form + b"Z"


def instants(texts: Sequence[bytes]) -> list[bytes] | None:
    """
    Rewrite many timestamptz values in one pass.

    Returns:
        The result of ``instant`` for each value; None if any of them lacks the plain
        form, with a four-digit year AD.
    """
    size, count = _FULL_INSTANT, len(texts)
    padded = [text if len(text) == size else _padded(text) for text in texts]
    joined = bytearray().join(padded)
    # All values have the same length, so a stride picks the same character of each.
    is_plain = (
        {size} == set(map(len, padded))
        and joined[10::size] == b" " * count
        and joined[26::size] == b"+" * count
        and joined[27::size] == joined[28::size] == b"0" * count
    )
    if not is_plain:
        return None
    joined[10::size] = b"T" * count
    joined[26::size] = b"Z" * count
    rewritten = bytes(joined)
    return [rewritten[at : at + 27] for at in range(0, len(rewritten), size)]


def _padded(text: bytes) -> bytes:
    """Restore fractional zeros that Postgres omits; return other texts unchanged."""
    moment = text[:-3]
    if text[-3:] != b"+00" or len(moment) >= _MICROSECONDS:
        return text
    if len(moment) == _WHOLE_SECONDS:
        return moment + b".000000+00"
    return moment.ljust(_MICROSECONDS, b"0") + b"+00" if text[19:20] == b"." else text


def utc_time(text: bytes) -> bytes:
    """
    Convert a timetz to UTC; it wraps around at midnight: 24:00:00+00 is 00:00:00Z.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    match = _TIMETZ.match(text)
    if match is None:
        reason = f"not a time with a zone in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    hours, minutes, seconds, fraction, sign, *zone = match.groups()
    offset_s = seconds_of(*(part or b"0" for part in zone))
    east = 1 if sign == b"+" else -1
    moment = (seconds_of(hours, minutes, seconds) - east * offset_s) % _DAY_S
    clock = b"%02d:%02d:%02d" % (moment // 3600, moment // 60 % 60, moment % 60)
    return clock + (fraction or b"") + b"Z"


def seconds_of(hours: bytes, minutes: bytes, seconds: bytes) -> int:
    """Return hours, minutes and seconds as seconds."""
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def timestamp_json(text: bytes) -> bytes:
    """Quote a timestamp."""
    return b'"' + timestamp(text) + b'"'


def instant_json(text: bytes) -> bytes:
    """Quote a timestamptz."""
    return b'"' + instant(text) + b'"'


def instant_column(texts: Sequence[bytes]) -> Fragments:
    """Quote many timestamptz values."""
    rewritten = instants(texts)
    if rewritten is None:
        rewritten = list(map(instant, texts))
    return Fragments(rewritten, _QUOTE)


def utc_time_json(text: bytes) -> bytes:
    """Quote a timetz."""
    return b'"' + utc_time(text) + b'"'


def timestamp_value(text: bytes) -> str:
    """Return a timestamp as a string, in the form of ``timestamp``."""
    return timestamp(text).decode()


def instant_value(text: bytes) -> str:
    """Return a timestamptz as a string, in the form of ``instant``."""
    return instant(text).decode()


def utc_time_value(text: bytes) -> str:
    """Return a timetz as a string, in the form of ``utc_time``."""
    return utc_time(text).decode()


_DATE: Final = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)( BC)?\Z")
_TIME: Final = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
_ISO_DATE_LENGTH: Final = 10
_YEAR_DIGITS: Final = 9999

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_ERA_YEARS: Final = 400
_ERA_DAYS: Final = 146_097
_DAY_US: Final = 86_400_000_000

# Postgres's infinite days count from 2000, as int32; counted from 1970, the upper one
# would not fit.
_INFINITE_DAYS: Final = MappingProxyType(
    {b"infinity": 2_147_483_647, b"-infinity": -2_147_483_648 + 10_957}
)
_INFINITE_INSTANTS: Final = MappingProxyType(
    {b"infinity": 9_223_372_036_825_200_000, b"-infinity": -9_223_372_036_832_400_000}
)

_MILLISECONDS: Final = 3
_MICROSECOND_DIGITS: Final = 6


def days(text: bytes) -> int:
    """
    Return a date as days since 1970.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    if len(text) == _ISO_DATE_LENGTH:
        try:
            return date.fromisoformat(text.decode()).toordinal() - _EPOCH_DAY
        except ValueError:
            pass
    if text in INFINITIES:
        return _INFINITE_DAYS[text]
    match = _DATE.match(text)
    if match is None:
        reason = f"not a date in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    year, month, day, era = match.groups()
    astronomical = 1 - int(year) if era else int(year)
    return _civil_days(astronomical, int(month), int(day))


def _civil_days(year: int, month: int, day: int) -> int:
    """Return a date as days since 1970; the calendar repeats every 400 years."""
    eras = (year - 1) // _ERA_YEARS
    known = date(year - eras * _ERA_YEARS, month, day)
    return known.toordinal() + eras * _ERA_DAYS - _EPOCH_DAY


def time_us(text: bytes) -> int:
    """
    Return a time as microseconds since midnight; 24:00:00 is a whole day.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    match = _TIME.match(text)
    if match is None:
        reason = f"not a time in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    hours, minutes, seconds, fraction = match.groups()
    micros = int((fraction or b"").ljust(6, b"0"))
    return seconds_of(hours, minutes, seconds) * 1_000_000 + micros


def instant_us(text: bytes) -> int:
    """
    Return a timestamp, taken as UTC, as microseconds since 1970.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    if text in INFINITIES:
        return _INFINITE_INSTANTS[text]
    day, _, moment = text.partition(b" ")
    if moment[-3:] == b" BC":
        day, moment = day + b" BC", moment[:-3]
    return days(day) * _DAY_US + time_us(moment)


def instant_ms(text: bytes) -> int:
    """Return a timestamp as milliseconds since 1970, rounded down."""
    return _INFINITE_INSTANTS.get(text) or instant_us(text) // 1000


def time_ms(text: bytes) -> int:
    """Return a time as milliseconds since midnight, rounded down."""
    return time_us(text) // 1000


def date_form(mode: Times) -> Form:
    """Return the form of a date."""
    if mode is Times.CONNECT:
        return _number("int32", "org.apache.kafka.connect.data.Date", days)
    return _number("int32", "io.debezium.time.Date", days)


def time_form(typmod: int, mode: Times) -> Form:
    """Return the form of a time."""
    if mode is Times.CONNECT:
        return _number("int32", "org.apache.kafka.connect.data.Time", time_ms)
    if mode is Times.ADAPTIVE and precision(typmod) <= _MILLISECONDS:
        return _number("int32", "io.debezium.time.Time", time_ms)
    return _number("int64", "io.debezium.time.MicroTime", time_us)


def timestamp_form(typmod: int, mode: Times) -> Form:
    """Return the form of a timestamp."""
    if mode is Times.CONNECT:
        name = "org.apache.kafka.connect.data.Timestamp"
        return _number("int64", name, instant_ms)
    if precision(typmod) <= _MILLISECONDS:
        return _number("int64", "io.debezium.time.Timestamp", instant_ms)
    return _number("int64", "io.debezium.time.MicroTimestamp", instant_us)


def zoned_form(typmod: int) -> Form:
    """Return the form of a timestamptz: a string with the column's digits."""
    digits = precision(typmod)

    def value(text: bytes) -> str:
        return zoned(text, digits)

    def column(texts: Sequence[bytes]) -> Fragments:
        rewritten = instants(texts) if digits == _MICROSECOND_DIGITS else None
        if rewritten is None:
            rewritten = [value(text).encode() for text in texts]
        return Fragments(rewritten, b'"')

    return Form(
        Schema("string", name="io.debezium.time.ZonedTimestamp", version=1),
        lambda text: b'"' + value(text).encode() + b'"',
        value,
        column,
    )


def zoned(text: bytes, digits: int) -> str:
    """
    Rewrite a timestamptz as ISO 8601 in UTC, with ``digits`` fractional digits.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
    """
    if text in INFINITIES:
        return text.decode()
    day, _, moment = text.partition(b" ")
    is_before_christ = moment[-3:] == b" BC"
    moment = moment.removesuffix(b" BC")
    match = _TIME.match(moment.removesuffix(b"+00"))
    whole = _DATE.match(day)
    if match is None or whole is None or not moment.endswith(b"+00"):
        reason = f"not an instant in ISO form: {len(text)} bytes"
        raise MalformedMessageError(reason)
    clock, fraction = moment[:8].decode(), (match[4] or b"").decode()
    point = f".{fraction.ljust(digits, '0')}" if digits else ""
    year = _java_year(int(whole[1]), is_before_christ)
    return f"{year}{day[-6:].decode()}T{clock}{point}Z"


def _java_year(year: int, is_before_christ: bool) -> str:  # noqa: FBT001 - private
    """Write a year as ISO 8601 counts it: 1 BC is 0000; longer years have a sign."""
    if is_before_christ:
        return "0000" if year == 1 else f"-{year - 1:04d}"
    return f"{year:04d}" if year <= _YEAR_DIGITS else f"+{year}"


def precision(typmod: int) -> int:
    """Return how many fractional digits a column keeps; six without a modifier."""
    return typmod if 0 <= typmod <= _MICROSECOND_DIGITS else _MICROSECOND_DIGITS


def _number(kind: str, name: str, value: Callable[[bytes], int]) -> Form:
    schema = Schema("int32" if kind == "int32" else "int64", name=name, version=1)
    return Form(schema, lambda text: b"%d" % value(text), value)


_STYLE: Final = re.compile(
    r"(?:(-?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?\Z"
)
_INFINITE: Final = MappingProxyType({b"infinity": 2**63 - 1, b"-infinity": -(2**63)})
_MONTH_US: Final = 2_629_800_000_000

# years, months, days, hours, minutes, seconds, microseconds; each with its own sign
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
    Return an interval's approximate length in microseconds.

    Raises:
        MalformedMessageError: The text is not in the format of the connection.
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
        MalformedMessageError: The text is not in the format of the connection.
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
    factor = -1 if sign == "-" else 1
    micros = int((fraction or "").ljust(6, "0"))
    return (
        int(years or 0),
        int(months or 0),
        int(days or 0),
        factor * int(hours or 0),
        factor * int(minutes or 0),
        factor * int(seconds or 0),
        factor * micros,
    )

"""
Times as Debezium's numbers, by the column's precision.

=========================  ========================  ==============  ===============
mode                       date                      time            timestamp
=========================  ========================  ==============  ===============
adaptive, precision <= 3   days                      ms, int32       ms
adaptive, above            days                      us              us
... time_microseconds      days                      us              as adaptive
connect                    days (Connect's types)    ms, int32       ms
=========================  ========================  ==============  ===============

Instants count from 1970 in the proleptic Gregorian calendar, which is Postgres's own,
so that years before 1 and above 9999 are numbers like the others. The infinities are
the numbers that the stream of Debezium gives: for timestamps its driver's two far
instants, in either unit; for dates Postgres's lowest and Java's highest day. A connect
time is int32, as Connect's converters want it, although a table of Debezium's says
int64. Zoned times are texts in every mode: ISO 8601 in UTC with the column's precision,
``infinity`` and ``-infinity``, and years beyond four digits with their sign.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date
from types import MappingProxyType
from typing import Final

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Form, Fragments, Schema
from towpath.relay.routing.forms.iso import INFINITIES, instants, seconds_of
from towpath.settings.rows import Times

_DATE: Final = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)( BC)?\Z")
_TIME: Final = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\Z")
_ISO_DATE_LENGTH: Final = 10
_YEAR_DIGITS: Final = 9999

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_ERA_YEARS: Final = 400
_ERA_DAYS: Final = 146_097
_DAY_US: Final = 86_400_000_000

# Postgres's infinite days count from 2000, as int32; the upper one would not fit.
_INFINITE_DAYS: Final = MappingProxyType(
    {b"infinity": 2_147_483_647, b"-infinity": -2_147_483_648 + 10_957}
)
_INFINITE_INSTANTS: Final = MappingProxyType(
    {b"infinity": 9_223_372_036_825_200_000, b"-infinity": -9_223_372_036_832_400_000}
)

_MILLISECONDS: Final = 3
_MICROSECONDS: Final = 6


def days(text: bytes) -> int:
    """
    Return a date's days since 1970.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
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
    """Move the year into one that Python knows: calendars repeat after 400 years."""
    eras = (year - 1) // _ERA_YEARS
    known = date(year - eras * _ERA_YEARS, month, day)
    return known.toordinal() + eras * _ERA_DAYS - _EPOCH_DAY


def time_us(text: bytes) -> int:
    """
    Return a time's microseconds since midnight; 24:00:00 is a whole day.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
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
    Return a timestamp's microseconds since 1970, read as UTC.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
    """
    if text in INFINITIES:
        return _INFINITE_INSTANTS[text]
    day, _, moment = text.partition(b" ")
    if moment[-3:] == b" BC":
        day, moment = day + b" BC", moment[:-3]
    return days(day) * _DAY_US + time_us(moment)


def instant_ms(text: bytes) -> int:
    """Return a timestamp's milliseconds since 1970, rounded down."""
    return _INFINITE_INSTANTS.get(text) or instant_us(text) // 1000


def time_ms(text: bytes) -> int:
    """Return a time's milliseconds since midnight, rounded down."""
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
    """Return the form of a timestamptz: a text with the column's digits."""
    digits = precision(typmod)

    def value(text: bytes) -> str:
        return zoned(text, digits)

    def column(texts: Sequence[bytes]) -> Fragments:
        rewritten = instants(texts) if digits == _MICROSECONDS else None
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
    Rewrite a timestamptz as ISO 8601 in UTC, with so many digits of a second.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
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


def _java_year(year: int, is_before_christ: bool) -> str:  # noqa: FBT001 - a part
    """Write a year as ISO 8601 counts it: 1 BC is 0000; five digits have a sign."""
    if is_before_christ:
        return "0000" if year == 1 else f"-{year - 1:04d}"
    return f"{year:04d}" if year <= _YEAR_DIGITS else f"+{year}"


def precision(typmod: int) -> int:
    """Return the digits of a second that a column keeps; six without a modifier."""
    return typmod if 0 <= typmod <= _MICROSECONDS else _MICROSECONDS


def _number(kind: str, name: str, value: Callable[[bytes], int]) -> Form:
    schema = Schema("int32" if kind == "int32" else "int64", name=name, version=1)
    return Form(schema, lambda text: b"%d" % value(text), value)

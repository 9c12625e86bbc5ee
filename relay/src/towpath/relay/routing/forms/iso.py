"""
Times as texts: Postgres's ISO output as ISO 8601, in UTC. Hot path.

===========  ==========================================================================
timestamptz  ``YYYY-MM-DDTHH:MM:SS.ffffffZ``, always six digits
timestamp    the same without Z
timetz       ``HH:MM:SS[.f..]Z``, brought to UTC
date, time   as Postgres writes them
===========  ==========================================================================

Infinite times stay words; years before 1 keep Postgres's `` BC`` at the end, years
above 9999 all their digits. The connection speaks UTC and ISO dates.
"""

import re
from collections.abc import Sequence
from typing import Final

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Fragments

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


def instants(texts: Sequence[bytes]) -> list[bytes] | None:
    """
    Rewrite many timestamptz at once.

    Returns:
        The same as ``instant`` of each; None if one of them is not of the plain kind,
        with a year of four digits after Christ.
    """
    size, count = _FULL_INSTANT, len(texts)
    padded = [text if len(text) == size else _padded(text) for text in texts]
    joined = bytearray().join(padded)
    # The columns of characters that stand one below the other.
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
    """Give an instant its six digits, as Postgres leaves zeros out; or leave it."""
    moment = text[:-3]
    if text[-3:] != b"+00" or len(moment) >= _MICROSECONDS:
        return text
    if len(moment) == _WHOLE_SECONDS:
        return moment + b".000000+00"
    return moment.ljust(_MICROSECONDS, b"0") + b"+00" if text[19:20] == b"." else text


def utc_time(text: bytes) -> bytes:
    """
    Rewrite a timetz in UTC; the day wraps round, so that 24:00:00+00 is 00:00:00Z.

    Raises:
        MalformedMessageError: It is not in the form that the connection asked for.
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
    """Add up hours, minutes and seconds."""
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def timestamp_json(text: bytes) -> bytes:
    """Quote a timestamp."""
    return b'"' + timestamp(text) + b'"'


def instant_json(text: bytes) -> bytes:
    """Quote a timestamptz."""
    return b'"' + instant(text) + b'"'


def instant_column(texts: Sequence[bytes]) -> Fragments:
    """Quote many of them."""
    rewritten = instants(texts)
    if rewritten is None:
        rewritten = list(map(instant, texts))
    return Fragments(rewritten, _QUOTE)


def utc_time_json(text: bytes) -> bytes:
    """Quote a timetz."""
    return b'"' + utc_time(text) + b'"'


def timestamp_value(text: bytes) -> str:
    """Read a timestamp."""
    return timestamp(text).decode()


def instant_value(text: bytes) -> str:
    """Read a timestamptz."""
    return instant(text).decode()


def utc_time_value(text: bytes) -> str:
    """Read a timetz."""
    return utc_time(text).decode()

"""
Lossless conversion of Python values to JSON values.

Decimals become strings (a JSON number would lose digits), datetimes RFC 3339 in UTC
with microseconds, dates ``YYYY-MM-DD``, UUIDs their text, and enums their value.
Mappings become dicts, and tuples lists, of converted elements. All other values are
left unchanged; the event's schema decides whether they are allowed.
"""

import enum
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any


def plain(value: Any) -> Any:  # noqa: ANN401 - any value in, any JSON value out
    """
    Return the JSON form of a value and of everything in it.

    Raises:
        ValueError: A datetime is naive, so its instant is unknown.
        OverflowError: A datetime is before the year 1 or after the year 9999 in UTC.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return _scalar(value)


def rfc3339(at: datetime) -> str:
    """
    Format an instant in UTC with microseconds and a ``Z``.

    Raises:
        ValueError: The datetime is naive.
        OverflowError: It is before the year 1 or after the year 9999 in UTC.
    """
    if at.utcoffset() is None:
        message = f"a datetime without a time zone is not an instant: {at.isoformat()}"
        raise ValueError(message)
    in_utc = at.astimezone(UTC).replace(tzinfo=None)
    return in_utc.isoformat(timespec="microseconds") + "Z"


def _scalar(value: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    return value

"""The text form of values that JSON cannot represent without loss."""

import enum
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType

import pytest

from towpath.outbox import plain


class Color(enum.StrEnum):
    """A text enum, such as a status."""

    RED = "red"


AT = datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC)
ID = uuid.UUID("0af76519-16cd-43dd-8448-eb211c80319c")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("10.50"), "10.50"),
        (Decimal("1E+3"), "1000"),
        (AT, "2026-01-02T03:04:05.000060Z"),
        (AT.replace(microsecond=0), "2026-01-02T03:04:05.000000Z"),
        (
            AT.astimezone(timezone(timedelta(hours=5, minutes=30))),
            "2026-01-02T03:04:05.000060Z",
        ),
        (date(2026, 1, 2), "2026-01-02"),
        (ID, str(ID)),
        (Color.RED, "red"),
        ({"a": (Decimal(1), None, True, 1.5)}, {"a": ["1", None, True, 1.5]}),
        (MappingProxyType({ID: [AT]}), {str(ID): ["2026-01-02T03:04:05.000060Z"]}),
    ],
)
def test_values_are_converted_to_json_types(value, expected):
    """
    Decimals keep their digits, instants are UTC with six decimals, mappings are dicts.
    """
    assert expected == plain(value)


def test_an_enum_becomes_its_value():
    """
    The result is a plain string for any serializer.
    """
    assert type(plain(Color.RED)) is str


def test_an_instant_without_a_zone_is_refused():
    """
    Without a zone it is unknown which instant a datetime means.
    """
    with pytest.raises(ValueError, match="without a time zone"):
        plain({"at": AT.replace(tzinfo=None)})


def test_a_value_without_a_json_form_is_left_to_the_schema():
    """
    An unknown object is unchanged.
    """
    thing = object()

    assert plain(thing) is thing

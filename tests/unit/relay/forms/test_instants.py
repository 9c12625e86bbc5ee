"""Parsing many instants at once: only plain ones take the fast path."""

import pytest

from towpath.relay.encode.types.temporal import instant_column, instant_json, instants
from towpath.relay.errors import MalformedMessageError

PLAIN = (
    b"2026-11-21 20:52:03.123456+00",
    b"2026-11-21 20:52:03.1234+00",
    b"2026-11-21 20:52:03+00",
)


def test_plain_instants_are_parsed_together():
    """
    Plain instants, with or without trailing zeros, are parsed in one pass.
    """
    assert [
        b"2026-11-21T20:52:03.123456Z",
        b"2026-11-21T20:52:03.123400Z",
        b"2026-11-21T20:52:03.000000Z",
    ] == instants(PLAIN)


@pytest.mark.parametrize(
    "odd",
    [
        b"infinity",
        b"10000-02-28 20:52:03.12345+00",
        b"10000-02-28 20:52:03.1+00",
        b"0044-03-15 20:52:03.123+00 BC",
        b"0044-03-15 20:52:03+00 BC",
    ],
)
def test_an_unusual_instant_is_written_the_same_in_a_column(odd: bytes):
    """
    It does not change how the surrounding instants are written, either.
    """
    column = (PLAIN[0], odd, PLAIN[1])
    texts, mark = instant_column(column)

    assert list(map(instant_json, column)) == [mark + text + mark for text in texts]


@pytest.mark.parametrize(
    "foreign", [b"2026-11-21 20:52:03.123456-00", b"2026-11-21 20:52:03.12345+05"]
)
def test_an_instant_in_a_different_time_zone_is_refused(foreign: bytes):
    """
    The connection requests UTC, so an instant in any other zone is an error.
    """
    with pytest.raises(MalformedMessageError):
        instant_column((PLAIN[0], foreign))

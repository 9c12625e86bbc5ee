"""One type, one form: Postgres's texts as JSON."""

import json

import pytest

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.values import encoder, instant

ENUM = 99_999


@pytest.mark.parametrize(
    ("type_oid", "text", "json_text"),
    [
        (21, "-32768", "-32768"),
        (23, "2147483647", "2147483647"),
        (20, "-9223372036854775808", "-9223372036854775808"),
        (26, "4000000000", "4000000000"),
        (16, "t", "true"),
        (16, "f", "false"),
        (700, "1.5", "1.5"),
        (701, "1e+308", "1e+308"),
        (701, "NaN", '"NaN"'),
        (701, "-Infinity", '"-Infinity"'),
        (1700, "1.10", '"1.10"'),
        (1700, "NaN", '"NaN"'),
        (1043, "", '""'),
        (ENUM, "happy", '"happy"'),
        (3802, "null", '"null"'),
        (1082, "2026-02-28", '"2026-02-28"'),
        (1082, "infinity", '"infinity"'),
        (17, "\\x00ff10", '"AP8Q"'),
        (17, "\\x", '""'),
        (1184, "2026-03-04 05:06:07+00", '"2026-03-04T05:06:07.000000Z"'),
        (1184, "2026-03-04 05:06:07.8+00", '"2026-03-04T05:06:07.800000Z"'),
        (1184, "2026-03-04 05:06:07.891234+00", '"2026-03-04T05:06:07.891234Z"'),
        (1184, "0001-01-01 00:00:00+00", '"0001-01-01T00:00:00.000000Z"'),
        (1184, "20260-01-01 00:00:00.12345+00", '"20260-01-01T00:00:00.123450Z"'),
        (1184, "0044-03-15 00:00:00+00 BC", '"0044-03-15T00:00:00.000000Z BC"'),
        (1184, "0044-03-15 00:00:00.123456+00 BC", '"0044-03-15T00:00:00.123456Z BC"'),
        (1184, "infinity", '"infinity"'),
        (1184, "-infinity", '"-infinity"'),
        (1114, "2026-03-04 05:06:07.89", '"2026-03-04T05:06:07.890000"'),
        (1114, "2026-03-04 05:06:07", '"2026-03-04T05:06:07.000000"'),
        (1114, "9999-12-31 23:59:59.999999", '"9999-12-31T23:59:59.999999"'),
        (1114, "0044-03-15 00:00:00 BC", '"0044-03-15T00:00:00.000000 BC"'),
        (1114, "-infinity", '"-infinity"'),
        (3904, "[1,6)", '"[1,6)"'),
    ],
)
def test_each_type_has_one_form(type_oid: int, text: str, json_text: str):
    """
    A value becomes the JSON that its type prescribes.
    """
    assert json_text == encoder(type_oid)(text.encode()).decode()


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        (1700, "123456789012345678901234567890.12345"),
        (25, 'tab\tquote"back\\slash\nnewline'),
        (25, "😀 žluťoučký \x7f\u2028"),
        (2950, "6f1c1a3e-0000-4000-8000-0123456789ab"),
        (114, '{"b":1, "a": [1,2,{"c":null}]}'),
    ],
)
def test_texts_pass_through_unaltered(type_oid: int, text: str):
    """
    A string, a number of any length and a document come back as they were.
    """
    assert text == json.loads(encoder(type_oid)(text.encode()))


@pytest.mark.parametrize("text", [b"", b"2026-03-04", b"04/03/2026 05:06:07+00"])
def test_a_timestamp_in_another_form_is_an_error(text: bytes):
    """
    A connection that speaks another date style is noticed.
    """
    with pytest.raises(MalformedMessageError):
        instant(text)

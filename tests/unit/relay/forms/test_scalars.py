"""Forms of scalar types: Postgres's texts as JSON and as values, in every mode."""

import json
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType

import pytest

from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Form, Modes, TypeFacts, modes_of
from towpath.relay.encode.types.scalar import twos_complement
from towpath.relay.encode.types.temporal import instant
from towpath.relay.errors import MalformedMessageError
from towpath.settings.relay import Relay
from towpath.settings.rows import Rows

NOTHING: Mapping[int, TypeFacts] = MappingProxyType({})
GONE = 99_999


def form(
    type_oid: int, typmod: int = -1, *, is_debezium: bool = False, **rows: object
) -> Form:
    """Choose the form of a built-in type."""
    reasons: list[str] = []
    modes = Modes(Rows.model_validate(rows), is_debezium)
    found = FormChooser(NOTHING, modes, reasons.append).of(type_oid, typmod)
    assert found is not None
    return found


def written(found: Form, text: str) -> object:
    """Write a text as JSON and parse it."""
    return json.loads(found.json(text.encode()))


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
        (1700, "-Infinity", '"-Infinity"'),
        (790, "-$1,234.56", '"-1234.56"'),
        (1043, "", '""'),
        (GONE, "happy", '"happy"'),
        (3802, "null", '"null"'),
        (1082, "2026-02-28", '"2026-02-28"'),
        (1082, "infinity", '"infinity"'),
        (1082, "0044-03-15 BC", '"0044-03-15 BC"'),
        (1083, "24:00:00", '"24:00:00"'),
        (1266, "13:51:30.123789+02", '"11:51:30.123789Z"'),
        (1266, "00:10:00-05:30", '"05:40:00Z"'),
        (1266, "24:00:00+00", '"00:00:00Z"'),
        (1186, "1 year 2 mons 3 days 04:05:06.78", '"P1Y2M3DT4H5M6.78S"'),
        (1186, "-1 days +02:03:00", '"P0Y0M-1DT2H3M0S"'),
        (1186, "-00:00:00.5", '"P0Y0M0DT0H0M-0.5S"'),
        (1186, "infinity", '"infinity"'),
        (17, "\\x00ff10", '"AP8Q"'),
        (17, "\\x", '""'),
        (1560, "1000001", '"1000001"'),
        (600, "(1.5,-2)", '"(1.5,-2)"'),
        (1184, "2026-03-04 05:06:07+00", '"2026-03-04T05:06:07.000000Z"'),
        (1184, "2026-03-04 05:06:07.8+00", '"2026-03-04T05:06:07.800000Z"'),
        (1184, "2026-03-04 05:06:07.891234+00", '"2026-03-04T05:06:07.891234Z"'),
        (1184, "0001-01-01 00:00:00+00", '"0001-01-01T00:00:00.000000Z"'),
        (1184, "20260-01-01 00:00:00.12345+00", '"20260-01-01T00:00:00.123450Z"'),
        (1184, "0044-03-15 00:00:00+00 BC", '"0044-03-15T00:00:00.000000Z BC"'),
        (1184, "0044-03-15 00:00:00.123456+00 BC", '"0044-03-15T00:00:00.123456Z BC"'),
        (1184, "-infinity", '"-infinity"'),
        (1114, "2026-03-04 05:06:07.89", '"2026-03-04T05:06:07.890000"'),
        (1114, "9999-12-31 23:59:59.999999", '"9999-12-31T23:59:59.999999"'),
        (1114, "0044-03-15 00:00:00 BC", '"0044-03-15T00:00:00.000000 BC"'),
        (1114, "-infinity", '"-infinity"'),
        (3904, "[1,6)", '"[1,6)"'),
    ],
)
def test_each_type_has_one_form(type_oid: int, text: str, json_text: str):
    """
    A value becomes the JSON that its type prescribes (B63, B64, B67).
    """
    assert json_text == form(type_oid).json(text.encode()).decode()


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
def test_texts_are_passed_through_unchanged(type_oid: int, text: str):
    """
    A string, a number of any length and a document are unchanged.
    """
    assert text == written(form(type_oid), text)


@pytest.mark.parametrize("text", [b"", b"2026-03-04", b"04/03/2026 05:06:07+00"])
def test_a_timestamp_in_a_different_date_style_is_an_error(text: bytes):
    """
    A connection with a wrong date style is detected.
    """
    with pytest.raises(MalformedMessageError):
        instant(text)


@pytest.mark.parametrize("type_oid", [1082, 1083, 1114, 1186, 1266])
def test_a_malformed_time_is_an_error(type_oid: int):
    """
    A conversion never guesses at a malformed time.
    """
    found = form(type_oid, times="adaptive", intervals="numeric")

    with pytest.raises(MalformedMessageError):
        found.json(b"tomorrow")


@pytest.mark.parametrize(
    ("mode", "type_oid", "typmod", "text", "number"),
    [
        ("adaptive", 1082, -1, "0001-01-01", -719162),
        ("adaptive", 1082, -1, "0001-12-31 BC", -719163),
        ("adaptive", 1082, -1, "10000-01-01", 2932897),
        ("adaptive", 1082, -1, "infinity", 2147483647),
        ("adaptive", 1083, 3, "13:51:30.123", 49890123),
        ("adaptive", 1083, -1, "24:00:00", 86_400_000_000),
        ("adaptive_time_microseconds", 1083, 3, "13:51:30.123", 49890123000),
        ("adaptive_time_microseconds", 1114, 3, "2026-03-04 05:06:07.8", 1772600767800),
        ("connect", 1083, 6, "13:51:30.123456", 49890123),
        ("connect", 1114, 6, "2018-06-20 15:13:16.945104", 1529507596945),
        ("adaptive", 1114, 6, "2018-06-20 15:13:16.945104", 1529507596945104),
        ("adaptive", 1114, 3, "1969-12-31 23:59:59.999", -1),
        ("adaptive", 1114, -1, "0044-03-15 00:00:00 BC", -63517824000000000),
        ("adaptive", 1114, 3, "infinity", 9223372036825200000),
    ],
)
def test_times_count_from_1970(
    mode: str, type_oid: int, typmod: int, text: str, number: int
):
    """
    Every mode has its unit; years before 1 and above 9999 are numbers, too (B63).
    """
    found = form(type_oid, typmod, times=mode)

    assert (number, number) == (written(found, text), found.value(text.encode()))


@pytest.mark.parametrize(
    ("typmod", "text", "zoned"),
    [
        (3, "2026-03-04 05:06:07.8+00", "2026-03-04T05:06:07.800Z"),
        (0, "2026-03-04 05:06:07+00", "2026-03-04T05:06:07Z"),
        (-1, "2026-03-04 05:06:07+00", "2026-03-04T05:06:07.000000Z"),
        (-1, "0044-03-15 00:00:00+00 BC", "-0043-03-15T00:00:00.000000Z"),
        (-1, "0001-03-15 00:00:00+00 BC", "0000-03-15T00:00:00.000000Z"),
        (-1, "20260-01-01 00:00:00+00", "+20260-01-01T00:00:00.000000Z"),
        (-1, "infinity", "infinity"),
    ],
)
def test_times_with_a_zone_keep_their_precision(typmod: int, text: str, zoned: str):
    """
    In Debezium's modes an instant is ISO 8601 with its column's number of decimals.
    """
    assert zoned == written(form(1184, typmod, times="adaptive"), text)


def test_a_numeric_interval_counts_months_as_parts_of_a_year():
    """
    A month counts as a twelfth of a year; infinities have a numeric form, too.
    """
    found = form(1186, intervals="numeric")
    texts = (b"1 year 2 mons 3 days 04:05:06.78", b"infinity", b"-infinity")

    assert [37_091_106_780_000, 2**63 - 1, -(2**63)] == [found.value(t) for t in texts]


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        ("double", "1.10", 1.1),
        ("double", "NaN", "NaN"),
        ("double", "-Infinity", "-Infinity"),
        ("precise", "NaN", None),
        ("precise", "-Infinity", None),
    ],
)
def test_nan_and_infinity_have_a_form(mode: str, text: str, expected: object):
    """
    As doubles they are spelled out; as precise decimals they are null (B64).
    """
    assert expected == written(form(1700, decimals=mode), text)


def test_special_values_that_precise_decimals_cannot_represent_are_logged():
    """
    A null instead of NaN or Infinity is logged each time.
    """
    reasons: list[str] = []
    modes = modes_of(Relay.model_validate({"rows": {"decimals": "precise"}}))
    found = FormChooser(NOTHING, modes, reasons.append).of(1700, -1)
    assert found is not None
    found.json(b"NaN")
    found.value(b"Infinity")
    found.json(b"1.5")

    assert 2 == len(reasons)


@pytest.mark.parametrize(
    "text", ["0.00", "-0.01", "127.99", "128", "-128.00", "99999999.99", "-1"]
)
def test_a_precise_decimal_is_its_unscaled_number(text: str):
    """
    The bytes are two's complement, big-endian, minimal, at the column's scale.
    """
    packed = form(1700, ((12 << 16) | 2) + 4, decimals="precise").value(text.encode())
    assert isinstance(packed, bytes)
    number = int.from_bytes(packed, "big", signed=True)

    assert (Decimal(text), len(packed)) == (
        Decimal(number).scaleb(-2),
        len(
            number.to_bytes(
                (8 + (number + (number < 0)).bit_length()) // 8, "big", signed=True
            )
        ),
    )


def test_a_negative_scale_of_a_decimal_is_kept():
    """
    numeric(3, -2) has a unit of one hundred; the schema has the scale.
    """
    typmod = ((3 << 16) | (-2 & 0x7FF)) + 4
    found = form(1700, typmod, decimals="precise")

    assert ("-2", b"\x7b") == (found.schema.parameters["scale"], found.value(b"12300"))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("bytes", "++//"),
        ("base64", "++//"),
        ("base64-url-safe", "--__"),
        ("hex", "fbefff"),
    ],
)
def test_bytes_are_written_in_the_configured_mode(mode: str, expected: str):
    """
    Each binary mode has its encoding.
    """
    assert expected == written(form(17, binaries=mode), "\\xfbefff")


@pytest.mark.parametrize(
    ("type_oid", "typmod", "text", "expected"),
    [
        (1560, 1, "1", True),
        (1560, 9, "100000001", "AQE="),
        (1562, -1, "", ""),
        (1562, -1, "1", "AQ=="),
    ],
)
def test_bits_are_little_endian_in_debeziums_form(
    type_oid: int, typmod: int, text: str, expected: object
):
    """
    A bit(1) is a boolean; any other bit string has as many bytes as it needs.
    """
    assert expected == written(form(type_oid, typmod, is_debezium=True), text)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_numeric_with_more_digits_than_python_parses_is_exact(sign: int):
    """
    Postgres allows 131,072 digits before the decimal point and 16,383 after it.
    """
    text = b"-" * (sign < 0) + b"7" * 131_072 + b"." + b"7" * 16_383
    digits = 131_072 + 16_383
    unscaled = sign * 7 * (10**digits - 1) // 9
    found = form(1700, decimals="precise").value(text)

    assert {"scale": 16_383, "value": twos_complement(unscaled)} == found

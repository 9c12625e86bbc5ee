"""The total order of positions, in all their forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.schemas.position import (
    Position,
    format_lsn,
    format_position,
    guard_text,
    is_shared,
    parse_lsn,
    parse_position,
    version,
)

# Commit LSNs are multiples of 8; the packed version holds 54 bits of the LSN.
LOG_LSNS = st.integers(0, (1 << 51) - 1).map(lambda n: n * 8)
ORDINALS = st.integers(-1, 9_999_999_999)
POSITIONS = st.builds(Position, LOG_LSNS, ORDINALS)


@given(POSITIONS, POSITIONS)
def test_position_texts_sort_as_positions_compare(a: Position, b: Position):
    """
    The text forms of two positions compare exactly as the positions do.
    """
    assert (a < b, a == b) == (str(a) < str(b), str(a) == str(b))


@given(POSITIONS, POSITIONS)
def test_a_positions_version_never_contradicts_the_order(a: Position, b: Position):
    """
    A smaller position never packs to a greater version.
    """
    smaller, greater = sorted((a, b))

    assert version(smaller) <= version(greater)


@given(POSITIONS, POSITIONS)
def test_equal_versions_are_marked_as_shared(a: Position, b: Position):
    """
    Two different positions pack to the same version only if it is marked as shared.
    """
    are_equal = version(a) == version(b)

    assert (not are_equal) or a == b or is_shared(version(a))


@given(POSITIONS)
def test_a_version_fits_a_signed_64_bit_integer(position: Position):
    """
    The packed version is never negative and never above 2**63 - 1.
    """
    assert 0 <= version(position) < 1 << 63


@given(POSITIONS, st.integers(0, 5))
def test_a_position_text_reads_back_without_the_record_number(
    position: Position, number: int
):
    """
    The text of any record of a change reads back as its position.
    """
    text = format_position(*position, number)

    assert (position, str(position)) == (parse_position(text), guard_text(text))


@given(POSITIONS, st.integers(1, 9), POSITIONS)
def test_later_records_of_a_change_sort_before_the_next_change(
    a: Position, number: int, b: Position
):
    """
    A numbered text sorts after its change and before every greater position.
    """
    numbered = format_position(*a, number)

    assert str(a) < numbered
    assert b <= a or numbered < str(b)


def test_a_read_row_sorts_between_the_transactions_around_its_watermark():
    """
    A read at LOW sorts after commits before LOW and before a commit at LOW itself.
    """
    before, read, after = Position(800, 9), Position(808, -1), Position(808, 0)

    assert [before, read, after] == sorted([after, read, before])
    assert version(before) < version(read) < version(after)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "0000000000000008",
        "0000000000000008.1",
        "000000000000000G.0000000001",
        "0000000000000008.0000000001x",
        "0000000000000008.0000000001\n",
    ],
)
def test_an_invalid_position_is_refused(text: str):
    """
    Any text that is not a position raises a ValueError that shows the text.
    """
    with pytest.raises(ValueError, match="not a position"):
        parse_position(text)


@given(st.integers(0, (1 << 64) - 1))
def test_an_lsn_text_reads_back(lsn: int):
    """
    An LSN in Postgres's format reads back as itself.
    """
    assert lsn == parse_lsn(format_lsn(lsn))


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "0/123456789", "g/0", "0/0 "])
def test_an_invalid_lsn_is_refused(text: str):
    """
    Any text other than two hex halves with a slash between them raises a ValueError.
    """
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


def test_a_position_beyond_the_packed_range_is_refused():
    """
    A position that does not fit in 63 bits raises an error instead of wrapping around.
    """
    with pytest.raises(ValueError, match="out of range"):
        version(Position(1 << 54, 0))

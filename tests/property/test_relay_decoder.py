"""Input from outside never surprises: whatever the bytes, a value or one error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.frames import parse_keepalive, start_lsn, status_update
from towpath.relay.wal.pgoutput import parse_message

RECORDED = Path(__file__).parents[1] / "data" / "pgoutput.hex"
MESSAGES = [
    bytes.fromhex(line)
    for line in RECORDED.read_text(encoding="ascii").splitlines()
    if not line.startswith("#")
]
TAGS = st.sampled_from([bytes([tag]) for tag in b"BCORYIUDTM"])


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_every_strict_prefix_is_malformed(number: int):
    """
    A message cut anywhere raises the decoder's one error.
    """
    data = MESSAGES[number]
    accepted = []
    for length in range(len(data)):
        try:
            parse_message(data[:length])
        except MalformedMessageError:
            continue
        accepted.append(length)

    assert [] == accepted


@given(st.sampled_from(MESSAGES), st.binary(min_size=1, max_size=3))
def test_extra_bytes_are_malformed(data: bytes, extra: bytes):
    """
    A message with bytes that nobody asked for raises the decoder's one error.
    """
    with pytest.raises(MalformedMessageError):
        parse_message(data + extra)


@given(st.one_of(st.binary(max_size=200), st.builds(bytes.__add__, TAGS, st.binary())))
def test_random_bytes_give_a_message_or_the_one_error(data: bytes):
    """
    Nothing but a message or the decoder's one error comes of random bytes.
    """
    try:
        message = parse_message(data)
    except MalformedMessageError:
        message = None

    assert message is None or isinstance(message, tuple)


@given(st.sampled_from(MESSAGES), st.data())
def test_an_altered_byte_gives_a_message_or_the_one_error(data: bytes, draw):
    """
    One byte altered anywhere gives a message or the decoder's one error.
    """
    at = draw.draw(st.integers(0, len(data) - 1))
    altered = data[:at] + bytes([draw.draw(st.integers(0, 255))]) + data[at + 1 :]
    try:
        message = parse_message(altered)
    except MalformedMessageError:
        message = None

    assert message is None or isinstance(message, tuple)


@given(st.sampled_from(MESSAGES), st.binary(max_size=40))
def test_a_message_reads_the_same_inside_its_frame(data: bytes, head: bytes):
    """
    Decoding at an offset gives what decoding the bytes alone gives.
    """
    assert parse_message(data) == parse_message(head + data, len(head))


@given(st.binary(max_size=30))
def test_random_frames_give_a_keepalive_or_the_one_error(frame: bytes):
    """
    Nothing but a keepalive or the decoder's one error comes of random bytes.
    """
    for parse in (parse_keepalive, start_lsn):
        try:
            value = parse(frame)
        except MalformedMessageError:
            value = 0

        assert isinstance(value, int | tuple)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**52))
def test_a_status_update_says_one_lsn_three_times(lsn: int, sent_us: int):
    """
    Written, flushed and applied are the confirmed LSN, and no reply is asked for.
    """
    frame = status_update(lsn, sent_us)

    assert (b"r", lsn.to_bytes(8, "big") * 3, 0) == (frame[:1], frame[1:25], frame[-1])

"""Any bytes are decoded to a value or raise the decoder's one error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.relay.encode.relations import NOTHING_KNOWN, bind
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import RelationShape
from towpath.relay.wal.pgoutput import (
    PAYLOAD_AT,
    parse_keepalive,
    parse_message,
    sent_us,
    start_lsn,
    status_update,
)
from towpath.relay.wal.transactions import Sequencer

DATA = Path(__file__).parents[1] / "data"


def recorded(name: str) -> list[bytes]:
    """Read the frames recorded from a server."""
    lines = (DATA / name).read_text(encoding="ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


MESSAGES = recorded("pgoutput.hex")
FRAMES = recorded("frames.hex")
TAGS = st.sampled_from([bytes([tag]) for tag in b"BCORYIUDTM"])


@st.composite
def altered(draw, choices: list[bytes]) -> bytes:
    """Choose a recorded message and alter one byte of it."""
    data = draw(st.sampled_from(choices))
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


ALTERED = altered(MESSAGES)


def decode_frame(frame: bytes) -> None:
    """Decode a frame as the loop does."""
    if frame[:1] == b"k":
        parse_keepalive(frame)
    else:
        start_lsn(frame)
        parse_message(frame, PAYLOAD_AT)
    sent_us(frame)


@pytest.mark.parametrize("number", range(len(MESSAGES)))
def test_every_strict_prefix_of_a_message_is_malformed(number: int):
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
def test_a_message_with_extra_bytes_is_malformed(data: bytes, extra: bytes):
    """
    A message with extra bytes raises the decoder's one error.
    """
    with pytest.raises(MalformedMessageError):
        parse_message(data + extra)


@given(st.one_of(st.binary(max_size=200), st.builds(bytes.__add__, TAGS, st.binary())))
def test_random_bytes_give_a_message_or_the_one_error(data: bytes):
    """
    Random bytes give either a message or the decoder's one error.
    """
    try:
        message = parse_message(data)
    except MalformedMessageError:
        message = None

    assert message is None or isinstance(message, tuple)


@given(ALTERED)
def test_an_altered_byte_gives_a_message_or_the_one_error(data: bytes):
    """
    A message with one altered byte gives a message or the decoder's one error.
    """
    try:
        message = parse_message(data)
    except MalformedMessageError:
        message = None

    assert message is None or isinstance(message, tuple)


@pytest.mark.parametrize("number", range(len(FRAMES)))
def test_every_value_of_every_byte_gives_a_message_or_the_one_error(number: int):
    """
    Every byte of the shortest message of each kind takes every value.
    """
    frame = FRAMES[number]
    strange = []
    for at in range(len(frame)):
        for value in range(256):
            altered = frame[:at] + bytes([value]) + frame[at + 1 :]
            try:
                decode_frame(altered)
            except MalformedMessageError:
                continue
            except Exception as error:  # noqa: BLE001 - the test looks for these
                strange.append((at, value, error))

    assert [] == strange


@pytest.mark.parametrize("number", range(len(FRAMES)))
def test_every_strict_prefix_of_a_frame_is_malformed(number: int):
    """
    A frame that is cut anywhere, even in its header, raises the decoder's one error.
    """
    frame = FRAMES[number]
    accepted = []
    for length in range(len(frame)):
        try:
            decode_frame(frame[:length])
        except MalformedMessageError:
            continue
        accepted.append(length)

    assert [] == accepted


@given(st.sampled_from(FRAMES), st.binary(min_size=1, max_size=3))
def test_a_frame_with_extra_bytes_is_malformed(frame: bytes, extra: bytes):
    """
    A frame with extra bytes raises the decoder's one error.
    """
    with pytest.raises(MalformedMessageError):
        decode_frame(frame + extra)


@given(st.lists(st.one_of(st.sampled_from(MESSAGES), ALTERED), max_size=8))
def test_messages_in_any_order_give_steps_or_the_one_error(messages: list[bytes]):
    """
    Messages that are reordered, repeated, missing or altered raise no other error.
    """
    sequencer = Sequencer(0)
    try:
        for data in messages:
            step = sequencer.feed(parse_message(data), 0)
            if isinstance(step, RelationShape):
                sequencer.bind(bind(step, NOTHING_KNOWN))
    except MalformedMessageError:
        step = None

    assert messages == [] or step is None or isinstance(step, tuple)


@given(st.sampled_from(MESSAGES), st.binary(max_size=40))
def test_a_message_reads_the_same_inside_its_frame(data: bytes, head: bytes):
    """
    Decoding at an offset has the same result as decoding the bytes alone.
    """
    assert parse_message(data) == parse_message(head + data, len(head))


@given(st.binary(max_size=30))
def test_random_frames_give_a_value_or_the_one_error(frame: bytes):
    """
    Each frame parser returns a value or raises the decoder's one error.
    """
    for parse in (parse_keepalive, start_lsn, sent_us):
        try:
            value = parse(frame)
        except MalformedMessageError:
            value = 0

        assert isinstance(value, int | tuple)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**52))
def test_a_status_update_has_one_lsn_three_times(lsn: int, sent_us: int):
    """
    The written, flushed and applied LSNs are the confirmed one; no reply is requested.
    """
    frame = status_update(lsn, sent_us)

    assert (b"r", lsn.to_bytes(8, "big") * 3, 0) == (frame[:1], frame[1:25], frame[-1])

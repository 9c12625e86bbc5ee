"""The outer frames of the replication protocol, byte by byte."""

import pytest

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.pgoutput import (
    PAYLOAD_AT,
    Keepalive,
    parse_keepalive,
    sent_us,
    start_lsn,
    status_update,
)

KEEPALIVE = b"k" + (77).to_bytes(8, "big") + bytes(8) + b"\1"


def test_a_keepalive_has_the_wal_end_and_the_reply_flag():
    """
    The server's position and its request for a reply are read.
    """
    assert Keepalive(77, reply_requested=True) == parse_keepalive(KEEPALIVE)


@pytest.mark.parametrize(
    "frame", [b"", KEEPALIVE[:-1], KEEPALIVE + b"\0", b"w" + KEEPALIVE[1:]]
)
def test_a_malformed_keepalive_gives_one_named_error(frame: bytes):
    """
    A short, long or differently tagged frame raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        parse_keepalive(frame)


def test_a_frame_has_the_lsn_of_its_message():
    """
    The start LSN of a frame with a message is read.
    """
    frame = b"w" + (5).to_bytes(8, "big") + bytes(16) + b"B"

    assert (5, PAYLOAD_AT) == (start_lsn(frame), len(frame) - 1)


def test_a_frame_without_a_message_is_malformed():
    """
    A frame that ends with its header raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        start_lsn(b"w" + bytes(24))


@pytest.mark.parametrize("tag", [b"k", b"d", b"\0"])
def test_a_frame_of_another_kind_has_no_message(tag: bytes):
    """
    A frame that is not tagged as WAL data is not read as WAL data.
    """
    with pytest.raises(MalformedMessageError):
        start_lsn(tag + bytes(24) + b"B")


@pytest.mark.parametrize("head", [b"w" + bytes(16), b"k" + bytes(8)])
def test_every_frame_has_its_send_time(head: bytes):
    """
    The server's time in both kinds of frame is in microseconds since 1970.
    """
    frame = head + (5).to_bytes(8, "big") + b"B"

    assert 946_684_800_000_005 == sent_us(frame)


@pytest.mark.parametrize("frame", [b"", b"w" + bytes(23), b"k" + bytes(15), b"x" * 30])
def test_a_frame_without_a_time_is_malformed(frame: bytes):
    """
    An empty, short or unknown frame raises MalformedMessageError.
    """
    with pytest.raises(MalformedMessageError):
        sent_us(frame)


def test_the_status_clock_counts_from_2000():
    """
    The time in a status update counts from Postgres's epoch.
    """
    frame = status_update(1, 946_684_800_000_001)

    assert 1 == int.from_bytes(frame[25:33], "big")

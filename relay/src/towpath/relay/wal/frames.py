"""
The outer frames of a replication connection, inside CopyData.

::

    w  start_lsn u64, end_lsn u64, sent i64, one pgoutput message
    k  wal_end u64, sent i64, reply_requested u8
    r  written u64, flushed u64, applied u64, sent i64, reply_requested u8   (ours)

The payload of ``w`` is not copied: the parsers read it in place, at ``PAYLOAD_AT``.
"""

from struct import Struct
from typing import Final, NamedTuple

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.pgoutput import EPOCH_US

WAL_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
PAYLOAD_AT: Final = 25

# Reads the start LSN of a frame that is known to be WAL data.
UNPACK_START: Final = Struct(">xQ16x").unpack_from
_SENT: Final = Struct(">q")
_SENT_AT: Final = {WAL_DATA: 17, KEEPALIVE: 9}
_KEEPALIVE: Final = Struct(">BQqB")
_STATUS: Final = Struct(">cQQQqB")


class Keepalive(NamedTuple):
    """The end of the server's WAL, and whether the server requests feedback."""

    wal_end: int
    reply_requested: bool


def start_lsn(frame: bytes) -> int:
    """
    Return the LSN of the message in a ``w`` frame; 0 if the message has none.

    Raises:
        MalformedMessageError: It is not a ``w`` frame, or has no message.
    """
    if len(frame) <= PAYLOAD_AT or frame[0] != WAL_DATA:
        reason = f"a frame of {len(frame)} bytes without a message: {frame[:8]!r}"
        raise MalformedMessageError(reason)
    lsn: int = UNPACK_START(frame)[0]
    return lsn


def sent_us(frame: bytes) -> int:
    """
    Return when the server sent the frame, in microseconds since 1970.

    Raises:
        MalformedMessageError: The frame is of an unknown kind, or cut short.
    """
    at = _SENT_AT.get(frame[0]) if frame else None
    if at is None or len(frame) < at + _SENT.size:
        reason = f"a frame without a send time: {frame[:8]!r}"
        raise MalformedMessageError(reason)
    sent: int = _SENT.unpack_from(frame, at)[0]
    return sent + EPOCH_US


def parse_keepalive(frame: bytes) -> Keepalive:
    """
    Decode a ``k`` frame.

    Raises:
        MalformedMessageError: It is not a keepalive.
    """
    if len(frame) != _KEEPALIVE.size or frame[0] != KEEPALIVE or frame[-1] > 1:
        reason = f"not a keepalive: {frame[:8]!r}"
        raise MalformedMessageError(reason)
    _, wal_end, _, reply = _KEEPALIVE.unpack(frame)
    return Keepalive(wal_end, bool(reply))


def status_update(confirmed_lsn: int, sent_us: int) -> bytes:
    """
    Encode feedback: the server may drop the log below ``confirmed_lsn``.

    The written and applied LSNs are the same: only Kafka makes a change durable.
    ``sent_us`` is the wall time in microseconds since 1970.
    """
    return _STATUS.pack(
        b"r", confirmed_lsn, confirmed_lsn, confirmed_lsn, sent_us - EPOCH_US, 0
    )

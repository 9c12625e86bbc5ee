r"""
pgoutput, protocol version 1: a table of small parsers. This is the hot path.

::

    B  final_lsn u64, committed i64, xid u32
    C  flags u8 (0), commit_lsn u64, end_lsn u64, committed i64
    O  origin_lsn u64, name\0
    R  oid u32, schema\0, table\0, identity u8, n u16, n x (flags u8, name\0, type u32,
       typmod i32)
    Y  oid u32, schema\0, name\0
    I  oid u32, 'N' row
    U  oid u32, ['K' row | 'O' row], 'N' row
    D  oid u32, 'K' row | 'O' row
    T  n u32, flags u8, n x oid u32
    M  flags u8 (1: transactional), lsn u64, prefix\0, length u32, content
    row  n u16, n x ('n' | 'u' | 't' length u32, text)

A strict prefix, an extra byte, an unknown tag or an unexpected value raises
``MalformedMessageError`` and nothing else. Rows are read by plain slices, which cannot
fail; one comparison with the length at the end finds those that are cut short. Other
messages are read by ``Reader``, which never reads past the end.

The frames of a replication connection, inside CopyData, hold one message each::

    w  start_lsn u64, end_lsn u64, sent i64, one pgoutput message
    k  wal_end u64, sent i64, reply_requested u8
    r  written u64, flushed u64, applied u64, sent i64, reply_requested u8   (ours)

The payload of ``w`` is not copied: the parsers read it in place, at ``PAYLOAD_AT``.
``parse_begin`` and ``parse_commit`` read the frames of most transactions directly. For
a frame of any other form they return None, and the caller leaves it to the parsers and
the sequencer, which also raise its error.
"""

import struct
from collections.abc import Callable, Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import (
    UNCHANGED,
    Begin,
    ColumnShape,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    RelationShape,
    Row,
    Truncate,
    TypeName,
    Update,
    Value,
)
from towpath.relay.wal.transactions import Transaction

_U8: Final = Struct(">B")
_U16_STRUCT: Final = Struct(">H")
_I32: Final = Struct(">i")
_U32_STRUCT: Final = Struct(">I")
_U64: Final = Struct(">Q")


class Reader:
    """A checked cursor over big-endian numbers and text, from ``at``."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    def u8(self) -> int:
        return self._number(_U8)

    def u16(self) -> int:
        return self._number(_U16_STRUCT)

    def i32(self) -> int:
        return self._number(_I32)

    def u32(self) -> int:
        return self._number(_U32_STRUCT)

    def u64(self) -> int:
        return self._number(_U64)

    def text(self) -> str:
        """Read UTF-8 up to and including a zero byte."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise MalformedMessageError(self._described("unterminated text"))
        text = self._data[self._at : end]
        self._at = end + 1
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessageError(self._described("text is not UTF-8")) from error

    def bytes(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        end = self._at + length
        if end > len(self._data):
            raise MalformedMessageError(self._described(f"{length} bytes declared"))
        content = self._data[self._at : end]
        self._at = end
        return content

    def finish(self) -> None:
        """Make sure that no bytes remain."""
        remaining = len(self._data) - self._at
        if remaining:
            raise MalformedMessageError(self._described(f"{remaining} extra bytes"))

    def _number(self, form: Struct) -> int:
        end = self._at + form.size
        if end > len(self._data):
            raise MalformedMessageError(self._described("cut short"))
        number: int = form.unpack_from(self._data, self._at)[0]
        self._at = end
        return number

    def _described(self, what: str) -> str:
        return f"malformed message at byte {self._at} of {len(self._data)}: {what}"


# Postgres counts microseconds from the year 2000.
EPOCH_US: Final = 946_684_800_000_000

BEGIN: Final = Struct(">QqI")
COMMIT: Final = Struct(">BQQq")
OID_TAG: Final = Struct(">IB")
_U16: Final = Struct(">H").unpack_from
_U32: Final = Struct(">I").unpack_from

# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__

_TEXT, _NULL, _UNCHANGED = b"tnu"
NEW, _KEY, _OLD = b"NKO"
_IDENTITIES: Final = frozenset(b"dnfi")
_TRUNCATE_FLAGS: Final = 0b11


def parse_message(data: bytes, at: int = 0) -> Message:
    """
    Decode the message from byte ``at`` to the end of ``data``.

    Raises:
        MalformedMessageError: The bytes are not exactly one known message.
    """
    try:
        return PARSERS[data[at]](data, at + 1)
    except PARSER_ERRORS as error:
        raise malformed(data, at) from error


def malformed(data: bytes, at: int) -> MalformedMessageError:
    """Return the error of a message that begins at byte ``at`` and cannot be read."""
    reason = f"malformed message of {len(data) - at} bytes: {data[at : at + 8]!r}"
    return MalformedMessageError(reason)


def read_row(data: bytes, at: int) -> tuple[Row, int]:
    """Read a row; the returned end may lie beyond the data: the caller compares."""
    (count,) = _U16(data, at)
    return read_values(data, at + 2, count)


def read_values(data: bytes, at: int, count: int) -> tuple[Row, int]:
    """Read the values of a row, as ``read_row`` does. Hot path."""
    values: list[Value] = []
    for _ in range(count):
        form = data[at]
        if form == _TEXT:
            start = at + 5
            (size,) = _U32(data, at + 1)
            at = start + size
            values.append(data[start:at])
        elif form == _NULL:
            values.append(None)
            at += 1
        elif form == _UNCHANGED:
            values.append(UNCHANGED)
            at += 1
        else:
            reason = f"unknown form of a value: {form:#04x}"
            raise MalformedMessageError(reason)
    return tuple(values), at


def _finish(data: bytes, at: int) -> None:
    if at != len(data):
        raise _wrong_length(data, at)


def _wrong_length(data: bytes, at: int) -> MalformedMessageError:
    reason = f"malformed message: {len(data)} bytes instead of {at}"
    return MalformedMessageError(reason)


def _expect(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        reason = f"malformed message: {what}"
        raise MalformedMessageError(reason)


def _begin(data: bytes, at: int) -> Begin:
    final_lsn, committed_us, xid = BEGIN.unpack_from(data, at)
    if at + 20 != len(data):
        raise _wrong_length(data, at + 20)
    return _make(Begin, (final_lsn, committed_us + EPOCH_US, xid))


def _commit(data: bytes, at: int) -> Commit:
    flags, commit_lsn, end_lsn, committed_us = COMMIT.unpack_from(data, at)
    if flags or at + 25 != len(data):
        _expect(not flags, "unknown flags of a commit")
        raise _wrong_length(data, at + 25)
    return _make(Commit, (commit_lsn, end_lsn, committed_us + EPOCH_US))


def _insert(data: bytes, at: int) -> Insert:
    oid, tag = OID_TAG.unpack_from(data, at)
    if tag != NEW:
        reason = "an insert without its row"
        raise MalformedMessageError(reason)
    new, at = read_row(data, at + 5)
    if at != len(data):
        raise _wrong_length(data, at)
    return _make(Insert, (oid, new))


def _update(data: bytes, at: int) -> Update:
    oid, tag = OID_TAG.unpack_from(data, at)
    at += 5
    old = None
    is_full = tag == _OLD
    if is_full or tag == _KEY:
        old, at = read_row(data, at)
        tag = data[at]
        at += 1
    _expect(tag == NEW, "an update without its new row")
    new, at = read_row(data, at)
    _finish(data, at)
    return _make(Update, (oid, new, old, is_full))


def _delete(data: bytes, at: int) -> Delete:
    oid, tag = OID_TAG.unpack_from(data, at)
    _expect(tag in (_KEY, _OLD), "a delete without its old row")
    old, at = read_row(data, at + 5)
    _finish(data, at)
    return _make(Delete, (oid, old, tag == _OLD))


def _truncate(data: bytes, at: int) -> Truncate:
    reader = Reader(data, at)
    count = reader.u32()
    flags = reader.u8()
    _expect(count * 4 == len(data) - at - 5, "a truncate of the wrong length")
    _expect(flags <= _TRUNCATE_FLAGS, "unknown flags of a truncate")
    oids = tuple(reader.u32() for _ in range(count))
    return Truncate(oids, bool(flags & 1), bool(flags & 2))


def _relation(data: bytes, at: int) -> RelationShape:
    reader = Reader(data, at)
    oid, schema, table = reader.u32(), reader.text(), reader.text()
    identity, count = reader.u8(), reader.u16()
    _expect(identity in _IDENTITIES, "unknown replica identity")
    columns = tuple(_column(reader) for _ in range(count))
    reader.finish()
    return RelationShape(oid, schema or "pg_catalog", table, chr(identity), columns)


def _column(reader: Reader) -> ColumnShape:
    flags = reader.u8()
    _expect(flags <= 1, "unknown flags of a column")
    return ColumnShape(reader.text(), reader.u32(), reader.i32(), bool(flags))


def _type(data: bytes, at: int) -> TypeName:
    reader = Reader(data, at)
    name = TypeName(reader.u32(), reader.text() or "pg_catalog", reader.text())
    reader.finish()
    return name


def _origin(data: bytes, at: int) -> Origin:
    reader = Reader(data, at)
    origin = Origin(reader.u64(), reader.text())
    reader.finish()
    return origin


def _logical_message(data: bytes, at: int) -> LogicalMessage:
    reader = Reader(data, at)
    flags = reader.u8()
    _expect(flags <= 1, "unknown flags of a logical message")
    lsn, prefix = reader.u64(), reader.text()
    content = reader.bytes(reader.u32())
    reader.finish()
    return LogicalMessage(bool(flags), lsn, prefix, content)


# The other exceptions that a malformed message causes: a parser raises them for bytes
# that are too short, and the lookup of the parser raises them for an unknown tag.
PARSER_ERRORS: Final = (KeyError, IndexError, struct.error)

# The parser of each tag; it takes the message's bytes and the index after the tag.
PARSERS: Final[Mapping[int, Callable[[bytes, int], Message]]] = MappingProxyType(
    {
        ord("B"): _begin,
        ord("C"): _commit,
        ord("O"): _origin,
        ord("R"): _relation,
        ord("Y"): _type,
        ord("I"): _insert,
        ord("U"): _update,
        ord("D"): _delete,
        ord("T"): _truncate,
        ord("M"): _logical_message,
    }
)

# The type that each tag's parser returns.
KINDS: Final[Mapping[int, type]] = MappingProxyType(
    {
        ord("B"): Begin,
        ord("C"): Commit,
        ord("O"): Origin,
        ord("R"): RelationShape,
        ord("Y"): TypeName,
        ord("I"): Insert,
        ord("U"): Update,
        ord("D"): Delete,
        ord("T"): Truncate,
        ord("M"): LogicalMessage,
    }
)


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
        MalformedMessageError: The frame is not a ``w`` frame, or has no message.
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
        MalformedMessageError: The frame is not a keepalive.
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


_BODY_AT: Final = PAYLOAD_AT + 1
_BEGIN_BYTES: Final = _BODY_AT + BEGIN.size
_COMMIT_BYTES: Final = _BODY_AT + COMMIT.size

_unpack_begin: Final = BEGIN.unpack_from
_unpack_commit: Final = COMMIT.unpack_from

# C's 64-bit integers end here; no server's LSN or time is beyond these limits.
_MAX_LSN: Final = 2**64 - 1
_MAX_COMMITTED_US: Final = 2**63 - 1 - EPOCH_US


def parse_begin(frame: bytes, offset: int) -> Transaction | None:
    """
    Return the transaction that a frame begins; None for an unexpected frame.

    ``offset`` is the lineage's.
    """
    if len(frame) != _BEGIN_BYTES:
        return None
    lsn, committed_us, xid = _unpack_begin(frame, _BODY_AT)
    log_lsn = offset + lsn
    if log_lsn > _MAX_LSN or committed_us > _MAX_COMMITTED_US:
        return None
    place = b"%016x." % log_lsn
    return _make(
        Transaction, (xid, lsn, log_lsn, committed_us + EPOCH_US, place, None, None)
    )


def parse_commit(frame: bytes, transaction: Transaction | None) -> int | None:
    """Return the end LSN if the frame commits the transaction; otherwise None."""
    if len(frame) != _COMMIT_BYTES or transaction is None:
        return None
    flags, lsn, end_lsn, _ = _unpack_commit(frame, _BODY_AT)
    is_its_end = not flags and lsn == transaction.commit_lsn
    return end_lsn if is_its_end else None

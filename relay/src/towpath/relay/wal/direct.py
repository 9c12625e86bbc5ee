"""
Begin, insert and commit, read directly: most of what a backlog is made of. Hot path.

The same messages as ``pgoutput`` reads, without the values in between. Whatever is not
exactly as it should be is answered by None, and left to ``pgoutput`` and the sequencer,
which say what is wrong with it.
"""

from typing import Final

from towpath.relay.wal.frames import PAYLOAD_AT
from towpath.relay.wal.messages import Row
from towpath.relay.wal.pgoutput import BEGIN, COMMIT, EPOCH_US, NEW, OID_TAG, read_row
from towpath.relay.wal.sequencer import Transaction

INSERT_TAG, BEGIN_TAG, COMMIT_TAG = b"IBC"

_BODY_AT: Final = PAYLOAD_AT + 1
_ROW_AT: Final = _BODY_AT + OID_TAG.size
_BEGIN_BYTES: Final = _BODY_AT + BEGIN.size
_COMMIT_BYTES: Final = _BODY_AT + COMMIT.size

_unpack_begin: Final = BEGIN.unpack_from
_unpack_commit: Final = COMMIT.unpack_from
_unpack_insert: Final = OID_TAG.unpack_from

# Skips a named tuple's own constructor, which costs more than the tuple.
_make: Final = tuple.__new__


def transaction_of(frame: bytes, offset: int) -> Transaction | None:
    """Return the transaction that a frame begins; ``offset`` is the lineage's."""
    if len(frame) != _BEGIN_BYTES:
        return None
    lsn, committed_us, xid = _unpack_begin(frame, _BODY_AT)
    place = b"%016x." % (offset + lsn)
    return _make(
        Transaction,
        (xid, lsn, offset + lsn, committed_us + EPOCH_US, place, None, None),
    )


def end_of(frame: bytes, transaction: Transaction | None) -> int | None:
    """Return the end LSN of the transaction if this frame ends it."""
    if len(frame) != _COMMIT_BYTES or transaction is None:
        return None
    flags, lsn, end_lsn, _ = _unpack_commit(frame, _BODY_AT)
    is_its_end = not flags and lsn == transaction.commit_lsn
    return end_lsn if is_its_end else None


def oid_of(frame: bytes) -> int | None:
    """Return the relation of an inserted row."""
    if len(frame) < _ROW_AT:
        return None
    oid, form = _unpack_insert(frame, _BODY_AT)
    return oid if form == NEW else None


def row_of(frame: bytes, width: int) -> Row | None:
    """
    Return the inserted row of so many columns.

    Raises:
        IndexError, struct.error, MalformedMessageError: The row is cut short.
    """
    row, end = read_row(frame, _ROW_AT)
    return row if end == len(frame) and len(row) == width else None

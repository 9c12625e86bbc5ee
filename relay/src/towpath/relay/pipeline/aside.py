"""
Setting a transaction aside, because an operator said so: ``towpath relay state skip``.

Its messages go to the dead letters as they came, undecoded: what made somebody skip it
may be that it cannot be decoded. Its end is told to the state topic, so that the order
to skip is carried out once and can be seen to have been. Until that end is confirmed a
crash brings the transaction again, and it is set aside again.
"""

from collections.abc import Callable
from typing import Final

from towpath.relay.delivery import Delivery
from towpath.relay.pipeline.core import Core
from towpath.relay.routing.record import Record
from towpath.relay.state import StateRecords
from towpath.relay.wal.frames import PAYLOAD_AT
from towpath.relay.wal.sequencer import Transaction
from towpath.schemas.position import format_lsn

SKIPPED: Final = "its transaction was skipped by an operator"

# Commit, shapes and types: what the stream needs to go on.
_NEEDED: Final = frozenset(b"CRYO")

# Makes a dead letter: raw message, position, and when the transaction was committed.
MakeLetter = Callable[[bytes, bytes, int], Record]


class SetAside:
    """Buries the messages of the transactions that are to be skipped."""

    def __init__(
        self,
        core: Core,
        commit_lsns: frozenset[int],
        make_letter: MakeLetter,
        records: StateRecords,
    ) -> None:
        self.commit_lsns = commit_lsns
        self._core = core
        self._make_letter = make_letter
        self._records = records
        self._transaction: Transaction | None = None
        self._number = 0

    def open(self, transaction: Transaction) -> None:
        """Begin to set a transaction aside."""
        self._transaction = transaction
        self._number = 0

    def takes(self, frame: bytes) -> bool:
        """Tell whether this message is set aside, and not needed to go on."""
        return frame[PAYLOAD_AT] not in _NEEDED

    def bury(self, frame: bytes, delivery: Delivery | None) -> None:
        """Send a message to the dead letters."""
        transaction = self._transaction
        if transaction is None or delivery is None:
            return
        # Above every ordinal: a message of it may be a dead letter of its own already.
        position = transaction.place + b"9999999999.%010d" % self._number
        self._number += 1
        raw = frame[PAYLOAD_AT:]
        letter = self._make_letter(raw, position, transaction.committed_us // 1000)
        self._core.outlet.send(letter, delivery)

    def close(self, transaction: Transaction, delivery: Delivery | None) -> None:
        """Note that the transaction was set aside."""
        self._transaction = None
        now_ms = self._core.now_us() // 1000
        lsn_text = format_lsn(transaction.commit_lsn)
        told = self._records.skipped(lsn_text, transaction.log_lsn, now_ms)
        self._core.outlet.note(told, delivery)

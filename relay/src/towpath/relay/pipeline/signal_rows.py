"""
Rows of signal tables in the stream: signals, watermarks, and signals left elsewhere.

An inserted row of ``towpath.signal`` is a signal, whose transaction waits until the
answer is stored; or it is a watermark, where those are written as rows. A row of the
bare table that the configuration names is left for the inbox.
"""

from towpath.relay.pipeline.core import Core
from towpath.relay.pipeline.snapshots import Snapshots
from towpath.relay.pipeline.spoken import Listener
from towpath.relay.routing.router import SIGNAL_TABLE
from towpath.relay.snapshot.facts import SignalSeen
from towpath.relay.snapshot.left import WINDOW_TYPES
from towpath.relay.wal.sequencer import Change
from towpath.schemas.envelope import Operation


class SignalRows:
    """Takes changes of tables in which signals are left."""

    def __init__(self, core: Core, snapshots: Snapshots, listener: Listener) -> None:
        self._core = core
        self._snapshots = snapshots
        self._listener = listener

    def see(self, change: Change, sequence: int) -> None:
        """Take a change of such a table."""
        left = self._snapshots.left
        if left is not None and change.relation.name != SIGNAL_TABLE:
            left.see(change)
        elif change.operation is Operation.CREATE:
            self._inserted(change, sequence)

    def _inserted(self, change: Change, sequence: int) -> None:
        names = [column.name for column in change.relation.columns]
        row = dict(zip(names, change.new or (), strict=True))
        texts = {
            name: value.decode()
            for name, value in row.items()
            if isinstance(value, bytes)
        }
        kind, data = texts.get("type", ""), texts.get("data")
        if kind in WINDOW_TYPES:
            log_lsn = change.transaction.log_lsn
            self._listener.mark(data or "", log_lsn, sequence)
            return
        signal_id = texts.get("id", "")
        self._core.ledger.hold(signal_id)
        transaction = change.transaction
        position = f"{transaction.place.decode()}{change.ordinal:010d}"
        relay = texts.get("relay")
        fact = SignalSeen(signal_id, kind, data, transaction.xid, position, relay)
        self._snapshots.tell(fact)

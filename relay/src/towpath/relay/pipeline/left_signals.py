"""
Signals that are left elsewhere, as far as the loop has a hand in them.

A row of a bare signal table is handed to the inbox, and its transaction is held until
the signal table has it: a restart streams it again otherwise. What is refused, there or
by another channel, is counted and told on the notifications topic, since it has no row
in which it could be answered.
"""

from collections import deque
from typing import Final

import structlog

from towpath.relay.pipeline.core import Core
from towpath.relay.ports import Inbox
from towpath.relay.routing.notification import notification
from towpath.relay.snapshot import notifications
from towpath.relay.snapshot.left import WINDOW_TYPES, Refusal
from towpath.relay.wal.sequencer import Change
from towpath.schemas.envelope import Operation

_LOG = structlog.get_logger("towpath.relay")

REFUSED: Final = "a signal that was left outside towpath.signal was refused"


class LeftSignals:
    """
    Between the stream, the inbox and the notifications topic.

    Call order: ``see`` for each change of the bare table, ``turn`` in each turn of the
    loop.
    """

    def __init__(self, core: Core, inbox: Inbox, refusals: deque[Refusal]) -> None:
        """
        Prepare.

        Args:
            core: What the loop shares.
            inbox: Takes the signals.
            refusals: What every channel has refused, put there from any thread.
        """
        self._core = core
        self._inbox = inbox
        self._refusals = refusals

    def see(self, change: Change) -> None:
        """Hand a new row over; its open transaction waits until that is durable."""
        if change.operation is not Operation.CREATE:
            return
        names = [column.name for column in change.relation.columns]
        row = dict(zip(names, change.new or (), strict=True))
        signal_id, kind, data = (
            _text(row.get(name)) for name in ("id", "type", "data")
        )
        if kind in WINDOW_TYPES:
            return
        name = self._inbox.put(signal_id, kind, data, change.relation.name)
        if name is not None:
            self._core.ledger.hold(name)

    def turn(self) -> None:
        """Let go of what is durable, and tell of what was refused."""
        for name in self._inbox.durable():
            self._core.ledger.release(name)
        while self._refusals:
            self._tell(self._refusals.popleft())

    def _tell(self, refusal: Refusal) -> None:
        core = self._core
        _LOG.warning("a signal was refused", **refusal._asdict())
        core.tally.skip(REFUSED)
        detail = {"reason": refusal.reason, "source": refusal.source}
        told = notifications.answered(refusal.signal_id, "rejected", detail)
        core.outlet.tell(
            notification(
                core.router.place.prefix,
                told.snapshot_id,
                told.type,
                told.additional_data,
                core.now_us() // 1000,
                told.aggregate_type,
            )
        )


def _text(value: object) -> str | None:
    """Return a column's text; the stream is in UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else None

"""
The outbox route: an inserted row to an event, or to the dead letters. Hot path.

Only inserts are events: an update of an outbox row is counted, or stops the relay; a
delete (also insert-then-delete in one transaction) is silence. A row that has no place
to go parks its aggregate: later events of the same aggregate wait behind it in the dead
letters, all others flow.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from towpath.relay.errors import OutboxUpdatedError, UnroutableError
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.outbox_event import EventWriter
from towpath.relay.routing.parked import Parked
from towpath.relay.routing.record import Record
from towpath.relay.wal.messages import Row
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas.envelope import Operation
from towpath.settings.outbox import OnUpdate, Outbox

_CREATE: Final = Operation.CREATE

UPDATED: Final = "an outbox row was updated"
# The same where it is an error: to be logged each time, not once.
WRONGLY_UPDATED: Final = "an outbox row was updated, which is an error"

_SAID: Final[Mapping[OnUpdate, str]] = MappingProxyType(
    {OnUpdate.WARN: UPDATED, OnUpdate.ERROR: WRONGLY_UPDATED}
)


class OutboxRoute:
    """Turns the rows of one shape of the outbox table into events."""

    def __init__(
        self,
        relation: Relation,
        outbox: Outbox,
        dead: DeadLetters,
        parked: Parked,
        reserved: frozenset[str],
        on_skipped: Callable[[str], None],
    ) -> None:
        """
        Resolve the options for the table's shape.

        Args:
            relation: The shape.
            outbox: ``[relay.outbox]``.
            dead: Where unroutable rows go.
            parked: Which aggregates wait; ``dead`` parks in the same one.
            reserved: Topics that no event may go to.
            on_skipped: Told why a change gives no record.

        Raises:
            NotPreparedError: The table lacks a column that the options name.
        """
        self._writer = EventWriter(relation, outbox, reserved, on_skipped)
        self._event = self._writer.event
        self._relation = relation
        self._dead = dead
        self._spans = parked.spans
        self._on_update = outbox.on_update
        self._on_skipped = on_skipped

    def records(self, change: Change, _now_us: int) -> Sequence[Record]:
        """
        Return the event of an inserted row, or its dead letter.

        Raises:
            OutboxUpdatedError: A row was updated, and that is to stop the relay.
            ParkedOverflowError: More are parked than the configuration allows.
        """
        operation, _, row, _, _, transaction, ordinal, _ = change
        if operation is not _CREATE or row is None:
            if operation is Operation.UPDATE:
                self._updated(change)
            return ()
        try:
            return (self.event(transaction, ordinal, row),)
        except UnroutableError as failure:
            return (self._unroutable(change, str(failure)),)

    def event(self, transaction: Transaction, ordinal: int, row: Row) -> Record:
        """
        Return the event of an inserted row, or its dead letter if it is parked.

        Raises:
            UnroutableError: It has no place to go.
            ParkedOverflowError: More are parked than the configuration allows.
        """
        position = transaction.place + b"%010d" % ordinal
        record = self._event(row, position, transaction.committed_us // 1000)
        return self._dead.unless_held(record) if self._spans else record

    def _unroutable(self, change: Change, reason: str) -> Record:
        aggregate = self._writer.aggregate(change.new or ())
        return self._dead.of_row(self._relation, change, reason, aggregate)

    def _updated(self, change: Change) -> None:
        said = _SAID.get(self._on_update)
        if said is None:
            place = (change.transaction.place + b"%010d" % change.ordinal).decode()
            reason = f"a row of {self._relation.name} was updated at {place}"
            raise OutboxUpdatedError(reason)
        self._on_skipped(said)

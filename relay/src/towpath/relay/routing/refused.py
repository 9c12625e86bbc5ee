"""
The route of a shape that the registry refuses: its changes become dead letters.

With ``relay.rows.on_refused_schema = "park"``. Each change is one dead letter, in
order, whole, as texts, and counted; a row's dead letters share a key, so that they
share a partition. Nothing is parked behind them: the table's next shape is tried anew.
"""

from collections.abc import Sequence
from typing import Final

import orjson

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.reads import ReadPlace, ReadRow
from towpath.relay.routing.record import Header, Record
from towpath.relay.wal.messages import Row
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas import headers
from towpath.schemas.envelope import Operation

# What is counted, and logged once; the registry's own words are in the dead letters.
REFUSED: Final = "the schema of the table is refused"


class RefusedRoute:
    """Turns the changes of one refused shape of one table into dead letters."""

    def __init__(
        self, relation: Relation, topic: str, dead: DeadLetters, message: str
    ) -> None:
        """
        Know what dead letters tell.

        Args:
            relation: The shape.
            topic: Where its records would have gone.
            dead: Makes dead letters, and counts them.
            message: What the registry said.
        """
        self.relation = relation
        self.topic = topic
        self._dead = dead
        self._told = {
            headers.SOURCE_TOPIC: topic.encode(),
            headers.CONNECT_ERROR_TOPIC: topic.encode(),
            headers.CONNECT_ERROR_MESSAGE: message.encode(),
        }
        self._told_bytes = sum(map(len, self._told.values()))

    def records(self, change: Change, _now_us: int) -> Sequence[Record]:
        """Return the change's dead letter."""
        record = self._dead.of_row(self.relation, change, REFUSED)
        return (self._keyed(record, change.new or change.old or ()),)

    def truncation(
        self, transaction: Transaction, ordinal: int, _partitions: int, now_us: int
    ) -> Sequence[Record]:
        """Return the one dead letter of a truncate, whose row has no values."""
        change = self._change(Operation.TRUNCATE, None, transaction, ordinal)
        return self.records(change, now_us)

    def reads(self, rows: Sequence[ReadRow], place: ReadPlace) -> Sequence[Record]:
        """Return the dead letters of rows that a chunk read."""
        return [self._read(Operation.READ, row, place) for row in rows]

    def absent(self, key: Sequence[bytes], place: ReadPlace) -> Sequence[Record]:
        """Return the dead letter of a key, in key order, that a chunk did not find."""
        texts = dict(zip(self.relation.key, key, strict=True))
        row = tuple(texts.get(at) for at in range(len(self.relation.columns)))
        return (self._read(Operation.DELETE, row, place),)

    def key_bytes(self, row: Row) -> tuple[bytes, ...]:
        """
        Return the raw text of the key's columns, in key order.

        Raises:
            MalformedMessageError: The row lacks one of them.
        """
        texts = [row[at] for at in self.relation.key]
        found = tuple(text for text in texts if isinstance(text, bytes))
        if len(found) < len(texts):
            reason = "a change lacks a column of its key: check the table's identity"
            raise MalformedMessageError(reason)
        return found

    def _read(self, operation: Operation, row: Row, place: ReadPlace) -> Record:
        """Return a dead letter that stands at its chunk's low watermark."""
        log_lsn, snapshot_id, _, now_us = place
        transaction = Transaction(0, log_lsn, log_lsn, now_us, b"%016x." % log_lsn)
        change = self._change(operation, row, transaction, 0)
        (record,) = self.records(change, now_us)
        position = b"%016x.-" % log_lsn
        marks: list[Header] = [
            (name, position if name == headers.POSITION else value)
            for name, value in record.headers
        ]
        marks.append((headers.SNAPSHOT, snapshot_id.encode()))
        return record._replace(position=position, headers=marks)

    def _change(
        self,
        operation: Operation,
        row: Row | None,
        transaction: Transaction,
        ordinal: int,
    ) -> Change:
        nothing = (None,) * len(self.relation.columns)
        old = nothing if row is None else None
        return Change(
            operation=operation,
            relation=self.relation,
            new=row,
            old=old,
            is_full=False,
            transaction=transaction,
            ordinal=ordinal,
            lsn=transaction.commit_lsn,
        )

    def _keyed(self, record: Record, row: Row) -> Record:
        """Give a dead letter its row's key, its topic, and what the registry said."""
        marks: list[Header] = [
            (name, self._told.get(name, value)) for name, value in record.headers
        ]
        columns = self.relation.columns
        texts = {columns[at].name: row[at] for at in self.relation.key}
        key = None
        if texts and all(isinstance(text, bytes) for text in texts.values()):
            known = {name: _text(text) for name, text in texts.items()}
            key = orjson.dumps(known)
        size = record.size + len(key or b"") + self._told_bytes
        return record._replace(key=key, headers=marks, size=size)


def _text(text: object) -> str:
    return text.decode() if isinstance(text, bytes) else ""

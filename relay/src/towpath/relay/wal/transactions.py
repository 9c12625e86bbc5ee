"""
Binds messages to their relation and their position in the total order.

::

    OUTSIDE --begin--> INSIDE --row, truncate, message--> INSIDE --commit--> OUTSIDE

The ordinal counts every row message, truncate and transactional logical message of a
transaction as received, before any filter, so that it is the same on every replay.
``log_lsn`` is the lineage's offset plus the LSN of the commit record, known at Begin.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationShape,
    Row,
    Truncate,
    TypeName,
    Update,
)
from towpath.schemas.envelope import Operation
from towpath.schemas.position import READ_ORDINAL


class Transaction(NamedTuple):
    """
    The data that all changes of one transaction share.

    ``place`` is the first half of their positions' text, with the dot. A replicated
    transaction has an ``origin``, its replication origin, and an ``origin_lsn``, the
    LSN of its commit there. Both arrive after the begin, so earlier steps lack them.
    """

    xid: int
    commit_lsn: int
    log_lsn: int
    committed_us: int
    place: bytes
    origin: str | None = None
    origin_lsn: int | None = None


class Change(NamedTuple):
    """
    One row change, bound to its relation and position.

    Attributes:
        operation: Create, update or delete.
        relation: The table's shape at this point of the stream.
        new: The row after the change; None for a delete.
        old: The former key, or the whole former row if ``is_full``; may be None.
        is_full: Whether ``old`` is the whole row.
        transaction: The transaction.
        ordinal: Its index among the transaction's messages.
        lsn: The row's own LSN: for information, never for order.
    """

    operation: Operation
    relation: Relation
    new: Row | None
    old: Row | None
    is_full: bool
    transaction: Transaction
    ordinal: int
    lsn: int


class Truncation(NamedTuple):
    """Tables emptied together, at one position."""

    relations: tuple[Relation, ...]
    transaction: Transaction
    ordinal: int
    lsn: int


class Committed(NamedTuple):
    """The end of a transaction: after its delivery, ``end_lsn`` may be confirmed."""

    transaction: Transaction
    end_lsn: int


class LogicalMessageEvent(NamedTuple):
    """
    A logical message; outside a transaction, its position is (``log_lsn``, -1).

    ``lsn`` is its own LSN. Outside a transaction, ``log_lsn`` is the lineage's offset
    plus ``lsn``, and ``lsn`` may be confirmed once the message is delivered. Inside
    one, ``log_lsn`` is the transaction's.
    """

    prefix: str
    content: bytes
    log_lsn: int
    ordinal: int
    transaction: Transaction | None
    lsn: int


StreamStep = (
    Transaction
    | Change
    | Truncation
    | Committed
    | LogicalMessageEvent
    | RelationShape
    | None
)

# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__

_CREATE: Final = Operation.CREATE
_UPDATE: Final = Operation.UPDATE
_DELETE: Final = Operation.DELETE
_KEY_ONLY: Final = False


class Sequencer:
    """
    Turns messages into steps, one at a time.

    Call order: after a ``RelationShape`` step, the caller binds the relation before it
    feeds the next message.

    Attributes:
        steps: The method that makes the step of each message type, for callers that
            know the type.
        offset: The lineage's offset.
        relations: The bound relations, by oid.
        transaction: The open transaction; the consumer's hot path sets it too.
        ordinal: The next ordinal of the transaction; after the commit, the number of
            its messages.
    """

    def __init__(self, lineage_offset: int) -> None:
        self.offset = lineage_offset
        self.relations: dict[int, Relation] = {}
        self.transaction: Transaction | None = None
        self.ordinal = 0
        self.steps: Mapping[type, Callable[[Any, int], StreamStep]] = {
            Begin: self._begin,
            Commit: self._commit,
            Insert: self._insert,
            Update: self._update,
            Delete: self._delete,
            Truncate: self._truncate,
            LogicalMessage: self._logical_message,
            RelationShape: _relation_shape,
            TypeName: _ignore,
            Origin: self._origin,
        }

    @property
    def is_inside(self) -> bool:
        """Whether a transaction is open."""
        return self.transaction is not None

    def bind(self, relation: Relation) -> None:
        """Use a relation as the schema of the rows that follow."""
        self.relations[relation.oid] = relation

    def feed(self, message: Message, lsn: int) -> StreamStep:
        """
        Return the step of the next message of the stream, written at ``lsn``.

        Raises:
            MalformedMessageError: The message is out of order, or its relation unknown.
        """
        return self.steps[type(message)](message, lsn)

    def peek(self, message: Message) -> StreamStep:
        """
        Return the step of a message without counting it.

        Raises:
            MalformedMessageError: The message is out of order, or its relation unknown.
        """
        ordinal = self.ordinal
        try:
            return self.feed(message, 0)
        finally:
            self.ordinal = ordinal

    def _begin(self, message: Begin, _lsn: int) -> Transaction:
        if self.transaction is not None:
            reason = "a transaction begins inside another"
            raise MalformedMessageError(reason)
        final_lsn, committed_us, xid = message
        log_lsn = self.offset + final_lsn
        transaction = _make(
            Transaction,
            (xid, final_lsn, log_lsn, committed_us, b"%016x." % log_lsn, None, None),
        )
        self.transaction = transaction
        self.ordinal = 0
        return transaction

    def _commit(self, message: Commit, _lsn: int) -> Committed:
        transaction = self.transaction
        if transaction is None or transaction.commit_lsn != message.commit_lsn:
            reason = "a commit that matches no transaction"
            raise MalformedMessageError(reason)
        self.transaction = None
        return _make(Committed, (transaction, message.end_lsn))

    def _origin(self, message: Origin, _lsn: int) -> None:
        """Set the origin; a transaction may name several in turn."""
        if self.transaction is None:
            reason = "an origin outside a transaction"
            raise MalformedMessageError(reason)
        self.transaction = self.transaction._replace(
            origin=message.name, origin_lsn=message.origin_lsn
        )

    def _insert(self, message: Insert, lsn: int) -> Change:
        oid, new = message
        relation, transaction, ordinal = self._place(oid, new)
        return _make(
            Change, (_CREATE, relation, new, None, _KEY_ONLY, transaction, ordinal, lsn)
        )

    def _update(self, message: Update, lsn: int) -> Change:
        oid, new, old, is_full = message
        relation, transaction, ordinal = self._place(oid, new)
        return _make(
            Change, (_UPDATE, relation, new, old, is_full, transaction, ordinal, lsn)
        )

    def _delete(self, message: Delete, lsn: int) -> Change:
        oid, old, is_full = message
        relation, transaction, ordinal = self._place(oid, old)
        return _make(
            Change, (_DELETE, relation, None, old, is_full, transaction, ordinal, lsn)
        )

    def _truncate(self, message: Truncate, lsn: int) -> Truncation:
        transaction, ordinal = self._count()
        relations = tuple(self._relation(oid) for oid in message.relation_oids)
        return Truncation(relations, transaction, ordinal, lsn)

    def _logical_message(
        self, message: LogicalMessage, _lsn: int
    ) -> LogicalMessageEvent:
        is_transactional, lsn, prefix, content = message
        if not is_transactional:
            log_lsn = self.offset + lsn
            return LogicalMessageEvent(
                prefix, content, log_lsn, READ_ORDINAL, None, lsn
            )
        transaction, ordinal = self._count()
        log_lsn = transaction.log_lsn
        return LogicalMessageEvent(prefix, content, log_lsn, ordinal, transaction, lsn)

    def _place(self, oid: int, row: Row) -> tuple[Relation, Transaction, int]:
        transaction = self.transaction
        if transaction is None:
            reason = "a change outside a transaction"
            raise MalformedMessageError(reason)
        relation = self.relations.get(oid)
        if relation is None or len(row) != len(relation.columns):
            reason = f"a row of unknown shape in relation {oid}"
            raise MalformedMessageError(reason)
        ordinal = self.ordinal
        self.ordinal = ordinal + 1
        return relation, transaction, ordinal

    def _count(self) -> tuple[Transaction, int]:
        transaction = self.transaction
        if transaction is None:
            reason = "a change outside a transaction"
            raise MalformedMessageError(reason)
        ordinal = self.ordinal
        self.ordinal = ordinal + 1
        return transaction, ordinal

    def _relation(self, oid: int) -> Relation:
        relation = self.relations.get(oid)
        if relation is None:
            reason = f"a truncate of unknown relation {oid}"
            raise MalformedMessageError(reason)
        return relation


def _relation_shape(message: RelationShape, _lsn: int) -> RelationShape:
    return message


def _ignore(_message: TypeName, _lsn: int) -> None:
    return None

"""
The table route: turns a row change into records of its table's topic. Hot path.

========================  =====================================================
insert                    ``c``
update                    ``u``
update of the key         ``d`` old, tombstone old, ``c`` new
delete                    ``d``, tombstone
truncate                  ``t`` to every partition
chunk row                 ``r``; a key that a chunk did not find: ``d``, tombstone
sweep                     ``m`` to every partition
========================  =====================================================

The route decides on the records, their headers and positions; the codec writes keys and
values. An unchanged TOASTed value is taken from the old row if that row has it, and
otherwise named in the header ``unchanged``. ``on_incomplete`` is called for a row that
moved to a new key without some values: no record of the new key has them, so the row
must be read again.

Skipped operations are counted and produce no record. The first record of a change has
the change's position; further records append ``.1`` and ``.2`` to that position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

import orjson

from towpath.relay.encode.codecs.codec import Codec, EnvelopeFacts
from towpath.relay.encode.codecs.codec import TransactionPlace as Placed
from towpath.relay.encode.dead_letters import RefusedRoute
from towpath.relay.encode.record import ANY_PARTITION, FIXED_BYTES, Record
from towpath.relay.encode.relations import ColumnPlan
from towpath.relay.encode.rows import (
    ReadRow,
    ReadSlice,
    key_column_text,
    position_of,
    read_envelope_facts,
    read_records,
    with_header,
    with_message,
)
from towpath.relay.encode.types.scalar import NON_FINITE, PRECISE_NAMES
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import UNCHANGED, Relation, Row
from towpath.relay.wal.transactions import Change, Transaction
from towpath.schemas import headers, topics
from towpath.schemas.envelope import STREAMED, Operation
from towpath.schemas.position import Position
from towpath.settings.rows import RecordFormat, Rows

_MONEY: Final = 790
_STREAMED: Final = STREAMED.encode()

# Module constants, to avoid an attribute look-up per record.
_POSITION: Final = headers.POSITION
_CREATE: Final = Operation.CREATE
_DELETE: Final = Operation.DELETE

SKIPPED_OPERATION: Final = "the configuration skips the operation"
SKIPPED_UNCHANGED: Final = "an update changed no published column"
INCOMPLETE_KEY: Final = (
    "the replica identity lacks columns of the configured key: "
    "set REPLICA IDENTITY FULL"
)

# Skips a named tuple's own constructor, which costs more than creating the tuple.
_make: Final = tuple.__new__

_Key = bytes | None


class SourceNames(NamedTuple):
    """The topic prefix and the database, which all tables of the source share."""

    prefix: str
    database: str


def _ignore_skipped(_reason: str) -> None:
    pass


def _ignore_incomplete(
    _relation: Relation, _key: tuple[bytes, ...], _position: Position
) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RouteCallbacks:
    """
    Callbacks from a route into stats, snapshots and transaction metadata.

    Attributes:
        on_skipped: Called with the reason for a change without its usual record.
        on_incomplete: Called with a relation, the texts of a key (in key order) whose
            row lacks values in Kafka, and the change's position: that key must be
            read again. Called again if the change is streamed again.
        enrich: Counts a table's envelope in its transaction and returns its place;
            None without transaction metadata.
        on_traced: Called with each event whose row has a trace context; None if tracing
            is off.
    """

    on_skipped: Callable[[str], None] = _ignore_skipped
    on_incomplete: Callable[[Relation, tuple[bytes, ...], Position], None] = (
        _ignore_incomplete
    )
    enrich: Callable[[str], Placed] | None = None
    on_traced: Callable[[Transaction, Record, bytes], None] | None = None


class TableRoute:
    """Turns changes to a table into records, for one schema of the table."""

    def __init__(
        self,
        prefix: str,
        relation: Relation,
        plan: ColumnPlan,
        codec: Codec,
        rows: Rows,
        callbacks: RouteCallbacks,
    ) -> None:
        self.relation = relation
        self.topic = topics.table_topic(prefix, relation.full_name)
        self._plan = plan
        self._codec = codec
        self._key_of = codec.key
        self._value_of = codec.value
        self._width = len(relation.columns)
        self._has_tombstones = rows.tombstones
        self._is_plain = rows.format is RecordFormat.JSON
        self._skipped = frozenset(rows.skipped_operations)
        self._skips_unchanged = rows.skip_unchanged
        self._key_indexes = tuple(field.at for field in plan.key)
        self._callbacks = callbacks
        self._enrich = callbacks.enrich

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """
        Return the records of a change, in order.

        Raises:
            MalformedMessageError: The change lacks a column of its key.
        """
        operation = change.operation
        if operation is _CREATE:
            if "c" in self._skipped:
                return self._skip(SKIPPED_OPERATION)
            new = change.new or ()
            return (self._upsert(change, b"c", new, None, now_us),)
        if operation is _DELETE:
            if "d" in self._skipped:
                return self._skip(SKIPPED_OPERATION)
            return self._delete(change, change.old or (), now_us)
        return self._update(change, now_us)

    def truncation(
        self, transaction: Transaction, ordinal: int, partitions: int, now_us: int
    ) -> Sequence[Record]:
        """Return one ``t`` per partition, all with one position."""
        if "t" in self._skipped:
            return self._skip(SKIPPED_OPERATION)
        head = transaction.place + b"%010d" % ordinal
        facts = self._facts(transaction, transaction.commit_lsn, b"t", now_us)
        value = self._value_of(None, None, facts, is_full=False)
        return [
            self._record(None, value, head, transaction, partition)
            for partition in range(partitions)
        ]

    def reads(self, rows: Sequence[ReadRow], read_slice: ReadSlice) -> Sequence[Record]:
        """
        Return a record for each row of a chunk, in order.

        Raises:
            MalformedMessageError: A row has more or fewer values than columns.
        """
        if not rows:
            return ()
        columns = self._columns(rows)
        values = self._codec.reads(columns, read_envelope_facts(b"r", read_slice))
        return read_records(self._codec.keys(columns), values, read_slice)

    def keys(self, rows: Sequence[ReadRow]) -> Sequence[bytes | None]:
        """
        Return the record keys of a chunk's rows, in order.

        Raises:
            MalformedMessageError: A row has more or fewer values than columns.
        """
        return self._codec.keys(self._columns(rows))

    def _columns(self, rows: Sequence[ReadRow]) -> Sequence[ReadRow]:
        if set(map(len, rows)) != {self._width}:
            reason = f"a row of {self.relation.name} does not have {self._width} values"
            raise MalformedMessageError(reason)
        return tuple(zip(*rows, strict=True))

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        """
        Return the records of a key (in key order) that its chunk does not have.

        Raises:
            MalformedMessageError: The configured key has columns that are not given.
        """
        if "d" in self._skipped:
            return self._skip(SKIPPED_OPERATION)
        if not set(self._key_indexes) <= set(self.relation.key):
            reason = (
                f"the configured key of {self.relation.name} has columns that the "
                "primary key of an absent row does not provide"
            )
            raise MalformedMessageError(reason)
        texts = dict(zip(self.relation.key, key, strict=True))
        row = tuple(texts.get(at) for at in range(len(self.relation.columns)))
        value = self._value_of(
            row, None, read_envelope_facts(b"d", read_slice), is_full=False
        )
        name = self._key_of(row)
        if name is None or not self._has_tombstones:
            return read_records([name], [value], read_slice)
        return read_records([name, name], [value, None], read_slice)

    def sweep(self, floor: int, read_slice: ReadSlice) -> bytes:
        """Return the value of a sweep, which deletes rows below the floor."""
        facts = read_envelope_facts(b"m", read_slice)
        value = self._value_of(None, None, facts, is_full=False)
        return with_message(value, floor) if self._is_plain else value

    def key_bytes(self, row: Row) -> tuple[bytes, ...]:
        """Return the texts of a row's primary key, in key order."""
        return tuple(key_column_text(row[index]) for index in self.relation.key)

    def _update(self, change: Change, now_us: int) -> Sequence[Record]:
        new, old = change.new or (), change.old
        if old is not None:
            new = fill_unchanged(new, old, self.relation, is_full=change.is_full)
            if self._is_moved(old, new, is_full=change.is_full):
                return self._move(change, old, new, now_us)
        if "u" in self._skipped:
            return self._skip(SKIPPED_OPERATION)
        before = old if change.is_full else None
        if self._skips_unchanged and before is not None and self._same(before, new):
            return self._skip(SKIPPED_UNCHANGED)
        return (self._upsert(change, b"u", new, before, now_us),)

    def _is_moved(self, old: Row, new: Row, *, is_full: bool) -> bool:
        """Return whether the record's key changed."""
        # A short old row has only the identity's columns, and is sent only if one of
        # them changed or is TOASTed.
        indexes = self._key_indexes if is_full else self.relation.key
        return any(old[at] != new[at] for at in indexes)

    def _move(
        self, change: Change, old: Row, new: Row, now_us: int
    ) -> Sequence[Record]:
        key_header = self._codec.key_header
        records: list[Record] = []
        if "d" not in self._skipped:
            delete, *tombstone = self._delete(change, old, now_us)
            delete = with_header(delete, headers.NEW_KEY, key_header(new))
            records = [delete, *tombstone]
        else:
            self._count_incomplete_key(is_full=change.is_full)
        if "c" not in self._skipped:
            number = len(records)
            create = self._create_moved(change, new, now_us, number)
            records.append(with_header(create, headers.OLD_KEY, key_header(old)))
        return records or self._skip(SKIPPED_OPERATION)

    def _create_moved(
        self, change: Change, new: Row, now_us: int, number: int
    ) -> Record:
        """Return a row's record under its new key; report values that it lacks."""
        if UNCHANGED in new:
            position = Position(change.transaction.log_lsn, change.ordinal)
            self._callbacks.on_incomplete(self.relation, self.key_bytes(new), position)
        return self._upsert(change, b"c", new, None, now_us, number=number)

    def _upsert(
        self,
        change: Change,
        operation: bytes,
        new: Row,
        before: Row | None,
        now_us: int,
        *,
        number: int = 0,
    ) -> Record:
        transaction = change.transaction
        facts = self._facts(transaction, change.lsn, operation, now_us)
        value = self._value_of(before, new, facts, is_full=True)
        position = transaction.place + b"%010d" % change.ordinal
        if number:
            position += b".%d" % number
        record = self._record(self._key_of(new), value, position, transaction)
        if change.operation is not _CREATE and UNCHANGED in new:
            absent = [f.name for f in self._plan.columns if new[f.at] is UNCHANGED]
            if absent:
                return with_header(record, headers.UNCHANGED, orjson.dumps(absent))
        return record

    def _delete(self, change: Change, old: Row, now_us: int) -> tuple[Record, ...]:
        transaction = change.transaction
        facts = self._facts(transaction, change.lsn, b"d", now_us)
        value = self._value_of(old, None, facts, is_full=change.is_full)
        self._count_incomplete_key(is_full=change.is_full)
        key = self._key_of(old)
        delete = self._record(key, value, position_of(change, 0), transaction)
        if key is None or not self._has_tombstones:
            return (delete,)
        return delete, self._record(key, None, position_of(change, 1), transaction)

    def _count_incomplete_key(self, *, is_full: bool) -> None:
        """Count an old row if it lacks columns of the configured key."""
        if not is_full and not set(self._key_indexes) <= set(self.relation.key):
            self._callbacks.on_skipped(INCOMPLETE_KEY)

    def _same(self, old: Row, new: Row) -> bool:
        """Return whether no published column changed; both rows are complete."""
        return all(old[field.at] == new[field.at] for field in self._plan.columns)

    def _skip(self, reason: str) -> Sequence[Record]:
        self._callbacks.on_skipped(reason)
        return ()

    def _record(
        self,
        key: _Key,
        value: bytes | None,
        position: bytes,
        transaction: Transaction,
        partition: int = ANY_PARTITION,
    ) -> Record:
        size = FIXED_BYTES + len(key or b"") + len(value or b"")
        return _make(
            Record,
            (
                self.topic,
                key,
                value,
                [(_POSITION, position)],
                position,
                transaction.committed_us // 1000,
                size,
                partition,
            ),
        )

    def _facts(
        self, transaction: Transaction, lsn: int, operation: bytes, now_us: int
    ) -> EnvelopeFacts:
        xid, commit_lsn, _, committed_us, _, origin, origin_lsn = transaction
        enrich = self._enrich
        place = None if enrich is None else enrich(self.relation.name)
        return _make(
            EnvelopeFacts,
            (
                operation,
                committed_us,
                now_us,
                _STREAMED,
                xid,
                lsn,
                commit_lsn,
                origin,
                origin_lsn,
                place,
            ),
        )


class PreciseKeyRoute(TableRoute):
    """
    The route of a table whose key has decimals in a form without NaN and infinities.

    Rows with NaN or an infinity in the key become dead letters: if these values were
    written as null, as in other columns, different rows would share a key.
    """

    def __init__(
        self,
        prefix: str,
        unkeyed: RefusedRoute,
        plan: ColumnPlan,
        codec: Codec,
        rows: Rows,
        callbacks: RouteCallbacks,
    ) -> None:
        super().__init__(prefix, unkeyed.relation, plan, codec, rows, callbacks)
        self._unkeyed = unkeyed
        self._precise = _precise_places(self.relation, plan)

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """Return the records of a change, or its dead letter."""
        new, old = change.new, change.old
        for at in self._precise:
            if new is not None and new[at] in NON_FINITE:
                return self._refuse_new(change, new, now_us)
            if old is not None and old[at] in NON_FINITE:
                return self._refuse_old(change, old, now_us)
        return super().records(change, now_us)

    def _refuse_new(self, change: Change, new: Row, now_us: int) -> Sequence[Record]:
        """Return the dead letter of a new row, after the delete of its old key."""
        old, operation = change.old, change.operation.value
        deletes: Sequence[Record] = ()
        if old is not None:
            is_full = change.is_full
            new = fill_unchanged(new, old, self.relation, is_full=is_full)
            if self._is_moved(old, new, is_full=is_full):
                operation = "c"
            if not self._lacks_form(old) and "d" not in self._skipped:
                deletes = self._delete(change, old, now_us)
        if operation in self._skipped:
            return deletes or self._skip(SKIPPED_OPERATION)
        return (*deletes, *self._unkeyed.records(change, now_us))

    def _refuse_old(self, change: Change, old: Row, now_us: int) -> Sequence[Record]:
        """Return the dead letter of a deleted row, or the row under its new key."""
        new = change.new
        if new is not None and self._lacks_form(new):
            return self._refuse_new(change, new, now_us)
        if ("d" if new is None else "c") in self._skipped:
            return self._skip(SKIPPED_OPERATION)
        if new is None:
            return self._unkeyed.records(change, now_us)
        new = fill_unchanged(new, old, self.relation, is_full=change.is_full)
        return (self._create_moved(change, new, now_us, 0),)

    def reads(self, rows: Sequence[ReadRow], read_slice: ReadSlice) -> Sequence[Record]:
        """Return the records of a chunk's rows, or their dead letters."""
        for at in self._precise:
            if not NON_FINITE.keys().isdisjoint(map(itemgetter(at), rows)):
                return [
                    record for row in rows for record in self._read(row, read_slice)
                ]
        return super().reads(rows, read_slice)

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        """Return the records of a key that its chunk does not have."""
        texts = dict(zip(self.relation.key, key, strict=True))
        is_refused = any(texts.get(at) in NON_FINITE for at in self._precise)
        if is_refused and "d" not in self._skipped:
            return self._unkeyed.absent(key, read_slice)
        return super().absent(key, read_slice)

    def _read(self, row: ReadRow, read_slice: ReadSlice) -> Sequence[Record]:
        if self._lacks_form(row):
            return self._unkeyed.reads((row,), read_slice)
        return super().reads((row,), read_slice)

    def _lacks_form(self, row: Row) -> bool:
        return any(row[at] in NON_FINITE for at in self._precise)


def lacks_key_forms(relation: Relation, plan: ColumnPlan) -> bool:
    """Return whether the key may have values, such as NaN, that its form lacks."""
    return bool(_precise_places(relation, plan))


def _precise_places(relation: Relation, plan: ColumnPlan) -> list[int]:
    return [
        field.at
        for field in plan.key
        if field.form.schema.name in PRECISE_NAMES
        # Money has a precise form, and no NaN.
        and relation.columns[field.at].type_oid != _MONEY
    ]


def fill_unchanged(new: Row, old: Row, relation: Relation, *, is_full: bool) -> Row:
    """Return a new row with unchanged values filled in from the old row."""
    if UNCHANGED not in new:
        return new
    return tuple(
        before if after is UNCHANGED and (is_full or index in relation.key) else after
        for index, (before, after) in enumerate(zip(old, new, strict=True))
    )

"""
The table route: a row change to the records of its table's topic. Hot path.

========================  =====================================================
insert                    ``c``
update                    ``u``
update of the key         ``d`` old, tombstone old, ``c`` new
delete                    ``d``, tombstone
truncate                  ``t`` to every partition
chunk row                 ``r``
========================  =====================================================

Everything that does not depend on the row is made once per shape: names, encoders,
and the envelope's bytes between them. A value that the stream left out is taken from
the old row if that is whole, and otherwise left out here too and named in the header
``unchanged``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.record import ANY_PARTITION, FIXED_BYTES, Header, Record
from towpath.relay.routing.values import Encode, encoder
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas import envelope, headers, topics
from towpath.schemas.envelope import Operation

_NULL: Final = b"null"


class Place(NamedTuple):
    """Where the source's names come from: topic prefix and database."""

    prefix: str
    database: str


class TableRoute:
    """Turns the changes of one shape of one table into records."""

    def __init__(self, place: Place, relation: Relation) -> None:
        self.relation = relation
        self.topic = topics.table_topic(place.prefix, relation.schema, relation.table)
        self._columns: list[tuple[bytes, Encode]] = [
            (orjson.dumps(column.name) + b":", encoder(column.type_oid))
            for column in relation.columns
        ]
        self._key: list[tuple[int, bytes, Encode]] = [
            (index, *self._columns[index]) for index in relation.key
        ]
        names = orjson.dumps(
            {
                "db": place.database,
                "schema": relation.schema,
                "table": relation.table,
            }
        )
        prefix = orjson.dumps(place.prefix).decode()
        self._source = (
            f'{{"version":"{envelope.SOURCE_VERSION}",'
            f'"connector":"{envelope.CONNECTOR}","name":{prefix},"ts_ms":'
        ).encode()
        self._names = b"," + names[1:-1]

    def records(self, change: Change, now_us: int) -> Sequence[Record]:
        """
        Return the records of a change, in the order in which they must stand.

        Raises:
            MalformedMessageError: The change lacks its key.
        """
        operation = change.operation
        if operation is Operation.CREATE:
            return (self._upsert(change, b"c", change.new or (), None, now_us),)
        if operation is Operation.DELETE:
            return self._delete(change, change.old or (), now_us)
        return self._update(change, now_us)

    def truncation(
        self, transaction: Transaction, ordinal: int, partitions: int, now_us: int
    ) -> Sequence[Record]:
        """Return one ``t`` per partition: each one's rows are gone."""
        head = transaction.place + b"%010d" % ordinal
        source = self._streamed(transaction, transaction.commit_lsn)
        value = _envelope(_NULL, _NULL, source, b"t", now_us)
        records = []
        for partition in range(partitions):
            position = head + b".%d" % partition if partition else head
            record = self._record(None, value, position, transaction, partition)
            records.append(record)
        return records

    def read(
        self, row: Row, log_lsn: int, snapshot_id: str, topic: str, now_us: int
    ) -> Record:
        """Return the record of a row that a chunk read."""
        position = b"%016x.-" % log_lsn
        now_ms = now_us // 1000
        source = (
            self._source
            + b'%d,"snapshot":"%s"' % (now_ms, envelope.INCREMENTAL.encode())
            + self._names
            + b',"txId":null,"lsn":null,"commit_lsn":%d,"xmin":null}' % log_lsn
        )
        after, _ = self._object(row)
        value = _envelope(_NULL, after, source, b"r", now_us)
        key = self._key_of(row)
        marks: list[Header] = [
            (headers.POSITION, position),
            (headers.SNAPSHOT, snapshot_id.encode()),
        ]
        size = len(value) + len(key or b"") + FIXED_BYTES
        return Record(topic, key, value, marks, position, now_ms, size)

    def key_bytes(self, row: Row) -> tuple[bytes, ...]:
        """Return the raw text of the key's columns, in key order."""
        return tuple(_present(row[index]) for index in self.relation.key)

    def _update(self, change: Change, now_us: int) -> Sequence[Record]:
        new, old = change.new or (), change.old
        if old is None:
            return (self._upsert(change, b"u", new, None, now_us),)
        new = complete(new, old, self.relation, is_full=change.is_full)
        before = self._object(old)[0] if change.is_full else None
        if not self.relation.key or self.key_bytes(old) == self.key_bytes(new):
            return (self._upsert(change, b"u", new, before, now_us),)
        return self._move(change, old, new, now_us)

    def _move(
        self, change: Change, old: Row, new: Row, now_us: int
    ) -> Sequence[Record]:
        old_key, new_key = self._key_of(old), self._key_of(new)
        gone, tombstone = self._delete(change, old, now_us)
        gone.headers.append((headers.NEW_KEY, new_key))
        came = self._upsert(change, b"c", new, None, now_us, number=2)
        came.headers.append((headers.OLD_KEY, old_key))
        return gone, tombstone, came

    def _upsert(
        self,
        change: Change,
        operation: bytes,
        new: Row,
        before: bytes | None,
        now_us: int,
        *,
        number: int = 0,
    ) -> Record:
        transaction = change.transaction
        after, absent = self._object(new)
        source = self._streamed(transaction, change.lsn)
        value = _envelope(before or _NULL, after, source, operation, now_us)
        record = self._record(
            self._key_of(new), value, _position(change, number), transaction
        )
        if absent:
            record.headers.append((headers.UNCHANGED, orjson.dumps(absent)))
        return record

    def _delete(self, change: Change, old: Row, now_us: int) -> tuple[Record, ...]:
        transaction = change.transaction
        before = self._object(old)[0] if change.is_full else self._present_object(old)
        source = self._streamed(transaction, change.lsn)
        value = _envelope(before, _NULL, source, b"d", now_us)
        key = self._key_of(old)
        gone = self._record(key, value, _position(change, 0), transaction)
        if key is None:
            return (gone,)
        return gone, self._record(key, None, _position(change, 1), transaction)

    def _record(
        self,
        key: bytes | None,
        value: bytes | None,
        position: bytes,
        transaction: Transaction,
        partition: int = ANY_PARTITION,
    ) -> Record:
        return Record(
            self.topic,
            key,
            value,
            [(headers.POSITION, position)],
            position,
            transaction.committed_us // 1000,
            len(value or b"") + len(key or b"") + FIXED_BYTES,
            partition,
        )

    def _streamed(self, transaction: Transaction, lsn: int) -> bytes:
        return (
            self._source
            + b'%d,"snapshot":"false"' % (transaction.committed_us // 1000)
            + self._names
            + b',"txId":%d,"lsn":%d,"commit_lsn":%d,"xmin":null}'
            % (transaction.xid, lsn, transaction.commit_lsn)
        )

    def _object(self, row: Row) -> tuple[bytes, list[str]]:
        """Return the row as a JSON object, and the names of what it lacks."""
        parts = []
        absent = []
        for (name, encode), value in zip(self._columns, row, strict=True):
            if value is None:
                parts.append(name + _NULL)
            elif value is UNCHANGED:
                absent.append(orjson.loads(name[:-1]))
            else:
                parts.append(name + encode(value))
        return b"{" + b",".join(parts) + b"}", absent

    def _present_object(self, row: Row) -> bytes:
        """Return what a key-only old row holds: the rest of it says nothing."""
        columns = zip(self._columns, row, strict=True)
        parts = [
            name + encode(value)
            for (name, encode), value in columns
            if isinstance(value, bytes)
        ]
        return b"{" + b",".join(parts) + b"}"

    def _key_of(self, row: Row) -> bytes | None:
        if not self._key:
            return None
        parts = [name + encode(_present(row[i])) for i, name, encode in self._key]
        return b"{" + b",".join(parts) + b"}"


def complete(new: Row, old: Row, relation: Relation, *, is_full: bool) -> Row:
    """Fill what the stream left out of a new row from what it says of the old one."""
    if UNCHANGED not in new:
        return new
    return tuple(
        before if after is UNCHANGED and (is_full or index in relation.key) else after
        for index, (before, after) in enumerate(zip(old, new, strict=True))
    )


def _present(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    reason = "a change lacks a column of its key: check the table's replica identity"
    raise MalformedMessageError(reason)


def _position(change: Change, number: int) -> bytes:
    if number:
        return change.transaction.place + b"%010d.%d" % (change.ordinal, number)
    return change.transaction.place + b"%010d" % change.ordinal


def _envelope(
    before: bytes, after: bytes, source: bytes, operation: bytes, now_us: int
) -> bytes:
    return (
        b'{"before":%b,"after":%b,"source":%b,"op":"%b","ts_ms":%d,"ts_us":%d,'
        b'"ts_ns":%d,"transaction":null}'
        % (before, after, source, operation, now_us // 1000, now_us, now_us * 1000)
    )

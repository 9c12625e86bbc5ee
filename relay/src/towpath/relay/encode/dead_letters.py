"""
Dead letters: records kept in ``<prefix>.dead.relay``, with reason and origin.

=============  ==================================================================
header form    value
=============  ==================================================================
``row``        a row that cannot be encoded as a record, as a JSON object of strings
``message``    ``{"prefix", "content"}`` of a logical message that cannot be decoded
``record``     the record's own value, together with its own key and headers
``stub``       topic, position, size, reason and key, or the key's hash, of a record
               that is too large for its topic and for the dead letters
``skipped``    a message of a transaction that an operator skipped: ``{"raw", ...}``
=============  ==================================================================

Every dead letter has its position, its reason (also in the headers of Kafka Connect)
and, if known, topic and table. Rows are JSON objects of the strings in the log; bytes
are ``{"base64": ...}``, unchanged TOASTed values ``{"unchanged": true}``.

A dead letter of an event parks its aggregate, which the header ``parked`` names. A row
change's dead letter parks nothing: a later full image of the row supersedes the change.

``RefusedRoute`` makes a dead letter from each change to a table if the registry refuses
its schema, with ``relay.rows.on_refused_schema = "park"``. All dead letters of a row
have the same key, and so the same partition. Columns are left out, masked, truncated
and hashed as in records. Nothing is parked: the relay tries the table's next schema.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from towpath.relay.encode.outbox_columns import BYTEA
from towpath.relay.encode.parked_aggregates import (
    MAX_ID_BYTES,
    ParkedAggregates,
    parking_id,
)
from towpath.relay.encode.record import FIXED_BYTES, Header, Record, named_partition
from towpath.relay.encode.relations import ColumnPlan
from towpath.relay.encode.rows import ReadRow, ReadSlice
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import Delete, Insert, Relation, Row, Update, Value
from towpath.relay.wal.pgoutput import parse_message
from towpath.relay.wal.transactions import Change, LogicalMessageEvent, Transaction
from towpath.schemas import headers, topics
from towpath.schemas.envelope import Operation


def row_texts(relation: Relation, row: Row) -> dict[str, Any]:
    """Return a row as an object with the text of each column."""
    return {
        column.name: _bytea(value) if column.type_oid == BYTEA else _column_text(value)
        for column, value in zip(relation.columns, row, strict=True)
    }


def _bytea(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    """Return the bytes of a ``bytea`` value as base64."""
    if not isinstance(value, bytes):
        return _column_text(value)
    return {"base64": base64.b64encode(binascii.unhexlify(value[2:])).decode()}


def _column_text(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    if value is None:
        return None
    return printable(value) if isinstance(value, bytes) else {"unchanged": True}


def printable(value: bytes) -> str | dict[str, str]:
    """Return bytes as text, or as base64 if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def decoded_message(raw: bytes, relation: Relation | None) -> Mapping[str, Any]:
    """
    Return the rows of a message of the log: ``new`` and ``old``.

    Without its ``relation``, a row is a list.
    """
    try:
        message = parse_message(raw)
    except MalformedMessageError:
        return {}
    if not isinstance(message, Insert | Update | Delete):
        return {}
    new = None if isinstance(message, Delete) else message.new
    old = None if isinstance(message, Insert) else message.old
    rows = {"new": new, "old": old}
    return {
        name: _named(relation, row) for name, row in rows.items() if row is not None
    }


def _named(relation: Relation | None, row: Row) -> Any:  # noqa: ANN401 - JSON
    if relation is None or len(relation.columns) != len(row):
        return [_column_text(value) for value in row]
    return row_texts(relation, row)


_PART: Final = "relay"
TOO_LARGE: Final = "the record is larger than its topic allows"
BEHIND: Final = "parked behind an earlier event of its aggregate"
NO_KEY: Final = "the record has no key, and its topic is compacted"
NO_SUCH_PARTITION: Final = "the topic does not have the partition that the row names"
TOPIC_REFUSED: Final = "Kafka refuses the event's topic"
SKIPPED: Final = "an operator skipped its transaction"

# The aggregate of an event: its type and id, as far as they are known.
Aggregate = tuple[bytes | None, bytes | None]
NO_AGGREGATE: Final[Aggregate] = (None, None)


class DeadLetters:
    """
    Makes the relay's dead letters, and parks the aggregates of events.

    Args:
        prefix: The topics' prefix.
        on_dead_letter: Called with each reason.
        parked: The parked aggregates, shared with the routes.
    """

    def __init__(
        self,
        prefix: str,
        on_dead_letter: Callable[[str], None],
        parked: ParkedAggregates,
    ) -> None:
        self.prefix = prefix
        self.topic = topics.dead_letter_topic(prefix, _PART)
        self._on_dead_letter = on_dead_letter
        self._parked = parked

    def unless_parked(self, record: Record) -> Record:
        """
        Return an event, or its dead letter if its aggregate is parked at its position.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        aggregate_type = _text(dict(record.headers).get(headers.AGGREGATE_TYPE))
        if self._parked.holds(aggregate_type, record.key, record.position):
            return self.of_record(record, BEHIND)
        return record

    def of_row(
        self,
        relation: Relation,
        change: Change,
        reason: str,
        aggregate: Aggregate = NO_AGGREGATE,
    ) -> Record:
        """
        Return the dead letter of a change that has no record.

        The ``aggregate`` of an outbox row is parked.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        position = change.transaction.place + b"%010d" % change.ordinal
        value = orjson.dumps(row_texts(relation, change.new or change.old or ()))
        added: list[Header] = [
            (headers.FORM, b"row"),
            (headers.SOURCE_TABLE, relation.name.encode()),
            (headers.OPERATION, change.operation.value.encode()),
        ]
        if change.new is not None and change.old is not None:
            old = orjson.dumps(row_texts(relation, change.old))
            added.append((headers.OLD_ROW, old))
        added += self._park(aggregate, position)
        timestamp_ms = change.transaction.committed_us // 1000
        key = aggregate[1] and parking_id(aggregate[1])
        return self._dead_letter(key, value, added, (position, timestamp_ms), reason)

    def of_message(
        self,
        message: LogicalMessageEvent,
        position_and_time: tuple[bytes, int],
        reason: str,
        aggregate: Aggregate = NO_AGGREGATE,
    ) -> Record:
        """
        Return the dead letter of a logical message that cannot be decoded as an event.

        Args:
            message: The message.
            position_and_time: The text of its position, and its time in milliseconds.
            reason: Why no event can be made from it.
            aggregate: The known parts of its aggregate, which is parked.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        content = {"prefix": message.prefix, "content": printable(message.content)}
        added: list[Header] = [(headers.FORM, b"message")]
        added += self._park(aggregate, position_and_time[0])
        key, value = aggregate[1] and parking_id(aggregate[1]), orjson.dumps(content)
        return self._dead_letter(key, value, added, position_and_time, reason)

    def of_record(self, record: Record, reason: str) -> Record:
        """
        Return the dead letter of a record, with its key, value and headers.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        moved = self._moved(record, reason)
        self._on_dead_letter(reason)
        return moved

    def of_large(self, record: Record, limit_bytes: int, dead_limit: int) -> Record:
        """
        Return the dead letter of a record that is too large.

        If the record is an event, its aggregate is parked.

        Args:
            record: The record.
            limit_bytes: The size limit of the record's topic.
            dead_limit: The size limit of the dead-letter topic.

        Raises:
            ParkedOverflowError: More aggregates are parked than allowed.
        """
        if record.topic == self.topic:
            return self._stub(record, limit_bytes)
        moved = self._moved(record, TOO_LARGE)
        self._on_dead_letter(TOO_LARGE)
        return moved if moved.size <= dead_limit else self._stub(record, limit_bytes)

    def of_skipped(
        self,
        raw: bytes,
        position: bytes,
        timestamp_ms: int,
        relation: Relation | None = None,
    ) -> Record:
        """
        Return the dead letter of a message whose transaction an operator skipped.

        Args:
            raw: The message's bytes.
            position: The message's position.
            timestamp_ms: The commit time.
            relation: The message's table, if known; names the columns.
        """
        document: dict[str, Any] = {"raw": base64.b64encode(raw).decode()}
        document |= decoded_message(raw, relation)
        added: list[Header] = [(headers.FORM, b"skipped")]
        if relation is not None:
            added.append((headers.SOURCE_TABLE, relation.name.encode()))
        value = orjson.dumps(document)
        return self._dead_letter(None, value, added, (position, timestamp_ms), SKIPPED)

    def _dead_letter(
        self,
        key: bytes | None,
        value: bytes,
        added: list[Header],
        position_and_time: tuple[bytes, int],
        reason: str,
    ) -> Record:
        self._on_dead_letter(reason)
        position, timestamp_ms = position_and_time
        added = [(headers.POSITION, position), *added, *_reasons(reason, b"")]
        size = FIXED_BYTES + len(key or b"") + len(value) + _bytes_of(added)
        return Record(self.topic, key, value, added, position, timestamp_ms, size)

    def _moved(self, record: Record, reason: str) -> Record:
        more: list[Header] = [
            (headers.FORM, b"record"),
            *_reasons(reason, record.topic.encode()),
            *named_partition(record),
            *self._parking_of(record),
        ]
        return record._replace(
            topic=self.topic,
            headers=[*record.headers, *more],
            size=record.size + FIXED_BYTES + _bytes_of(more),
            partition=-1,
        )

    def _stub(self, record: Record, limit_bytes: int) -> Record:
        found = dict(record.headers)
        key, is_dead = record.key, record.topic == self.topic
        source, table = found.get(headers.SOURCE_TOPIC), found.get(headers.SOURCE_TABLE)
        document: dict[str, Any] = {
            "topic": (_text(source) or "") if is_dead else record.topic,
            "position": record.position.decode(),
            "size_bytes": record.size,
            "limit_bytes": limit_bytes,
            "reason": TOO_LARGE,
        }
        if is_dead:
            document["first_reason"] = _text(found.get(headers.REASON))
        parking = self._parking_of(record)
        if key is not None and len(key) > MAX_ID_BYTES:
            document["key_sha256"] = hashlib.sha256(key).hexdigest()
            key = parking_id(key) if parking else None
        elif key is not None:
            document["key"] = printable(key)
        added: list[Header] = [
            (headers.POSITION, record.position),
            (headers.FORM, b"stub"),
            *_reasons(TOO_LARGE, str(document["topic"]).encode()),
        ]
        if is_dead and table is not None and found.get(headers.FORM) != b"record":
            added.append((headers.SOURCE_TABLE, table))
        if parking:
            kind = found.get(headers.AGGREGATE_TYPE)
            # A row without a type parks its id for every type.
            if isinstance(kind, bytes):
                added.append((headers.AGGREGATE_TYPE, parking_id(kind)))
            added += parking
        value = orjson.dumps(document)
        size = FIXED_BYTES + len(value) + len(key or b"") + _bytes_of(added)
        return Record(
            self.topic, key, value, added, record.position, record.timestamp_ms, size
        )

    def _parking_of(self, record: Record) -> list[Header]:
        """Park the aggregate of an event that has an id; return its header."""
        found = dict(record.headers)
        if headers.PARKED in found:
            return [(headers.PARKED, found[headers.PARKED])]
        if record.key is None or not is_event(record):
            return []
        aggregate_type = found[headers.AGGREGATE_TYPE]
        is_known = isinstance(aggregate_type, bytes)
        aggregate = (aggregate_type if is_known else None, record.key)
        return self._park(aggregate, record.position)[-1:]  # type: ignore[arg-type]

    def _park(self, aggregate: Aggregate, position: bytes) -> list[Header]:
        """Park an aggregate, and return its headers."""
        aggregate_type, aggregate_id = aggregate
        added: list[Header] = []
        if aggregate_type is not None:
            added.append((headers.AGGREGATE_TYPE, aggregate_type))
        if aggregate_id is not None:
            name = None if aggregate_type is None else aggregate_type.decode()
            self._parked.park(name, aggregate_id, position)
            added.append((headers.PARKED, parking_id(aggregate_id)))
        return added


def is_event(record: Record) -> bool:
    """Return whether a record is a streamed event, not a READ or a row change."""
    found = {name for name, _ in record.headers}
    return headers.AGGREGATE_TYPE in found and headers.SNAPSHOT not in found


def _reasons(reason: str, topic: bytes) -> tuple[Header, ...]:
    text = reason.encode()
    return (
        (headers.SOURCE_TOPIC, topic),
        (headers.REASON, text),
        (headers.CONNECT_ERROR_TOPIC, topic),
        (headers.CONNECT_ERROR_MESSAGE, text),
    )


def _bytes_of(added: Iterable[Header]) -> int:
    return sum(len(name) + len(value or b"") for name, value in added)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


# The reason that metrics count; a header of the dead letter has the registry's reason.
REFUSED: Final = "the schema of the table is refused"


class RefusedRoute:
    """Turns changes to a table whose schema is refused into dead letters."""

    reason = REFUSED

    def __init__(
        self,
        relation: Relation,
        plan: ColumnPlan,
        topic: str,
        dead: DeadLetters,
        message: str,
        count_in: Callable[[str], object] | None = None,
    ) -> None:
        """
        Prepare the parts that all dead letters of the table share.

        Args:
            relation: The table.
            plan: Its published columns.
            topic: The table's topic.
            dead: Makes and counts dead letters.
            message: The reason in detail, such as the registry's.
            count_in: Counts a change to the table in its transaction; None without
                transaction metadata.
        """
        self.relation = relation
        self.topic = topic
        self._key = [(field.at, relation.columns[field.at].name) for field in plan.key]
        self._published = plan.published(relation)
        self._texts_of = plan.texts_of
        self._dead = dead
        self._count_in = count_in
        self._origin = {
            headers.SOURCE_TOPIC: topic.encode(),
            headers.CONNECT_ERROR_TOPIC: topic.encode(),
            headers.CONNECT_ERROR_MESSAGE: message.encode(),
        }
        self._origin_bytes = sum(map(len, self._origin.values()))

    def records(self, change: Change, _now_us: int) -> Sequence[Record]:
        """Return the change's dead letter, counted as an event of its transaction."""
        if self._count_in is not None:
            self._count_in(self.relation.name)
        return (self._dead_letter(change),)

    def truncation(
        self, transaction: Transaction, ordinal: int, _partitions: int, now_us: int
    ) -> Sequence[Record]:
        """Return the only dead letter of a truncate, whose row has no values."""
        change = self._change(Operation.TRUNCATE, None, transaction, ordinal)
        return self.records(change, now_us)

    def reads(self, rows: Sequence[ReadRow], read_slice: ReadSlice) -> Sequence[Record]:
        """Return the dead letters of a chunk's rows."""
        return [self._read(Operation.READ, row, read_slice) for row in rows]

    def absent(self, key: Sequence[bytes], read_slice: ReadSlice) -> Sequence[Record]:
        """Return the dead letter of a key (in key order) that its chunk lacks."""
        texts = dict(zip(self.relation.key, key, strict=True))
        row = tuple(texts.get(at) for at in range(len(self.relation.columns)))
        return (self._read(Operation.DELETE, row, read_slice),)

    def _read(self, operation: Operation, row: Row, read_slice: ReadSlice) -> Record:
        """Return a dead letter with the position of its chunk's low watermark."""
        log_lsn, snapshot_id, _, now_us = read_slice
        transaction = Transaction(0, log_lsn, log_lsn, now_us, b"%016x." % log_lsn)
        change = self._change(operation, row, transaction, 0)
        record = self._dead_letter(change)
        position = b"%016x.-" % log_lsn
        replaced: list[Header] = [
            (name, position if name == headers.POSITION else value)
            for name, value in record.headers
        ]
        replaced.append((headers.SNAPSHOT, snapshot_id.encode()))
        return record._replace(position=position, headers=replaced)

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

    def _dead_letter(self, change: Change) -> Record:
        new, old = (
            None if row is None else self._texts_of(row)
            for row in (change.new, change.old)
        )
        published = change._replace(new=new, old=old)
        record = self._dead.of_row(self._published, published, self.reason)
        return self._keyed(record, change.new or change.old or ())

    def _keyed(self, record: Record, row: Row) -> Record:
        """Give a dead letter its row's key, its topic and the detailed reason."""
        replaced: list[Header] = [
            (name, self._origin.get(name, value)) for name, value in record.headers
        ]
        values = ((name, row[at]) for at, name in self._key)
        texts = {
            name: text.decode() for name, text in values if isinstance(text, bytes)
        }
        key = orjson.dumps(texts) if 0 < len(texts) == len(self._key) else None
        size = record.size + len(key or b"") + self._origin_bytes
        return record._replace(key=key, headers=replaced, size=size)

"""
Dead letters: records set aside in ``<prefix>.dead.relay``, with reason and origin.

=============  ==================================================================
header form    what the value is
=============  ==================================================================
``row``        the whole row as a JSON object of texts: one that has no place to go
``message``    a logical message that is no event: ``{"prefix", "content"}``
``record``     what the record's value would have been; key and headers stand as well
``stub``       topic, position, size, reason and key, or the key's hash, of what is
               too large for its topic and for the dead letters too
``skipped``    a message of the log that an operator skipped: ``{"raw", ...}``
=============  ==================================================================

Every dead letter tells its position,
its reason (for us and for Kafka Connect's tools) and, if known, topic and table.

A dead letter of an event parks its aggregate, and says so in the header ``parked``.
One of a row change parks nothing: a later full image supersedes it.

How rows stand in dead letters: as JSON, from which all of them can be made again.

Values are the log's texts. Where JSON has no form they are objects: ``{"base64": ...}``
for bytes, ``{"unchanged": true}`` for what the log left out.

The route of a shape that the registry refuses: its changes become dead letters.

With ``relay.rows.on_refused_schema = "park"``. Each change is one dead letter, in
order, whole, as texts, and counted; a row's dead letters share a key, so that they
share a partition. Nothing is parked behind them: the table's next shape is tried anew.
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
from towpath.relay.encode.record import FIXED_BYTES, Header, Record
from towpath.relay.encode.rows import ReadRow, ReadSlice
from towpath.relay.errors import MalformedMessageError
from towpath.relay.wal.messages import Delete, Insert, Relation, Row, Update, Value
from towpath.relay.wal.pgoutput import parse_message
from towpath.relay.wal.transactions import Change, LogicalMessageEvent, Transaction
from towpath.schemas import headers, topics
from towpath.schemas.envelope import Operation


def row_texts(relation: Relation, row: Row) -> dict[str, Any]:
    """Return a row by its columns' names."""
    return {
        column.name: _bytea(value) if column.type_oid == BYTEA else _column_text(value)
        for column, value in zip(relation.columns, row, strict=True)
    }


def _bytea(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    """Return what a ``bytea`` stands for."""
    if not isinstance(value, bytes):
        return _column_text(value)
    return {"base64": base64.b64encode(binascii.unhexlify(value[2:])).decode()}


def _column_text(value: Value) -> Any:  # noqa: ANN401 - a JSON value
    if value is None:
        return None
    return printable(value) if isinstance(value, bytes) else {"unchanged": True}


def printable(value: bytes) -> str | dict[str, str]:
    """Return bytes as the text that they are, or as base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def decoded_message(raw: bytes, relation: Relation | None) -> Mapping[str, Any]:
    """
    Return what a message of the log says of a row: ``new`` and ``old``.

    Args:
        raw: The message, whatever it is.
        relation: Its table's shape, if known; without one rows are lists.
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
TOO_LARGE: Final = "the record is larger than its topic takes"
BEHIND: Final = "parked behind an earlier event of its aggregate"
NO_KEY: Final = "the record has no key, and its topic is compacted"
NO_SUCH_PARTITION: Final = "the topic has no partition of the number that the row names"
TOPIC_REFUSED: Final = "Kafka refuses the topic that the aggregate type makes"
SKIPPED: Final = "an operator skipped its transaction"

# The aggregate of an event: its type and id, as far as they are known.
Aggregate = tuple[bytes | None, bytes | None]
NO_AGGREGATE: Final[Aggregate] = (None, None)


class DeadLetters:
    """
    Makes the relay's dead letters, and parks the aggregates of events.

    Args:
        prefix: The topics' prefix.
        on_buried: Told each reason, to be counted.
        parked: What is parked; routes ask the same one.
    """

    def __init__(
        self, prefix: str, on_buried: Callable[[str], None], parked: ParkedAggregates
    ) -> None:
        self.prefix = prefix
        self.topic = topics.dead_letter_topic(prefix, _PART)
        self._on_buried = on_buried
        self._parked = parked

    def unless_held(self, record: Record) -> Record:
        """
        Return an event, or its dead letter if its aggregate is parked below it.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
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
        Return the dead letter of a change that has no place to go.

        Args:
            relation: The shape of its table.
            change: The change that cannot be routed.
            reason: Why.
            aggregate: Of an outbox row; it is parked.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        position = change.transaction.place + b"%010d" % change.ordinal
        value = orjson.dumps(row_texts(relation, change.new or change.old or ()))
        marks: list[Header] = [
            (headers.FORM, b"row"),
            (headers.SOURCE_TABLE, relation.name.encode()),
            (headers.OPERATION, change.operation.value.encode()),
        ]
        if change.new is not None and change.old is not None:
            old = orjson.dumps(row_texts(relation, change.old))
            marks.append((headers.OLD_ROW, old))
        marks += self._park(aggregate, position)
        timestamp_ms = change.transaction.committed_us // 1000
        key = aggregate[1] and parking_id(aggregate[1])
        return self._letter(key, value, marks, (position, timestamp_ms), reason)

    def of_message(
        self,
        spoken: LogicalMessageEvent,
        place: tuple[bytes, int],
        reason: str,
        aggregate: Aggregate = NO_AGGREGATE,
    ) -> Record:
        """
        Return the dead letter of a logical message that makes no event.

        Args:
            spoken: The message.
            place: Its position's text, and its time in milliseconds.
            reason: Why.
            aggregate: As far as the content tells it; it is parked.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        told = {"prefix": spoken.prefix, "content": printable(spoken.content)}
        marks: list[Header] = [(headers.FORM, b"message")]
        marks += self._park(aggregate, place[0])
        key = aggregate[1] and parking_id(aggregate[1])
        return self._letter(key, orjson.dumps(told), marks, place, reason)

    def of_record(self, record: Record, reason: str) -> Record:
        """
        Return the dead letter of a finished record: its key, value and headers stand.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        moved = self._moved(record, reason)
        self._on_buried(reason)
        return moved

    def of_large(self, record: Record, limit_bytes: int, room_bytes: int) -> Record:
        """
        Return the dead letter of a record that is too large.

        An event parks its aggregate; a row change does not, since a later full image
        of the row supersedes it.

        Args:
            record: The record that is too large.
            limit_bytes: The limit of its topic.
            room_bytes: The limit of the dead letter topic.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        if record.topic == self.topic:
            return self._stub(record, limit_bytes)
        moved = self._moved(record, TOO_LARGE)
        self._on_buried(TOO_LARGE)
        return moved if moved.size <= room_bytes else self._stub(record, limit_bytes)

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
            raw: The message as the log has it.
            position: The message's own.
            timestamp_ms: The commit time.
            relation: The shape of its table, if it is known; names the columns.
        """
        told: dict[str, Any] = {"raw": base64.b64encode(raw).decode()}
        told |= decoded_message(raw, relation)
        marks: list[Header] = [(headers.FORM, b"skipped")]
        if relation is not None:
            marks.append((headers.SOURCE_TABLE, relation.name.encode()))
        value = orjson.dumps(told)
        return self._letter(None, value, marks, (position, timestamp_ms), SKIPPED)

    def _letter(
        self,
        key: bytes | None,
        value: bytes,
        marks: list[Header],
        place: tuple[bytes, int],
        reason: str,
    ) -> Record:
        self._on_buried(reason)
        position, timestamp_ms = place
        marks = [(headers.POSITION, position), *marks, *_reasons(reason, b"")]
        size = FIXED_BYTES + len(key or b"") + len(value) + _bytes_of(marks)
        return Record(self.topic, key, value, marks, position, timestamp_ms, size)

    def _moved(self, record: Record, reason: str) -> Record:
        more: list[Header] = [
            (headers.FORM, b"record"),
            *_reasons(reason, record.topic.encode()),
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
        key = record.key
        told: dict[str, Any] = {
            "topic": _text(found.get(headers.SOURCE_TOPIC)) or record.topic,
            "position": record.position.decode(),
            "size_bytes": record.size,
            "limit_bytes": limit_bytes,
            "reason": TOO_LARGE,
        }
        if record.topic == self.topic:
            told["first_reason"] = _text(found.get(headers.REASON))
        parking = self._parking_of(record)
        if key is not None and len(key) > MAX_ID_BYTES:
            told["key_sha256"] = hashlib.sha256(key).hexdigest()
            key = parking_id(key) if parking else None
        elif key is not None:
            told["key"] = printable(key)
        marks: list[Header] = [
            (headers.POSITION, record.position),
            (headers.FORM, b"stub"),
            *_reasons(TOO_LARGE, str(told["topic"]).encode()),
        ]
        if parking:
            marks += [(headers.AGGREGATE_TYPE, found[headers.AGGREGATE_TYPE]), *parking]
        value = orjson.dumps(told)
        size = FIXED_BYTES + len(value) + len(key or b"") + _bytes_of(marks)
        return Record(
            self.topic, key, value, marks, record.position, record.timestamp_ms, size
        )

    def _parking_of(self, record: Record) -> list[Header]:
        """Park the aggregate if the record is an event; a READ is not."""
        found = dict(record.headers)
        if headers.PARKED in found:
            return [(headers.PARKED, found[headers.PARKED])]
        if not is_event(record):
            return []
        aggregate_type = found[headers.AGGREGATE_TYPE]
        is_known = isinstance(aggregate_type, bytes)
        aggregate = (aggregate_type if is_known else None, record.key)
        return self._park(aggregate, record.position)[-1:]  # type: ignore[arg-type]

    def _park(self, aggregate: Aggregate, position: bytes) -> list[Header]:
        """Park an aggregate, and return the headers that tell it."""
        aggregate_type, aggregate_id = aggregate
        marks: list[Header] = []
        if aggregate_type is not None:
            marks.append((headers.AGGREGATE_TYPE, aggregate_type))
        if aggregate_id is not None:
            name = None if aggregate_type is None else aggregate_type.decode()
            self._parked.park(name, aggregate_id, position)
            marks.append((headers.PARKED, parking_id(aggregate_id)))
        return marks


def is_event(record: Record) -> bool:
    """Tell whether a record is an event of the stream, not a READ nor a row change."""
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


def _bytes_of(marks: Iterable[Header]) -> int:
    return sum(len(name) + len(value or b"") for name, value in marks)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


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
            message: The registry's reason.
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

    def reads(self, rows: Sequence[ReadRow], place: ReadSlice) -> Sequence[Record]:
        """Return the dead letters of rows that a chunk read."""
        return [self._read(Operation.READ, row, place) for row in rows]

    def absent(self, key: Sequence[bytes], place: ReadSlice) -> Sequence[Record]:
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

    def _read(self, operation: Operation, row: Row, place: ReadSlice) -> Record:
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
            known = {name: _json_text(text) for name, text in texts.items()}
            key = orjson.dumps(known)
        size = record.size + len(key or b"") + self._told_bytes
        return record._replace(key=key, headers=marks, size=size)


def _json_text(text: object) -> str:
    return text.decode() if isinstance(text, bytes) else ""

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
"""

import base64
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import orjson

from towpath.relay.routing.dead_value import decoded, plain, texts
from towpath.relay.routing.parked import MAX_ID_BYTES, Parked, identity
from towpath.relay.routing.record import FIXED_BYTES, Header, Record
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change, Spoken
from towpath.schemas import headers, topics

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
        prefix: Of the topics.
        on_buried: Told each reason, to be counted.
        parked: What is parked; routes ask the same one.
    """

    def __init__(
        self, prefix: str, on_buried: Callable[[str], None], parked: Parked
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
            change: What cannot be routed.
            reason: Why.
            aggregate: Of an outbox row; it is parked.

        Raises:
            ParkedOverflowError: More are parked than the configuration allows.
        """
        position = change.transaction.place + b"%010d" % change.ordinal
        value = orjson.dumps(texts(relation, change.new or change.old or ()))
        marks: list[Header] = [
            (headers.FORM, b"row"),
            (headers.SOURCE_TABLE, relation.name.encode()),
            (headers.OPERATION, change.operation.value.encode()),
        ]
        if change.new is not None and change.old is not None:
            old = orjson.dumps(texts(relation, change.old))
            marks.append((headers.OLD_ROW, old))
        marks += self._park(aggregate, position)
        timestamp_ms = change.transaction.committed_us // 1000
        key = aggregate[1] and identity(aggregate[1])
        return self._letter(key, value, marks, (position, timestamp_ms), reason)

    def of_message(
        self,
        spoken: Spoken,
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
        told = {"prefix": spoken.prefix, "content": plain(spoken.content)}
        marks: list[Header] = [(headers.FORM, b"message")]
        marks += self._park(aggregate, place[0])
        key = aggregate[1] and identity(aggregate[1])
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
            record: What was to be produced.
            limit_bytes: What its topic takes.
            room_bytes: What the topic of dead letters takes.

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
        told |= decoded(raw, relation)
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
            key = identity(key) if parking else None
        elif key is not None:
            told["key"] = plain(key)
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
            marks.append((headers.PARKED, identity(aggregate_id)))
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

"""
Dead letters: records set aside in ``<prefix>.dead.relay``, with reason and origin.

The key and the value are those that the record would have had. Of a row that cannot
be routed the value is the whole row as a JSON object of texts; of a record that is too
large for its topic and for the dead letters too, a stub: topic, position, size,
reason and the key, or the key's hash if that is what is large.
"""

import hashlib
from collections.abc import Callable
from typing import Final

import orjson

from towpath.relay.routing.record import FIXED_BYTES, Header, Record
from towpath.relay.wal.messages import Row
from towpath.relay.wal.relation import Relation
from towpath.relay.wal.sequencer import Change
from towpath.schemas import headers, topics

_PART: Final = "relay"
TOO_LARGE: Final = "the record is larger than its topic takes"

# A stub holds the key as it is up to here; a key this long is already unusual, and
# four of them still fit into the smallest topic limit that anyone sets.
_MAX_STUB_KEY_BYTES: Final = 2048


class DeadLetters:
    """Makes the relay's dead letters."""

    def __init__(self, prefix: str, on_buried: Callable[[str], None]) -> None:
        self.topic = topics.dead_letter_topic(prefix, _PART)
        self._on_buried = on_buried

    def of_row(self, relation: Relation, change: Change, reason: str) -> Record:
        """Return the dead letter of an inserted row that has no place to go."""
        self._on_buried(reason)
        position = change.transaction.place + b"%010d" % change.ordinal
        row = change.new or ()
        value = orjson.dumps(_texts(relation, row))
        marks = [
            (headers.POSITION, position),
            (headers.SOURCE_TOPIC, b""),
            *_reasons(reason),
        ]
        timestamp_ms = change.transaction.committed_us // 1000
        size = len(value) + FIXED_BYTES
        return Record(self.topic, None, value, marks, position, timestamp_ms, size)

    def of_large(self, record: Record, limit_bytes: int, room_bytes: int) -> Record:
        """
        Return the dead letter of a record that is too large.

        Args:
            record: What was to be produced.
            limit_bytes: What its topic takes.
            room_bytes: What the topic of dead letters takes.
        """
        self._on_buried(TOO_LARGE)
        if record.topic == self.topic or record.size + FIXED_BYTES > room_bytes:
            return self._stub(record, limit_bytes)
        origin = (headers.SOURCE_TOPIC, record.topic.encode())
        marks = [*record.headers, origin, *_reasons(TOO_LARGE)]
        size = record.size + FIXED_BYTES
        return record._replace(topic=self.topic, headers=marks, size=size)

    def _stub(self, record: Record, limit_bytes: int) -> Record:
        key = record.key
        stub = {
            "topic": record.topic,
            "position": record.position.decode(),
            "size_bytes": record.size,
            "limit_bytes": limit_bytes,
            "reason": TOO_LARGE,
        }
        if key is not None and len(key) > _MAX_STUB_KEY_BYTES:
            stub["key_sha256"] = hashlib.sha256(key).hexdigest()
            key = None
        elif key is not None:
            stub["key"] = key.decode(errors="replace")
        value = orjson.dumps(stub)
        marks: list[Header] = [
            (headers.POSITION, record.position),
            (headers.SOURCE_TOPIC, record.topic.encode()),
            *_reasons(TOO_LARGE),
        ]
        size = len(value) + len(key or b"") + FIXED_BYTES
        return Record(
            self.topic, key, value, marks, record.position, record.timestamp_ms, size
        )


def _reasons(reason: str) -> tuple[Header, ...]:
    text = reason.encode()
    return (headers.REASON, text), (headers.CONNECT_ERROR_MESSAGE, text)


def _texts(relation: Relation, row: Row) -> dict[str, str | None]:
    return {
        column.name: value.decode() if isinstance(value, bytes) else None
        for column, value in zip(relation.columns, row, strict=True)
    }

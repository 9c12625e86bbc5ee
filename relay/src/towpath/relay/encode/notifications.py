"""
Notifications about snapshots and captured tables, in Debezium's format.

When a captured table is dropped, renamed or recreated, or its key changes, the slot
monitor writes a logical message, which follows every change to that table in the log.
The relay publishes a notification (``aggregate_type`` ``Table``) and, if the message
demands them, records that empty the topic: Debezium's truncate (``t``) in each
partition, with the header ``sweep`` at its own position and the header ``dropped`` with
the table's oid. Before a snapshot that ends with a sweep, these records have no header
``sweep``: readers that ignore sweeps empty their table, and Towpath's sinks keep
serving until the sweep.

Formats other than JSON have no schema for a dropped table: there the record has no
value, only headers. A compacted topic needs a key and a value: both are plain JSON.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

from towpath.relay.encode.codecs.codec import EnvelopeFacts, TableNames
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.record import FIXED_BYTES, Header, Record
from towpath.relay.encode.router import Router
from towpath.relay.wal.transactions import LogicalMessageEvent, Transaction
from towpath.schemas import headers, topics
from towpath.schemas.envelope import STREAMED
from towpath.schemas.table_name import TableName
from towpath.settings.rows import RecordFormat


def notification(
    prefix: str,
    snapshot_id: str,
    kind: str,
    additional_data: Mapping[str, str],
    now_ms: int,
    aggregate_type: str = "Incremental Snapshot",
) -> Record:
    """Return the record of one notification."""
    value = orjson.dumps(
        {
            "id": snapshot_id,
            "aggregate_type": aggregate_type,
            "type": kind,
            "additional_data": {"connector_name": prefix, **additional_data},
            "timestamp": now_ms,
        }
    )
    key = snapshot_id.encode()
    size = len(value) + len(key) + FIXED_BYTES
    topic = topics.notifications_topic(prefix)
    return Record(topic, key, value, [], b"", now_ms, size)


TABLE_EVENT_PREFIX: Final = "towpath.table"


class TableEvent(NamedTuple):
    """
    An event of a captured table, from its logical message.

    ``empties``: the topic is to be emptied. ``is_swept``: a snapshot with a sweep
    follows. ``more``: further members of the notification.
    """

    relay: str
    event: str
    schema: str
    table: str
    oid: int
    renamed_to: str | None
    on_drop: str
    empties: bool
    is_swept: bool
    more: Mapping[str, str] | None = None

    @property
    def full_name(self) -> TableName:
        """Schema and table."""
        return TableName(self.schema, self.table)


def parse_table_event(message: LogicalMessageEvent) -> TableEvent | None:
    """Return the event of a message; None if another program wrote it."""
    try:
        # Earlier releases did not write ``more``.
        document: dict[str, Any] = {"more": None} | orjson.loads(message.content)
        event = TableEvent(**{name: document[name] for name in TableEvent._fields})
    except (ValueError, KeyError, TypeError):
        return None
    return event if _has_types(event) else None


_TYPES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("relay", "event", "schema", "table", "on_drop"), str),
        "renamed_to": str | None,
        "oid": int,
        "empties": bool,
        "is_swept": bool,
        "more": dict | None,
    }
)


def _has_types(event: TableEvent) -> bool:
    """Return whether the members have the right types: any role may write a message."""
    given: Mapping[str, object] = event._asdict()
    return all(isinstance(given[name], kind) for name, kind in _TYPES.items())


def table_notification(prefix: str, event: TableEvent, now_ms: int) -> Record:
    """Return the notification of an event."""
    more = {
        "oid": str(event.oid),
        "on_drop": event.on_drop,
        "rows": "removed" if event.empties else "kept",
        **(event.more or {}),
    }
    if event.renamed_to is not None:
        more["renamed_to"] = event.renamed_to
    name = event.full_name.text
    return notification(prefix, name, event.event, more, now_ms, "Table")


def emptying_records(
    event: TableEvent,
    router: Router,
    transaction: Transaction,
    ordinal: int,
    topic: tuple[int, bool],
    now_us: int,
) -> list[Record]:
    """
    Return records that empty a topic, one per partition.

    If a sweep follows, they exist only in plain JSON, for readers that ignore sweeps.

    Args:
        event: Names the table.
        router: Provides prefix, database and the format of records.
        transaction: The event's transaction.
        ordinal: The event's ordinal in it.
        topic: The partition count, and whether the topic is compacted.
        now_us: When the relay read the event.
    """
    partitions, is_compacted = topic
    place, relay = router.place, router.relay
    if not event.empties and relay.rows.format is not RecordFormat.JSON:
        return []
    name = topics.table_topic(place.prefix, event.full_name)
    position = transaction.place + b"%010d" % ordinal
    value = None
    if is_compacted or relay.rows.format is RecordFormat.JSON:
        names = TableNames(*place, event.schema, event.table, name)
        value = json_maker(relay)(names, (), ()).value(
            None, None, _facts(transaction, now_us), is_full=False
        )
    return [
        Record(
            topic=name,
            key=orjson.dumps({"sweep": partition}) if is_compacted else None,
            value=value,
            headers=_headers(event, position, partitions),
            position=position,
            timestamp_ms=transaction.committed_us // 1000,
            size=FIXED_BYTES + len(value or b""),
            partition=partition,
        )
        for partition in range(partitions)
    ]


def _headers(event: TableEvent, position: bytes, partitions: int) -> list[Header]:
    """Return the position, the oid and, unless a sweep follows, the floor for sinks."""
    own: list[Header] = [
        (headers.POSITION, position),
        (headers.DROPPED, b"%d" % event.oid),
    ]
    if event.empties:
        own += [
            (headers.SWEEP, position),
            (headers.SWEEP_PARTITIONS, b"%d" % partitions),
        ]
    return own


def _facts(transaction: Transaction, now_us: int) -> EnvelopeFacts:
    return EnvelopeFacts(
        b"t",
        transaction.committed_us,
        now_us,
        STREAMED.encode(),
        transaction.xid,
        transaction.commit_lsn,
        transaction.commit_lsn,
        transaction.origin,
        transaction.origin_lsn,
        None,
    )

"""
What became of a captured table, from the log to notifications and the table's topic.

The guardian writes a logical message when a captured table was dropped, renamed or made
again, or when its key changed. It stands in the log behind every change of that table.
The relay publishes a notification (``aggregate_type`` ``Table``) and, if the message
says so, records that empty the topic: Debezium's ``t`` in each partition, with the
header ``sweep`` at its own position and the header ``dropped`` with the table's oid.
Before a fill that ends with a sweep the record lacks the header ``sweep``: readers that
know no sweeps empty their table, ours keep serving until the sweep.

Formats other than JSON have no schema for a table that is gone: there the record has no
value, and its headers tell all. A compacted topic takes no record without a key, and
would forget one without a value: there it has both.

Notifications of snapshots, in Debezium's shape.
"""

from collections.abc import Mapping
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
    One event, as the log holds it.

    ``empties`` asks for an empty topic; ``is_swept``: a snapshot with a sweep follows.
    ``more``: what else the notification says.
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


def parse_table_event(spoken: LogicalMessageEvent) -> TableEvent | None:
    """Return the event of a message; None if another program wrote it."""
    try:
        # Older releases write no ``more``.
        told: dict[str, Any] = {"more": None} | orjson.loads(spoken.content)
        event = TableEvent(**{name: told[name] for name in TableEvent._fields})
    except (ValueError, KeyError, TypeError):
        return None
    return event


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
    Return the records that say that all rows of a topic are gone, one per partition.

    Before a sweep there are some only if readers that know no sweeps understand them.

    Args:
        event: Names the table.
        router: Knows prefix, database and the format of records.
        transaction: The transaction that the event stands in.
        ordinal: Its place there.
        topic: How many partitions the topic has, and whether it is compacted.
        now_us: When the relay read it.
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
    """Return position and oid; the floor for sinks, unless a sweep follows."""
    made: list[Header] = [
        (headers.POSITION, position),
        (headers.DROPPED, b"%d" % event.oid),
    ]
    if event.empties:
        made += [
            (headers.SWEEP, position),
            (headers.SWEEP_PARTITIONS, b"%d" % partitions),
        ]
    return made


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

"""Notifications of snapshots, in Debezium's shape."""

from collections.abc import Mapping

import orjson

from towpath.relay.routing.record import FIXED_BYTES, Record
from towpath.schemas import topics


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

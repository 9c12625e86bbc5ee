"""
A gap, told to those who read Kafka, and what fills it.

The notification has Debezium's shape; its data carries the very statement that asks
for the snapshots of the plan.
"""

import orjson

from towpath.relay.addressing import Registration
from towpath.relay.lineage import Gap, Lineage
from towpath.relay.routing.record import FIXED_BYTES, Record
from towpath.schemas import topics
from towpath.schemas.position import format_lsn


def signal_id(lineage: Lineage, relay: Registration) -> str:
    """Return the id of the signal that fills a lineage's gap: always the same."""
    return f"gap-{lineage.number}{relay.suffix}"


def signal_data(gap: Gap, relay: Registration) -> str:
    """Return the data of that signal: with a sweep, for rows deleted in the gap."""
    wishes = {
        "data-collections": list(gap.plan),
        "type": "incremental",
        "sweep": True,
        "relay": relay.name,
    }
    return orjson.dumps(wishes).decode()


def fill_statement(lineage: Lineage, gap: Gap, relay: Registration) -> str:
    """Return the statement that fills a gap; empty if there is nothing to snapshot."""
    if not gap.plan:
        return ""
    data = signal_data(gap, relay).replace("'", "''")
    # Printed for people; the relay itself passes the data as a parameter.
    return (
        "insert into towpath.signal (id, type, data) values "  # noqa: S608 - see above
        f"('{signal_id(lineage, relay)}', 'execute-snapshot', '{data}');"
    )


def gap_record(
    prefix: str, lineage: Lineage, gap: Gap, relay: Registration, now_ms: int
) -> Record:
    """Return the notification of a gap."""
    key = signal_id(lineage, relay).encode()
    value = orjson.dumps(
        {
            "id": signal_id(lineage, relay),
            "aggregate_type": "Lineage",
            "type": "GAP",
            "additional_data": {
                "connector_name": prefix,
                "lineage": str(lineage.number),
                "reason": gap.reason,
                "since_lsn": format_lsn(gap.since_lsn),
                "data_collections": ", ".join(gap.plan),
                "fill": fill_statement(lineage, gap, relay),
            },
            "timestamp": now_ms,
        }
    )
    size = len(value) + len(key) + FIXED_BYTES
    topic = topics.notifications_topic(prefix)
    return Record(topic, key, value, [], b"", now_ms, size)

"""
A gap, told to those who read Kafka, and what fills it.

The notification has Debezium's shape; its data carries the very statement that asks
for the snapshots of the plan.
"""

from collections.abc import Sequence

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
    return sweep_data(gap.plan, relay)


def sweep_data(collections: Sequence[str], relay: Registration) -> str:
    """Return the data of a signal that reads tables with a sweep."""
    wishes = {
        "data-collections": list(collections),
        "type": "incremental",
        "sweep": True,
        "relay": relay.name,
    }
    return orjson.dumps(wishes).decode()


def fill_statement(lineage: Lineage, gap: Gap, relay: Registration) -> str:
    """Return the statement that fills a gap; empty if there is nothing to snapshot."""
    if not gap.plan:
        return ""
    return signal_statement(signal_id(lineage, relay), signal_data(gap, relay))


def signal_statement(name: str, data: str) -> str:
    """Return the statement that leaves a signal; it is printed for people."""
    data = data.replace("'", "''")
    # The relay itself passes the data as a parameter.
    return (
        "insert into towpath.signal (id, type, data) values "  # noqa: S608 - see above
        f"('{name}', 'execute-snapshot', '{data}');"
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

"""
Topic names: ``<prefix>.<schema>.<table>`` for row changes, and all others.

Kafka allows letters, digits, dot, underscore and dash, at most 249 characters; every
other character of a schema or table name becomes an underscore.
"""

import re
from typing import Final

from towpath.schemas.table_name import TableName

MAX_TOPIC_LENGTH: Final = 249
# The largest record that Kafka's client accepts, regardless of its settings.
LARGEST_RECORD_BYTES: Final = 1_000_000_000
BACKFILL: Final = ".backfill."
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+\Z")
_ILLEGAL_CHARACTER: Final = re.compile(r"[^A-Za-z0-9._-]")


def is_legal_topic(name: str) -> bool:
    """Return whether Kafka accepts the name."""
    return (
        0 < len(name) <= MAX_TOPIC_LENGTH
        and name not in {".", ".."}
        and _LEGAL.match(name) is not None
    )


def table_topic(prefix: str, table: TableName) -> str:
    """Name the topic of a table's row changes."""
    return _ILLEGAL_CHARACTER.sub("_", f"{prefix}.{table.joined}")


def table_of(prefix: str, topic: str) -> str | None:
    """
    Return the table whose row changes a topic may carry; None for any other topic.

    Characters that became underscores in the topic cannot be recovered.
    """
    schema, dot, table = topic.removeprefix(f"{prefix}.").partition(".")
    is_table = topic.startswith(f"{prefix}.") and dot and table and "." not in table
    return TableName(schema, table).text if is_table and schema != "dead" else None


def outbox_topic(template: str, aggregate_type: str) -> str:
    """Name the topic of an aggregate's events; the caller checks that it is legal."""
    return template.replace("{aggregate_type}", aggregate_type)


def backfill_topic(topic: str, sink: str) -> str:
    """Name the topic of READ rows for one sink only."""
    return f"{topic}{BACKFILL}{sink}"


def is_backfill(topic: str) -> bool:
    """Return whether a topic is for one sink only."""
    return BACKFILL in topic


def relations_topic(prefix: str) -> str:
    """Name the compacted topic of table shapes."""
    return f"{prefix}.relations"


def state_topic(prefix: str) -> str:
    """Name the compacted topic of the relay's lineages and marks."""
    return f"{prefix}.relay-state"


def notifications_topic(prefix: str) -> str:
    """Name the topic of notifications about snapshots and captured tables."""
    return f"{prefix}.notifications"


def heartbeat_topic(prefix: str) -> str:
    """Name the compacted topic of heartbeats."""
    return f"__debezium-heartbeat.{prefix}"


def transaction_topic(prefix: str) -> str:
    """Name the topic of transaction boundaries."""
    return f"{prefix}.transaction"


def message_topic(prefix: str) -> str:
    """Name the topic of logical messages."""
    return f"{prefix}.message"


def dead_letter_topic(prefix: str, part: str) -> str:
    """Name the dead-letter topic of the relay (``relay``) or of a sink (its name)."""
    return f"{prefix}.dead.{part}"


def sink_state_topic(prefix: str, sink: str) -> str:
    """Name the topic with the copies of a sink's state."""
    return f"{prefix}-sink-{sink}"


def progress_topic(prefix: str) -> str:
    """Name the compacted topic in which drivers publish the progress of their sinks."""
    return f"{prefix}.progress"


def signal_topic(prefix: str) -> str:
    """Name the topic for signals."""
    return f"{prefix}-signal"

"""
Names of record headers on the wire, and the trace context in one of them.

A trace context is the text of W3C's header ``traceparent``. It passes from a request to
the row of an outbox, to the header of a record, and to the consumers of the record.
Spans are recorded only for sampled contexts; the first part of a trace decides whether
its context is sampled.
"""

import re
from collections.abc import Container
from typing import Final

POSITION: Final = "position"
UNCHANGED: Final = "unchanged"
SNAPSHOT: Final = "snapshot"
# On a sweep: the floor. The source no longer has the topic's rows below it.
SWEEP: Final = "sweep"
# The number of partitions to which the sweep was written; the topic may have more now.
SWEEP_PARTITIONS: Final = "sweep_partitions"
# The oid of the dropped table whose rows the sweep removes.
DROPPED: Final = "dropped"
# The reason why a row read for one sink, or its delete, cannot be delivered; the
# record has no row.
UNDELIVERED: Final = "undelivered"
# Marks an empty record: once all replicas have it, all records before it can be read.
BARRIER: Final = "towpath-barrier"
# On a barrier: the partition count by which later records of a topic are partitioned.
PARTITION_COUNT: Final = "towpath-partition-count"
NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"

EVENT_ID: Final = "id"
EVENT_TYPE: Final = "type"
AGGREGATE_TYPE: Final = "aggregate_type"
EVENT_SCHEMA: Final = "schema"
OCCURRED_AT: Final = "occurred_at"
TRACEPARENT: Final = "traceparent"
SCHEMA_VERSION: Final = "schema_version"

# CloudEvents in Kafka, binary mode: the attributes of an event are headers.
CE_SPECVERSION: Final = "ce_specversion"
CE_ID: Final = "ce_id"
CE_SOURCE: Final = "ce_source"
CE_TYPE: Final = "ce_type"
CE_SUBJECT: Final = "ce_subject"
CE_TIME: Final = "ce_time"
CE_DATASCHEMA: Final = "ce_dataschema"
CONTENT_TYPE: Final = "content-type"

# Headers of dead letters: our own, and Kafka Connect's for tools that read them.
REASON: Final = "reason"
FORM: Final = "form"
SOURCE_TABLE: Final = "table"
OPERATION: Final = "op"
OLD_ROW: Final = "old"
# The aggregate whose later events are parked, and the position of their release.
PARKED: Final = "parked"
RELEASED: Final = "released"
ROUTE: Final = "route"
# On records of a sink's dead-letter topic that are not dead letters: their kind.
DEAD_LETTERS: Final = "towpath-dead-letters"
SOURCE_TOPIC: Final = "topic"
SOURCE_PARTITION: Final = "partition"
SOURCE_OFFSET: Final = "offset"
CONNECT_ERROR_TOPIC: Final = "__connect.errors.topic"
CONNECT_ERROR_PARTITION: Final = "__connect.errors.partition"
CONNECT_ERROR_OFFSET: Final = "__connect.errors.offset"
CONNECT_ERROR_MESSAGE: Final = "__connect.errors.exception.message"


def is_command(headers: Container[str]) -> bool:
    """
    Return whether a record with a command's header, such as ``sweep``, is a command.

    An event's writer may set a header of the same name, but every event has an id.
    """
    return EVENT_ID not in headers


_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
    r"-[0-9a-f]{2}(?P<rest>-.*)?\Z"
)
_SAMPLED: Final = 1


def valid_traceparent(header: str | None) -> str | None:
    """Return the header's trace context, or None if there is no valid one."""
    match = _TRACEPARENT.match(header.strip()) if header else None
    if match is None or match["version"] == "ff":
        return None
    if match["rest"] is not None and match["version"] == "00":
        return None
    if set(match["trace"]) == {"0"} or set(match["parent"]) == {"0"}:
        return None
    return match[0].removesuffix(match["rest"] or "")


def trace_id_of(traceparent: str) -> str:
    """Return the trace id of a valid trace context."""
    return traceparent.split("-")[1]


def is_sampled(traceparent: str) -> bool:
    """Return whether spans of a valid trace context are recorded."""
    return bool(int(traceparent.split("-")[3], 16) & _SAMPLED)


def trace_id_in(header: bytes | None) -> str | None:
    """Return the trace id in a record's header, if its context is valid."""
    found = valid_traceparent(header.decode("latin-1") if header else None)
    return None if found is None else trace_id_of(found)


def sampled_traceparent(header: bytes | None) -> str | None:
    """Return the trace context of a record's header, if it is valid and sampled."""
    found = valid_traceparent(header.decode("latin-1") if header else None)
    return found if found is not None and is_sampled(found) else None

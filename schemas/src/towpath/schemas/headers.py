"""Names of record headers, as they stand on the wire."""

from typing import Final

POSITION: Final = "position"
UNCHANGED: Final = "unchanged"
SNAPSHOT: Final = "snapshot"
# A record that gives the floor below which every row of its topic is gone.
SWEEP: Final = "sweep"
# Into how many partitions the sweep was written: there may be more by now.
SWEEP_PARTITIONS: Final = "sweep_partitions"
# The oid of the dropped table whose rows the sweep removes.
DROPPED: Final = "dropped"
# Why a row that was read for one sink cannot be delivered: the record has no row.
UNDELIVERED: Final = "undelivered"
# A record that says nothing: what stands before it on a replicated topic can be read.
BARRIER: Final = "towpath-barrier"
# Of a barrier behind which a topic's records are placed by another partition count.
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

# CloudEvents in Kafka, binary mode: what names the event stands in headers.
CE_SPECVERSION: Final = "ce_specversion"
CE_ID: Final = "ce_id"
CE_SOURCE: Final = "ce_source"
CE_TYPE: Final = "ce_type"
CE_SUBJECT: Final = "ce_subject"
CE_TIME: Final = "ce_time"
CE_DATASCHEMA: Final = "ce_dataschema"
CONTENT_TYPE: Final = "content-type"

# Dead letters: ours, and Kafka Connect's beside them, for tools that know those.
REASON: Final = "reason"
FORM: Final = "form"
SOURCE_TABLE: Final = "table"
OPERATION: Final = "op"
OLD_ROW: Final = "old"
# The aggregate whose later events wait behind this one; up to where they are let go.
PARKED: Final = "parked"
RELEASED: Final = "released"
ROUTE: Final = "route"
# What a record of a sink's dead-letter topic is, if it is not a letter.
DEAD_LETTERS: Final = "towpath-dead-letters"
SOURCE_TOPIC: Final = "topic"
SOURCE_PARTITION: Final = "partition"
SOURCE_OFFSET: Final = "offset"
CONNECT_ERROR_TOPIC: Final = "__connect.errors.topic"
CONNECT_ERROR_PARTITION: Final = "__connect.errors.partition"
CONNECT_ERROR_OFFSET: Final = "__connect.errors.offset"
CONNECT_ERROR_MESSAGE: Final = "__connect.errors.exception.message"

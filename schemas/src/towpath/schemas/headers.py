"""Names of record headers, as they stand on the wire."""

from typing import Final

POSITION: Final = "position"
UNCHANGED: Final = "unchanged"
SNAPSHOT: Final = "snapshot"
NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"

EVENT_ID: Final = "id"
EVENT_TYPE: Final = "type"
AGGREGATE_TYPE: Final = "aggregate_type"
EVENT_SCHEMA: Final = "schema"
OCCURRED_AT: Final = "occurred_at"
TRACEPARENT: Final = "traceparent"

# Dead letters: ours, and Kafka Connect's beside them, for tools that know those.
REASON: Final = "reason"
SOURCE_TOPIC: Final = "topic"
SOURCE_PARTITION: Final = "partition"
SOURCE_OFFSET: Final = "offset"
CONNECT_ERROR_TOPIC: Final = "__connect.errors.topic"
CONNECT_ERROR_PARTITION: Final = "__connect.errors.partition"
CONNECT_ERROR_OFFSET: Final = "__connect.errors.offset"
CONNECT_ERROR_MESSAGE: Final = "__connect.errors.exception.message"

"""
The registry of metrics: the name, kind, labels and meaning of each one.

Every part creates its metrics from these entries, and ``docs/metrics.md`` lists them. A
name is ``towpath_<part>_<quantity>_<unit>``; counters end in ``_total``, and a count of
things (records, rows, keys) has no unit. Labels are bounded by the configuration or the
code: keys and offsets are never labels.
"""

from collections.abc import Iterator
from typing import Final, Literal, Self

MetricKind = Literal["counter", "gauge", "histogram", "info"]


class Metric(str):
    """
    A metric's published name, with the other facts of its entry.

    Attributes:
        kind: Its kind, in Prometheus's words.
        labels: The names of its labels, in order.
        meaning: The quantity that it shows, as a phrase.
    """

    __slots__ = ("kind", "labels", "meaning")

    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str

    def __new__(cls, name: str, kind: MetricKind, meaning: str, *labels: str) -> Self:
        """Describe a metric."""
        metric = super().__new__(cls, name)
        metric.kind = kind
        metric.labels = labels
        metric.meaning = meaning
        return metric

    @property
    def help(self) -> str:
        """The meaning as a sentence, for the page that Prometheus reads."""
        return f"{self.meaning[0].upper()}{self.meaning[1:]}."


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "counter", meaning, *labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "gauge", meaning, *labels)


def _histogram(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "histogram", meaning, *labels)


def published() -> Iterator[Metric]:
    """Iterate over all metrics, in the order of this file."""
    return (value for value in globals().values() if isinstance(value, Metric))


BUILD_INFO: Final = Metric(
    "towpath_build_info",
    "info",
    "version of the package, and of Python",
    "version",
    "python",
)

RELAY_STREAMING: Final = _gauge(
    "towpath_relay_streaming", "1 while the slot's stream is open"
)
RELAY_TRANSACTIONS: Final = _counter(
    "towpath_relay_transactions_total", "transactions read"
)
RELAY_CHANGES: Final = _counter(
    "towpath_relay_changes_total",
    "row changes, truncates and logical messages read, published or not",
)
RELAY_RECORDS: Final = _counter(
    "towpath_relay_records_total", "records handed to Kafka"
)
RELAY_DUPLICATES: Final = _counter(
    "towpath_relay_skipped_duplicates_total",
    "records not published again after a restart, because Kafka had them",
)
RELAY_MARKS: Final = _counter(
    "towpath_relay_marks_total", "marks published to the state topic"
)
RELAY_DEAD_LETTERS: Final = _counter(
    "towpath_relay_dead_letters_total",
    "dead letters in `<prefix>.dead.relay`",
    "reason",
)
RELAY_SKIPPED: Final = _counter(
    "towpath_relay_skipped_changes_total", "changes without a record", "reason"
)
RELAY_ALTERED: Final = _counter(
    "towpath_relay_altered_values_total",
    "values that their type in records cannot express, written as null or omitted",
    "reason",
)
RELAY_PARKED_KEYS: Final = _gauge(
    "towpath_relay_parked_keys",
    "aggregates whose events are parked behind a dead letter",
)
RELAY_IN_FLIGHT_BYTES: Final = _gauge(
    "towpath_relay_in_flight_bytes", "bytes handed to Kafka and not acknowledged"
)
RELAY_IN_FLIGHT_LIMIT: Final = _gauge(
    "towpath_relay_in_flight_limit_bytes", "bytes in flight at which reading stops"
)
RELAY_CONFIRMED_LSN: Final = _gauge(
    "towpath_relay_confirmed_lsn_bytes",
    "the LSN below which the server may drop its log",
)
RELAY_RECEIVED_LSN: Final = _gauge(
    "towpath_relay_received_lsn_bytes", "the LSN up to which the log was read"
)
RELAY_LAST_COMMIT: Final = _gauge(
    "towpath_relay_last_commit_timestamp_seconds",
    "commit time of the last transaction read, by the source's clock",
)
RELAY_LAST_READ: Final = _gauge(
    "towpath_relay_last_read_timestamp_seconds",
    "when the last transaction was read, by the clock of the relay's host",
)
RELAY_LAST_TRANSACTION: Final = _gauge(
    "towpath_relay_last_transaction_xid", "id of the last transaction read (32 bits)"
)
RELAY_BEHIND: Final = _gauge(
    "towpath_relay_behind_source_seconds",
    "from the commit of the last transaction read until it was read",
)
RELAY_CLOCK_AHEAD: Final = _gauge(
    "towpath_relay_clock_ahead_seconds",
    "how far the relay's clock is ahead of the source's",
)
RELAY_LATENCY: Final = _histogram(
    "towpath_relay_commit_to_acknowledged_seconds",
    "from a commit to the acknowledgement of its last record; transactions that"
    " are found acknowledged together all count with the age of the oldest",
)
RELAY_HEARTBEATS: Final = _gauge(
    "towpath_relay_heartbeat_counter",
    "counter of the last heartbeat of this process that came back through the log",
)
RELAY_HEARTBEAT_AGE: Final = _gauge(
    "towpath_relay_heartbeat_age_seconds",
    "time since the last heartbeat of this process came back",
)
RELAY_TABLE: Final = _gauge(
    "towpath_relay_captured_table_info", "1 for each captured table", "table"
)
RELAY_SOURCE_PROBLEMS: Final = _gauge(
    "towpath_relay_source_problems",
    "problems with the publications and the outbox: a signal table that is not"
    " published, a missing column that events need, a slot older than a publication",
)
RELAY_DROPPED_TABLE: Final = _gauge(
    "towpath_relay_dropped_table_info",
    "1 for each captured name whose table was dropped or renamed; topic and sinks"
    " keep its rows (`on_drop`)",
    "table",
)

SLOT_RETAINED: Final = _gauge(
    "towpath_relay_slot_retained_bytes", "log that the server retains for the slot"
)
SLOT_LAG: Final = _gauge(
    "towpath_relay_slot_lag_bytes", "log between the confirmed LSN and the server's end"
)
SLOT_SAFE: Final = _gauge(
    "towpath_relay_slot_safe_wal_bytes",
    "log that may be written until the slot is lost; absent without"
    " `max_slot_wal_keep_size`",
)
SLOT_STATUS: Final = _gauge(
    "towpath_relay_slot_wal_status",
    "1 for the current status, 0 for the others: `reserved`, `extended`,"
    " `unreserved`, `lost`",
    "status",
)
SLOT_ACTIVE: Final = _gauge(
    "towpath_relay_slot_active", "1 while a process is consuming the slot"
)
SLOT_INACTIVE: Final = _gauge(
    "towpath_relay_slot_inactive_seconds",
    "for how long no process has followed the slot; absent while one does",
)
SOURCE_ARCHIVE_FAILING: Final = _gauge(
    "towpath_relay_source_archive_failing",
    "1 while the source's server cannot archive its log, which it then keeps",
)

SNAPSHOT_ROWS: Final = _counter("towpath_snapshot_rows_total", "rows published")
SNAPSHOT_DROPPED_ROWS: Final = _counter(
    "towpath_snapshot_dropped_rows_total",
    "rows dropped because the stream has a newer change",
)
SNAPSHOT_TABLES: Final = _gauge(
    "towpath_snapshot_tables",
    "tables of this process's snapshots: `waiting`, `running`, `paused`,"
    " `completed`, `incomplete`, `failed`, `stopped`",
    "state",
)
SNAPSHOT_TABLE_ROWS: Final = _gauge(
    "towpath_snapshot_table_rows",
    "rows that the last snapshot of a table has sent",
    "table",
)
SNAPSHOT_YIELDING: Final = _gauge(
    "towpath_snapshot_yielding",
    "1 while nothing is read because of `max_lag_s` or `max_active_sessions`; the"
    " log reports which",
)
SNAPSHOT_DURATION: Final = _gauge(
    "towpath_snapshot_duration_seconds",
    "time since the start of the oldest running table of a snapshot; absent while"
    " none is running",
)

SINK_STATE: Final = _gauge(
    "towpath_sink_state",
    "1 for the current state, 0 for the others: `starting`, `running`, `ready`,"
    " `failed`",
    "sink",
    "state",
)
SINK_LAG_SECONDS: Final = _gauge(
    "towpath_sink_lag_seconds",
    "age of the oldest record that is not applied yet, by the commit's time; 0"
    " if there is none",
    "sink",
)
SINK_LAG_RECORDS: Final = _gauge(
    "towpath_sink_lag_records", "records that are not applied yet", "sink"
)
SINK_LAG_ALARM: Final = _gauge(
    "towpath_sink_lag_alarm",
    "1 from when the lag exceeds twice the budget until it is within the budget"
    " again; the log reports both moments",
    "sink",
)
SINK_BUDGET: Final = _gauge(
    "towpath_sink_budget_seconds",
    "the accepted lag: `budget_s`, or the default of the kind",
    "sink",
)
SINK_APPLIED_LSN: Final = _gauge(
    "towpath_sink_applied_lsn_bytes",
    "commit LSN of the highest change applied, with its lineage's offset",
    "sink",
)
SINK_BATCHES: Final = _counter("towpath_sink_batches_total", "batches written", "sink")
SINK_RECORDS: Final = _counter("towpath_sink_records_total", "records read", "sink")
SINK_ROWS: Final = _counter(
    "towpath_sink_rows_total", "changes and events written", "sink"
)
SINK_STALE: Final = _counter(
    "towpath_sink_stale_total",
    "changes and events that the target already had, or had in a newer version",
    "sink",
)
SINK_TOMBSTONES: Final = _counter(
    "towpath_sink_tombstones_total", "deletes among the changes", "sink"
)
SINK_DEAD_LETTERS: Final = _counter(
    "towpath_sink_dead_letters_total", "records that became dead letters", "sink"
)
SINK_PARKED_KEYS: Final = _gauge(
    "towpath_sink_parked_keys",
    "keys whose changes are parked behind a dead letter",
    "sink",
)
SINK_SKIPPED: Final = _counter(
    "towpath_sink_skipped_total",
    "records that the sink ignores: events without their aggregate's state,"
    " truncations that a route does not apply",
    "sink",
)
SINK_LEFT: Final = _counter(
    "towpath_sink_left_total",
    "records of large batches that the driver wrote after the slices: those of"
    " parked keys, pending refetches, dead letters and floors",
    "sink",
)
SINK_REFETCHED: Final = _counter(
    "towpath_sink_asked_total",
    "rows that were refetched, because a partial change could not be applied",
    "sink",
)
SINK_PENDING_REFETCHES: Final = _gauge(
    "towpath_sink_pending_refetches",
    "rows with a pending refetch: until it ends, the row is absent from the"
    " target, or older than its position",
    "sink",
)
SINK_NULLED: Final = _counter(
    "towpath_sink_nulled_total",
    "values that a warehouse's type cannot hold and that became null (`unfit`)",
    "sink",
)
SINK_RETRIES: Final = _counter(
    "towpath_sink_retries_total",
    "failures after which a batch or the query was retried",
    "sink",
)
SINK_UNPUBLISHED: Final = _counter(
    "towpath_sink_unpublished_total",
    "records of the sink's progress that could not be published; the sink continues,"
    " but its progress is not visible to others",
    "sink",
)
SINK_STATE_FREE: Final = _gauge(
    "towpath_sink_state_free_bytes",
    "bytes that may still be written to the file system with the sink's state folder,"
    " which holds its progress and the engine's checkpoint",
    "sink",
)
SINK_PUBLISHED_AT: Final = _gauge(
    "towpath_sink_published_timestamp_seconds",
    "when the newest record of the sink's progress in Kafka was written, by its"
    " driver's clock; for every sink that has such a record, whichever driver runs it",
    "sink",
)
SINK_VERIFY_DIFFERENCES: Final = _gauge(
    "towpath_sink_verify_differences",
    "keys that differed from the source in the last verification with a result",
    "sink",
)
SINK_VERIFIED_AT: Final = _gauge(
    "towpath_sink_verified_timestamp_seconds",
    "when the last verification with a result ended, by the clock of its machine",
    "sink",
)
SINK_LATENCY: Final = _histogram(
    "towpath_sink_commit_to_applied_seconds",
    "from the commit of a batch's oldest record, by the source's clock, until the batch"
    " was durable in the target; batches that the engine's executors read do not count",
    "sink",
)
SINK_BATCH_SECONDS: Final = _histogram(
    "towpath_sink_batch_seconds",
    "duration of each stage of a batch: `decode`, `apply`, `flush`, and the whole"
    " `batch`",
    "sink",
    "stage",
)
SINK_ENGINE_SECONDS: Final = _histogram(
    "towpath_sink_engine_seconds",
    "duration of the engine's own steps of a trigger with records:"
    " `latestOffset`, `walCommit`, `addBatch`, `commitOffsets`, ...",
    "sink",
    "stage",
)

INBOX_APPLIED: Final = _counter(
    "towpath_inbox_applied_total",
    "events whose effect was committed, replays included",
    "consumer",
    "topic",
)
INBOX_DUPLICATES: Final = _counter(
    "towpath_inbox_skipped_duplicates_total",
    "deliveries of events that were handled before",
    "consumer",
    "topic",
)
INBOX_RETRIES: Final = _counter(
    "towpath_inbox_retries_total",
    "failures after which an event is retried, including those of the database, and"
    " failed replays",
    "consumer",
    "topic",
)
INBOX_PARKED: Final = _counter(
    "towpath_inbox_parked_total",
    "events that were parked, after their own failure or behind another event",
    "consumer",
    "topic",
)
INBOX_PARKED_EVENTS: Final = _gauge(
    "towpath_inbox_parked_events",
    "events of the consumer that are parked now, whichever process parked them",
    "consumer",
)
INBOX_LAG: Final = _gauge(
    "towpath_inbox_lag_records",
    "records of a partition of this process that are not handled yet; absent"
    " until the first one is read",
    "consumer",
    "topic",
    "partition",
)
INBOX_HANDLER_SECONDS: Final = _histogram(
    "towpath_inbox_handler_seconds",
    "duration of a call of the handler, whether it returned or failed",
    "consumer",
    "topic",
)

SERVICE_REQUEST_SECONDS: Final = _histogram(
    "towpath_service_request_seconds",
    "duration of an HTTP request by its route's template, except requests for"
    " health checks and metrics; a request that matches no route has `unmatched`",
    "method",
    "route",
    "status",
)
SERVICE_OUTBOX_ROWS: Final = _counter(
    "towpath_service_outbox_rows_total",
    "rows of the outbox in committed transactions, by the type of the event",
    "event",
)
SERVICE_SAGAS: Final = _gauge(
    "towpath_service_sagas",
    "orders whose saga has not ended, by their status; renewed every 15 seconds",
    "status",
)

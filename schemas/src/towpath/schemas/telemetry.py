"""
The published names of metrics and log fields, with their units.

Metrics are ``towpath_<part>_<what>_<unit>``; counters end in ``_total``. No keys and
no offsets ever become labels.
"""

from typing import Final

BUILD_INFO: Final = "towpath_build_info"

RELAY_STREAMING: Final = "towpath_relay_streaming"
RELAY_TRANSACTIONS: Final = "towpath_relay_transactions_total"
RELAY_CHANGES: Final = "towpath_relay_changes_total"
RELAY_RECORDS: Final = "towpath_relay_records_total"
RELAY_DUPLICATES: Final = "towpath_relay_skipped_duplicates_total"
RELAY_MARKS: Final = "towpath_relay_marks_total"
RELAY_DEAD_LETTERS: Final = "towpath_relay_dead_letters_total"
RELAY_SKIPPED: Final = "towpath_relay_skipped_changes_total"
RELAY_ALTERED: Final = "towpath_relay_altered_values_total"
RELAY_PARKED_KEYS: Final = "towpath_relay_parked_keys"
RELAY_IN_FLIGHT_BYTES: Final = "towpath_relay_in_flight_bytes"
RELAY_IN_FLIGHT_LIMIT: Final = "towpath_relay_in_flight_limit_bytes"
RELAY_CONFIRMED_LSN: Final = "towpath_relay_confirmed_lsn_bytes"
RELAY_RECEIVED_LSN: Final = "towpath_relay_received_lsn_bytes"
RELAY_LAST_COMMIT: Final = "towpath_relay_last_commit_timestamp_seconds"
RELAY_LAST_READ: Final = "towpath_relay_last_read_timestamp_seconds"
RELAY_LAST_TRANSACTION: Final = "towpath_relay_last_transaction_xid"
RELAY_BEHIND: Final = "towpath_relay_behind_source_seconds"
RELAY_CLOCK_AHEAD: Final = "towpath_relay_clock_ahead_seconds"
RELAY_LATENCY: Final = "towpath_relay_commit_to_acknowledged_seconds"
RELAY_HEARTBEATS: Final = "towpath_relay_heartbeat_counter"
RELAY_HEARTBEAT_AGE: Final = "towpath_relay_heartbeat_age_seconds"
RELAY_TABLE: Final = "towpath_relay_captured_table_info"

SLOT_RETAINED: Final = "towpath_relay_slot_retained_bytes"
SLOT_LAG: Final = "towpath_relay_slot_lag_bytes"
SLOT_SAFE: Final = "towpath_relay_slot_safe_wal_bytes"
SLOT_STATUS: Final = "towpath_relay_slot_wal_status"
SLOT_ACTIVE: Final = "towpath_relay_slot_active"
SLOT_INACTIVE: Final = "towpath_relay_slot_inactive_seconds"

SNAPSHOT_ROWS: Final = "towpath_snapshot_rows_total"
SNAPSHOT_DROPPED_ROWS: Final = "towpath_snapshot_dropped_rows_total"
SNAPSHOT_TABLES: Final = "towpath_snapshot_tables"
SNAPSHOT_TABLE_ROWS: Final = "towpath_snapshot_table_rows"
SNAPSHOT_YIELDING: Final = "towpath_snapshot_yielding"
SNAPSHOT_DURATION: Final = "towpath_snapshot_duration_seconds"

SINK_ROWS: Final = "towpath_sink_rows_total"
SINK_STALE: Final = "towpath_sink_stale_total"
SINK_DEAD_LETTERS: Final = "towpath_sink_dead_letters_total"
SINK_BATCH_SECONDS: Final = "towpath_sink_batch_seconds"

"""
The published names of metrics and log fields, with their units.

Metrics are ``towpath_<part>_<what>_<unit>``; counters end in ``_total``. No keys and
no offsets ever become labels.
"""

from typing import Final

RELAY_TRANSACTIONS: Final = "towpath_relay_transactions_total"
RELAY_RECORDS: Final = "towpath_relay_records_total"
RELAY_DEAD_LETTERS: Final = "towpath_relay_dead_letters_total"
RELAY_SKIPPED: Final = "towpath_relay_skipped_changes_total"
RELAY_IN_FLIGHT_BYTES: Final = "towpath_relay_in_flight_bytes"
RELAY_CONFIRMED_LSN: Final = "towpath_relay_confirmed_lsn_bytes"
RELAY_RECEIVED_LSN: Final = "towpath_relay_received_lsn_bytes"
SNAPSHOT_ROWS: Final = "towpath_snapshot_rows_total"
SNAPSHOT_DROPPED_ROWS: Final = "towpath_snapshot_dropped_rows_total"

SINK_ROWS: Final = "towpath_sink_rows_total"
SINK_STALE: Final = "towpath_sink_stale_total"
SINK_DEAD_LETTERS: Final = "towpath_sink_dead_letters_total"
SINK_BATCH_SECONDS: Final = "towpath_sink_batch_seconds"

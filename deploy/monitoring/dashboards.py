"""
Write the Grafana dashboards, one file each, from the tables below.

``make docs`` runs this script. A panel has a title, a Grafana unit, and queries with
their legends; a row of the page has three panels. A stat panel shows the current value,
and is red at and above a threshold. The variable ``source`` is the Prometheus that is
queried.
"""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "dashboards"
_COLUMNS: Final = 3
_WIDTH, _HEIGHT = 8, 7


class Panel(NamedTuple):
    """One panel: queries with their legends; a panel with a threshold is a stat."""

    title: str
    unit: str
    queries: dict[str, str]
    red: float | None = None


def _p99(metric: str, labels: str = "") -> str:
    by = f"{labels}, le" if labels else "le"
    return f"histogram_quantile(0.99, sum by ({by}) (rate({metric}_bucket[5m])))"


_REQUESTS: Final = "towpath_service_request_seconds"
_APPLIED: Final = "towpath_sink_commit_to_applied_seconds"
_LATENCY: Final = "towpath_relay_commit_to_acknowledged_seconds"
_LAG: Final = Panel(
    "Lag as a share of the budget",
    "percentunit",
    {"towpath_sink_lag_seconds / towpath_sink_budget_seconds": "{{sink}}"},
)
_STREAMING: Final = Panel(
    "Relay streams", "none", {"towpath_relay_streaming": "{{instance}}"}
)
_RETAINED: Final = Panel(
    "Log retained for the slot",
    "bytes",
    {
        "towpath_relay_slot_retained_bytes": "retained",
        "towpath_relay_slot_lag_bytes": "behind",
        "towpath_relay_slot_safe_wal_bytes": "until it is lost",
    },
)
_PARKED: Final = Panel(
    "Parked keys and pending refetches",
    "none",
    {
        "towpath_relay_parked_keys": "relay",
        "towpath_sink_parked_keys": "{{sink}}",
        "towpath_sink_pending_refetches": "{{sink}} refetches",
    },
    red=1,
)

DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "overview": (
        "Towpath",
        (
            _STREAMING,
            Panel(
                "Sinks over twice their budget",
                "none",
                {"towpath_sink_lag_alarm": "{{sink}}"},
                red=1,
            ),
            _PARKED,
            Panel("Latency, p99", "s", {_p99(_LATENCY): "commit to Kafka"}),
            _LAG,
            _RETAINED,
            Panel(
                "Records",
                "ops",
                {
                    "sum(rate(towpath_relay_records_total[1m]))": "published",
                    "sum by (sink) (rate(towpath_sink_records_total[1m]))": "{{sink}}",
                },
            ),
            Panel(
                "Tables of snapshots",
                "none",
                {"sum by (state) (towpath_snapshot_tables)": "{{state}}"},
            ),
            Panel("Versions", "none", {"towpath_build_info": "{{version}}"}),
        ),
    ),
    "relay": (
        "Towpath: relay and slot",
        (
            _STREAMING,
            Panel(
                "Problems with the source",
                "none",
                {
                    "towpath_relay_source_problems": "problems",
                    "count(towpath_relay_dropped_table_info)": "dropped tables",
                },
                red=1,
            ),
            Panel(
                "Captured tables",
                "none",
                {"count(towpath_relay_captured_table_info)": "tables"},
            ),
            Panel(
                "Commit to acknowledged",
                "s",
                {
                    _p99(_LATENCY).replace("0.99", "0.5"): "p50",
                    _p99(_LATENCY): "p99",
                },
            ),
            Panel(
                "Behind the source",
                "s",
                {
                    "towpath_relay_behind_source_seconds": "behind",
                    "towpath_relay_heartbeat_age_seconds": "heartbeat",
                    "towpath_relay_clock_ahead_seconds": "clock ahead",
                },
            ),
            Panel(
                "In flight",
                "bytes",
                {
                    "towpath_relay_in_flight_bytes": "in flight",
                    "towpath_relay_in_flight_limit_bytes": "limit",
                },
            ),
            Panel(
                "Throughput",
                "ops",
                {
                    "rate(towpath_relay_transactions_total[1m])": "transactions",
                    "rate(towpath_relay_changes_total[1m])": "changes",
                    "rate(towpath_relay_records_total[1m])": "records",
                    "rate(towpath_relay_marks_total[1m])": "marks",
                },
            ),
            Panel(
                "Not published, or altered",
                "none",
                {
                    "towpath_relay_dead_letters_total": "dead letters: {{reason}}",
                    "towpath_relay_skipped_changes_total": "no record: {{reason}}",
                    "towpath_relay_altered_values_total": "altered: {{reason}}",
                    "towpath_relay_skipped_duplicates_total": "already in Kafka",
                    "towpath_relay_parked_keys": "parked aggregates",
                },
            ),
            _RETAINED,
            Panel(
                "The slot",
                "none",
                {
                    "towpath_relay_slot_wal_status == 1": "{{status}}",
                    "towpath_relay_slot_active": "active",
                    "towpath_relay_source_archive_failing": "archive failing",
                },
            ),
            Panel(
                "Inactive",
                "s",
                {"towpath_relay_slot_inactive_seconds": "no process consumes the slot"},
            ),
            Panel(
                "Read and not confirmed",
                "bytes",
                {
                    "towpath_relay_received_lsn_bytes"
                    " - towpath_relay_confirmed_lsn_bytes": "log",
                },
            ),
            Panel(
                "Last transaction",
                "dateTimeFromNow",
                {
                    "1000 * towpath_relay_last_commit_timestamp_seconds": "committed",
                    "1000 * towpath_relay_last_read_timestamp_seconds": "read",
                },
            ),
        ),
    ),
    "snapshots": (
        "Towpath: snapshots",
        (
            Panel(
                "Rows",
                "ops",
                {
                    "rate(towpath_snapshot_rows_total[1m])": "published",
                    "rate(towpath_snapshot_dropped_rows_total[1m])": "newer in stream",
                },
            ),
            Panel("Tables", "none", {"towpath_snapshot_tables": "{{state}}"}),
            Panel(
                "Rows by table", "none", {"towpath_snapshot_table_rows": "{{table}}"}
            ),
            Panel("Running for", "s", {"towpath_snapshot_duration_seconds": "oldest"}),
            Panel("Yields", "none", {"towpath_snapshot_yielding": "yields"}, red=1),
        ),
    ),
    "sinks": (
        "Towpath: sinks",
        (
            Panel("State", "none", {"towpath_sink_state == 1": "{{sink}} {{state}}"}),
            _LAG,
            _PARKED,
            Panel("Lag", "s", {"towpath_sink_lag_seconds": "{{sink}}"}),
            Panel("Records behind", "none", {"towpath_sink_lag_records": "{{sink}}"}),
            Panel(
                "Applied position",
                "bytes",
                {"towpath_sink_applied_lsn_bytes": "{{sink}}"},
            ),
            Panel(
                "Throughput",
                "ops",
                {
                    "rate(towpath_sink_records_total[1m])": "{{sink}} records",
                    "rate(towpath_sink_rows_total[1m])": "{{sink}} rows",
                    "rate(towpath_sink_batches_total[1m])": "{{sink}} batches",
                },
            ),
            Panel(
                "Rows not written as received",
                "ops",
                {
                    "rate(towpath_sink_stale_total[1m])": "{{sink}} stale",
                    "rate(towpath_sink_tombstones_total[1m])": "{{sink}} deletes",
                    "rate(towpath_sink_skipped_total[1m])": "{{sink}} ignored",
                    "rate(towpath_sink_left_total[1m])": "{{sink}} after the slices",
                    "rate(towpath_sink_nulled_total[1m])": "{{sink}} set to null",
                },
            ),
            Panel(
                "Dead letters, retries, refetches",
                "none",
                {
                    "increase(towpath_sink_dead_letters_total[5m])": "{{sink}} dead",
                    "increase(towpath_sink_retries_total[5m])": "{{sink}} retries",
                    "increase(towpath_sink_asked_total[5m])": "{{sink}} refetched",
                    "increase(towpath_sink_unpublished_total[5m])": (
                        "{{sink}} progress not published"
                    ),
                },
            ),
            Panel(
                "Disk with the state",
                "bytes",
                {"towpath_sink_state_free_bytes": "{{sink}} free"},
            ),
            Panel(
                "Commit to applied",
                "s",
                {
                    _p99(_APPLIED, "sink").replace("0.99", "0.5"): "{{sink}} p50",
                    _p99(_APPLIED, "sink"): "{{sink}} p99",
                },
            ),
            Panel(
                "Keys that differ from the source",
                "none",
                {"towpath_sink_verify_differences": "{{sink}}"},
                red=1,
            ),
            Panel(
                "Time since verification and progress",
                "s",
                {
                    "time() - towpath_sink_verified_timestamp_seconds": (
                        "{{sink}} verified"
                    ),
                    "time()"
                    " - max by (sink) (towpath_sink_published_timestamp_seconds)": (
                        "{{sink}} progress"
                    ),
                },
            ),
            Panel(
                "Batch by stage, p99",
                "s",
                {
                    _p99("towpath_sink_batch_seconds", "sink, stage"): (
                        "{{sink}} {{stage}}"
                    )
                },
            ),
            Panel(
                "Engine by step, mean",
                "s",
                {
                    "rate(towpath_sink_engine_seconds_sum[5m])"
                    " / rate(towpath_sink_engine_seconds_count[5m])": (
                        "{{sink}} {{stage}}"
                    )
                },
            ),
        ),
    ),
    "services": (
        "Towpath: services",
        (
            Panel(
                "Requests",
                "reqps",
                {
                    "sum by (job, method, route)"
                    f" (rate({_REQUESTS}_count[1m]))": "{{job}} {{method}} {{route}}"
                },
            ),
            Panel(
                "Requests that failed",
                "reqps",
                {
                    "sum by (job, route, status)"
                    f' (rate({_REQUESTS}_count{{status=~"5.."}}[5m]))': (
                        "{{job}} {{route}} {{status}}"
                    )
                },
            ),
            Panel(
                "Request, p50 and p99",
                "s",
                {
                    _p99(_REQUESTS, "job").replace("0.99", "0.5"): "{{job}} p50",
                    _p99(_REQUESTS, "job"): "{{job}} p99",
                },
            ),
            Panel(
                "Request by route, p99",
                "s",
                {_p99(_REQUESTS, "job, route"): "{{job}} {{route}}"},
            ),
            Panel(
                "Outbox rows",
                "ops",
                {
                    "sum by (job, event)"
                    " (rate(towpath_service_outbox_rows_total[1m]))": (
                        "{{job}} {{event}}"
                    )
                },
            ),
            Panel(
                "Orders whose saga has not ended",
                "none",
                {"max by (status) (towpath_service_sagas)": "{{status}}"},
            ),
        ),
    ),
    "inbox": (
        "Towpath: consumers with an inbox",
        (
            Panel(
                "Events",
                "ops",
                {
                    "sum by (consumer) (rate(towpath_inbox_applied_total[1m]))": (
                        "{{consumer}} applied"
                    ),
                    "sum by (consumer) (rate(towpath_inbox_retries_total[1m]))": (
                        "{{consumer}} retries"
                    ),
                    "sum by (consumer)"
                    " (rate(towpath_inbox_skipped_duplicates_total[1m]))": (
                        "{{consumer}} duplicates"
                    ),
                },
            ),
            Panel(
                "Records behind",
                "none",
                {"sum by (consumer) (towpath_inbox_lag_records)": "{{consumer}}"},
            ),
            Panel(
                "Parked events",
                "none",
                {"max by (consumer) (towpath_inbox_parked_events)": "{{consumer}}"},
                red=1,
            ),
            Panel(
                "Parked per minute",
                "none",
                {
                    "sum by (consumer) (increase(towpath_inbox_parked_total[1m]))": (
                        "{{consumer}}"
                    )
                },
            ),
            Panel(
                "Handler, p99",
                "s",
                {_p99("towpath_inbox_handler_seconds", "consumer"): "{{consumer}}"},
            ),
        ),
    ),
}


def document_of(name: str) -> dict[str, Any]:
    """Return a dashboard in the form that Grafana imports."""
    title, panels = DASHBOARDS[name]
    source = {"name": "source", "label": "Prometheus", "type": "datasource"}
    return {
        "title": title,
        "uid": f"towpath-{name}",
        "schemaVersion": 39,
        "tags": ["towpath"],
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [source | {"query": "prometheus"}]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.red is not None:
        steps = [{"color": "green"}, {"color": "red", "value": panel.red}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    row, column = divmod(number, _COLUMNS)
    grid = {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
    return {
        "id": number + 1,
        "type": "timeseries" if panel.red is None else "stat",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend}
            for n, (expression, legend) in enumerate(panel.queries.items())
        ],
    }


def text_of(name: str) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(document_of(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text_of(each), "utf-8")

"""
The relay's statistics as Prometheus metrics, which ``docs/metrics.md`` explains.

Every label is bounded by the configuration or the code: captured tables, constant
reasons, the states of Postgres and snapshots. Figures about the slot, the snapshots,
the last transaction and the age of the heartbeat are missing rather than zero while
they are unknown, or if the source's server does not report them.
"""

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from towpath.relay.stats import SlotStats, SnapshotProgress, Stats
from towpath.schemas import telemetry
from towpath.schemas.clock import Clock

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
_MICROSECONDS: Final = 1_000_000


class StatsCollector(Collector):
    """Collects the statistics as metrics."""

    def __init__(self, stats: Stats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._build = {
            "version": importlib.metadata.version("towpath-relay"),
            "python": platform.python_version(),
        }

    def collect(self) -> Iterable[Metric]:
        stats, now_s = self._stats, self._clock.monotonic_s()
        build = telemetry.BUILD_INFO
        yield InfoMetricFamily(build.removesuffix("_info"), build.help, self._build)
        yield from _counters(stats)
        yield from _gauges(stats, now_s)
        yield from _last(stats)
        yield HistogramMetricFamily(
            telemetry.RELAY_LATENCY,
            telemetry.RELAY_LATENCY.help,
            buckets=stats.latency.buckets(),
            sum_value=stats.latency.sum_s,
        )
        yield _labeled(telemetry.RELAY_TABLE, dict.fromkeys(stats.tables, 1))
        yield _labeled(
            telemetry.RELAY_DROPPED_TABLE, dict.fromkeys(stats.dropped_tables, 1)
        )
        if stats.slot is not None:
            yield from _slot(stats.slot)
        if stats.snapshot is not None:
            yield from _snapshot(stats.snapshot, now_s)


def _counters(stats: Stats) -> Iterator[Metric]:
    counts = {
        telemetry.RELAY_TRANSACTIONS: stats.transactions,
        telemetry.RELAY_CHANGES: stats.changes,
        telemetry.RELAY_RECORDS: stats.records,
        telemetry.RELAY_DUPLICATES: stats.duplicates,
        telemetry.RELAY_MARKS: stats.marks,
        telemetry.SNAPSHOT_ROWS: stats.snapshot_rows,
        telemetry.SNAPSHOT_DROPPED_ROWS: stats.snapshot_dropped_rows,
    }
    for metric, value in counts.items():
        yield CounterMetricFamily(metric, metric.help, value)
    by_reason = {
        telemetry.RELAY_DEAD_LETTERS: stats.dead_letters,
        telemetry.RELAY_SKIPPED: stats.skipped,
        telemetry.RELAY_ALTERED: stats.altered,
    }
    for metric, counter in by_reason.items():
        family = CounterMetricFamily(metric, metric.help, labels=metric.labels)
        for reason, count in list(counter.items()):
            family.add_metric([reason], count)
        yield family


def _gauges(stats: Stats, now_s: float) -> Iterator[Metric]:
    values = {
        telemetry.RELAY_STREAMING: int(stats.is_streaming),
        telemetry.RELAY_PARKED_KEYS: stats.parked_keys,
        telemetry.RELAY_SOURCE_PROBLEMS: len(stats.source_problems),
        telemetry.SNAPSHOT_YIELDING: int(bool(stats.yielding)),
        telemetry.RELAY_IN_FLIGHT_BYTES: stats.in_flight_bytes,
        telemetry.RELAY_IN_FLIGHT_LIMIT: stats.max_in_flight_bytes,
        telemetry.RELAY_CONFIRMED_LSN: stats.confirmed_lsn,
        telemetry.RELAY_RECEIVED_LSN: stats.received_lsn,
        telemetry.RELAY_CLOCK_AHEAD: stats.source_clock.ahead_us / _MICROSECONDS,
        telemetry.RELAY_HEARTBEATS: stats.heartbeat_counter,
        telemetry.RELAY_HEARTBEAT_AGE: stats.heartbeat_age_s(now_s),
    }
    yield from _known(values)


def _last(stats: Stats) -> Iterator[Metric]:
    """Yield the metrics of the last transaction."""
    last, read_us = stats.last_transaction, stats.last_read_us
    if last is None:
        return
    behind_s = stats.source_clock.since_s(last.committed_us, read_us)
    values = {
        telemetry.RELAY_LAST_COMMIT: last.committed_us / _MICROSECONDS,
        telemetry.RELAY_LAST_READ: read_us / _MICROSECONDS,
        telemetry.RELAY_LAST_TRANSACTION: last.xid,
        telemetry.RELAY_BEHIND: behind_s,
    }
    yield from _known(values)


def _slot(slot: SlotStats) -> Iterator[Metric]:
    values = {
        telemetry.SLOT_RETAINED: slot.retained_bytes,
        telemetry.SLOT_LAG: slot.lag_bytes,
        telemetry.SLOT_SAFE: slot.safe_wal_bytes,
        telemetry.SLOT_ACTIVE: int(slot.is_active),
        telemetry.SLOT_INACTIVE: slot.inactive_s,
        telemetry.SOURCE_ARCHIVE_FAILING: int(slot.is_archive_failing),
    }
    yield from _known(values)
    yield _labeled(
        telemetry.SLOT_STATUS,
        {status: int(status == slot.wal_status) for status in WAL_STATUSES},
    )


def _snapshot(progress: SnapshotProgress, now_s: float) -> Iterator[Metric]:
    yield _labeled(
        telemetry.SNAPSHOT_TABLES,
        {
            "waiting": progress.waiting,
            "running": progress.running,
            "paused": progress.paused,
            "completed": progress.completed,
            "failed": progress.failed,
            "stopped": progress.stopped,
            "incomplete": progress.incomplete,
        },
    )
    yield _labeled(telemetry.SNAPSHOT_TABLE_ROWS, progress.rows)
    if progress.started_at_s is not None:
        yield from _known({telemetry.SNAPSHOT_DURATION: now_s - progress.started_at_s})


def _known(values: Mapping[telemetry.Metric, float | None]) -> Iterator[Metric]:
    """Yield a gauge for each known value."""
    for metric, value in values.items():
        if value is not None:
            yield GaugeMetricFamily(metric, metric.help, value)


def _labeled(
    metric: telemetry.Metric, values: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric, metric.help, labels=metric.labels)
    for value, number in list(values.items()):
        family.add_metric([value], number)
    return family

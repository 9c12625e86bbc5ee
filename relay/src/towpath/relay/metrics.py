"""
The relay's statistics as Prometheus metrics, which ``docs/metrics.md`` explains.

Every label is bounded by the configuration or the code: captured tables, constant
reasons, the states of Postgres and snapshots. A quantity that is not known (yet, or on
this server) is missing rather than zero.
"""

import importlib.metadata
import platform
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
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

_HELP: Final = MappingProxyType(
    {
        telemetry.RELAY_STREAMING: "1 while the slot's stream is open.",
        telemetry.RELAY_PARKED_KEYS: "Aggregates set aside behind a dead letter.",
        telemetry.RELAY_SOURCE_PROBLEMS: "Problems of publications and outbox.",
        telemetry.RELAY_IN_FLIGHT_BYTES: "Handed to Kafka and not acknowledged.",
        telemetry.RELAY_IN_FLIGHT_LIMIT: "In-flight bytes at which reading stops.",
        telemetry.RELAY_CONFIRMED_LSN: "LSN below which the server may forget.",
        telemetry.RELAY_RECEIVED_LSN: "LSN up to which the log was read.",
        telemetry.RELAY_CLOCK_AHEAD: "What our clock is ahead of the source's.",
        telemetry.RELAY_HEARTBEATS: "Counter of our last heartbeat that came round.",
        telemetry.RELAY_HEARTBEAT_AGE: "How long ago our last heartbeat came round.",
        telemetry.RELAY_LAST_COMMIT: "Commit time of the last transaction, its clock.",
        telemetry.RELAY_LAST_READ: "When the last transaction was read, our clock.",
        telemetry.RELAY_LAST_TRANSACTION: "Transaction id (32 bits) read last.",
        telemetry.RELAY_BEHIND: "From the last commit to its reading, on one clock.",
        telemetry.SLOT_RETAINED: "Log that the server keeps for the slot.",
        telemetry.SLOT_LAG: "Log between the confirmed LSN and the server's end.",
        telemetry.SLOT_SAFE: "Log that may be written until the slot is lost.",
        telemetry.SLOT_ACTIVE: "1 while somebody follows the slot.",
        telemetry.SLOT_INACTIVE: "For how long nobody has followed the slot.",
        telemetry.SNAPSHOT_YIELDING: "1 while the stream or the source goes first.",
        telemetry.SNAPSHOT_DURATION: "For how long the oldest running one has run.",
    }
)


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
        name = telemetry.BUILD_INFO.removesuffix("_info")
        yield InfoMetricFamily(name, "What this process was built from.", self._build)
        yield from _counters(stats)
        yield from _gauges(stats, now_s)
        yield from _last(stats)
        yield HistogramMetricFamily(
            telemetry.RELAY_LATENCY,
            "From a commit to the acknowledgement of its last record, by the source's"
            " clock.",
            buckets=stats.latency.buckets(),
            sum_value=stats.latency.sum_s,
        )
        yield _labelled(
            telemetry.RELAY_TABLE,
            "One per captured table.",
            "table",
            dict.fromkeys(stats.tables, 1),
        )
        yield _labelled(
            telemetry.RELAY_DROPPED_TABLE,
            "One per captured name that has no table and whose rows are kept.",
            "table",
            dict.fromkeys(stats.dropped_tables, 1),
        )
        if stats.slot is not None:
            yield from _slot(stats.slot)
        if stats.snapshot is not None:
            yield from _snapshot(stats.snapshot, now_s)


def _counters(stats: Stats) -> Iterator[Metric]:
    counts = (
        (telemetry.RELAY_TRANSACTIONS, "Transactions read.", stats.transactions),
        (
            telemetry.RELAY_CHANGES,
            "Changes and logical messages read, whatever became of them.",
            stats.changes,
        ),
        (telemetry.RELAY_RECORDS, "Records handed to Kafka.", stats.records),
        (
            telemetry.RELAY_DUPLICATES,
            "Records left out after a restart, because Kafka had them.",
            stats.duplicates,
        ),
        (telemetry.RELAY_MARKS, "Marks published to the state topic.", stats.marks),
        (telemetry.SNAPSHOT_ROWS, "Snapshot rows produced.", stats.snapshot_rows),
        (
            telemetry.SNAPSHOT_DROPPED_ROWS,
            "Snapshot rows left out, because the stream has a newer one.",
            stats.snapshot_dropped_rows,
        ),
    )
    for name, what, value in counts:
        yield CounterMetricFamily(name, what, value)
    reasons = (
        (telemetry.RELAY_DEAD_LETTERS, "Records set aside.", stats.dead_letters),
        (telemetry.RELAY_SKIPPED, "Changes without a record.", stats.skipped),
        (telemetry.RELAY_ALTERED, "Values that have no form.", stats.altered),
    )
    for name, what, counter in reasons:
        family = CounterMetricFamily(name, what, labels=["reason"])
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
    }
    yield from _known(values)
    yield _labelled(
        telemetry.SLOT_STATUS,
        "1 for the slot's wal_status, 0 for the others.",
        "status",
        {status: int(status == slot.wal_status) for status in WAL_STATUSES},
    )


def _snapshot(view: SnapshotProgress, now_s: float) -> Iterator[Metric]:
    yield _labelled(
        telemetry.SNAPSHOT_TABLES,
        "Tables of this process's snapshots, by state.",
        "state",
        {
            "waiting": view.waiting,
            "running": view.running,
            "paused": view.paused,
            "completed": view.completed,
            "failed": view.failed,
            "stopped": view.stopped,
            "incomplete": view.incomplete,
        },
    )
    yield _labelled(
        telemetry.SNAPSHOT_TABLE_ROWS,
        "Rows that the last snapshot of a table has sent.",
        "table",
        view.rows,
    )
    if view.started_at_s is not None:
        yield from _known({telemetry.SNAPSHOT_DURATION: now_s - view.started_at_s})


def _known(values: Mapping[str, float | None]) -> Iterator[Metric]:
    """Yield a gauge for each known value."""
    for name, value in values.items():
        if value is not None:
            yield GaugeMetricFamily(name, _HELP[name], value)


def _labelled(
    name: str, what: str, label: str, values: Mapping[str, float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=[label])
    for value, number in list(values.items()):
        family.add_metric([value], number)
    return family

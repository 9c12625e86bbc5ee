"""
The console: a web page and a JSON API for the state of the platform.

This module holds that state: the newest document of ``towpath status``, and samples.

A sampler reads the platform every few seconds, so that the number of viewers does not
change the load on its servers. Each reading adds one sample of numbers to a ring of the
last half hour, the basis of rates and plots. No sample is kept on disk.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from towpath.deploy.console.histograms import SinkHistogram, read_histograms
from towpath.deploy.snapshots import signals
from towpath.deploy.snapshots.view import time_left_s, time_text
from towpath.deploy.status import event_records, read_ends, table_records
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError, with_remedy
from towpath.schemas.position import parse_lsn
from towpath.settings import Settings, load
from towpath.sinks.kafka.client import Topics
from towpath.sinks.state.lag import budget_s

Document = dict[str, Any]

SAMPLE_EVERY_S: Final = 3.0
# Half an hour: long enough to see a refill or an outage, in a few hundred kilobytes.
KEPT_S: Final = 1800.0
# A rate over a shorter time would jump with each batch.
RATE_OVER_S: Final = 15.0
# A state that is older than this is not shown as current.
STALE_AFTER_S: Final = 30.0


class Sample(NamedTuple):
    """The numbers of one reading, by name."""

    at_s: float
    values: Mapping[str, float]


class Samples:
    """A thread-safe ring of samples."""

    def __init__(self) -> None:
        self._ring: deque[Sample] = deque()
        self._lock = threading.Lock()

    def add(self, sample: Sample) -> None:
        """Add a sample, and forget those that are too old."""
        with self._lock:
            # Start over if the clock has been set back.
            if self._ring and self._ring[-1].at_s > sample.at_s:
                self._ring.clear()
            self._ring.append(sample)
            while self._ring[0].at_s < sample.at_s - KEPT_S:
                self._ring.popleft()

    def series(self, names: Sequence[str]) -> Document:
        """
        Return columns for a plot: the times, and for each name its values.

        A value that was unknown at a time is None.
        """
        with self._lock:
            ring = list(self._ring)
        return {
            "at": [round(sample.at_s, 3) for sample in ring],
            "values": {
                name: [sample.values.get(name) for sample in ring] for name in names
            },
        }

    def rate(self, name: str) -> float | None:
        """
        Return the recent growth of a counter, per second.

        The rate is None if there are fewer than two recent samples, or if the newest is
        lower than the oldest, which means that the counter was reset.
        """
        with self._lock:
            since_s = self._ring[-1].at_s - RATE_OVER_S if self._ring else 0.0
            known = [(s.at_s, s.values[name]) for s in self._ring if name in s.values]
        recent = [one for one in known if one[0] >= since_s]
        if len(recent) < 2:  # noqa: PLR2004 - a rate needs two points
            return None
        (begin_s, first), (end_s, last) = recent[0], recent[-1]
        if last < first or end_s <= begin_s:
            return None
        return (last - first) / (end_s - begin_s)


class Reading(NamedTuple):
    """
    One reading of the platform.

    Attributes:
        at: The time of the reading.
        document: The document of ``towpath status``.
        snapshots: All snapshots except the relay's own, by table, newest first.
        histograms: The histograms of the sinks whose drivers answer.
        error: Why the snapshots could not be read; empty if they could.
    """

    at: datetime
    document: Document
    snapshots: Sequence[Document]
    histograms: Sequence[SinkHistogram] = ()
    error: str = ""


class ConfigurationFile(NamedTuple):
    """The configuration file, and the environment variables that override it."""

    path: Path
    environ: Mapping[str, str]

    def load(self) -> Settings:
        """
        Read the configuration.

        Raises:
            ConfigurationError: The configuration has mistakes.
        """
        return load(self.path, self.environ)


class PlatformState:
    """The newest reading, and the samples of the last half hour."""

    def __init__(
        self,
        file: ConfigurationFile,
        read: Callable[[], Document],
        clock: Clock,
    ) -> None:
        """
        Create the state; the platform is not read yet.

        Args:
            file: The configuration file, which may change while the console runs.
            read: Reads the platform as ``towpath status`` does.
            clock: Provides the time of each reading.
        """
        self.file = file
        self._document = read
        self._clock = clock
        self._reading: Reading | None = None
        self._reading_lock = threading.Lock()
        self.samples = Samples()

    @property
    def settings(self) -> Settings:
        """The current content of the configuration file."""
        return self.file.load()

    @property
    def reading(self) -> Reading:
        """The newest reading; the first access reads the platform if necessary."""
        with self._reading_lock:
            if self._reading is None:
                self._reading = self._read()
            return self._reading

    @property
    def age_s(self) -> float:
        """The age of the newest reading."""
        return (self._clock.now() - self.reading.at).total_seconds()

    def refresh(self) -> None:
        """Read the platform once; the sampler calls this every few seconds."""
        reading = self._read()
        with self._reading_lock:
            self._reading = reading

    def _read(self) -> Reading:
        now = self._clock.now()
        settings = self.file.load()
        document = self._document()
        values = numbers_of(document)
        values |= _read_topics(settings)
        self.samples.add(Sample(now.timestamp(), values))
        snapshots, error = _read_snapshots(settings)
        document["source"] = {
            "address": settings.database.prefix,
            "tables": list(settings.capture.names),
            "warning_bytes": settings.relay.retained_warning_bytes,
            "critical_bytes": settings.relay.retained_critical_bytes,
        }
        document["budgets"] = {sink.name: budget_s(sink) for sink in settings.sink}
        return Reading(now, document, snapshots, read_histograms(settings), error)


def numbers_of(document: Document) -> dict[str, float]:
    """Return the numbers of a status document that plots and rates use."""
    found: dict[str, float] = {}
    relay = document["relay"] or {}
    for name in ("retained_bytes", "lag_bytes"):
        if relay.get(name) is not None:
            found[f"slot.{name}"] = relay[name]
    if "confirmed_lsn" in relay:
        confirmed = parse_lsn(relay["confirmed_lsn"])
        found["slot.confirmed_bytes"] = confirmed
        if "lag_bytes" in relay:
            found["source.written_bytes"] = confirmed + relay["lag_bytes"]
    for sink in document["sinks"]:
        for name in ("lag_s", "lag_records", "records", "rows", "last_batch_ms"):
            if sink[name] is not None:
                found[f"sink.{sink['sink']}.{name}"] = sink[name]
    return found


def _read_topics(settings: Settings) -> dict[str, float]:
    """Return the numbers of records that tables' and events' topics have received."""
    try:
        ends = read_ends(Topics(settings.kafka))
    except TowpathError:
        # Each sink's entry reports that the broker does not answer.
        return {}
    # Topics that are named by the aggregate type alone cannot be recognized.
    is_known = settings.relay.outbox.topic != "{aggregate_type}"
    events = event_records(settings, ends) if is_known else 0
    tables = table_records(settings, ends)
    return {
        "topics.tables": tables,
        "topics.events": events,
        "topics.records": tables + events,
    }


def _read_snapshots(settings: Settings) -> tuple[list[Document], str]:
    try:
        rows = signals.progress(settings.database)
    except TowpathError as error:
        return [], with_remedy(str(error), error.remedy)
    found = [
        row._asdict() | {"left": time_text(time_left_s(row))} for row in reversed(rows)
    ]
    return found, ""

"""Published progress: kept in memory without a broker, or published by a test."""

from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from support.waiting import CLOCK, until
from towpath.schemas.clock import Clock
from towpath.settings import Settings
from towpath.sinks.engine.publisher import Activity, ProgressPublisher
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.kafka.client import Topics
from towpath.sinks.kafka.progress_topic import ProgressReader, ProgressTopic
from towpath.sinks.state import declare
from towpath.sinks.state.progress import Progress
from towpath.sinks.state.published import (
    NewestRuns,
    PublishedProgress,
    PublishedVerification,
    ReceivedProgress,
    decode_published,
)


class MemoryProgress:
    """
    Published progress, kept in memory; implements ``ProgressStore``.

    Attributes:
        records: All records, in the order in which they were published.
        verifications: The result of the last verification of each sink.
        is_unreachable: Whether nothing can be read or published.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runs = NewestRuns()
        self._lost = 0
        self.records: list[PublishedProgress] = []
        self.verifications: dict[str, PublishedVerification] = {}
        self.is_unreachable = False

    def read(self, sink: str) -> ReceivedProgress | None:
        """Return the newest progress of a sink."""
        if self.is_unreachable:
            message = "Kafka does not answer"
            raise BrokerUnavailableError(message)
        return self._runs.received(sink, self._clock.now(), self._clock.monotonic_s())

    def newest_run(self, sink: str) -> int:
        """Return the number of a sink's newest run."""
        return self._runs.newest_run(sink)

    def drop(self, sink: str) -> None:
        """Publish that a sink was dropped."""
        self._runs.take(sink, None, None)

    def send(self, sink: str, record: bytes) -> None:
        """Publish a record."""
        if self.is_unreachable:
            self._lost += 1
            return
        published = decode_published(record)
        self.records.append(published)
        self._runs.take(sink, published, None)

    def flush(self, within_s: float) -> None:
        """Do nothing: no record is pending."""

    def failures(self, _sink: str) -> int:
        """Return how many records were lost."""
        return self._lost

    def times(self) -> Mapping[str, datetime]:
        """Return the time of each sink's newest record."""
        return self._runs.times()

    def verification(self, sink: str) -> PublishedVerification | None:
        """Return the last verification of a sink."""
        return self.verifications.get(sink)

    def publish_verification(self, found: PublishedVerification) -> None:
        """Keep the last verification of a sink."""
        self.verifications[found.sink] = found

    def close(self) -> None:
        """Do nothing: there is no connection."""


class OneDriver:
    """
    A driver of one sink, as its readers see it; implements ``ProgressSource``.

    Attributes:
        progress: The progress that readers find; ``None`` if there is none.
    """

    def __init__(
        self, progress: Progress | None = None, silent_s: float = 0.0, **fields: object
    ) -> None:
        self.progress: ReceivedProgress | None = None
        if progress is not None:
            self.set(progress, silent_s, **fields)

    def set(self, progress: Progress, silent_s: float = 0.0, **fields: object) -> None:
        """Set the progress that readers find."""
        origin = {"at": "2026-01-02T03:04:05+00:00", "host": "here", "pid": 8}
        known = {"run": 1, "number": 0, "is_open": True, **origin, **fields}
        record = PublishedProgress(progress=progress, **known)
        self.progress = ReceivedProgress(record, silent_s)

    def read(self, _sink: str) -> ReceivedProgress | None:
        """Return the progress that readers find."""
        return self.progress

    def close(self) -> None:
        """Do nothing: there is no connection."""


class SinkRun:
    """A run of a sink in a test: publishes to memory or to Kafka as a driver does."""

    def __init__(
        self,
        state_folder: Path,
        sink: str,
        store: MemoryProgress | ProgressTopic,
        clock: Clock = CLOCK,
    ) -> None:
        self._publisher = ProgressPublisher(state_folder, sink, store, clock)
        self._publisher.begin()
        self._sink = sink

    @classmethod
    def in_kafka(cls, settings: Settings, sink: str) -> "SinkRun":
        """Begin a run that publishes to Kafka."""
        topic = ProgressTopic(settings, CLOCK)
        return cls(settings.state_folder, sink, topic)

    def publish(
        self, progress: Progress, *, is_open: bool = True, **more: bool
    ) -> None:
        """Publish progress."""
        self._publisher.publish(progress, Activity(is_open=is_open, **more))

    def end(self, progress: Progress | None = None) -> None:
        """End the run."""
        self._publisher.end(progress or Progress(self._sink))


def wait_applied(settings: Settings, sink: str, stuck_after_s: float) -> None:
    """Wait until a sink has applied all existing records of its topics."""
    ends = declare.sink_ends(settings, sink, Topics(settings.kafka))
    with closing(ProgressReader(settings, CLOCK)) as published:
        declare.wait_applied(sink, ends, published, CLOCK, stuck_after_s)


def wait_running(settings: Settings, sink: str, timeout_s: float) -> None:
    """Wait until a driver runs a sink."""
    with closing(ProgressReader(settings, CLOCK)) as published:
        declare.wait_running(settings, sink, published, CLOCK, timeout_s)


def progress_of(settings: Settings, sink: str) -> Progress:
    """Read the newest progress of a sink, even if its driver no longer runs."""
    found: list[ReceivedProgress | None] = []

    def is_read() -> bool:
        # A broker that is starved of CPU time may report no leader for a moment.
        with suppress(BrokerUnavailableError):
            found.append(published.read(sink))
        return bool(found)

    with closing(ProgressReader(settings, CLOCK)) as published:
        until(is_read, "the progress is read")
    received = found[0]
    return Progress(sink) if received is None else received.record.progress

"""
The naive dual write: each writer commits, and then produces the same changes itself.

Nothing joins the two writes. A writer that dies in between has committed changes that
nobody will ever produce, and two writers of one row can produce in a different order
from that of their commits. Neither raises an error anywhere. The writer waits for the
broker after each commit; a writer that does not wait loses more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from towpath.loadtests.capture import CapturedRecord
from towpath.loadtests.capture.load import RowChange
from towpath.loadtests.capture.methods import CaptureRun, RecordProducer
from towpath.loadtests.capture.writers import (
    ChangePublisher,
    PublisherFactory,
    Session,
)
from towpath.schemas.clock import SystemClock


@dataclass(frozen=True, slots=True)
class DualWriteFactory:
    """The address and the topic to which each writer produces."""

    kafka: str
    topic: str

    def open(self) -> ChangePublisher:
        """Open a producer in the writer's process."""
        return DualWritePublisher(RecordProducer(self.kafka, self.topic))


class DualWritePublisher:
    """The second half of the dual write, in the writer."""

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._clock = SystemClock()

    def publish(self, changes: Iterable[RowChange]) -> None:
        """Produce the changes of a committed transaction, and wait for the broker."""
        # All that a writer has for a version is its own clock.
        version = self._clock.now().isoformat(timespec="microseconds")
        self._producer.publish(
            CapturedRecord(one.key, one.operation, one.image, version)
            for one in changes
        )


class DualWrite:
    """The dual write as a method: the writers do all of its work."""

    def __init__(self, run: CaptureRun) -> None:
        self._run = run

    @property
    def publisher(self) -> PublisherFactory:
        """The producer of each writer."""
        return DualWriteFactory(self._run.kafka, self._run.topic)

    def prepare(self, session: Session) -> None:
        """Create the topic; the database needs nothing."""
        del session
        self._run.bench.broker.make_topic(self._run.topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settle(self) -> None:
        """Do nothing: each writer has waited for its own records."""

    def finish(self) -> None:
        """Do nothing, for the same reason as ``settle``."""

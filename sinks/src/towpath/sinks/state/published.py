"""
The progress of a sink as its driver publishes it, and what it lets a reader conclude.

A driver publishes a record for each of its sinks after each batch, and every two
seconds. A record holds all the state that a reader needs, so no reader needs the
driver's state folder.

**Runs.** Each start of a sink by a driver is a run with a number, which is above the
number of every run before it. ``NewestRuns`` keeps the newest record of the newest run,
whatever the order in which records arrive. So a late record of an earlier run does not
count once a later run has begun. Such a record may come from a driver that was
suspended, from a second driver of the same sink in another state folder, or from before
the sink was dropped and added again.

**Applied.** A driver publishes offsets only after their records are durable in the
target. But a target, or a state folder, can be restored from a backup while no driver
runs, and an earlier record then claims too much. So a reader counts offsets as
applied only if

- the run has not ended, and its last record is younger than ``RECEIVED_WITHIN_S``, and
- the run itself has opened the target and compared its offsets with those of the
  topics, which reveals what the target or the topics have lost (``is_open``).

**The order of reading.** A driver reads the offsets first, then the pending refetches,
then the routes that lack rows; it stores them in the opposite order. So a record never
shows an offset without the refetches that its records have caused.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import orjson

from towpath.sinks.errors import UnreadableProgressError
from towpath.sinks.state.progress import Offsets, Progress, progress_of

VERSION: Final = 1

# A driver publishes every two seconds; a broker that does not answer delays a record by
# up to ten seconds.
RECEIVED_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RefetchNumbers:
    """
    The pending refetches of a run, numbered in the order in which they began.

    Attributes:
        next: The number of the next refetch.
        oldest: The number of the oldest pending refetch; ``None`` if none is pending.
        pending: The count of pending refetches, including routes to be read as a whole.
    """

    next: int = 0
    oldest: int | None = None
    pending: int = 0

    def has_any_below(self, number: int) -> bool:
        """Return whether a refetch is pending that began before a number."""
        return self.oldest is not None and self.oldest < number


@dataclass(frozen=True, slots=True)
class PublishedProgress:
    """
    One published record.

    Attributes:
        run: The number of the run.
        number: The number of the record in its run.
        at: The time of the record by the driver's clock, RFC 3339, UTC.
        host: The name of the driver's machine.
        pid: The driver's process.
        is_running: Whether the run continues; its last record says that it has ended.
        is_open: Whether the run has opened the target and compared its offsets.
        is_writing: Whether a batch is being written and has not failed.
        is_filling: Whether the sink was added to a running system, and is not filled
            yet.
        unfilled: The routes that lack rows, which are being read again.
        refetches: The pending refetches.
        progress: The progress and the counters.
    """

    run: int
    number: int
    at: str
    host: str
    pid: int
    progress: Progress
    is_running: bool = True
    is_open: bool = False
    is_writing: bool = False
    is_filling: bool = False
    unfilled: tuple[str, ...] = ()
    refetches: RefetchNumbers = RefetchNumbers()

    @property
    def sink(self) -> str:
        """The name of the sink."""
        return self.progress.sink

    @property
    def applied(self) -> Offsets:
        """The next offset of each topic and partition."""
        return self.progress.applied

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of a sink's records, regardless of when they arrive."""
        return self.run, self.number


def encode_published(record: PublishedProgress) -> bytes:
    """Return a record as JSON."""
    content = {name: getattr(record, name) for name in _FIELDS}
    return orjson.dumps({"version": VERSION, **content})


_FIELDS: Final = tuple(each.name for each in dataclasses.fields(PublishedProgress))
_PLAIN: Final = frozenset(_FIELDS) - {"progress", "unfilled", "refetches"}


def decode_published(value: bytes) -> PublishedProgress:
    """
    Decode a record from JSON; unknown fields are ignored.

    Raises:
        UnreadableProgressError: It is not a record of this version.
    """
    try:
        document: Mapping[str, Any] = orjson.loads(value)
        version = document["version"]
        if version != VERSION:
            message = f"a driver publishes its progress in version {version}"
            raise UnreadableProgressError(message)
        return PublishedProgress(
            **{name: document[name] for name in _PLAIN},
            progress=progress_of(document["progress"]),
            unfilled=tuple(document["unfilled"]),
            refetches=_refetch_numbers(document["refetches"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"a record of a sink's progress cannot be read: {error!r}"
        raise UnreadableProgressError(message) from error


def _refetch_numbers(document: Mapping[str, Any]) -> RefetchNumbers:
    names = {each.name for each in dataclasses.fields(RefetchNumbers)}
    return RefetchNumbers(**{name: document[name] for name in names & document.keys()})


@dataclass(frozen=True, slots=True)
class PublishedVerification:
    """
    The result of a sink's last conclusive verification.

    A verification of some routes or of a sample is conclusive only if it found a
    difference.

    Attributes:
        sink: The name of the sink.
        at: The time of its end by the verifier's clock, RFC 3339, UTC.
        differences: The number of keys that differ from the source.
        rows: The number of compared rows of the source.
    """

    sink: str
    at: str
    differences: int
    rows: int

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return verification_key(self.sink)


def verification_key(sink: str) -> bytes:
    """Return the key of a sink's verification; no sink's name has a slash."""
    return f"{sink}{_VERIFICATION}".encode()


def verified_sink(key: str) -> str | None:
    """Return the sink of a verification's key; ``None`` if it is a progress key."""
    is_one = key.endswith(_VERIFICATION)
    return key.removesuffix(_VERIFICATION) if is_one else None


_VERIFICATION: Final = "/verification"


def encode_verification(found: PublishedVerification) -> bytes:
    """Return a verification as JSON."""
    return orjson.dumps({"version": VERSION, **dataclasses.asdict(found)})


def decode_verification(value: bytes) -> PublishedVerification | None:
    """Decode a verification from JSON; ``None`` if this version cannot read it."""
    try:
        document: Mapping[str, Any] = orjson.loads(value)
        if document["version"] != VERSION:
            return None
        names = (each.name for each in dataclasses.fields(PublishedVerification))
        return PublishedVerification(**{name: document[name] for name in names})
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


class ReceivedProgress(NamedTuple):
    """
    The newest record of a sink's newest run, and its age.

    Attributes:
        silent_s: The age of the record, in seconds.
    """

    record: PublishedProgress
    silent_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether a driver runs the sink, as far as its records show."""
        return self.record.is_running and self.silent_s < RECEIVED_WITHIN_S

    @property
    def certain(self) -> Offsets:
        """The offsets that count as applied."""
        return self.record.applied if self.is_alive and self.record.is_open else {}


def not_alive(received: ReceivedProgress | None, sink: str) -> str | None:
    """Return why no driver is known to run a sink; ``None`` if a driver runs it."""
    if received is None:
        return f"no driver has published any progress of the sink {sink}"
    record = received.record
    process = f"process {record.pid} on {record.host}"
    if not record.is_running:
        return f"the driver of the sink {sink} ended at {record.at} ({process})"
    if not received.is_alive:
        since = f"since {record.at} ({process})"
        return f"the driver of the sink {sink} has not been heard from {since}"
    return None


class ProgressSource(Protocol):
    """Reads the progress that drivers publish."""

    def read(self, sink: str) -> ReceivedProgress | None:
        """
        Return the newest progress of a sink; ``None`` if there is none.

        Raises:
            UnavailableError: The progress cannot be read now.
            UnreadableProgressError: A driver of a different version publishes it.
        """


class ProgressStore(ProgressSource, Protocol):
    """Reads and publishes progress; publishing never waits and never raises."""

    def newest_run(self, sink: str) -> int:
        """
        Return the number of a sink's newest run, as of the last read.

        The sink may have been dropped since; -1 if no run is known.
        """

    def send(self, sink: str, record: bytes) -> None:
        """Begin to publish a record; a failure is logged and counted."""

    def flush(self, within_s: float) -> None:
        """Wait until all records are published, for at most ``within_s`` seconds."""

    def failures(self, sink: str) -> int:
        """Return how many records of a sink could not be published."""

    def times(self) -> Mapping[str, datetime]:
        """Return the time of each sink's newest record, as of the last read."""

    def verification(self, sink: str) -> PublishedVerification | None:
        """Return the last verification of a sink, as of the last read."""


class _Arrived(NamedTuple):
    """
    A record and the time at which it arrived.

    Attributes:
        since_s: A time, by the reader's own clock, at which the record had not been
            published yet; ``None`` if the record may be of any age.
    """

    record: PublishedProgress
    since_s: float | None


class NewestRuns:
    """The newest record of each sink's newest run, from records in any order."""

    def __init__(self) -> None:
        self._newest: dict[str, _Arrived] = {}
        # The newest run of a sink that was dropped.
        self._dropped: dict[str, int] = {}

    def take(
        self, sink: str, record: PublishedProgress | None, since_s: float | None
    ) -> None:
        """
        Take a record.

        Args:
            sink: The sink.
            record: The record; ``None`` if the sink was dropped.
            since_s: A time, by the reader's own clock, at which the record had not been
                published yet; ``None`` if the record may be of any age.
        """
        before = self._newest.get(sink)
        if record is None:
            if before is not None:
                self._dropped[sink] = before.record.run
                del self._newest[sink]
            return
        is_dropped_run = record.run <= self._dropped.get(sink, -1)
        is_older = before is not None and record.order <= before.record.order
        if not (is_dropped_run or is_older):
            self._newest[sink] = _Arrived(record, since_s)

    def newest(self, sink: str) -> PublishedProgress | None:
        """Return the newest record of a sink."""
        arrived = self._newest.get(sink)
        return None if arrived is None else arrived.record

    def newest_run(self, sink: str) -> int:
        """Return the number of the newest run, even of a dropped sink; -1 for none."""
        arrived = self._newest.get(sink)
        return self._dropped.get(sink, -1) if arrived is None else arrived.record.run

    def times(self) -> Mapping[str, datetime]:
        """Return the time of each sink's newest record."""
        newest = self._newest.copy()
        return {
            sink: datetime.fromisoformat(arrived.record.at)
            for sink, arrived in newest.items()
        }

    def received(
        self, sink: str, now: datetime, now_s: float
    ) -> ReceivedProgress | None:
        """
        Return the newest record of a sink with its age.

        The clocks of two machines may differ, so the age is at most the time since
        ``since_s``. A timestamp in the future counts as equally far in the past.

        Args:
            sink: The sink.
            now: The time by the reader's clock.
            now_s: The current time of the clock that measured ``since_s``.
        """
        arrived = self._newest.get(sink)
        if arrived is None:
            return None
        age_s = abs((now - datetime.fromisoformat(arrived.record.at)).total_seconds())
        if arrived.since_s is not None:
            age_s = min(age_s, now_s - arrived.since_s)
        return ReceivedProgress(arrived.record, age_s)

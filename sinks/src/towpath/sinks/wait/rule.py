"""
Decide whether a sink has applied a commit, in five steps.

::

    step                                      reason
    1  the slot has confirmed the LSN         all transactions that ended below it are
                                              in Kafka
    2  the LSN is in the current history      a slot that was recreated past the LSN
                                              confirms it without having published it
    3  the ends of the sink's topics are      all records of the commit are below them,
       read                                   including those in new topics and
                                              partitions
    4  a running driver has applied all       an offset above the end belongs to a topic
       records below them, none above, and    that was deleted; a sink that was added
       lacks no rows                          later, or that lost rows, is filled first
    5  the refetches that were pending at     until they end, a partial change whose row
       step 4 have ended                      is missing or stale is not applied

The order matters: each step covers at least what the steps before it covered. Without
a driver that runs the sink now, the answer is "not yet": the progress that an earlier
driver published may promise more than a restored target has
(``sinks/state/published.py``). If another run of the sink begins during a wait, steps 3
to 5 begin again.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.ports import Cluster
from towpath.sinks.state.declare import records_between
from towpath.sinks.state.progress import Offsets, Progress
from towpath.sinks.state.published import (
    ProgressSource,
    PublishedProgress,
    ReceivedProgress,
    not_alive,
)
from towpath.sinks.wait.errors import NotAppliedError, UnknownLsnError
from towpath.sinks.wait.source import SlotStatus

# A check is a round trip to the database or to the broker: about a millisecond.
CHECK_EVERY_S: Final = 0.01

# The relay stores its marks, and checks which commits are visible, ten times per
# second. An LSN that is not confirmed after this time may be past the last flushed
# commit.
NUDGE_AFTER_S: Final = 0.4


class Slot(Protocol):
    """The slot, as a wait needs it."""

    def status(self) -> SlotStatus | None:
        """Return the current state of the slot; ``None`` if it does not exist."""

    def nudge(self) -> None:
        """Advance the log, if the user has the privilege."""


class History(Protocol):
    """The relay's history, as a wait needs it."""

    def start_lsn(self) -> int | None:
        """Return the start of the current history; ``None`` before it has begun."""


class Applied(NamedTuple):
    """
    The result of a wait: a sink has applied everything below an LSN.

    Attributes:
        waited_s: The duration of the wait.
        confirmed_s: The part of ``waited_s`` before the relay had confirmed the LSN.
        dead_letters: The number of dead letters that the sink has ever written; some
            may belong to the commit.
        parked: The number of keys whose changes wait behind a dead letter.
        asked: The number of rows that the sink has ever requested; the refetches that
            were pending have ended.
    """

    sink: str
    lsn: int
    waited_s: float
    confirmed_s: float
    dead_letters: int
    parked: int
    asked: int


class Wait:
    """One wait, with one timeout for all of its steps."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        source: ProgressSource,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._slot_name = settings.database.slot
        self._sink = sink
        self._source = source
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = Deadline(clock, timeout_s)

    def until_applied(
        self, lsn: int, slot: Slot, history: History, cluster: Cluster
    ) -> Applied:
        """
        Wait until the sink has applied every commit that ended at or before ``lsn``.

        Raises:
            NotAppliedError: The commits are not applied in time, or a topic was
                recreated; the message has the reason.
            UnknownLsnError: The LSN is outside of the followed history.
            UnavailableError: The database or the broker does not answer.
            UnreadableProgressError: A driver of a different version runs the sink.
        """
        began_s = self._clock.monotonic_s()
        # Reads the existing records while the relay is still publishing the commit.
        history.start_lsn()
        self._until_confirmed(lsn, slot)
        self._until(lambda: _outside(lsn, history.start_lsn()))
        confirmed_s = self._clock.monotonic_s() - began_s
        progress = self._until_passed(cluster)
        waited_s = self._clock.monotonic_s() - began_s
        return Applied(
            sink=self._sink.name,
            lsn=lsn,
            waited_s=waited_s,
            confirmed_s=confirmed_s,
            dead_letters=progress.dead_letters,
            parked=progress.parked,
            asked=progress.asked,
        )

    def _until_confirmed(self, lsn: int, slot: Slot) -> None:
        nudging = Deadline(self._clock, NUDGE_AFTER_S)
        is_nudged = False

        def missing() -> str | None:
            nonlocal is_nudged
            status = slot.status()
            if status is None:
                return f"the slot {self._slot_name} does not exist: no relay is running"
            _check_end(lsn, status)
            if status.confirmed_lsn >= lsn:
                return None
            if nudging.passed() and not is_nudged:
                is_nudged = True
                slot.nudge()
            follows = "" if status.is_active else "; no relay is consuming the slot"
            return (
                f"the relay has confirmed {format_lsn(status.confirmed_lsn)}, not yet "
                f"{format_lsn(lsn)}{follows}"
            )

        self._until(missing)

    def _ends(self, before: ReceivedProgress | None, cluster: Cluster) -> Offsets:
        """
        Return the ends of the sink's topics.

        Raises:
            NotAppliedError: The sink has applied offsets past the end of a topic.
        """
        applied = {} if before is None else before.record.applied
        topics = Routes(self._sink).matching(cluster.names())
        ends = cluster.end_offsets(topics)
        for topic, partitions in ends.items():
            for partition, end in partitions.items():
                if applied.get(topic, {}).get(partition, 0) > end:
                    message = (
                        f"the topic {topic} was recreated after the sink "
                        f"{self._sink.name} read it"
                    )
                    raise NotAppliedError(message)
        return ends

    def _until_passed(self, cluster: Cluster) -> Progress:
        name = self._sink.name
        received = self._source.read(name)
        ends, run = self._ends(received, cluster), _run_of(received)
        pending_below: int | None = None

        def missing() -> str | None:
            nonlocal received, ends, run, pending_below
            received = self._source.read(name)
            if _run_of(received) != run:
                ends, run, pending_below = (
                    self._ends(received, cluster),
                    _run_of(received),
                    None,
                )
            why_not = not_alive(received, name)
            if received is None or why_not is not None:
                return why_not
            record = received.record
            missing_rows = _missing_rows(received, ends)
            if missing_rows is not None:
                return missing_rows
            # Refetches of later changes do not count: the wait might never end.
            if pending_below is None:
                pending_below = record.refetches.next
            return _missing_refetches(record, pending_below)

        self._until(missing)
        return Progress(name) if received is None else received.record.progress

    def _until(self, missing: Callable[[], str | None]) -> None:
        """Wait until ``missing`` returns ``None``."""
        while (reason := missing()) is not None:
            if self._deadline.passed():
                message = f"not applied within {self._timeout_s:g} s: {reason}"
                raise NotAppliedError(message)
            self._clock.wait(CHECK_EVERY_S)


def _run_of(received: ReceivedProgress | None) -> int | None:
    return None if received is None else received.record.run


def _missing_rows(received: ReceivedProgress, ends: Offsets) -> str | None:
    """Return why a running sink lacks records below the ends, if it does."""
    record = received.record
    why = f": {record.progress.error}" if record.progress.error else ""
    if left := records_between(received.certain, ends):
        if not record.is_open:
            return f"the sink {record.sink} is starting{why}"
        return f"the sink {record.sink} has {left:,} records to go{why}"
    if record.is_filling:
        return f"the sink {record.sink} is still being filled{why}"
    return None


def _missing_refetches(record: PublishedProgress, below: int) -> str | None:
    """Return why a running sink lacks rows that it requested, if it does."""
    why = f": {record.progress.error}" if record.progress.error else ""
    if record.refetches.has_any_below(below):
        return (
            f"the sink {record.sink} has requested {record.refetches.pending:,} rows "
            f"that have not arrived yet{why}"
        )
    if record.unfilled:
        return (
            f"the sink {record.sink} lacks rows of {', '.join(record.unfilled)}, "
            "which are being read again: towpath snapshot list"
        )
    return None


def _check_end(lsn: int, status: SlotStatus) -> None:
    if lsn > status.log_end_lsn:
        message = (
            f"{format_lsn(lsn)} is past the end of the source's log, "
            f"{format_lsn(status.log_end_lsn)}: it is not an LSN of this server"
        )
        raise UnknownLsnError(message)


def _outside(lsn: int, start_lsn: int | None) -> str | None:
    """
    Return why the LSN is not in the current history yet.

    Raises:
        UnknownLsnError: The LSN is before the history.
    """
    if start_lsn is None:
        return "the relay has not begun its current history"
    if lsn < start_lsn:
        message = (
            f"{format_lsn(lsn)} is before {format_lsn(start_lsn)}, where the relay "
            "began: earlier commits arrive through a snapshot"
        )
        raise UnknownLsnError(message)
    return None

"""
Decides whether a sink has applied a commit, in five steps.

::

    step                                      reason
    1  the slot has confirmed the LSN         all transactions that ended below it are
                                              in Kafka
    2  the LSN lies in the current history    a slot that was recreated past the LSN
                                              confirms it without having published it
    3  the ends of the sink's topics are      all records of the commit lie below them,
       read                                   also in new topics and partitions
    4  the sink has applied all below them,   an offset above the end belongs to a topic
       never more than exists, and lacks no   that was deleted; a late sink, or one that
       rows                                   lost rows, is filled first
    5  the refetches pending then have ended  until then, a partial change without a row
                                              or with an old one is not applied

The order matters: each step covers at least what the steps before it covered. Without
a progress file the answer is "not yet".
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.ports import Cluster
from towpath.sinks.state import incomplete
from towpath.sinks.state.declare import (
    READY_FILE,
    STARTING_OFFSETS_FILE,
    records_between,
)
from towpath.sinks.state.progress import (
    Offsets,
    Progress,
    progress_path,
    read_progress,
    sink_folder,
)
from towpath.sinks.state.refetches import refetch_ids
from towpath.sinks.wait.errors import NotAppliedError, UnknownLsnError
from towpath.sinks.wait.source import SlotStatus

# A check is a round trip to the database, or a small file: a fraction of a millisecond.
LOOK_EVERY_S: Final = 0.01

# The relay stores its marks, and checks which commits are visible, ten times a second.
# An LSN that is not confirmed by then may lie past the last flushed commit.
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
        confirmed_s: The part of it until the relay had confirmed the LSN.
        dead_letters: All dead letters that the sink ever wrote; the commit's may be
            among them.
        parked: Keys whose changes wait behind a dead letter.
        asked: All rows that the sink ever refetched; those that were pending have
            arrived.
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
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._slot_name = settings.database.slot
        self._folder: Path = settings.state_folder
        self._sink = sink
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = Deadline(clock, timeout_s)

    def until_applied(
        self, lsn: int, slot: Slot, history: History, cluster: Cluster
    ) -> Applied:
        """
        Return when the sink has applied every change of commits that ended by ``lsn``.

        Raises:
            NotAppliedError: It is not applied in time; the message has the reason.
            UnknownLsnError: The LSN is outside of the followed history.
            UnavailableError: The database or the broker does not answer.
        """
        began_s = self._clock.monotonic_s()
        # Reads the existing records while the relay is still publishing the commit.
        history.start_lsn()
        self._until_confirmed(lsn, slot)
        self._until(lambda: _outside(lsn, history.start_lsn()))
        confirmed_s = self._clock.monotonic_s() - began_s
        ends = self._ends(cluster)
        progress = self._until_passed(ends)
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
            follows = "" if status.is_active else "; no relay follows the slot"
            return (
                f"the relay has confirmed {format_lsn(status.confirmed_lsn)} of "
                f"{format_lsn(lsn)}{follows}"
            )

        self._until(missing)

    def _ends(self, cluster: Cluster) -> Offsets:
        """
        Return the ends of the sink's topics.

        Raises:
            NotAppliedError: The sink has applied more than exists.
        """
        before = self._progress()
        topics = Routes(self._sink).matching(cluster.names())
        ends = cluster.end_offsets(topics)
        for topic, partitions in ends.items():
            for partition, end in partitions.items():
                if before.applied.get(topic, {}).get(partition, 0) > end:
                    message = (
                        f"the topic {topic} was recreated since the sink "
                        f"{self._sink.name} read it"
                    )
                    raise NotAppliedError(message)
        return ends

    def _until_passed(self, ends: Offsets) -> Progress:
        progress = self._progress()
        pending: frozenset[bytes] | None = None

        def missing() -> str | None:
            nonlocal progress, pending
            progress = self._progress()
            left = records_between(progress.applied, ends)
            why = f": {progress.error}" if progress.error else ""
            if left:
                return f"the sink {self._sink.name} has {left:,} records to go{why}"
            if self._is_being_filled():
                return f"the sink {self._sink.name} is still being filled{why}"
            # Refetches of later changes do not count: the wait might never end.
            now = refetch_ids(self._folder, self._sink.name)
            pending = now if pending is None else pending & now
            if pending:
                return (
                    f"the sink {self._sink.name} has requested {len(pending):,} rows "
                    f"that have not arrived yet{why}"
                )
            # Last: a deferred route is noted before its refetches end.
            if routes := incomplete.routes(self._folder, self._sink.name):
                return (
                    f"the sink {self._sink.name} lost rows of {', '.join(routes)}, "
                    "which are being read again: towpath snapshot list"
                )
            return None

        self._until(missing)
        return progress

    def _until(self, missing: Callable[[], str | None]) -> None:
        """Wait until ``missing`` returns nothing."""
        while (reason := missing()) is not None:
            if self._deadline.passed():
                message = f"not applied within {self._timeout_s:g} s: {reason}"
                raise NotAppliedError(message)
            self._clock.wait(LOOK_EVERY_S)

    def _progress(self) -> Progress:
        name = self._sink.name
        return read_progress(progress_path(self._folder, name), name)

    def _is_being_filled(self) -> bool:
        """Return whether the sink began late and is not filled yet."""
        folder = sink_folder(self._folder, self._sink.name)
        began_late = (folder / STARTING_OFFSETS_FILE).exists()
        return began_late and not (folder / READY_FILE).exists()


def _check_end(lsn: int, status: SlotStatus) -> None:
    if lsn > status.log_end_lsn:
        message = (
            f"{format_lsn(lsn)} lies past the end of the source's log, "
            f"{format_lsn(status.log_end_lsn)}: it is not an LSN of this server"
        )
        raise UnknownLsnError(message)


def _outside(lsn: int, start_lsn: int | None) -> str | None:
    """
    Return why the LSN is not in the current history yet.

    Raises:
        UnknownLsnError: It lies before the history.
    """
    if start_lsn is None:
        return "the relay has not begun its current history"
    if lsn < start_lsn:
        message = (
            f"{format_lsn(lsn)} lies before {format_lsn(start_lsn)}, where the relay "
            "began: earlier commits arrive by a snapshot"
        )
        raise UnknownLsnError(message)
    return None

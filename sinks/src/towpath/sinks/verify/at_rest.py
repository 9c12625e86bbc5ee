"""
Wait until nothing is on its way between source and sink.

Three distances must be gone: the slot has confirmed everything that is committed, no
snapshot that the sink takes part in is running, and the sink has applied every record
of its topics.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.position import format_lsn
from towpath.settings import Settings, Sink
from towpath.sinks.ports import Cluster
from towpath.sinks.progress import Offsets, progress_path, read_progress
from towpath.sinks.routes import Routes
from towpath.sinks.verify.errors import NotAtRestError

# A relay that has nothing to do confirms at its timer, every 10 s; a warehouse commits
# every 10 s or so, and compacts for some seconds now and then.
AT_REST_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.2


class Log(Protocol):
    """What the wait needs of the database's log."""

    def mark(self) -> int:
        """Return an LSN that a slot confirms only after all that is committed now."""

    def confirmed(self, slot: str) -> int | None:
        """Return what a slot has confirmed; a slot that is not there has nothing."""

    def unfinished_tables(self, sink: str) -> int:
        """Count the tables that running snapshots have still to read for a sink."""


def wait_until_at_rest(
    settings: Settings, sink: Sink, log: Log, cluster: Cluster, clock: Clock
) -> None:
    """
    Return when everything committed before the call has reached the sink.

    Raises:
        NotAtRestError: It has not within a minute, and what is missing.
        UnavailableError: The database or the broker does not answer.
    """
    deadline = Deadline(clock, AT_REST_WITHIN_S)
    mark = log.mark()
    # In this order: what is confirmed later can only add records.
    distances: tuple[Callable[[], str | None], ...] = (
        lambda: _unconfirmed(log, settings.database.slot, mark),
        lambda: _unfinished(log, sink.name),
        lambda: _unapplied(settings, sink, cluster),
    )
    for distance in distances:
        while (missing := distance()) is not None:
            if deadline.passed():
                message = f"not at rest: {missing}"
                raise NotAtRestError(message)
            clock.wait(LOOK_EVERY_S)


def records_to_go(ends: Mapping[str, Mapping[str, int]], applied: Offsets) -> int:
    """Count the records of the topics that are not applied yet."""
    return sum(
        max(0, end - applied.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def _unconfirmed(log: Log, slot: str, mark: int) -> str | None:
    confirmed = log.confirmed(slot)
    if confirmed is None:
        message = f"not at rest: the slot {slot} does not exist, so no relay is at work"
        raise NotAtRestError(message)
    if confirmed >= mark:
        return None
    return (
        f"the relay has confirmed {format_lsn(confirmed)} of {format_lsn(mark)}, "
        f"{mark - confirmed:,} bytes to go"
    )


def _unfinished(log: Log, sink: str) -> str | None:
    count = log.unfinished_tables(sink)
    return f"a snapshot has {count} tables to read" if count else None


def _unapplied(settings: Settings, sink: Sink, cluster: Cluster) -> str | None:
    path = progress_path(settings.state_folder, sink.name)
    progress = read_progress(path, sink.name)
    topics = Routes(sink).matching(cluster.names())
    count = records_to_go(cluster.end_offsets(topics), progress.applied)
    if not count:
        return None
    why = f" ({progress.error})" if progress.error else ""
    return f"the sink {sink.name} has {count:,} records to go{why}"

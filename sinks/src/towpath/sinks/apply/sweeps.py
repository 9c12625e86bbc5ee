"""
Floors that take effect once every partition of their topic has delivered them.

A sweep ends a snapshot: in each partition it follows the rows that the snapshot read.
Until the last partition has delivered the sweep, some of these rows may still arrive,
so the floor waits. The sweep states how many partitions it was written to; partitions
added later have none of these rows. The partitions that have delivered a sweep are
recorded in a file before the batch counts as done, so a repeated batch changes nothing.

The safe position is the position below which no record can be delivered again: the
lowest position among the first records of the partitions of the sink's topics.
Tombstones below it are no longer needed. A dead letter can be replayed at any age, so
the safe position never passes one. The position is looked up from time to time, in
parallel with the batches.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import orjson
import structlog

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.change import Floor
from towpath.sinks.errors import BrokerUnavailableError
from towpath.sinks.ports import Cluster
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file, sink_folder

SWEEPS_FILE: Final = "sweeps.json"

# The topics and partitions that have delivered a floor, by route and floor.
_Deliveries: TypeAlias = dict[str, dict[str, dict[str, list[int]]]]

_log = structlog.get_logger("towpath.sinks")


class Sweeps:
    """The floors of one sink, and the partitions that have delivered each."""

    def __init__(self, state_folder: Path, sink: str, cluster: Cluster) -> None:
        self._state_folder = state_folder
        self._sink = sink
        self._path = sink_folder(state_folder, sink) / SWEEPS_FILE
        self._cluster = cluster
        self._delivered: _Deliveries = self._read()

    def record(self, floors: Iterable[Floor]) -> tuple[Floor, ...]:
        """
        Record a batch's sweeps durably; return the floors that take effect now.

        Raises:
            UnavailableError: The broker does not report the number of partitions.
        """
        given = list(floors)
        waiting = [floor for floor in given if floor.needs_all]
        if not waiting:
            return tuple(given)
        for floor in waiting:
            self._note(floor)
        complete = [floor for floor in waiting if self._is_complete(floor)]
        self._write()
        for floor in waiting:
            if floor not in complete:
                _log.info(
                    "sweep received: waiting for the other partitions",
                    sink=self._sink,
                    route=floor.route,
                    floor=floor.position,
                    partition=floor.origin.partition,
                )
        return (*(floor for floor in given if not floor.needs_all), *complete)

    def mark_applied(self, floors: Iterable[Floor]) -> None:
        """Mark the routes of applied sweeps as complete, once the batch is durable."""
        complete = [floor for floor in floors if floor.needs_all]
        for floor in complete:
            route, snapshot_id = floor.route, floor.snapshot_id
            incomplete.end(self._state_folder, self._sink, route, snapshot_id)
        if self._forget(complete):
            self._write()

    def _read(self) -> _Deliveries:
        try:
            delivered: _Deliveries = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return delivered

    def _note(self, floor: Floor) -> None:
        topics = self._delivered.setdefault(floor.route, {}).setdefault(
            _name(floor), {}
        )
        partitions = topics.setdefault(floor.origin.topic, [])
        if floor.origin.partition not in partitions:
            partitions.append(floor.origin.partition)

    def _is_complete(self, floor: Floor) -> bool:
        topic = floor.origin.topic
        delivered = self._delivered[floor.route][_name(floor)][topic]
        # An older relay's sweep does not state the number of partitions.
        count = floor.partitions or self._count(topic)
        return set(range(count)) <= set(delivered)

    def _count(self, topic: str) -> int:
        count = len(self._cluster.end_offsets([topic]).get(topic, {}))
        if not count:
            message = f"the broker reports no partition of the topic {topic}"
            raise BrokerUnavailableError(message)
        return count

    def _forget(self, complete: Iterable[Floor]) -> bool:
        """
        Forget the floors that complete floors replace; return whether there were any.

        A floor replaces the lower floors of its topic, but is itself kept: it can be
        delivered again. A lower floor may still be waiting if it belongs to a different
        topic, such as a snapshot's own, or only marks the end of a snapshot. Such a
        mark deletes nothing, so it is forgotten once it is complete.
        """
        is_changed = False
        for floor in complete:
            delivered = self._delivered.get(floor.route, {})
            for name in list(delivered):
                is_lower = " " not in name and name < floor.position
                is_own_end = floor.is_end_only and name == _name(floor)
                if not (is_lower or is_own_end):
                    continue
                is_changed |= delivered[name].pop(floor.origin.topic, None) is not None
                if not delivered[name]:
                    del delivered[name]
        return is_changed

    def _write(self) -> None:
        replace_file(self._path, orjson.dumps(self._delivered), is_durable=True)


def _name(floor: Floor) -> str:
    """
    Return the name of a floor in the file.

    Floors of snapshots that read only some rows share a position.
    """
    if floor.is_end_only:
        return f"{floor.position} {floor.snapshot_id}"
    return floor.position


CHECK_EVERY_S: Final = 300.0


class EarliestPositions(Protocol):
    """The positions of the first records of topics."""

    def lowest_position(self, names: list[str]) -> str | None:
        """
        Return the lowest position among the first records of all partitions.

        Returns:
            ``None`` if no record is retained, or a first record has no position.

        Raises:
            UnavailableError: The broker does not answer.
        """


class SafePosition:
    """The safe position, looked up by one thread and taken by another."""

    def __init__(
        self, earliest_positions: EarliestPositions | None, clock: Clock
    ) -> None:
        self._earliest_positions = earliest_positions
        self._clock = clock
        self._next = Deadline(clock, 0)
        self._lock = threading.Lock()
        self._found: str | None = None

    def check(self, names: Callable[[], list[str]]) -> None:
        """
        Look up the position, if a look-up is due.

        Args:
            names: Lists the sink's topics.

        Raises:
            UnavailableError: The broker does not answer.
        """
        if self._earliest_positions is None or not self._next.passed():
            return
        self._next = Deadline(self._clock, CHECK_EVERY_S)
        found = self._earliest_positions.lowest_position(names())
        with self._lock:
            self._found = found

    @property
    def is_found(self) -> bool:
        """Whether ``take`` would return a position."""
        with self._lock:
            return self._found is not None

    def take(self, parked_from: str | None) -> str | None:
        """Return the position found since the last call, capped at ``parked_from``."""
        with self._lock:
            found, self._found = self._found, None
        if found is None or parked_from is None:
            return found
        return min(found, parked_from)

"""
Floors that count only once every partition of their topic has told them.

A sweep ends a snapshot: in each partition it stands behind the rows that the snapshot
spared. As long as one partition has not come to it, rows may be missing that are about
to come, so the floor waits. The sweep says how many partitions it was written into:
what was added since has nothing to spare. What was told is kept in a file, written
before the batch counts as done: a batch that comes again tells the same again, which
changes nothing.

The safe position: what stands below it cannot be delivered again.

It is the lowest position that the head of any partition of the sink's topics still
has. What retention has cut off cannot come back, so tombstones below guard against
nothing. A dead letter can be replayed, however old it is: it holds the safe position
down. Looked up now and then, beside the batches, which do not wait for it.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import orjson
import structlog

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.change import Floor
from towpath.sinks.fold import highest_per_route
from towpath.sinks.ports import Cluster
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import replace_file, sink_folder

SWEEPS_FILE: Final = "sweeps.json"

# By route and floor: the topics and their partitions that have told it.
_Told: TypeAlias = dict[str, dict[str, dict[str, list[int]]]]

_log = structlog.get_logger("towpath.sinks")


class Sweeps:
    """The floors that one sink was told, and by which partitions."""

    def __init__(self, state_folder: Path, sink: str, cluster: Cluster) -> None:
        self._state_folder = state_folder
        self._sink = sink
        self._path = sink_folder(state_folder, sink) / SWEEPS_FILE
        self._cluster = cluster
        self._told: _Told = self._read()

    def counting(self, floors: Iterable[Floor]) -> tuple[Floor, ...]:
        """
        Take note of a batch's floors, durably; return those that count now.

        Raises:
            UnavailableError: The broker does not say how many partitions there are.
        """
        given = list(floors)
        waiting = [floor for floor in given if floor.needs_all]
        if not waiting:
            return tuple(given)
        for floor in waiting:
            self._note(floor)
        complete = [floor for floor in waiting if self._is_complete(floor)]
        self._forget_below(highest_per_route(complete))
        replace_file(self._path, orjson.dumps(self._told))
        for floor in waiting:
            if floor not in complete:
                _log.info(
                    "a sweep waits for the other partitions",
                    route=floor.route,
                    floor=floor.position,
                    partition=floor.origin.partition,
                )
        return (*(floor for floor in given if not floor.needs_all), *complete)

    def carried_out(self, floors: Iterable[Floor]) -> None:
        """Strike off the routes whose rows were read anew, now that it is durable."""
        for floor in floors:
            if floor.needs_all:
                route, snapshot_id = floor.route, floor.snapshot_id
                incomplete.end(self._state_folder, self._sink, route, snapshot_id)

    def _read(self) -> _Told:
        try:
            told: _Told = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return told

    def _note(self, floor: Floor) -> None:
        topics = self._told.setdefault(floor.route, {}).setdefault(_name(floor), {})
        partitions = topics.setdefault(floor.origin.topic, [])
        if floor.origin.partition not in partitions:
            partitions.append(floor.origin.partition)

    def _is_complete(self, floor: Floor) -> bool:
        topic = floor.origin.topic
        told = self._told[floor.route][_name(floor)][topic]
        # A sweep that an older relay has written does not say it.
        count = floor.partitions or self._count(topic)
        return set(range(count)) <= set(told)

    def _count(self, topic: str) -> int:
        return len(self._cluster.end_offsets([topic]).get(topic, {}))

    def _forget_below(self, complete: dict[str, str]) -> None:
        """Forget what a higher floor makes needless; the complete ones may recur."""
        for route, floor in complete.items():
            kept = {p: t for p, t in self._told[route].items() if p >= floor}
            self._told[route] = kept


def _name(floor: Floor) -> str:
    """Return what tells a floor from others; ends without rows below are all one."""
    if floor.is_end_only:
        return f"{floor.position} {floor.snapshot_id}"
    return floor.position


LOOK_EVERY_S: Final = 300.0


class EarliestPositions(Protocol):
    """What the topics begin with."""

    def lowest_position(self, names: list[str]) -> str | None:
        """
        Return the lowest position among the first records of all partitions.

        Returns:
            ``None`` if no record is retained, or one has no position to go by.

        Raises:
            UnavailableError: The broker does not answer.
        """


class SafePosition:
    """Looked up by one thread, taken by another."""

    def __init__(
        self, earliest_positions: EarliestPositions | None, clock: Clock
    ) -> None:
        self._earliest_positions = earliest_positions
        self._clock = clock
        self._next = Deadline(clock, 0)
        self._lock = threading.Lock()
        self._found: str | None = None

    def look(self, names: Callable[[], list[str]]) -> None:
        """
        Look the position up, if that is due.

        Args:
            names: Lists the sink's topics.

        Raises:
            UnavailableError: The broker does not answer.
        """
        if self._earliest_positions is None or not self._next.passed():
            return
        self._next = Deadline(self._clock, LOOK_EVERY_S)
        found = self._earliest_positions.lowest_position(names())
        with self._lock:
            self._found = found

    def take(self, parked_from: str | None) -> str | None:
        """Return what was found since the last call, no higher than what is parked."""
        with self._lock:
            found, self._found = self._found, None
        if found is None or parked_from is None:
            return found
        return min(found, parked_from)

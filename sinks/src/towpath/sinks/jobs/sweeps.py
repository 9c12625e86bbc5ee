"""
Floors that count only once every partition of their topic has told them.

A sweep ends a snapshot: in each partition it stands behind the rows that the snapshot
spared. As long as one partition has not come to it, rows may be missing that are about
to come, so the floor waits. The sweep says how many partitions it was written into:
what was added since has nothing to spare. What was told is kept in a file, written
before the batch counts as done: a batch that comes again tells the same again, which
changes nothing.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import orjson
import structlog

from towpath.sinks import unfilled
from towpath.sinks.change import Floor
from towpath.sinks.fold import highest_per_route
from towpath.sinks.ports import Cluster
from towpath.sinks.progress import replace_file, sink_folder

SWEEPS_FILE: Final = "sweeps.json"

# By route and floor: the topics and their partitions that have told it.
_Told: TypeAlias = dict[str, dict[str, dict[str, list[int]]]]

_log = structlog.get_logger("towpath.sinks.jobs")


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
                unfilled.end(self._state_folder, self._sink, route, snapshot_id)

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

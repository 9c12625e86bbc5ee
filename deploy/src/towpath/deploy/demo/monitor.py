"""
The thread that looks at everything once a second and shows it.

A part that is away for the moment, because it was killed and is being started again,
makes a look incomplete and nothing else: its values stay as they were last seen. The
memory of each part is read in one walk over the processes below the demo; shared pages
are counted once, because a process is charged its proportional share of them.
"""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import psutil
import psycopg

from towpath.deploy.demo import parts
from towpath.deploy.demo.screen import (
    PartView,
    Rates,
    SinkView,
    SnapshotView,
    View,
)
from towpath.deploy.demo.stage import Stage
from towpath.deploy.local import process
from towpath.deploy.snapshots import signals
from towpath.deploy.status import (
    event_records,
    lag_records,
    progress_of,
    read_ends,
    table_records,
)
from towpath.schemas.failure import TowpathError
from towpath.sinks.kafka.client import Topics

OURSELVES = "demo"


def memory_bytes(parts: Mapping[str, int]) -> dict[str, int]:
    """
    Sum up memory per part; what belongs to none, the caller included, is our own.

    Args:
        parts: Each part's name and the process it began with.
    """
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    parents = {member.pid: _parent(member) for member in family}
    names = {pid: name for name, pid in parts.items()}
    totals = dict.fromkeys([*parts, OURSELVES], 0)
    for member in family:
        totals[owner(member.pid, parents, names)] += _held_bytes(member)
    return totals


def owner(pid: int, parents: Mapping[int, int], names: Mapping[int, str]) -> str:
    """Find the part that a process belongs to: its own or its nearest ancestor's."""
    while pid not in names and pid in parents:
        pid = parents[pid]
    return names.get(pid, OURSELVES)


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def _held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


_LOOK_EVERY_S: Final = 1.0

# Reading the memory of all processes takes tens of milliseconds of a core.
_PARTS_EVERY_S: Final = 2.0

# A look that hangs at a part that is being stopped holds nothing up for longer.
_CLOSE_WITHIN_S: Final = 5.0

Value = TypeVar("Value")


class Monitor:
    """Looks, shows, and keeps the highest memory that it saw."""

    def __init__(self, stage: Stage) -> None:
        self.peak_memory_bytes = 0
        self._stage = stage
        self._view = View(step=stage.step, elapsed_s=0.0)
        self._parts_due_at_s = 0.0
        self._topics: Topics | None = None
        self._counts: tuple[float, tuple[int, int, int]] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(timeout=_CLOSE_WITHIN_S)

    def _run(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            self._look()
            self._stage.screen.show(self._view)

    def _look(self) -> None:
        stage = self._stage
        elapsed_s = stage.elapsed_s()
        if elapsed_s >= self._parts_due_at_s:
            self._parts_due_at_s = elapsed_s + _PARTS_EVERY_S
            self._view = replace(
                self._view, parts=tried(self._look_at_parts, self._view.parts)
            )
        if stage.config.exists():
            self._view = tried(self._look_at_flow, self._view)
        self._view = replace(self._view, step=stage.step, elapsed_s=elapsed_s)

    def _look_at_parts(self) -> tuple[PartView, ...]:
        state, restarts = self._stage.state, self._stage.restarts
        found = {name: process.find(state.process_file(name)) for name in state.parts()}
        pids = {name: one.pid for name, one in found.items() if one is not None}
        held = memory_bytes(pids)
        self.peak_memory_bytes = max(self.peak_memory_bytes, sum(held.values()))
        pids[OURSELVES] = os.getpid()
        return tuple(
            PartView(
                name=name,
                state="running" if name in pids else "stopped",
                pid=pids.get(name),
                memory_bytes=held.get(name, 0),
                restarts=restarts(name),
            )
            for name in [*found, OURSELVES]
        )

    def _look_at_flow(self) -> View:
        stage = self._stage
        settings = stage.settings()
        if self._topics is None:
            self._topics = Topics(settings.kafka)
        ends = read_ends(self._topics)
        load = read_report(parts.progress_of(stage)).get("load", {})
        counts = (
            int(load.get("checkouts", 0)),
            table_records(settings, ends),
            event_records(settings, ends),
        )
        sinks = []
        for sink in settings.sink:
            said = progress_of(settings, sink)
            behind = lag_records(sink, said.applied, ends)
            sinks.append(
                SinkView(sink.name, said.state, behind, said.rows, said.last_batch_ms)
            )
        snapshots = tried(self._look_at_snapshots, self._view.snapshots)
        rates = self._rates(counts)
        return replace(self._view, sinks=tuple(sinks), snapshots=snapshots, rates=rates)

    def _look_at_snapshots(self) -> tuple[SnapshotView, ...]:
        return tuple(
            SnapshotView(
                snapshot_id=row.snapshot_id,
                collection=row.collection,
                target=row.target,
                state=row.state,
                rows=row.rows,
                dropped=row.dropped,
                estimated_rows=row.estimated_rows or 0,
                elapsed_s=row.elapsed_s or 0.0,
            )
            for row in signals.progress(self._stage.source())
        )

    def _rates(self, counts: tuple[int, int, int]) -> Rates:
        at_s = self._stage.elapsed_s()
        before, self._counts = self._counts, (at_s, counts)
        if before is None or at_s <= before[0]:
            return Rates()
        passed_s = at_s - before[0]
        pairs = zip(counts, before[1], strict=True)
        checkouts, changes, events = (
            max(0, now - old) / passed_s for now, old in pairs
        )
        return Rates(checkouts, changes, events)


def tried(look: Callable[[], Value], otherwise: Value) -> Value:
    """Look, or keep what was seen before while a part is away."""
    away = (TowpathError, psycopg.Error, psutil.Error, OSError)
    try:
        return look()
    except away:
        return otherwise


def read_report(path: Path) -> dict[str, Any]:
    """Read what the load has written; a file that is not there yet is empty."""
    with contextlib.suppress(OSError, ValueError):
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
    return {}

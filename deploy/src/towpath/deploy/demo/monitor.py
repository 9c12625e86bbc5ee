"""
The thread that reads the state of the platform once a second and shows it.

The state of processes is read only every two seconds.

While a part is unavailable, because it was killed and is being restarted, its last
values remain on the screen. The memory of each part is read in one walk over the
demo's descendants; shared pages are counted once, because each process is charged only
its proportional share of them.
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
from towpath.sinks.kafka.progress_topic import ProgressReader

OURSELVES = "demo"


def memory_bytes(parts: Mapping[str, int]) -> dict[str, int]:
    """
    Add up memory per part; the caller and all other processes form one entry.

    Args:
        parts: Each part's name and its first process.
    """
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    parents = {member.pid: _parent(member) for member in family}
    names = {pid: name for name, pid in parts.items()}
    totals = dict.fromkeys([*parts, OURSELVES], 0)
    for member in family:
        totals[owner(member.pid, parents, names)] += process.own_memory_bytes(member)
    return totals


def owner(pid: int, parents: Mapping[int, int], names: Mapping[int, str]) -> str:
    """Return the part to which a process or its nearest listed ancestor belongs."""
    while pid not in names and pid in parents:
        pid = parents[pid]
    return names.get(pid, OURSELVES)


def _parent(member: psutil.Process) -> int:
    try:
        return int(member.ppid())
    except psutil.Error:
        return 0


_REFRESH_EVERY_S: Final = 1.0

# Reading the memory of all processes takes tens of milliseconds of CPU time.
_PARTS_EVERY_S: Final = 2.0

# The longest time for which a hanging read may delay the end of the monitor.
_CLOSE_WITHIN_S: Final = 5.0

Value = TypeVar("Value")


class Monitor:
    """Reads and shows the state of a demo, and records the peak memory."""

    def __init__(self, stage: Stage) -> None:
        self.peak_memory_bytes = 0
        self._stage = stage
        self._view = View(step=stage.step, elapsed_s=0.0)
        self._parts_due_at_s = 0.0
        self._topics: Topics | None = None
        self._published: ProgressReader | None = None
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
        while not self._closing.wait(_REFRESH_EVERY_S):
            self._refresh()
            self._stage.screen.show(self._view)
        if self._published is not None:
            self._published.close()

    def _refresh(self) -> None:
        stage = self._stage
        elapsed_s = stage.elapsed_s()
        if elapsed_s >= self._parts_due_at_s:
            self._parts_due_at_s = elapsed_s + _PARTS_EVERY_S
            self._view = replace(
                self._view, parts=read_or_keep(self._read_parts, self._view.parts)
            )
        if stage.config.exists():
            self._view = read_or_keep(self._read_flow, self._view)
        self._view = replace(self._view, step=stage.step, elapsed_s=elapsed_s)

    def _read_parts(self) -> tuple[PartView, ...]:
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

    def _read_flow(self) -> View:
        stage = self._stage
        settings = stage.settings()
        if self._topics is None or self._published is None:
            self._topics = Topics(settings.kafka)
            self._published = ProgressReader(settings, stage.clock)
        ends = read_ends(self._topics)
        load = read_report(parts.progress_of(stage)).get("load", {})
        counts = (
            int(load.get("checkouts", 0)),
            table_records(settings, ends),
            event_records(settings, ends),
        )
        sinks = []
        for sink in settings.sink:
            progress = progress_of(self._published, sink)
            behind = lag_records(sink, progress.applied, ends)
            sinks.append(
                SinkView(
                    sink.name,
                    progress.state,
                    behind,
                    progress.rows,
                    progress.last_batch_ms,
                )
            )
        snapshots = read_or_keep(self._read_snapshots, self._view.snapshots)
        rates = self._rates(counts)
        return replace(self._view, sinks=tuple(sinks), snapshots=snapshots, rates=rates)

    def _read_snapshots(self) -> tuple[signals.TableProgress, ...]:
        return tuple(signals.progress(self._stage.source()))

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


def read_or_keep(read: Callable[[], Value], last: Value) -> Value:
    """Read a value, or keep the last one while a part is unavailable."""
    failures = (TowpathError, psycopg.Error, psutil.Error, OSError)
    try:
        return read()
    except failures:
        return last


def read_report(path: Path) -> dict[str, Any]:
    """Read the report of the load; a missing or invalid file counts as empty."""
    with contextlib.suppress(OSError, ValueError):
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
    return {}

"""
One sink alone, from the start of its process to the end of its topic.

The engine is a process of its own below the driver's; both are watched, and so is the
server that is written.
"""

import contextlib
from collections.abc import Mapping
from typing import Final, NoReturn

import psutil

from towpath.loadtests.bench.clients import told
from towpath.loadtests.bench.drain import LOOK_EVERY_S
from towpath.loadtests.bench.errors import BenchError
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.sinks.backlog import Backlog
from towpath.loadtests.bench.sinks.following import Applied, Follower
from towpath.loadtests.bench.watch import Watch, per_event_us
from towpath.schemas.clock import Patience

_ENGINE: Final = "java"
# Lives for a moment before it, and only says how the engine is to be started.
_LAUNCHER: Final = "org.apache.spark.launcher.Main"
# On a busy machine an engine starts in minutes, and its first batch takes another.
_STUCK_AFTER_S: Final = 300.0
# What a target refuses five times over, it will not take the sixth time.
_MOST_RETRIES: Final = 5
_MS: Final = 1000.0


class Catching:
    """One sink that catches up. Call order: measure, once."""

    def __init__(self, backlog: Backlog, sink: str, pids: Mapping[str, int]) -> None:
        self._bench = backlog.bench
        self._backlog = backlog
        self._sink = sink
        self._name = f"sink_{sink}"
        self._follower = Follower(backlog.state / "sinks" / sink, backlog.run.topic)
        self._first_ms: float | None = None
        self._watch = Watch()
        self._watch.add("target", pids.get(sink), is_new=False)
        self._watch.add("broker", backlog.bench.place.broker_pid, is_new=False)

    def measure(self) -> Figures:
        """
        Run the sink until it has applied all that there is; return its figures.

        Raises:
            BenchError: It ended, set records aside, or stands still.
        """
        place = self._bench.place
        config = str(self._backlog.config)
        words = (*place.towpath, "sink", "run", self._sink, "--config", config)
        started_ms = self._bench.clock.now().timestamp() * _MS
        pid = place.launcher.start(self._name, words)
        self._watch.add("driver", pid, is_new=True)
        try:
            applied = self._until_applied(pid)
        finally:
            place.launcher.stop(self._name)
        return self._figures(applied, started_ms)

    def _until_applied(self, pid: int) -> Applied:
        goal = sum(self._backlog.ends.values())
        tell = self._bench.screen.begin(f"{self._sink} catches up", goal)
        patience = Patience(self._bench.clock, _STUCK_AFTER_S)
        while True:
            # The processes before the files: what they say at the end is the whole.
            self._look(pid)
            applied = self._follower.applied()
            tell(applied.records)
            if applied.records >= goal:
                return applied
            if applied.dead_letters:
                self._end(f"{applied.dead_letters:,} records were set aside")
            is_stuck = patience.is_over(goal - applied.records)
            if is_stuck or applied.retries > _MOST_RETRIES:
                self._end(f"{applied.records:,} of {goal:,} records: {applied.error}")
            self._bench.clock.wait(LOOK_EVERY_S)

    def _look(self, pid: int) -> None:
        try:
            family = psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            self._end("it ended")
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == _ENGINE and _LAUNCHER not in process.cmdline():
                    self._watch.add("engine", process.pid, is_new=True)
        self._watch.look()
        if self._first_ms is None:
            self._first_ms = self._follower.first_batch_ms()

    def _end(self, what: str) -> NoReturn:
        log = self._bench.place.launcher.log(self._name)
        raise BenchError(told(self._name, what, log))

    def _figures(self, applied: Applied, started_ms: float) -> Figures:
        rows = self._backlog.rows
        first_ms = started_ms if self._first_ms is None else self._first_ms
        found = self._watch.figures()
        memory = ("driver_peak_rss_bytes", "engine_peak_rss_bytes")
        ours_s = found["driver_cpu_s"] + found.get("engine_cpu_s", 0.0)
        return {
            "rows_per_s": rows * _MS / max(1.0, applied.at_ms - first_ms),
            "from_start_per_s": rows * _MS / max(1.0, applied.at_ms - started_ms),
            "first_batch_s": (first_ms - started_ms) / _MS,
            "batches": float(applied.batches),
            "retries": float(applied.retries),
            "memory_bytes": sum(found.get(name, 0.0) for name in memory),
            "cpu_us_per_row": per_event_us(ours_s, rows),
            **found,
        }

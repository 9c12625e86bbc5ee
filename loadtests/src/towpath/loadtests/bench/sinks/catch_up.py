"""
The case ``catch_up``: each sink alone, then its comparison, then its baseline.

A sink is measured from the start of its process to the end of its topic. The driver,
its engine, the target's server, the broker and a cluster's executors are
watched. Progress is read from the sink's own files: ``progress.json`` has the applied
offsets and the time when they became durable; the engine's offset log has the time of
the first batch. The comparison is ``towpath verify``, in a separate process.
"""

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import psutil

from towpath.loadtests.bench.context import Bench, RunRecords, translated
from towpath.loadtests.bench.figures import Figures
from towpath.loadtests.bench.machine import ProcessWatch, per_event_us
from towpath.loadtests.bench.measurements import POLL_INTERVAL_S
from towpath.loadtests.bench.publishers import failure
from towpath.loadtests.bench.sinks import backlog as backlogs
from towpath.loadtests.bench.sinks import baselines
from towpath.loadtests.bench.sinks.backlog import Backlog
from towpath.loadtests.bench.sinks.result import (
    BASELINE_OF,
    CACHE,
    SEARCH,
    SINKS,
    CatchUp,
    Targets,
)
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import StallTimeout

_BATCH_BEGAN: Final = "batchTimestampMs"
_MS: Final = 1000.0


class SinkProgress(NamedTuple):
    """
    The progress of a sink.

    Attributes:
        records: Applied records.
        at_ms: When the sink wrote its file, which it does once a batch is durable.
        batches: Applied batches.
        retries: Retries after a failure.
        dead_letters: Records that became dead letters.
        error: The reason why the sink is not running; None if it is running.
        left: Records that slices left to the driver.
    """

    records: int
    at_ms: float
    batches: int
    retries: int
    dead_letters: int
    error: str | None
    left: int = 0


@dataclass(frozen=True, slots=True)
class SinkProgressReader:
    """Reads the progress of one sink from its files."""

    folder: Path
    topic: str

    def applied(self) -> SinkProgress:
        """Return the sink's progress; zero while there is no file."""
        document = _document(self.folder / "progress.json")
        if not document:
            return SinkProgress(0, 0.0, 0, 0, 0, None)
        offsets: Mapping[str, int] = document["applied"].get(self.topic, {})
        at = datetime.fromisoformat(document["updated_at"])
        return SinkProgress(
            sum(offsets.values()),
            at.timestamp() * _MS,
            document["batches"],
            document["retries"],
            document["dead_letters"],
            document["error"],
            document["left"],
        )

    def first_batch_ms(self) -> float | None:
        """Return the start of the engine's first batch, if it has begun."""
        path = self.folder / "checkpoint" / "offsets" / "0"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return float(json.loads(lines[1])[_BATCH_BEGAN])
        except (OSError, ValueError, IndexError):
            # The file has not been written yet, or is incomplete.
            return None


def _document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return document


_ENGINE: Final = "java"
_EXECUTOR: Final = "executor_"
# A short-lived process that only computes the engine's command.
_LAUNCHER: Final = "org.apache.spark.launcher.Main"
# On a busy machine an engine takes minutes to start and to finish its first batch.
_STUCK_AFTER_S: Final = 300.0
# With more retries than this in the whole run, a figure would mean little.
_MAX_RETRIES: Final = 5


class SinkCatchUp:
    """One sink that catches up; call ``measure`` once."""

    def __init__(
        self,
        backlog: Backlog,
        sink: str,
        pids: Mapping[str, int],
        workers: Sequence[int] | None = None,
    ) -> None:
        """
        Watch the target and the broker; nothing is started yet.

        Args:
            backlog: The backlog.
            sink: The sink's name.
            pids: The id of the target's process, by sink.
            workers: The engine's workers, whose executors are watched. The figures are
                then those of the second half of the backlog, even if the list is empty.
                If it is ``None``, the figures are those of the whole run.
        """
        self._bench = backlog.bench
        self._backlog = backlog
        self._sink = sink
        self._name = f"sink_{sink}"
        self._progress = SinkProgressReader(
            backlog.state / "sinks" / sink, backlog.run.topic
        )
        self._first_ms: float | None = None
        self._workers = workers
        self._half: SinkProgress | None = None
        self._watch = ProcessWatch()
        self._watch.add("target", pids.get(sink), is_new=False)
        self._watch.add("broker", backlog.bench.environment.broker_pid, is_new=False)

    def measure(self) -> Figures:
        """
        Run the sink until it has applied the whole backlog; return its figures.

        Raises:
            BenchError: The sink or a worker ended, the sink has dead letters or is
                stuck, or half of the backlog is too short to measure.
        """
        environment = self._bench.environment
        config = str(self._backlog.config)
        command = (*environment.towpath, "sink", "run", self._sink, "--config", config)
        started_ms = self._bench.clock.now().timestamp() * _MS
        pid = environment.launcher.start(self._name, command)
        self._watch.add("driver", pid, is_new=True)
        try:
            applied = self._until_applied(pid)
        finally:
            environment.launcher.stop(self._name)
        return self._figures(applied, started_ms)

    def _until_applied(self, pid: int) -> SinkProgress:
        goal = sum(self._backlog.ends.values())
        report = self._bench.screen.begin(f"{self._sink} catches up", goal)
        stall = StallTimeout(self._bench.clock, _STUCK_AFTER_S)
        while True:
            # Sample just before reading the progress: both then cover the same work.
            self._poll(pid)
            applied = self._progress.applied()
            report(applied.records)
            self._note_half(applied, goal)
            if applied.dead_letters:
                self._fail(
                    f"records that became dead letters: {applied.dead_letters:,}"
                )
            if applied.records >= goal:
                return applied
            is_stuck = stall.is_over(goal - applied.records)
            if is_stuck or applied.retries > _MAX_RETRIES:
                stuck = f"none more within {_STUCK_AFTER_S:.0f} s"
                retried = f"{applied.retries} retries"
                reason = applied.error or (stuck if is_stuck else retried)
                self._fail(f"{applied.records:,} of {goal:,} records: {reason}")
            self._bench.clock.wait(POLL_INTERVAL_S)

    def _note_half(self, applied: SinkProgress, goal: int) -> None:
        """Restart a cluster's figures once half of the backlog is applied."""
        is_due = self._workers is not None and self._half is None
        if is_due and applied.records >= goal // 2:
            self._half = applied
            self._watch.restart()

    def _poll(self, pid: int) -> None:
        for process in self._children(pid, "it ended"):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == _ENGINE and _LAUNCHER not in process.cmdline():
                    self._watch.add("engine", process.pid, is_new=True)
        for worker in self._workers or ():
            for process in self._children(worker, "a worker ended"):
                self._watch.add(f"{_EXECUTOR}{process.pid}", process.pid, is_new=True)
        self._watch.sample()
        if self._first_ms is None:
            self._first_ms = self._progress.first_batch_ms()

    def _children(self, pid: int, if_ended: str) -> list[psutil.Process]:
        """
        Return the child processes of a process.

        Raises:
            BenchError: The process ended, even if its parent has not reaped it yet.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                children: list[psutil.Process] = process.children(recursive=True)
                return children
        raise failure(self._bench.environment, self._name, if_ended)

    def _fail(self, what: str) -> NoReturn:
        raise failure(self._bench.environment, self._name, what)

    def _figures(self, applied: SinkProgress, started_ms: float) -> Figures:
        rows = self._backlog.rows
        first_ms = started_ms if self._first_ms is None else self._first_ms
        found = self._watch.figures()
        if self._half is not None:
            return self._steady(self._half, applied, found)
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

    def _steady(
        self, half: SinkProgress, applied: SinkProgress, found: Figures
    ) -> Figures:
        """
        Return the figures of the second half of the backlog.

        Raises:
            BenchError: The second half was applied between two reads of the progress.
        """
        rows = applied.records - half.records
        if not rows:
            self._fail("half of the backlog is too short to measure: increase --rows")
        executors_s = sum(
            value
            for name, value in found.items()
            if name.startswith(_EXECUTOR) and name.endswith("_cpu_s")
        )
        kept = {n: v for n, v in found.items() if not n.startswith(_EXECUTOR)}
        ours_s = found["driver_cpu_s"] + found.get("engine_cpu_s", 0.0) + executors_s
        return {
            **kept,
            "rows_per_s": rows * _MS / max(1.0, applied.at_ms - half.at_ms),
            "batches": float(applied.batches),
            "left": float(applied.left),
            "executors_cpu_s": executors_s,
            "cpu_us_per_row": per_event_us(ours_s, rows),
        }


_MIN_TIMEOUT_S: Final = 180.0
_SLOWEST_PER_S: Final = 1_000


def compare_sink(backlog: Backlog, sink: str) -> tuple[str, ...]:
    """
    Compare a sink with the source, and return the findings; the relay must be running.

    Raises:
        BenchError: The comparison failed.
    """
    bench = backlog.bench
    bench.screen.begin(f"comparing {sink} with the table", 0)
    command = (*bench.environment.towpath, "verify", sink, "--json")
    within_s = _MIN_TIMEOUT_S + backlog.rows / _SLOWEST_PER_S
    try:
        done = subprocess.run(  # noqa: S603 - our own command
            (*command, "--config", str(backlog.config)),
            cwd=bench.environment.folder,
            env=dict(bench.environment.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{sink} was not compared within {within_s:.0f} s"
        raise BenchError(message) from error
    try:
        return read_findings(json.loads(done.stdout), backlog.rows)
    except (ValueError, KeyError, TypeError) as error:
        output = (done.stderr or done.stdout).decode(errors="replace").strip()
        message = f"{sink} could not be compared: {output}"
        raise BenchError(message) from error


def read_findings(document: Mapping[str, Any], rows: int) -> tuple[str, ...]:
    """
    Return the findings of a report, including a wrong number of compared rows.

    Raises:
        BenchError: The report is inconclusive.
    """
    differences, routes = document["differences"], document["routes"]
    compared = sum(route["source_rows"] for route in routes)
    counted = "1 difference" if differences == 1 else f"{differences:,} differences"
    found = [counted] if differences else []
    if not found and document["result"] != "equal":
        doubts = [
            route["error"] or "keys changed during every comparison" for route in routes
        ]
        why = document.get("error") or "; ".join(doubts)
        message = f"{document['sink']} could not be compared: {why}"
        raise BenchError(message)
    if compared != rows:
        found.append(f"{compared:,} rows compared instead of {rows:,}")
    return tuple(found)


def measure_catch_up(
    bench: Bench, targets: Targets, sinks: Sequence[str] = SINKS
) -> tuple[CatchUp, tuple[str, ...]]:
    """
    Run each sink alone on the backlog; return the figures and the findings.

    Raises:
        BenchError: A process ended, or did not finish in time.
    """
    records = RunRecords(bench)
    figures: dict[str, Figures] = {}
    with translated(), backlogs.backlog_in_kafka(bench, targets) as backlog:
        for sink in sinks:
            figures[sink] = SinkCatchUp(backlog, sink, targets.pids).measure()
            with backlog.relay():
                findings = compare_sink(backlog, sink)
            records.add_findings(f"catch_up {sink}", bench.options.rows, findings)
            if not findings:
                figures[BASELINE_OF[sink]] = _baseline(backlog, targets, sink)
    return CatchUp(rows=bench.options.rows, systems=figures), records.findings


def _baseline(backlog: Backlog, targets: Targets, sink: str) -> Figures:
    bench, source = backlog.bench, backlog.source
    if sink == CACHE:
        return baselines.measure_plain_writes(bench, source, targets.redis_url)
    if sink == SEARCH:
        return baselines.measure_bulk_load(bench, source, targets.opensearch_url)
    return baselines.measure_merge(bench, backlog, targets)

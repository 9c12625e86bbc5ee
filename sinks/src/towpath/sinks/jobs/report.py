"""Tells the world how a sink is doing: its progress file, its log, its counters."""

import dataclasses
from pathlib import Path

import structlog

from towpath.schemas.clock import Clock
from towpath.sinks.declare import READY_FILE
from towpath.sinks.jobs.batch import BatchResult
from towpath.sinks.progress import (
    Offsets,
    State,
    progress_path,
    read_progress,
    sink_folder,
    write_progress,
)

_log = structlog.get_logger("towpath.sinks.jobs")


class Report:
    """The progress of one sink; counters go on from what is on disk."""

    def __init__(self, state_folder: Path, sink: str, clock: Clock) -> None:
        self._path = progress_path(state_folder, sink)
        self._ready = sink_folder(state_folder, sink) / READY_FILE
        self._clock = clock
        self._progress = read_progress(self._path, sink)
        self._log = _log.bind(sink=sink)

    def starting(self) -> None:
        """The query is about to start, or waits for its first topic."""
        self._write(state=State.STARTING)

    def running(self) -> None:
        """The query runs."""
        self._log.info("sink running")
        self._write(state=self._well(), error=None)

    def done(self, result: BatchResult, applied: Offsets, batch_ms: int) -> None:
        """A batch is durable."""
        before = self._progress
        self._write(
            state=self._well(),
            error=None,
            applied=applied,
            batches=before.batches + 1,
            rows=before.rows + result.rows,
            stale=before.stale + result.stale,
            dead_letters=before.dead_letters + result.dead_letters,
            skipped=before.skipped + result.skipped,
            last_batch_ms=batch_ms,
        )
        self._log.debug(
            "batch written",
            records=result.records,
            rows=result.rows,
            stale=result.stale,
            dead_letters=result.dead_letters,
            skipped=result.skipped,
            batch_ms=batch_ms,
        )

    def failed(self, message: str, *, remedy: str, retry_after_s: float) -> None:
        """The batch or the query failed and will be tried again."""
        self._log.warning(
            "sink failed", error=message, remedy=remedy, retry_after_s=retry_after_s
        )
        self._write(state=State.FAILED, error=f"{message} {remedy}")

    def _well(self) -> State:
        return State.READY if self._ready.exists() else State.RUNNING

    def _write(self, **changes: object) -> None:
        self._progress = dataclasses.replace(self._progress, **changes)  # type: ignore[arg-type]  # names above are fields
        write_progress(self._path, self._progress, self._clock.now())

"""The report of a sink: its progress, stored and published, its log and its metrics."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson
import structlog

from towpath.schemas.clock import Clock
from towpath.schemas.failure import with_remedy
from towpath.sinks.apply.batch import COUNTERS, BatchResult
from towpath.sinks.engine.checkpoint import read_offsets
from towpath.sinks.engine.lineage import SinkRuns
from towpath.sinks.engine.metrics import SinkMetrics
from towpath.sinks.engine.publisher import Activity, ProgressPublisher
from towpath.sinks.errors import StateNotWrittenError
from towpath.sinks.state.declare import READY_FILE
from towpath.sinks.state.progress import (
    Offsets,
    Progress,
    State,
    progress_path,
    sink_folder,
    stored_progress,
    write_progress,
)

# The label of the whole batch, in addition to those of its stages.
WHOLE: Final = "batch"
# A repeated batch adds only its new dead letters and requests to the counters.
_NEVER_REPEATED: Final = frozenset({"dead_letters", "refetches_requested"})

_log = structlog.get_logger("towpath.sinks")


class Report:
    """The progress of one sink; counters continue from the file."""

    def __init__(
        self,
        state_folder: Path,
        sink: str,
        clock: Clock,
        metrics: SinkMetrics | None = None,
        publisher: ProgressPublisher | None = None,
        runs: SinkRuns | None = None,
    ) -> None:
        self._folder = sink_folder(state_folder, sink)
        self._path = progress_path(state_folder, sink)
        self._clock = clock
        self._metrics = metrics
        self._publisher = publisher
        self._runs = runs
        self._is_open = False
        self._progress = stored_progress(self._path, sink)
        self._log = _log.bind(sink=sink)
        # The threads of the driver, the monitor and the sink all write the progress.
        self._writing = threading.Lock()
        self._unwritten: str | None = None
        self._attempts = 0

    @property
    def progress(self) -> Progress:
        """
        The current progress, as an immutable value.

        While its file cannot be written, the sink counts as failed: a crash would lose
        its progress.
        """
        progress, why = self._progress, self._unwritten
        if why is None or progress.state is State.FAILED:
            return progress
        return dataclasses.replace(progress, state=State.FAILED, error=why)

    @property
    def is_writing(self) -> bool:
        """Whether a batch is being written and has not failed."""
        return self._attempts > 0 and self._progress.state is not State.FAILED

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Count an attempt at a batch while it is under way."""
        self._attempts += 1
        try:
            yield
        finally:
            self._attempts -= 1

    def reload(self) -> None:
        """Continue from the file, which has been replaced."""
        with self._writing:
            self._progress = stored_progress(self._path, self._progress.sink)

    def begin_run(self) -> bool:
        """Take the number of the run; return whether the broker answered."""
        return self._publisher is None or self._publisher.begin()

    def store(self) -> None:
        """Publish the progress, and retry a failed write of the file."""
        if self._unwritten is not None:
            self._write()
            return
        with self._writing:
            self._publish()

    def publish_missing_rows(self) -> None:
        """Publish which rows the sink lacks, if that has changed."""
        with self._writing:
            self._publish(only_if_changed=True)

    def end(self) -> None:
        """Publish that the driver no longer runs the sink."""
        if self._runs is not None:
            self._runs.end()
        if self._publisher is not None:
            self._publisher.end(self.progress)

    def starting(self) -> None:
        """
        Report that the query is about to start, or is waiting for its first topic.

        A lost progress file is recreated from the checkpoint, so that no command waits
        for records that were applied long ago.
        """
        self._is_open = False
        applied = self._progress.applied or self._committed()
        self._write(state=State.STARTING, applied=applied)

    def running(self, resumed: Offsets | None = None) -> None:
        """
        Report that the query is running, the target open, and the offsets compared.

        Args:
            resumed: The offsets at which the query resumes after a recovery. They
                replace the applied offsets, which may be those of a deleted topic.
        """
        self._is_open = True
        self._log.info("sink running")
        applied = self._progress.applied if resumed is None else resumed
        self._write(state=self._healthy_state(), error=None, applied=applied)
        self._begin_lineage()

    def done(
        self,
        result: BatchResult,
        applied: Offsets,
        batch_ms: int,
        oldest_ms: int | None = None,
    ) -> None:
        """
        Report a durable batch.

        If the driver fails after a batch was reported, but before the engine and the
        copies of the state have recorded it, the engine repeats the batch. It is
        counted once; dead letters and requests that only the repetition has are added.

        Args:
            result: The counts of the batch.
            applied: The next offset of each topic and partition.
            batch_ms: The duration of the batch.
            oldest_ms: The lowest timestamp in a sample of its records; ``None`` if it
                is unknown.
        """
        before = self._progress
        # A first batch without records leaves the starting offsets as they are.
        is_new = not before.batches or applied != before.applied
        stages_ms = _stages_ms(result)
        counted = COUNTERS if is_new else _NEVER_REPEATED
        counts = {name: getattr(result, name) for name in counted}
        counts["asked"] = counts.pop("refetches_requested")
        sums = {name: getattr(before, name) + n for name, n in counts.items()}
        pending = result.pending_refetches
        self._write(
            state=self._healthy_state(),
            error=None,
            applied=applied,
            batches=before.batches + is_new,
            parked=result.parked,
            pending_refetches=before.pending_refetches if pending is None else pending,
            position=max(before.position, result.position),
            last_batch_ms=batch_ms,
            last_stages_ms=stages_ms,
            **sums,
        )
        if self._metrics is not None:
            times_ms = {**stages_ms, WHOLE: batch_ms}
            self._metrics.batch(before.sink, times_ms)
            if oldest_ms is not None:
                age_s = self._clock.now().timestamp() - oldest_ms / 1000
                self._metrics.applied(before.sink, age_s)
        self._begin_lineage()
        fields = dataclasses.asdict(result)
        self._log.debug("batch written", **fields, batch_ms=batch_ms)

    def failed(self, message: str, *, remedy: str, retry_after_s: float) -> None:
        """Report a failure of the batch or the query; it is retried."""
        self._log.warning(
            "sink failed: retrying",
            error=message,
            remedy=remedy,
            retry_after_s=retry_after_s,
        )
        self._write(
            state=State.FAILED,
            error=with_remedy(message, remedy),
            retries=self._progress.retries + 1,
        )
        if self._runs is not None:
            self._runs.end(message)

    def parked(self, keys: int) -> None:
        """Report the number of parked keys; called between batches, too."""
        if keys != self._progress.parked:
            self._write(parked=keys)

    def refused(self, why: str | None) -> None:
        """Report why the changed ``[[sink]]`` block is refused; ``None`` if it fits."""
        if why != self._progress.refused:
            self._write(refused=why)

    def _begin_lineage(self) -> None:
        if self._runs is not None:
            self._runs.begin()

    def _healthy_state(self) -> State:
        return State.READY if (self._folder / READY_FILE).exists() else State.RUNNING

    def _committed(self) -> Offsets:
        """Return the end offsets of the newest committed batch."""
        checkpoint = self._folder / "checkpoint"
        names = (path.name for path in (checkpoint / "commits").glob("*"))
        batches = [int(name) for name in names if name.isdecimal()]
        try:
            return read_offsets(checkpoint, max(batches)) if batches else {}
        except (OSError, IndexError, orjson.JSONDecodeError):
            # The engine reports a broken checkpoint itself.
            return {}

    def _write(self, **changes: object) -> None:
        with self._writing:
            changes["updated_at"] = self._clock.now().isoformat()
            self._progress = dataclasses.replace(self._progress, **changes)  # type: ignore[arg-type]  # names above are fields
            try:
                write_progress(self._path, self._progress)
            except StateNotWrittenError as error:
                if self._unwritten is None:
                    why = str(error)
                    self._log.warning(
                        "sink progress not written: retrying",
                        error=why,
                        remedy=error.remedy,
                    )
                self._unwritten = with_remedy(str(error), error.remedy)
            else:
                if self._unwritten is not None:
                    self._log.info("sink progress written again")
                self._unwritten = None
            self._publish()

    def _publish(self, *, only_if_changed: bool = False) -> None:
        if self._publisher is not None:
            activity = Activity(is_open=self._is_open, is_writing=self.is_writing)
            self._publisher.publish(
                self.progress, activity, only_if_changed=only_if_changed
            )


def _stages_ms(result: BatchResult) -> Mapping[str, int]:
    return {
        "decode": result.decode_ms,
        "apply": result.apply_ms,
        "flush": result.flush_ms,
    }

"""
Publishes the progress of one sink, from its report and its folder.

A run takes its number before its first record: the time in milliseconds or, if that is
higher, one more than the newest run number that was read, even that of a dropped sink.
So neither a clock that was set back nor a topic that has lost its records makes a run
look older than its predecessor.
"""

import os
import socket
import threading
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.sinks.errors import StateNotWrittenError, UnreadableProgressError
from towpath.sinks.state import incomplete
from towpath.sinks.state.declare import READY_FILE, STARTING_OFFSETS_FILE
from towpath.sinks.state.progress import Progress, sink_folder
from towpath.sinks.state.published import (
    ProgressStore,
    PublishedProgress,
    ReceivedProgress,
    RefetchNumbers,
    encode_published,
)
from towpath.sinks.state.refetches import refetch_ids, refetches_path

# The longest time that a stopping driver waits for the last record of each sink.
_ENDED_WITHIN_S: Final = 5.0

_log = structlog.get_logger("towpath.sinks")


class Activity(NamedTuple):
    """
    The part of a published record that is in no file.

    Attributes:
        is_open: Whether the run has opened the target and compared its offsets.
        is_writing: Whether a batch is being written and has not failed.
    """

    is_open: bool = False
    is_writing: bool = False


class _MissingRows(NamedTuple):
    """The rows that a sink lacks although its offsets are past them."""

    is_filling: bool
    refetches: RefetchNumbers
    unfilled: tuple[str, ...]


class ProgressPublisher:
    """Publishes the records of one run; may be called from any thread."""

    def __init__(
        self, state_folder: Path, sink: str, store: ProgressStore, clock: Clock
    ) -> None:
        self._state_folder = state_folder
        self._sink = sink
        self._store = store
        self._clock = clock
        self._refetches = _NumberedRefetches(state_folder, sink)
        self._run: int | None = None
        # The other driver's run that was last logged.
        self._other: int | None = None
        self._number = 0
        self._is_over = False
        self._missing: _MissingRows | None = None
        self._is_topic_unread = False
        self._is_state_unread = False
        # Held while the files are read and the record is handed to the store: a later
        # record never shows an older state.
        self._lock = threading.Lock()

    @property
    def failures(self) -> int:
        """The number of records that could not be published."""
        return self._store.failures(self._sink)

    def begin(self) -> bool:
        """
        Take the number of the run; call it again while the run continues.

        Another driver may run the sink too, by mistake or until it notices that it was
        replaced. Readers follow the run that began last. Once that run is no longer
        alive, this one takes a higher number.

        Returns:
            Whether the broker answered; a failure is logged.
        """
        try:
            received = self._store.read(self._sink)
        except UnreadableProgressError as error:
            # A driver of a different version wrote it; the next record replaces it.
            self._log_unread(error)
            received = None
        except TowpathError as error:
            self._log_unread(error)
            return False
        else:
            self._is_topic_unread = False
        before = -1 if received is None else received.record.run
        if self._run is None or (before > self._run and not _is_alive(received)):
            now_ms = round(self._clock.now().timestamp() * 1000)
            self._run = max(now_ms, self._store.newest_run(self._sink) + 1)
        elif before > self._run and received is not None and before != self._other:
            self._other = before
            _log.warning(
                "sink also run by another driver: readers follow that run",
                sink=self._sink,
                host=received.record.host,
                pid=received.record.pid,
            )
        return True

    def publish(
        self, progress: Progress, activity: Activity, *, only_if_changed: bool = False
    ) -> None:
        """
        Publish a record of the run, unless it has not begun or has ended.

        Args:
            progress: The progress.
            activity: The part of the run's state that is in no file.
            only_if_changed: Whether to publish only if the missing rows differ from
                those of the last record.
        """
        with self._lock:
            self._try_to_send(progress, activity, only_if_changed=only_if_changed)

    def end(self, progress: Progress) -> None:
        """Publish the last record of the run; nothing follows it."""
        with self._lock:
            self._try_to_send(progress, Activity(), is_running=False)
            self._is_over = True
            self._store.flush(_ENDED_WITHIN_S)

    def _try_to_send(
        self,
        progress: Progress,
        activity: Activity,
        *,
        is_running: bool = True,
        only_if_changed: bool = False,
    ) -> None:
        """Send a record; send none if the files that it depends on cannot be read."""
        if self._run is None or self._is_over:
            return
        try:
            missing = self._read_missing()
        except (OSError, ValueError) as error:
            self._log_unknown(error)
            return
        self._is_state_unread = False
        if not only_if_changed or missing != self._missing:
            self._missing = missing
            record = PublishedProgress(
                run=self._run,
                number=self._number,
                at=self._clock.now().isoformat(),
                host=socket.gethostname(),
                pid=os.getpid(),
                progress=progress,
                is_running=is_running,
                **activity._asdict(),
                **missing._asdict(),
            )
            self._number += 1
            self._store.send(self._sink, encode_published(record))

    def _read_missing(self) -> _MissingRows:
        folder = sink_folder(self._state_folder, self._sink)
        began_late = (folder / STARTING_OFFSETS_FILE).exists()
        is_filling = began_late and not (folder / READY_FILE).exists()
        refetches = self._refetches.read()
        # Read last: a deferred route is noted before its refetches end.
        unfilled = incomplete.routes(self._state_folder, self._sink)
        return _MissingRows(is_filling, refetches, unfilled)

    def _log_unread(self, error: TowpathError) -> None:
        """Log once why the topic cannot be read."""
        if not self._is_topic_unread:
            _log.warning(
                "sink progress topic not read: retrying",
                sink=self._sink,
                error=str(error),
                remedy=error.remedy,
            )
        self._is_topic_unread = True

    def _log_unknown(self, error: Exception) -> None:
        """Log once why the state cannot be read."""
        if not self._is_state_unread:
            _log.warning(
                "sink progress not published: its state cannot be read",
                sink=self._sink,
                error=str(error),
                remedy=StateNotWrittenError.remedy,
            )
        self._is_state_unread = True


def _is_alive(received: ReceivedProgress | None) -> bool:
    return received is not None and received.is_alive


class _NumberedRefetches:
    """Numbers a sink's pending refetches in the order in which they began."""

    def __init__(self, state_folder: Path, sink: str) -> None:
        self._state_folder = state_folder
        self._sink = sink
        self._path = refetches_path(state_folder, sink)
        self._version: tuple[int, int, int] | None = None
        self._numbers: dict[bytes, int] = {}
        self._next = 0

    def read(self) -> RefetchNumbers:
        """Return the numbers; an unchanged file is not read again."""
        version = self._file_version()
        if version is None or version != self._version:
            pending = refetch_ids(self._state_folder, self._sink)
            kept = {id_: n for id_, n in self._numbers.items() if id_ in pending}
            for id_ in pending - kept.keys():
                kept[id_] = self._next
                self._next += 1
            self._numbers, self._version = kept, version
        oldest = min(self._numbers.values(), default=None)
        return RefetchNumbers(self._next, oldest, len(self._numbers))

    def _file_version(self) -> tuple[int, int, int] | None:
        """Return the file's inode, size and time; ``None`` if there is no file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

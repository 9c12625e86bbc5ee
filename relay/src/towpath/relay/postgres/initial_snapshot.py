"""
The snapshots that the relay starts by itself when its process starts.

``recovery.backfill`` chooses the action; each session takes it before it streams::

    delay -> slot and snapshot -> rows of towpath.snapshot -> lineage -> stream
    delay -> signal                                        -> lineage -> stream

Later, ``InitialSnapshot`` is a periodic task of the slot monitor: it closes the
exported snapshot once no table is read from it, requests the snapshot of mode
``always`` after the delay, and ends a process of mode ``initial_only``.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import structlog

from towpath.relay.errors import FirstSnapshotFailedError
from towpath.relay.postgres import backfill
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.exported_snapshots import SlotMaker, SlotSnapshot
from towpath.relay.postgres.replication import Wakeup
from towpath.relay.postgres.slot import require_publications
from towpath.relay.postgres.worker import SnapshotWorker
from towpath.relay.recovery.backfill import (
    MAKES_SLOT,
    StartAction,
    StartFacts,
    choose_start,
)
from towpath.relay.recovery.lineage import SourceHistory, StoredHistory
from towpath.relay.snapshot.naming import Registration
from towpath.schemas.clock import Clock, Deadline
from towpath.settings import FirstStart, Settings

_LOG = structlog.get_logger("towpath.relay")

# How often to check whether an open snapshot has ended, and the interval without one.
_WATCH_INTERVAL_S: Final = 0.5
_IDLE_INTERVAL_S: Final = 3600.0


class InitialSnapshot:
    """The initial snapshot of a process, across all of its sessions."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        wakeup: Wakeup,
        run_id: str,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self._run_id = run_id
        self._is_stopping = is_stopping
        self._options = settings.relay.snapshot
        self._requests_at_s = clock.monotonic_s() + self._options.delay_s
        self._has_waited = False
        self._has_requested = self._options.mode is not FirstStart.ALWAYS
        self._has_retried = False
        self._exported: SlotSnapshot | None = None
        self._relay = Registration(settings.database.slot, 1)
        self._is_over = False
        self._failures: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the process, which was started only for this snapshot, is to end."""
        return self._is_over

    @property
    def slot_snapshots(self) -> tuple[str, ...]:
        """The id of the snapshot that reads the open exported snapshot, if any."""
        return () if self._exported is None else (self._first_id,)

    def check(self) -> None:
        """
        Check that a process started only for this snapshot has read all tables.

        Raises:
            FirstSnapshotFailedError: A table failed.
        """
        if self._is_over and self._failures:
            raise FirstSnapshotFailedError("; ".join(self._failures))

    def begin(
        self,
        closing: ExitStack,
        connection: Connection,
        relay: Registration,
        stored: StoredHistory,
        found: SourceHistory,
    ) -> bool:
        """
        Start or resume the snapshot; return whether the stream follows.

        No stream follows once ``initial_only`` is complete, or if the process stops.

        Call order: before the lineage is decided.

        Raises:
            NotPreparedError: A publication is missing.
            SourceUnavailableError: The connection is lost.
        """
        self._exported, self._relay = None, relay
        mode = self._options.mode
        known = StartFacts(
            has_run=bool(stored.lineages),
            has_records=stored.has_records,
            has_slot=found.slot is not None,
            is_untouched=backfill.read_is_untouched(connection, relay),
        )
        step = choose_start(mode, known)
        is_first = mode in MAKES_SLOT and not known.has_run
        if is_first and not self._wait():
            return False
        if step is StartAction.MAKE_SLOT:
            return self._make_slot(closing, connection)
        backfill.release_lost_views(connection, relay)
        if step is StartAction.REQUEST:
            tables = backfill.request_first_snapshot(connection, self._settings, relay)
            _LOG.info(
                "snapshot requested at first start: the slot exists",
                tables=list(tables),
            )
        elif known.has_run and mode is FirstStart.INITIAL_ONLY:
            return self._resume(connection)
        return True

    def share(self, worker: SnapshotWorker) -> None:
        """Share the exported snapshot with the worker, if it is open."""
        if self._exported is not None:
            worker.adopt(self._first_id, self._exported.name)

    # The slot monitor's task ---------------------------------------------------

    @property
    def interval_s(self) -> float:
        """The time until the next turn is due."""
        if self._exported is not None or self._options.mode is FirstStart.INITIAL_ONLY:
            return _WATCH_INTERVAL_S
        if not self._has_requested:
            now_s = self._clock.monotonic_s()
            return max(_WATCH_INTERVAL_S, self._requests_at_s - now_s)
        return _IDLE_INTERVAL_S

    def turn(self, connection: Connection) -> None:
        """Request the snapshot when it is due, and handle the end of open tables."""
        if not self._has_requested and self._requests_at_s <= self._clock.monotonic_s():
            self._request_all(connection)
        if self._exported is None and self._options.mode is not FirstStart.INITIAL_ONLY:
            return
        progress = backfill.read_progress(connection, self._relay)
        if self._exported is not None and not progress.view_count:
            self._exported.close()
            self._exported = None
        if self._options.mode is FirstStart.INITIAL_ONLY and not progress.open_count:
            self._end(progress.failures)

    # Internals -----------------------------------------------------------------

    @property
    def _first_id(self) -> str:
        return backfill.first_id(self._relay)

    def _wait(self) -> bool:
        """Wait for the configured delay, once; return False if the process stops."""
        delay_s = self._options.delay_s
        if self._has_waited or not delay_s:
            return not self._is_stopping()
        _LOG.info("relay start delayed", delay_s=delay_s)
        deadline = Deadline(self._clock, delay_s)
        while not deadline.passed():
            if self._is_stopping():
                return False
            self._wakeup.wait(deadline.remaining_s())
        self._has_waited = True
        return True

    def _make_slot(self, closing: ExitStack, connection: Connection) -> bool:
        source = self._settings.database
        require_publications(connection, source)
        maker = SlotMaker(self._clock, self._wakeup, self._is_stopping)
        exported = maker.make(source.dsn, source.slot, connection)
        if exported is None:
            return False
        closing.callback(exported.close)
        tables = backfill.store_first_snapshot(connection, self._settings, self._relay)
        if tables:
            self._exported = exported
        else:
            # No table needs the snapshot, and an open one keeps VACUUM from removing
            # dead rows.
            exported.close()
        _LOG.info(
            "slot created with an exported snapshot",
            slot=source.slot,
            tables=list(tables),
        )
        return True

    def _resume(self, connection: Connection) -> bool:
        """Resume open tables; return False if there are none."""
        if not self._has_retried:
            backfill.retry_failed_tables(connection, self._settings, self._relay)
            self._has_retried = True
        progress = backfill.read_progress(connection, self._relay)
        if not progress.open_count:
            self._end(progress.failures)
        return bool(progress.open_count)

    def _request_all(self, connection: Connection) -> None:
        is_new = backfill.request_at_start(
            connection, self._settings, self._relay, self._run_id
        )
        if is_new:
            _LOG.info("snapshot of all tables requested")
        else:
            _LOG.info("snapshot continues from an earlier start")
        self._has_requested = True

    def _end(self, failures: tuple[str, ...]) -> None:
        # The monitor continues until the last records are acknowledged.
        if not self._is_over:
            _LOG.info("snapshot for initial_only ended: the relay stops")
        self._failures = failures
        self._is_over = True
        self._wakeup.wake()

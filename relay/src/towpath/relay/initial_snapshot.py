"""
The snapshots that the relay takes unasked, from the start of the process to their end.

``first_start`` says which; this does it, at its place in each attempt::

    delay -> slot with its view -> rows of towpath.snapshot -> lineage -> stream
    delay -> signal                                         -> lineage -> stream

and looks after what was begun, as a chore of the guardian: the view is let go of when
nothing is read in it any more, ``initial_only`` ends the process, ``always`` asks when
its delay is over.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import structlog

from towpath.relay.context import ProcessContext
from towpath.relay.errors import FirstSnapshotFailedError
from towpath.relay.postgres import backfill
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.exported_snapshots import SlotMaker, SlotSnapshot
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
from towpath.schemas.clock import Deadline
from towpath.settings import FirstStart

_LOG = structlog.get_logger("towpath.relay")

# While something is open, how often its end is looked for; else nothing is asked.
_WATCH_INTERVAL_S: Final = 0.5
_NOTHING_TO_DO_S: Final = 3600.0


class InitialSnapshot:
    """One per process: an attempt that fails does not make a start anew."""

    def __init__(
        self, process: ProcessContext, is_stopping: Callable[[], bool]
    ) -> None:
        self._process = process
        self._is_stopping = is_stopping
        self._wanted = process.settings.relay.snapshot
        self._asks_at_s = process.clock.monotonic_s() + self._wanted.delay_s
        self._has_waited = False
        self._has_asked = self._wanted.mode is not FirstStart.ALWAYS
        self._has_retried = False
        self._view: SlotSnapshot | None = None
        self._relay = Registration(process.settings.database.slot, 1)
        self._is_over = False
        self._failures: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the process is to end, because it was started for this only."""
        return self._is_over

    @property
    def lent(self) -> tuple[str, ...]:
        """The snapshots whose view of the database is held here."""
        return () if self._view is None else (self._first_id,)

    def check(self) -> None:
        """
        Make sure that what the process was started for was done.

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
        remembered: StoredHistory,
        found: SourceHistory,
    ) -> bool:
        """
        Do what comes before the history is followed; False: the stream is not needed.

        Raises:
            NotPreparedError: A publication is missing.
            SourceUnavailableError: The connection is gone.
        """
        self._view, self._relay = None, relay
        mode = self._wanted.mode
        known = StartFacts(
            has_run=bool(remembered.lineages),
            has_records=remembered.has_records,
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
        if step is StartAction.ASK:
            tables = backfill.request_first_snapshot(
                connection, self._process.settings, relay
            )
            _LOG.info(
                "first snapshot requested beside an existing slot",
                tables=list(tables),
            )
        elif known.has_run and mode is FirstStart.INITIAL_ONLY:
            return self._take_up(connection)
        return True

    def lend(self, worker: SnapshotWorker) -> None:
        """Let the worker read in the view, if there is one."""
        if self._view is not None:
            worker.lend(self._first_id, self._view.name)

    # The guardian's chore ------------------------------------------------------

    @property
    def interval_s(self) -> float:
        """How soon the next look is due."""
        if self._view is not None or self._wanted.mode is FirstStart.INITIAL_ONLY:
            return _WATCH_INTERVAL_S
        if not self._has_asked:
            now_s = self._process.clock.monotonic_s()
            return max(_WATCH_INTERVAL_S, self._asks_at_s - now_s)
        return _NOTHING_TO_DO_S

    def turn(self, connection: Connection) -> None:
        """Look after what was begun."""
        if not self._has_asked and self._asks_at_s <= self._process.clock.monotonic_s():
            self._ask_again(connection)
        if self._view is None and self._wanted.mode is not FirstStart.INITIAL_ONLY:
            return
        progress = backfill.read_progress(connection, self._relay)
        if self._view is not None and not progress.frozen_count:
            self._view.close()
            self._view = None
        if self._wanted.mode is FirstStart.INITIAL_ONLY and not progress.open_count:
            self._end(progress.failures)

    # Inside --------------------------------------------------------------------

    @property
    def _first_id(self) -> str:
        return backfill.first_id(self._relay)

    def _wait(self) -> bool:
        """Let the delay pass, once; False if the process is to stop."""
        delay_s, process = self._wanted.delay_s, self._process
        if self._has_waited or not delay_s:
            return not self._is_stopping()
        _LOG.info("first start delayed", delay_s=delay_s)
        deadline = Deadline(process.clock, delay_s)
        while not deadline.passed():
            if self._is_stopping():
                return False
            process.wakeup.wait(deadline.remaining_s())
        self._has_waited = True
        return True

    def _make_slot(self, closing: ExitStack, connection: Connection) -> bool:
        process, source = self._process, self._process.settings.database
        require_publications(connection, source)
        maker = SlotMaker(process.clock, process.wakeup, self._is_stopping)
        view = maker.make(source.dsn, source.slot, connection)
        if view is None:
            return False
        closing.callback(view.close)
        tables = backfill.store_first_snapshot(
            connection, process.settings, self._relay
        )
        self._view = view if tables else None
        _LOG.info(
            "slot made with an exported snapshot for the first snapshot",
            slot=source.slot,
            tables=list(tables),
        )
        return True

    def _take_up(self, connection: Connection) -> bool:
        """Go on with what is incomplete; False if nothing is."""
        if not self._has_retried:
            backfill.retry_failed_tables(connection, self._relay)
            self._has_retried = True
        progress = backfill.read_progress(connection, self._relay)
        if not progress.open_count:
            self._end(progress.failures)
        return bool(progress.open_count)

    def _ask_again(self, connection: Connection) -> None:
        settings, run_id = self._process.settings, self._process.stats.run_id
        if backfill.request_at_start(connection, settings, self._relay, run_id):
            _LOG.info("snapshot of all tables requested at start")
        else:
            _LOG.info("snapshot of an earlier start continues")
        self._has_asked = True

    def _end(self, failures: tuple[str, ...]) -> None:
        _LOG.info("first snapshot ended, relay stops")
        self._failures = failures
        self._is_over = True
        self._process.wakeup.wake()

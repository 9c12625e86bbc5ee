"""
Wait until a sink has applied all earlier commits, while writes to the source continue.

Three distances must become zero: snapshots have no table left to read for the sink, the
slot has confirmed every earlier commit, and the sink has applied every record that was
in its topics at that moment. The end offsets are then fixed, so later writes do not
extend the wait. As long as there is progress, the wait has no time limit.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final, LiteralString, NamedTuple, Protocol

from psycopg import errors as sqlstate

from towpath.schemas.clock import Backoff, Clock, StallTimeout
from towpath.schemas.position import format_lsn, parse_lsn
from towpath.settings import Settings, Sink
from towpath.sinks.changes.routing import Routes
from towpath.sinks.ports import Cluster
from towpath.sinks.postgres import connected
from towpath.sinks.state.progress import Offsets, Progress
from towpath.sinks.state.published import ProgressSource, ReceivedProgress, not_alive
from towpath.sinks.verify.errors import NotAtRestError
from towpath.sinks.verify.source import translated

# An idle relay confirms every 10 s; a warehouse commits about every 10 s, and sometimes
# compacts for a few seconds.
STUCK_AFTER_S: Final = 60.0
# Most waits end within milliseconds; a longer wait polls less often.
_PAUSES: Final = Backoff(first_s=0.01, ceiling_s=0.1, factor=1.5)

# A commit becomes visible a few milliseconds after it can be read from the WAL; it
# takes longer only if it waits for a standby.
_SEEN_WITHIN_S: Final = 10.0


class PendingSnapshots(NamedTuple):
    """
    The tables that snapshots still have to read for a sink.

    Attributes:
        tables: The number of tables not yet read to the end. A paused snapshot that is
            meant for all sinks does not count: it has no rows in flight until it is
            resumed.
        paused: The number of these tables that are paused.
        moved: A number that changes with the progress of any snapshot, even within a
            table.
    """

    tables: int
    paused: int = 0
    moved: int = 0


class Distance(NamedTuple):
    """
    The remaining part of a wait.

    Attributes:
        to_go: The remaining amount.
        missing: The remaining amount as text.
        moved: A number that changes with progress, even if ``to_go`` does not.
        is_working: Whether there is progress that no number shows yet.
    """

    to_go: int
    missing: str
    moved: int = 0
    is_working: bool = False


class SourceProgress(Protocol):
    """The progress of the database's WAL, slots, snapshots and signals."""

    def mark(self) -> int:
        """Return an LSN that a slot confirms only after all commits made so far."""

    def confirmed(self, slot: str) -> int | None:
        """Return a slot's confirmed LSN; ``None`` if it has none or does not exist."""

    def pending_snapshots(self, sink: str) -> PendingSnapshots:
        """Return the tables that snapshots still have to read for a sink."""

    def answered(self, signals: Sequence[str]) -> int:
        """Count the signals that have ended, whether completed or not."""

    def refusals(self, signals: Sequence[str]) -> tuple[str, ...]:
        """Return why signals were rejected, failed or remained incomplete."""

    def next_transaction(self) -> int:
        """Return an id above those of all running transactions."""

    def oldest_transaction(self) -> int:
        """Return the lowest id of a transaction whose end is not visible yet."""


class CatchUpWaiter:
    """
    Waits for one sink; each wait covers only commits made before it.

    No driver needs to run: the comparison reads the target itself, so offsets that are
    too high can cause reported differences, but never hide any.
    """

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        source: ProgressSource,
        *,
        log: SourceProgress,
        cluster: Cluster,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._source = source
        self._log = log
        self._cluster = cluster
        self._clock = clock

    def wait(self, poll: Callable[[], None] | None = None) -> None:
        """
        Wait until everything committed before the call has reached the sink.

        This includes the rows of its running snapshots.

        Args:
            poll: Called at the beginning, and repeatedly during the wait.

        Raises:
            NotAtRestError: The sink makes no progress; the message says what is
                missing.
            UnavailableError: The database or the broker does not answer.
        """
        self._wait(self._snapshot_distance, poll)
        mark = self._log.mark()
        self._wait(lambda: self._slot_distance(mark), poll)
        # Confirmed changes are in the topics.
        topics = Routes(self._sink).matching(self._cluster.names())
        ends = self._cluster.end_offsets(topics)
        self._wait(lambda: self._sink_distance(ends), poll)

    def wait_until_seen(self) -> None:
        """
        Wait until running transactions have ended and are visible, if they end soon.

        A commit can be in the WAL, and in a sink, before other sessions see it. A
        transaction that stays open has no commit in the WAL, so the wait ends after
        10 s without progress.

        Raises:
            UnavailableError: The database does not answer.
        """
        last = self._log.next_transaction()
        stall = StallTimeout(self._clock, _SEEN_WITHIN_S)
        for attempt in count():
            left = last - self._log.oldest_transaction()
            if left <= 0 or stall.is_over(left):
                return
            self._clock.wait(_PAUSES.bound_s(attempt))

    def wait_for_answers(self, signals: Sequence[str]) -> tuple[str, ...]:
        """
        Wait until signals have ended, whether completed or not.

        Returns:
            The reasons why signals were rejected, failed or remained incomplete.

        Raises:
            NotAtRestError: The relay does not answer.
            UnavailableError: The database does not answer.
        """
        self._wait(lambda: self._signal_distance(signals), None)
        return self._log.refusals(signals)

    def highest(self) -> str:
        """Return the highest position that the sink applied; empty if unknown."""
        received = self._source.read(self._sink.name)
        return _progress_of(received, self._sink.name).position

    def _wait(
        self,
        distance: Callable[[], Distance],
        poll: Callable[[], None] | None,
    ) -> None:
        stall, moved = StallTimeout(self._clock, STUCK_AFTER_S), 0
        for attempt in count():
            if poll is not None:
                poll()
            left = distance()
            if left.to_go <= 0:
                return
            if left.moved != moved or left.is_working:
                stall, moved = StallTimeout(self._clock, STUCK_AFTER_S), left.moved
            if stall.is_over(left.to_go):
                message = f"the sink has not caught up: {left.missing}"
                raise NotAtRestError(message)
            self._clock.wait(_PAUSES.bound_s(attempt))

    def _snapshot_distance(self) -> Distance:
        pending_snapshots = self._log.pending_snapshots(self._sink.name)
        paused = (
            f", {pending_snapshots.paused} of them paused"
            if pending_snapshots.paused
            else ""
        )
        missing = f"snapshots have {pending_snapshots.tables} tables to read{paused}"
        return Distance(pending_snapshots.tables, missing, pending_snapshots.moved)

    def _signal_distance(self, signals: Sequence[str]) -> Distance:
        count = len(signals) - self._log.answered(signals)
        # Signals may wait behind a snapshot for any sink.
        moved = self._log.pending_snapshots(self._sink.name).moved
        return Distance(count, f"the relay has not answered {count} signals", moved)

    def _slot_distance(self, mark: int) -> Distance:
        slot = self._settings.database.slot
        confirmed = self._log.confirmed(slot)
        if confirmed is None:
            message = (
                f"the sink has not caught up: the slot {slot} does not exist or is not "
                "ready, so no relay reads it"
            )
            raise NotAtRestError(message)
        left = mark - confirmed
        return Distance(
            left,
            f"the relay has confirmed {format_lsn(confirmed)}, not yet "
            f"{format_lsn(mark)}: {left:,} bytes to go",
        )

    def _sink_distance(self, ends: Mapping[str, Mapping[str, int]]) -> Distance:
        received = self._source.read(self._sink.name)
        progress = _progress_of(received, self._sink.name)
        count = records_to_go(ends, progress.applied)
        why = not_alive(received, self._sink.name) or progress.error
        missing = f"the sink {self._sink.name} has {count:,} records to go"
        # A batch counts as applied only once it is durable as a whole.
        is_working = (
            received is not None and received.is_alive and received.record.is_writing
        )
        reason = f"{missing} ({why})" if why else missing
        return Distance(count, reason, is_working=is_working)


def _progress_of(received: ReceivedProgress | None, sink: str) -> Progress:
    return Progress(sink) if received is None else received.record.progress


def records_to_go(ends: Mapping[str, Mapping[str, int]], applied: Offsets) -> int:
    """Count the records of the topics that are not applied yet."""
    return sum(
        max(0, end - applied.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


_MARK: Final[LiteralString] = (
    "select pg_logical_emit_message(true, 'towpath.verify', '')::text"
)
_CURRENT: Final[LiteralString] = "select pg_current_wal_lsn()::text"
_CONFIRMED: Final[LiteralString] = (
    "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
)
_HAS_SNAPSHOTS: Final[LiteralString] = "select to_regclass('towpath.snapshot')::text"
_PENDING_SNAPSHOTS: Final[LiteralString] = """
    select count(*) filter (where target = %(sink)s
               or target is null and state <> 'paused'),
           count(*) filter (where target = %(sink)s and state = 'paused'),
           coalesce(sum(rows + dropped + chunks), 0)::bigint
    from towpath.snapshot s where state in ('queued', 'running', 'paused')
        and coalesce(to_jsonb(s) ->> 'relay', %(relay)s) = %(relay)s
"""
_ANSWERED: Final[LiteralString] = (
    "select count(*) from towpath.signal where id = any(%s)"
    " and status in ('completed', 'incomplete', 'failed', 'rejected')"
)
_REFUSALS: Final[LiteralString] = (
    "select distinct coalesce(detail->>'reason', (select string_agg(key || ': '"
    " || (value->>'reason'), '; ') from jsonb_each(detail->'tables')), status)"
    " from towpath.signal"
    " where id = any(%s) and status in ('incomplete', 'failed', 'rejected')"
    " order by 1"
)
_OLDEST: Final[LiteralString] = (
    "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
)
# The id of a new transaction: a snapshot's xmax can be below that of a running one.
_NEXT: Final[LiteralString] = "select pg_current_xact_id()::text::bigint"
_NEXT_ON_STANDBY: Final[LiteralString] = (
    "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)


class SourceLog:
    """The progress of WAL, slots, snapshots and signals, read on each call."""

    def __init__(self, dsn: str, relay: str) -> None:
        """
        Connect.

        Args:
            dsn: The database.
            relay: The slot of the relay that reads for the sinks.

        Raises:
            SourceUnavailableError: The database cannot be reached.
        """
        self._relay = relay
        with translated():
            self._connection = connected(dsn)

    def mark(self) -> int:
        """
        Return an LSN that a slot confirms only after all commits made so far.

        If the user has the privilege, a transaction without rows is written, because
        the slot of an idle database would have nothing to confirm.
        """
        with translated():
            try:
                row = self._connection.execute(_MARK).fetchone()
            except (sqlstate.InsufficientPrivilege, sqlstate.ReadOnlySqlTransaction):
                row = self._connection.execute(_CURRENT).fetchone()
        return parse_lsn("" if row is None else row[0])

    def confirmed(self, slot: str) -> int | None:
        """Return a slot's confirmed LSN; ``None`` if it has none or does not exist."""
        with translated():
            row = self._connection.execute(_CONFIRMED, [slot]).fetchone()
        return None if row is None or row[0] is None else parse_lsn(row[0])

    def pending_snapshots(self, sink: str) -> PendingSnapshots:
        """Return the tables that snapshots still have to read for a sink."""
        with translated():
            if self._connection.execute(_HAS_SNAPSHOTS).fetchone() == (None,):
                return PendingSnapshots(0)
            names = {"sink": sink, "relay": self._relay}
            row = self._connection.execute(_PENDING_SNAPSHOTS, names).fetchone()
        return PendingSnapshots(0) if row is None else PendingSnapshots(*row)

    def answered(self, signals: Sequence[str]) -> int:
        """Count the signals that have ended, whether completed or not."""
        with translated():
            row = self._connection.execute(_ANSWERED, [list(signals)]).fetchone()
        return 0 if row is None else int(row[0])

    def refusals(self, signals: Sequence[str]) -> tuple[str, ...]:
        """Return why signals were rejected, failed or remained incomplete."""
        with translated():
            rows = self._connection.execute(_REFUSALS, [list(signals)]).fetchall()
        return tuple(str(reason) for (reason,) in rows)

    def next_transaction(self) -> int:
        """Return an id above those of all running transactions."""
        with translated():
            try:
                row = self._connection.execute(_NEXT).fetchone()
            except sqlstate.ReadOnlySqlTransaction:
                row = self._connection.execute(_NEXT_ON_STANDBY).fetchone()
        return 0 if row is None else int(row[0])

    def oldest_transaction(self) -> int:
        """Return the lowest id of a transaction whose end is not visible yet."""
        with translated():
            row = self._connection.execute(_OLDEST).fetchone()
        return 0 if row is None else int(row[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

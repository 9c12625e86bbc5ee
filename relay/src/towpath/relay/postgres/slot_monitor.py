"""
The slot monitor: checks the slot and writes the heartbeat, in its own thread.

At start and at each interval it

1. checks the claim and the slot, and reports each bound once when it is crossed and
   once when the value is below it again;
2. writes a heartbeat: raises the counter and writes it into the log, in one
   transaction. If the counter is not above the last one, the transaction is rolled
   back: the database went back in time;
3. runs the configured heartbeat query, whose failure stops nothing.

Between heartbeats it runs its periodic tasks, each at its own interval.

It reconnects by itself, and its failure never stops the relay. If the relay follows the
wrong history (slot lost, claim lost, database back in time), ``on_lost`` is called once
and no heartbeat follows: the next session has a new monitor.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import psycopg
import structlog

from towpath.relay.postgres.connect import Connection, connect, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.naming import Registration
from towpath.relay.stats import SlotStats, Stats
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings import OnUpdate, Relay, Settings

OUTBOX_UPDATED: Final = "an outbox row was updated"

_LOST: Final = "lost"
# The status of a slot whose log the next checkpoint may remove.
_ENDANGERED: Final = "unreserved"


class SlotReading(NamedTuple):
    """The server's values for the slot, the outbox's updates and the archive."""

    retained_bytes: int
    lag_bytes: int
    safe_wal_bytes: int | None
    wal_status: str
    is_active: bool
    inactive_s: float | None
    invalidation_reason: str | None
    outbox_updates: int | None
    is_archive_failing: bool


class BoundCrossing(NamedTuple):
    """A bound that the slot has crossed, or is below again."""

    bound: str
    level: str
    is_over: bool


class SlotBounds:
    """Tracks which bounds of the slot are crossed, from one reading to the next."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._over: frozenset[str] = frozenset()
        self._outbox_updates: int | None = None
        self._inactive_since_s: float | None = None

    def stats(self, reading: SlotReading, now_s: float) -> SlotStats:
        """Return the metrics; for older servers, measure the inactive time here."""
        if reading.is_active:
            self._inactive_since_s = None
        elif self._inactive_since_s is None:
            self._inactive_since_s = now_s
        measured = self._inactive_since_s
        inactive_s = reading.inactive_s
        if inactive_s is None and measured is not None:
            inactive_s = now_s - measured
        return SlotStats(
            retained_bytes=reading.retained_bytes,
            lag_bytes=reading.lag_bytes,
            safe_wal_bytes=reading.safe_wal_bytes,
            wal_status=reading.wal_status,
            is_active=reading.is_active,
            inactive_s=None if reading.is_active else inactive_s,
            is_archive_failing=reading.is_archive_failing,
        )

    def crossings(self, stats: SlotStats) -> list[BoundCrossing]:
        """Return the bounds crossed, or no longer crossed, since the last reading."""
        relay, size = self._relay, stats.retained_bytes
        inactive_s = stats.inactive_s or 0.0
        bounds = {
            "retained_warning_bytes": ("warning", size > relay.retained_warning_bytes),
            "retained_critical_bytes": ("error", size > relay.retained_critical_bytes),
            "inactive_critical_s": ("error", inactive_s > relay.inactive_critical_s),
            "max_slot_wal_keep_size": ("error", stats.wal_status == _ENDANGERED),
        }
        over = frozenset(name for name, (_, is_over) in bounds.items() if is_over)
        changed = over ^ self._over
        self._over = over
        return [BoundCrossing(n, bounds[n][0], n in over) for n in sorted(changed)]

    def new_outbox_updates(self, reading: SlotReading) -> int:
        """Return the number of outbox rows updated since the last reading."""
        before, self._outbox_updates = self._outbox_updates, reading.outbox_updates
        if before is None or reading.outbox_updates is None:
            return 0
        return max(0, reading.outbox_updates - before)


def slot_loss(reading: SlotReading | None, slot: str) -> str | None:
    """Return why the slot can no longer be used; None if it can."""
    if reading is None:
        return f"slot {slot} no longer exists"
    if reading.wal_status == _LOST or reading.invalidation_reason is not None:
        cause = reading.invalidation_reason or "max_slot_wal_keep_size"
        return f"slot {slot} has lost part of the log that it still needed ({cause})"
    return None


_LOG = structlog.get_logger("towpath.relay.slot_monitor")

# A lock on the heartbeat row, or a slow query, ends a turn. A heartbeat that waited for
# an absent standby would be streamed, yet visible to no query.
_BOUNDS: Final = (
    b"set statement_timeout = '20s'; set lock_timeout = '5s';"
    b"set synchronous_commit = local"
)
_CLOSE_TIMEOUT_S: Final = 5.0


class SlotClaim(Protocol):
    """The claim on the slot, which lasts as long as its connection."""

    def check(self) -> None:
        """
        Check that the claim still holds.

        Raises:
            SourceUnavailableError: The claim is lost.
        """


class PeriodicTask(Protocol):
    """A task that the slot monitor runs over its connection."""

    @property
    def interval_s(self) -> float:
        """The interval of turns; the first turn is immediate."""

    def turn(self, connection: Connection) -> None:
        """
        Run once, in a few milliseconds.

        Raises:
            psycopg.Error: The turn failed; the next one has a new connection.
            TowpathError: As above.
        """


class SlotMonitor:
    """The monitor of one session, from ``start`` to ``close``."""

    def __init__(  # noqa: PLR0913 - built in one place, the last by name
        self,
        settings: Settings,
        stats: Stats,
        clock: Clock,
        claim: SlotClaim,
        on_lost: Callable[[str], None],
        *,
        relay: Registration,
        tasks: Sequence[PeriodicTask] = (),
    ) -> None:
        """
        Create a monitor that is not started.

        Args:
            settings: Source, intervals and bounds.
            stats: Receives the slot's metrics; its ``run_id`` goes into each heartbeat.
            clock: The time.
            claim: The claim on the slot.
            on_lost: Called, in the monitor's thread, with the reason why the session
                must end.
            relay: The relay of the heartbeat.
            tasks: Periodic tasks, run between heartbeats.
        """
        self._relay = relay
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._claim = claim
        self._on_lost = on_lost
        # The time of the next heartbeat, and of each task's next turn.
        self._heartbeat_at_s = float("-inf")
        self._tasks = [(float("-inf"), task) for task in tasks]
        self._bounds = SlotBounds(settings.relay)
        self._connection: Connection | None = None
        self._counter = 0
        self._ending = threading.Event()
        name = "slot-monitor"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which writes a heartbeat immediately."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. Never raises."""
        self._ending.set()
        connection = self._connection
        active = psycopg.pq.TransactionStatus.ACTIVE
        if connection is not None and connection.info.transaction_status == active:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                reason = self._turn()
                if reason is not None:
                    self._end_session(reason)
                    return
                self._ending.wait(self._idle_s())
        except Exception as error:  # noqa: BLE001 - whatever a task raises
            # Without the monitor, nobody checks the claim: the session must end.
            _LOG.exception("slot monitor failed")
            self._end_session(f"the slot monitor failed: {error!r}")
        finally:
            self._disconnect()

    def _end_session(self, reason: str) -> None:
        """End the session, unless it has ended: the next one has its own monitor."""
        if not self._ending.is_set():
            self._on_lost(reason)

    def _turn(self) -> str | None:
        """Run the due checks and tasks; return why the session must end, if it must."""
        try:
            self._claim.check()
        except TowpathError as lost:
            return f"the claim on the slot is lost: {lost}"
        reason = None
        try:
            if self._clock.monotonic_s() >= self._heartbeat_at_s:
                reason = self._check_slot()
            if reason is None:
                self._run_tasks()
        except TowpathError as failure:
            if not self._ending.is_set():
                _LOG.warning(
                    "slot monitor failed: retrying",
                    reason=str(failure),
                    remedy=failure.remedy,
                )
            self._disconnect()
        return reason

    def _idle_s(self) -> float:
        """Return the time until something is due."""
        next_s = min([self._heartbeat_at_s, *(at_s for at_s, _ in self._tasks)])
        return max(0.0, next_s - self._clock.monotonic_s())

    def _run_tasks(self) -> None:
        for place, (at_s, task) in enumerate(self._tasks):
            if self._clock.monotonic_s() < at_s or self._ending.is_set():
                continue
            # A failed turn is not repeated before the interval has passed.
            next_s = self._clock.monotonic_s() + task.interval_s
            self._tasks[place] = (next_s, task)
            with translated_errors("checking the source"):
                task.turn(self._connected())

    def _check_slot(self) -> str | None:
        self._heartbeat_at_s = (
            self._clock.monotonic_s() + self._settings.relay.heartbeat_interval_s
        )
        with translated_errors("checking the slot"):
            connection = self._connected()
            reading = self._read(connection)
            reason = slot_loss(reading, self._settings.database.slot)
            if reason is None and reading is not None:
                self._report(reading)
                reason = self._write_heartbeat(connection)
        return reason

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._settings.database.dsn)
            self._connection.execute(_BOUNDS)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _read(self, connection: Connection) -> SlotReading | None:
        outbox = TableName.parse(self._settings.relay.outbox.table).sql
        parameters = {"slot": self._settings.database.slot, "outbox": outbox}
        row = connection.execute(query("read_slot_values"), parameters).fetchone()
        if row is None:
            return None
        unarchived = connection.execute(query("read_unarchived_log")).fetchone()
        return SlotReading(*(*row, unarchived is not None))

    def _report(self, reading: SlotReading) -> None:
        stats = self._bounds.stats(reading, self._clock.monotonic_s())
        self._stats.slot = stats
        for crossing in self._bounds.crossings(stats):
            _log_crossing(crossing, stats)
        if self._settings.relay.outbox.on_update is OnUpdate.WARN:
            for _ in range(self._bounds.new_outbox_updates(reading)):
                self._stats.skip(OUTBOX_UPDATED)

    def _write_heartbeat(self, connection: Connection) -> str | None:
        """Write a heartbeat; return the reason if the counter is not above the last."""
        before, counter = self._counter, 0
        with connection.transaction():
            own = {"number": self._relay.number}
            row = connection.execute(query("raise_heartbeat"), own).fetchone()
            counter = int(row[0]) if row else 0
            if before and counter <= before:
                raise psycopg.Rollback
            names = {"run": self._stats.run_id, "relay": self._relay.name}
            content = json.dumps({"counter": counter, **names})
            connection.execute(query("write_heartbeat"), {"content": content})
        if before and counter <= before:
            return (
                "the database went back in time: its heartbeat was "
                f"{counter - 1}, but {before} was written last"
            )
        self._counter = counter
        self._run_heartbeat_query(connection)
        return None

    def _run_heartbeat_query(self, connection: Connection) -> None:
        """Run the configured heartbeat query; its failure stops nothing."""
        statement = self._settings.relay.heartbeat_query
        if not statement:
            return
        try:
            connection.execute(statement.encode())
        except psycopg.Error as error:
            if connection.broken:
                raise
            _LOG.warning("heartbeat query failed", reason=str(error).strip())


def _log_crossing(crossing: BoundCrossing, stats: SlotStats) -> None:
    """Log a crossing at its level, and its end at level info."""
    fields = {
        "bound": crossing.bound,
        "retained_bytes": stats.retained_bytes,
        "safe_wal_bytes": stats.safe_wal_bytes,
        "wal_status": stats.wal_status,
        "inactive_s": stats.inactive_s,
    }
    if not crossing.is_over:
        _LOG.info("slot is within its bound again", **fields)
    elif crossing.level == "error":
        _LOG.error("slot is beyond its bound", **fields)
    else:
        _LOG.warning("slot is beyond its bound", **fields)

"""
The slot monitor: keeps a quiet database's log moving, and watches over the slot.

A thread with a connection of its own. Each interval, and at once, it

1. checks the claim and the slot, and reports bounds that are crossed, once when crossed
   and once when the value is back below;
2. beats: raises the counter and writes it into the log, in one transaction, which is
   rolled back if the counter is not above the last one: then the database went back;
3. runs the configured heartbeat query, whose failure stops nothing.

Between heartbeats it runs its periodic tasks, each at the interval that it asks for.

It reconnects by itself, and its failure never stops the relay. If the relay follows the
wrong history (slot lost, claim lost, history gone back), ``on_lost`` is called once and
no heartbeat follows: the next session has a new monitor.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import psycopg
import structlog

from towpath.relay.errors import SourceUnavailableError
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
# What Postgres calls a slot whose log it may remove with its next checkpoint.
_ENDANGERED: Final = "unreserved"


class SlotLook(NamedTuple):
    """One look at the slot and the outbox, as the server tells it."""

    retained_bytes: int
    lag_bytes: int
    safe_wal_bytes: int | None
    wal_status: str
    is_active: bool
    inactive_s: float | None
    invalidation_reason: str | None
    outbox_updates: int | None


class Crossing(NamedTuple):
    """A bound that the slot has crossed, or is back below."""

    what: str
    level: str
    is_over: bool


class SlotWatch:
    """Remembers what was told, from look to look."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._over: frozenset[str] = frozenset()
        self._outbox_updates: int | None = None
        self._inactive_since_s: float | None = None

    def view(self, look: SlotLook, now_s: float) -> SlotStats:
        """Return what the metrics show; older servers do not tell the inactive time."""
        if look.is_active:
            self._inactive_since_s = None
        elif self._inactive_since_s is None:
            self._inactive_since_s = now_s
        measured = self._inactive_since_s
        inactive_s = look.inactive_s
        if inactive_s is None and measured is not None:
            inactive_s = now_s - measured
        return SlotStats(
            retained_bytes=look.retained_bytes,
            lag_bytes=look.lag_bytes,
            safe_wal_bytes=look.safe_wal_bytes,
            wal_status=look.wal_status,
            is_active=look.is_active,
            inactive_s=None if look.is_active else inactive_s,
        )

    def crossings(self, view: SlotStats) -> list[Crossing]:
        """Return the bounds that are newly crossed, or newly kept again."""
        relay = self._relay
        bounds = {
            "retained_warning_bytes": (
                "warning",
                view.retained_bytes > relay.retained_warning_bytes,
            ),
            "retained_critical_bytes": (
                "error",
                view.retained_bytes > relay.retained_critical_bytes,
            ),
            "inactive_critical_s": (
                "error",
                (view.inactive_s or 0.0) > relay.inactive_critical_s,
            ),
            "max_slot_wal_keep_size": ("error", view.wal_status == _ENDANGERED),
        }
        over = frozenset(name for name, (_, is_over) in bounds.items() if is_over)
        changed = over ^ self._over
        self._over = over
        return [
            Crossing(name, bounds[name][0], name in over) for name in sorted(changed)
        ]

    def new_outbox_updates(self, look: SlotLook) -> int:
        """Return how many rows of the outbox were updated since the last look."""
        before, self._outbox_updates = self._outbox_updates, look.outbox_updates
        if before is None or look.outbox_updates is None:
            return 0
        return max(0, look.outbox_updates - before)


def slot_loss(look: SlotLook | None, slot: str) -> str | None:
    """Return why the slot serves no more; None if it does."""
    if look is None:
        return f"slot {slot} is gone"
    if look.wal_status == _LOST or look.invalidation_reason is not None:
        cause = look.invalidation_reason or "max_slot_wal_keep_size"
        return f"slot {slot} has lost log that it still needed ({cause})"
    return None


_LOG = structlog.get_logger("towpath.relay.guardian")

# Bounds of what it asks: a lock on the heartbeat row, or a slow query, ends a turn. A
# beat that waits for a standby that is away would be streamed and seen by nobody.
_BOUNDS: Final = (
    b"set statement_timeout = '20s'; set lock_timeout = '5s';"
    b"set synchronous_commit = local"
)
_CLOSE_TIMEOUT_S: Final = 5.0


class SlotClaim(Protocol):
    """The claim on the slot, which stands as long as its connection."""

    def check(self) -> None:
        """
        Make sure that it stands.

        Raises:
            SourceUnavailableError: It does not any more.
        """


class PeriodicTask(Protocol):
    """Something else to be looked after, over the guardian's connection."""

    @property
    def interval_s(self) -> float:
        """After how long the next turn is due; the first is at once."""

    def turn(self, connection: Connection) -> None:
        """
        Do what there is to do, in a few milliseconds.

        Raises:
            psycopg.Error: It could not; the next turn has a new connection.
            TowpathError: The same.
        """


class SlotMonitor:
    """Watches from ``start`` to ``close``; one per attempt."""

    def __init__(  # noqa: PLR0913 - one place, and the last by their names
        self,
        settings: Settings,
        stats: Stats,
        clock: Clock,
        claim: SlotClaim,
        on_lost: Callable[[str], None],
        *,
        relay: Registration,
        chores: Sequence[PeriodicTask] = (),
    ) -> None:
        """
        Prepare; nothing is done yet.

        Args:
            settings: Source, intervals and bounds.
            stats: Takes the view of the slot; its ``run_id`` goes into each beat.
            clock: The time.
            claim: The claim on the slot.
            on_lost: Is told, in the guardian's thread, why the relay must begin anew.
            relay: The relay that beats.
            chores: Periodic tasks run beside the heartbeat.
        """
        self._relay = relay
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._claim = claim
        self._on_lost = on_lost
        # When to beat next, and when each chore has its next turn.
        self._beat_at_s = float("-inf")
        self._chores = [(float("-inf"), chore) for chore in chores]
        self._watch = SlotWatch(settings.relay)
        self._connection: Connection | None = None
        self._counter = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardian", daemon=True)

    def start(self) -> None:
        """Begin, with a beat at once."""
        self._thread.start()

    def close(self) -> None:
        """End. Never raises."""
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
                    self._on_lost(reason)
                    return
                self._ending.wait(self._patience_s())
        finally:
            self._disconnect()

    def _turn(self) -> str | None:
        """Do everything once; return why the relay must begin anew, if it must."""
        try:
            self._claim.check()
        except SourceUnavailableError as gone:
            return f"the claim on the slot is lost: {gone}"
        reason = None
        try:
            if self._clock.monotonic_s() >= self._beat_at_s:
                reason = self._look_and_beat()
            if reason is None:
                self._do_chores()
        except TowpathError as failure:
            if not self._ending.is_set():
                _LOG.warning(
                    "slot monitor failed, next turn retries", reason=str(failure)
                )
            self._disconnect()
        return reason

    def _patience_s(self) -> float:
        """Return how long there is nothing to do."""
        next_s = min([self._beat_at_s, *(at_s for at_s, _ in self._chores)])
        return max(0.0, next_s - self._clock.monotonic_s())

    def _do_chores(self) -> None:
        for place, (at_s, chore) in enumerate(self._chores):
            if self._clock.monotonic_s() < at_s or self._ending.is_set():
                continue
            # Also if it fails: the next turn is not sooner for that.
            next_s = self._clock.monotonic_s() + chore.interval_s
            self._chores[place] = (next_s, chore)
            with translated_errors("looking after the source"):
                chore.turn(self._connected())

    def _look_and_beat(self) -> str | None:
        self._beat_at_s = (
            self._clock.monotonic_s() + self._settings.relay.heartbeat_interval_s
        )
        with translated_errors("watching over the slot"):
            connection = self._connected()
            look = self._look(connection)
            reason = slot_loss(look, self._settings.database.slot)
            if reason is None and look is not None:
                self._note(look)
                reason = self._beat(connection)
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

    def _look(self, connection: Connection) -> SlotLook | None:
        outbox = TableName.parse(self._settings.relay.outbox.table).sql
        parameters = {"slot": self._settings.database.slot, "outbox": outbox}
        row = connection.execute(query("watch_slot"), parameters).fetchone()
        return None if row is None else SlotLook(*row)

    def _note(self, look: SlotLook) -> None:
        view = self._watch.view(look, self._clock.monotonic_s())
        self._stats.slot = view
        for crossing in self._watch.crossings(view):
            _log_crossing(crossing, view)
        if self._settings.relay.outbox.on_update is OnUpdate.WARN:
            for _ in range(self._watch.new_outbox_updates(look)):
                self._stats.skip(OUTBOX_UPDATED)

    def _beat(self, connection: Connection) -> str | None:
        """Beat, unless the counter is not above our own last one: return why not."""
        before, counter = self._counter, 0
        with connection.transaction():
            own = {"number": self._relay.number}
            row = connection.execute(query("beat"), own).fetchone()
            counter = int(row[0]) if row else 0
            if before and counter <= before:
                raise psycopg.Rollback
            told = {"counter": counter, "run": self._stats.run_id}
            content = json.dumps({**told, "relay": self._relay.name})
            connection.execute(query("tell_beat"), {"content": content})
        if before and counter <= before:
            return (
                "the database went back in time: its heartbeat was "
                f"{counter - 1}, we had left it at {before}"
            )
        self._counter = counter
        self._act(connection)
        return None

    def _act(self, connection: Connection) -> None:
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


def _log_crossing(crossing: Crossing, view: SlotStats) -> None:
    """Log a crossing at its level, and its end as information."""
    what = {
        "bound": crossing.what,
        "retained_bytes": view.retained_bytes,
        "safe_wal_bytes": view.safe_wal_bytes,
        "wal_status": view.wal_status,
        "inactive_s": view.inactive_s,
    }
    if not crossing.is_over:
        _LOG.info("slot is back within its bound", **what)
    elif crossing.level == "error":
        _LOG.error("slot is beyond its bound", **what)
    else:
        _LOG.warning("slot is beyond its bound", **what)

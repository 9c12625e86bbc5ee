"""
Chooses which lineage of the source to follow, and handles any gap beforehand.

The steps, each safe to repeat after a crash at any point:

1. choose the lineage from the stored history and the server's;
2. announce a gap: log record, notification, then the new lineage in the state topic;
3. create the slot, if there is no usable one;
4. store the LSN from which the slot serves the lineage;
5. request the snapshots that close the gap, if configured.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import psycopg
import structlog

from towpath.relay.encode.record import Record
from towpath.relay.errors import NotPreparedError, SourceUnavailableError
from towpath.relay.postgres import setup
from towpath.relay.postgres.connect import Connection, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.replication import SlotStream
from towpath.relay.postgres.slot import read_slot, require_publications, slot_statement
from towpath.relay.postgres.source_facts import read_captured
from towpath.relay.recovery import backfill as gaps
from towpath.relay.recovery.lineage import (
    Gap,
    Lineage,
    LineageDecision,
    SourceHistory,
    StoredHistory,
    choose_lineage,
    gap_error,
)
from towpath.relay.snapshot.naming import Registration
from towpath.schemas.clock import Clock
from towpath.schemas.position import format_lsn
from towpath.settings import FirstStart, OnGap, Settings

_LOG = structlog.get_logger("towpath.relay")

# How long a heartbeat that has already been decoded may remain invisible.
_HEARTBEAT_TIMEOUT: Final = b"set local lock_timeout = '5s'"


class HistoryStore(NamedTuple):
    """
    The functions that read and write the state in Kafka.

    All but ``read`` return once Kafka has acknowledged the write. ``confirm`` lowers
    the stored confirmed LSN to an LSN of the newest lineage.
    """

    read: Callable[[], StoredHistory]
    write: Callable[[Sequence[Lineage]], None]
    publish: Callable[[Record], None]
    confirm: Callable[[int], None]


class LineageResolver:
    """Finds the lineage to follow; connection and stream must reach the same server."""

    def __init__(
        self,
        settings: Settings,
        store: HistoryStore,
        clock: Clock,
        connection: Connection,
        stream: SlotStream,
        relay: Registration,
    ) -> None:
        self._relay = relay
        self._settings = settings
        self._source = settings.database
        self._store = store
        self._clock = clock
        self._connection = connection
        self._stream = stream

    def follow(self) -> LineageDecision:
        """
        Perform all steps, and return the lineage to follow.

        Raises:
            HistoryChangedError: There is a gap, and ``on_gap`` is halt.
            SlotLostError: As above, and there is no usable slot.
            NotPreparedError: Slot, publication or heartbeat table is missing.
            SlotBusyError: The slot is still being created.
            StateLostError: Kafka lacks the state of an existing slot or topic.
            SourceUnavailableError: The server is unreachable, or a standby.
        """
        stored = self._store.read()
        found = self.found(stored.heartbeat)
        at = self._now()
        tables = read_captured(self._connection, self._settings)
        decision = choose_lineage(stored, found, tables, at)
        if decision.gap is not None:
            if self._settings.relay.on_gap is OnGap.HALT:
                raise gap_error(decision, found)
            self._announce(decision.lineage, decision.gap)
        if decision.is_changed:
            if not decision.is_new and stored.has_checkpoint:
                # An LSN confirmed beyond a fork does not exist on the new timeline,
                # where the log would seem to have moved backwards.
                self._store.confirm(decision.confirmed_lsn)
            self._store.write(decision.lineages)
        if decision.needs_slot:
            self._make_slot(found)
        if decision.lineage.start_lsn is None:
            decision = self._with_start(decision)
        return self._with_snapshots(decision)

    def found(self, heartbeat: int) -> SourceHistory:
        """
        Read the server's history.

        Args:
            heartbeat: The highest counter seen in the stream. If the table shows a
                lower one, it is read again: a commit may be decoded before it is
                visible.

        Raises:
            NotPreparedError: There is no heartbeat table.
            SlotBusyError: The slot is still being created.
            SourceUnavailableError: The server is unreachable, or a standby.
        """
        identity = self._stream.identify()
        with translated_errors("reading the source's history"):
            current_lsn, counter = self._read_history()
            if counter < heartbeat:
                counter = self._read_heartbeat()
            return SourceHistory(
                system_identifier=identity.system_identifier,
                timeline=identity.timeline,
                forks=self._stream.forks(identity.timeline),
                current_lsn=current_lsn,
                slot=read_slot(self._connection, self._source.slot),
                heartbeat=counter,
                slot_name=self._source.slot,
            )

    def _read_history(self) -> tuple[int, int]:
        own = {"number": self._relay.number}
        try:
            row = self._connection.execute(query("read_history"), own).fetchone()
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            reason = "there is no table towpath.heartbeat"
            raise NotPreparedError(reason) from error
        is_standby, current_lsn, counter = row or (True, 0, 0)
        if is_standby:
            reason = "the server is a standby: it cannot be followed until promoted"
            raise SourceUnavailableError(reason)
        return int(current_lsn), int(counter)

    def _read_heartbeat(self) -> int:
        try:
            with self._connection.transaction():
                self._connection.execute(_HEARTBEAT_TIMEOUT)
                own = {"number": self._relay.number}
                row = self._connection.execute(query("read_heartbeat"), own).fetchone()
        except psycopg.errors.LockNotAvailable as error:
            reason = "a heartbeat is not visible yet"
            raise SourceUnavailableError(reason) from error
        return int(row[0]) if row else 0

    def _announce(self, lineage: Lineage, gap: Gap) -> None:
        _LOG.error(
            "gap in the source's history",
            reason=gap.reason,
            lineage=lineage.number,
            since_lsn=format_lsn(gap.since_lsn),
            plan=list(gap.plan),
            fill=gaps.fill_statement(lineage, gap, self._relay),
        )
        now_ms = int(self._clock.now().timestamp() * 1000)
        prefix = self._source.prefix
        self._store.publish(gaps.gap_record(prefix, lineage, gap, self._relay, now_ms))

    def _make_slot(self, found: SourceHistory) -> None:
        """Create the slot, dropping an unusable one first; publications must exist."""
        source, connection = self._source, self._connection
        require_publications(connection, source)
        if found.slot is not None:
            with translated_errors("dropping the unusable slot"):
                connection.execute(query("drop_slot"), {"slot": source.slot})
        statement = slot_statement(source.slot, connection.info.server_version)
        setup.run_setup(connection, [setup.SetupStep("creating the slot", statement)])
        _LOG.warning("slot recreated", slot=source.slot)

    def _with_start(self, decision: LineageDecision) -> LineageDecision:
        """Store the LSN from which the slot serves the lineage."""
        with translated_errors("reading the slot"):
            slot = read_slot(self._connection, self._source.slot)
        if slot is None:
            reason = f"slot {self._source.slot} has just been dropped"
            raise SourceUnavailableError(reason)
        lineage = replace(
            decision.lineage, start_lsn=slot.confirmed_lsn, started_at=self._now()
        )
        decision = replace(
            decision,
            lineages=(*decision.lineages[:-1], lineage),
            confirmed_lsn=slot.confirmed_lsn,
        )
        self._store.write(decision.lineages)
        return decision

    def _now(self) -> str:
        return self._clock.now().isoformat(timespec="seconds")

    def _with_snapshots(self, decision: LineageDecision) -> LineageDecision:
        """Request the snapshots of an open gap, if configured."""
        lineage, gap = decision.lineage, decision.lineage.gap
        relay = self._settings.relay
        is_needed = relay.snapshot.mode is FirstStart.WHEN_NEEDED
        is_configured = is_needed or relay.on_gap is OnGap.SNAPSHOT
        if gap is None or gap.started or not gap.plan or not is_configured:
            return decision
        signal = {
            "id": gaps.signal_id(lineage, self._relay),
            "data": gaps.signal_data(gap, self._relay),
            "relay": self._relay.name,
        }
        with translated_errors("requesting the snapshots that close the gap"):
            self._connection.execute(query("insert_snapshot_signal"), signal)
        _LOG.warning(
            "snapshot requested to close the gap",
            signal=signal["id"],
            plan=list(gap.plan),
        )
        started = replace(lineage, gap=replace(gap, started=True))
        decision = replace(decision, lineages=(*decision.lineages[:-1], started))
        self._store.write(decision.lineages)
        return decision

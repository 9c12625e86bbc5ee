"""
Which history the source tells, and what is done about a gap before it is followed.

Call order, each step safe to repeat after a crash at any place:

1. decide (``lineage``) from what Kafka remembers and what the server tells;
2. announce a gap: log, notification, then the new lineage into the state topic;
3. make the slot, if there is none that serves;
4. store where the slot took the lineage up;
5. ask for the snapshots that close the gap, if that is configured.
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
from towpath.relay.postgres.slot import (
    read_slot,
    require_publications,
    slot_statement,
)
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

# How long a beat that is decoded already may stay invisible before we ask again.
_BEAT_TIMEOUT: Final = b"set local lock_timeout = '5s'"


class HistoryStore(NamedTuple):
    """
    The way to Kafka, as this module needs it.

    All but ``read`` return when Kafka has acknowledged. ``confirm`` takes what is
    stored as confirmed back to an LSN, in the newest lineage.
    """

    read: Callable[[], StoredHistory]
    write: Callable[[Sequence[Lineage]], None]
    publish: Callable[[Record], None]
    confirm: Callable[[int], None]


class LineageResolver:
    """Finds the lineage to follow; connection and stream lead to the same server."""

    def __init__(
        self,
        settings: Settings,
        memory: HistoryStore,
        clock: Clock,
        connection: Connection,
        stream: SlotStream,
        relay: Registration,
    ) -> None:
        self._relay = relay
        self._settings = settings
        self._source = settings.database
        self._memory = memory
        self._clock = clock
        self._connection = connection
        self._stream = stream

    def follow(self) -> LineageDecision:
        """
        Return the lineage to follow, with everything done that it needs.

        Raises:
            HistoryChangedError: There is a gap, and ``on_gap`` is halt.
            SlotLostError: The same, for want of a slot.
            NotPreparedError: Slot, publication or heartbeat table is missing.
            StateLostError: Kafka lacks the past that slot or topics tell of.
            SourceUnavailableError: The server is away, or only a standby.
        """
        remembered = self._memory.read()
        found = self.found(remembered.heartbeat)
        at = self._clock.now().isoformat(timespec="seconds")
        tables = read_captured(self._connection, self._settings)
        decision = choose_lineage(remembered, found, tables, at)
        if decision.gap is not None:
            if self._settings.relay.on_gap is OnGap.HALT:
                raise gap_error(decision, found)
            self._announce(decision.lineage, decision.gap)
        if decision.is_changed:
            if not decision.is_new and remembered.confirmed_lsn is not None:
                # What was confirmed beyond a fork is not there: were it believed on
                # the new timeline, the log would seem to have gone back.
                self._memory.confirm(decision.confirmed_lsn)
            self._memory.write(decision.lineages)
        if decision.needs_slot:
            self._make_slot(found)
        if decision.lineage.start_lsn is None:
            decision = self._taken_up(decision)
        return self._filled(decision)

    def found(self, heartbeat: int) -> SourceHistory:
        """
        Ask the server what it is and what it has.

        Args:
            heartbeat: The highest that was streamed: a lower one is looked at again,
                since a commit may be decoded before it is visible.

        Raises:
            NotPreparedError: There is no heartbeat table.
            SourceUnavailableError: The server is away, or only a standby.
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
                self._connection.execute(_BEAT_TIMEOUT)
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
        self._memory.publish(gaps.gap_record(prefix, lineage, gap, self._relay, now_ms))

    def _make_slot(self, found: SourceHistory) -> None:
        """Replace a slot that serves no more; publications must be there before."""
        source, connection = self._source, self._connection
        require_publications(connection, source)
        if found.slot is not None:
            with translated_errors("dropping the slot that serves no more"):
                connection.execute(query("drop_slot"), {"slot": source.slot})
        statement = slot_statement(source.slot, connection.info.server_version)
        setup.run_setup(connection, [setup.SetupStep("making the slot", statement)])
        _LOG.warning("slot recreated", slot=source.slot)

    def _taken_up(self, decision: LineageDecision) -> LineageDecision:
        """Store from where the slot serves the lineage; it is pending no more."""
        with translated_errors("reading the slot"):
            slot = read_slot(self._connection, self._source.slot)
        if slot is None:
            reason = f"slot {self._source.slot} has just vanished"
            raise SourceUnavailableError(reason)
        lineage = replace(decision.lineage, start_lsn=slot.confirmed_lsn)
        decision = replace(
            decision,
            lineages=(*decision.lineages[:-1], lineage),
            confirmed_lsn=slot.confirmed_lsn,
        )
        self._memory.write(decision.lineages)
        return decision

    def _filled(self, decision: LineageDecision) -> LineageDecision:
        """Ask for the snapshots of an open gap, if they are to be started."""
        lineage, gap = decision.lineage, decision.lineage.gap
        relay = self._settings.relay
        is_needed = relay.snapshot.mode is FirstStart.WHEN_NEEDED
        is_wanted = is_needed or relay.on_gap is OnGap.SNAPSHOT
        if gap is None or gap.started or not gap.plan or not is_wanted:
            return decision
        asked = {
            "id": gaps.signal_id(lineage, self._relay),
            "data": gaps.signal_data(gap, self._relay),
            "relay": self._relay.name,
        }
        with translated_errors("asking for the snapshots that close the gap"):
            self._connection.execute(query("ask_for_snapshot"), asked)
        _LOG.warning("snapshots requested", signal=asked["id"], plan=list(gap.plan))
        started = replace(lineage, gap=replace(gap, started=True))
        decision = replace(decision, lineages=(*decision.lineages[:-1], started))
        self._memory.write(decision.lineages)
        return decision

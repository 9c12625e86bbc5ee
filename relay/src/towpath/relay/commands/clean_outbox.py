"""
``towpath outbox clean``: remove old events from an outbox that keeps its rows.

The command keeps events younger than a given age, events that a reader of the log has
not confirmed, and events from before the current lineage: the lineage's slot may begin
after them, so they may never have been published. Rows are deleted in bounded steps,
each followed by a pause as long as the step took. In a partitioned outbox, whole
partitions are dropped, and the partitions of the next days are created.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from towpath.relay.commands.state import newest_values
from towpath.relay.errors import NotPreparedError, OutboxUnconfirmedError
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.outbox_cleaning import (
    PAGES_AT_ONCE,
    OldRows,
    OutboxTable,
    Partition,
    lost_readers,
)
from towpath.relay.recovery.lineage import parse_lineages
from towpath.relay.recovery.state import parse_state
from towpath.schemas import source_tables
from towpath.schemas.clock import Clock, Deadline, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.position import format_lsn
from towpath.settings import Settings

_LOG: Final = structlog.get_logger("towpath.relay")

# A batch of rows is complete once it has this many ids, which take about 5 MB.
_IDS_AT_ONCE: Final = 50_000
_POLL_EVERY_S: Final = 0.5

Report = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """
    The rules that decide which events are removed.

    Attributes:
        keep: Events younger than this are kept.
        wait_s: The longest wait for the readers of the log, and for transactions that
            may write to a partition.
        days_ahead: The number of daily partitions to create beyond today's.
        keeps_former: Whether events from before the current lineage are kept.
    """

    keep: timedelta
    wait_s: float = 60.0
    days_ahead: int = source_tables.DAYS_AHEAD
    keeps_former: bool = True


@dataclass(slots=True)
class Cleaned:
    """
    The result of one run.

    Attributes:
        table: The outbox.
        deleted: The number of deleted rows.
        kept_former: The number of old rows, or partitions, from before the lineage.
        added: The days for which partitions were created.
        dropped: The partitions that were dropped.
        waiting: The partitions left for the next run, because a session is using one
            of them.
    """

    table: str
    deleted: int = 0
    kept_former: int = 0
    added: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def clean_outbox(
    settings: Settings, rules: CleaningRules, report: Report, clock: Clock | None = None
) -> Cleaned:
    """
    Remove old events.

    Args:
        settings: The configuration.
        rules: The rules that decide which events are removed.
        report: Called with three counts: the pages processed, which may exceed the
            total; the total number of pages; and the deleted rows.
        clock: Gives the time, and waits.

    Raises:
        UsageError: The age of events is unknown.
        NotPreparedError: There is no outbox, the relay has not begun to publish, or a
            reader of the log will never confirm anything.
        StateRefusedError: There is no state topic.
        StateLostError: The state cannot be read.
        OutboxUnconfirmedError: A reader did not confirm the log in time; nothing that
            it has not confirmed was removed.
        UnavailableError: Postgres or Kafka cannot be reached.
    """
    outbox = settings.relay.outbox
    columns = outbox.columns
    time_name = columns.occurred_at or columns.timestamp
    if not time_name:
        message = "the age of events is unknown: the outbox has no column occurred_at"
        raise UsageError(message)
    with connect(settings.database.dsn) as connection:
        described = source_tables.outbox(outbox.table, columns.model_dump())
        table = OutboxTable(connection, described, columns.id, time_name)
        cleaning = _Cleaning(settings, rules, table, clock or SystemClock())
        if table.is_partitioned():
            return cleaning.partitions()
        return cleaning.rows(report)


class _Cleaning:
    """One run over an outbox."""

    def __init__(
        self, settings: Settings, rules: CleaningRules, table: OutboxTable, clock: Clock
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._table = table
        self._clock = clock
        self._before = clock.now() - rules.keep
        self._since = _since(settings) if rules.keeps_former else _EARLIEST
        self._cleaned = Cleaned(settings.relay.outbox.table)

    def rows(self, report: Report) -> Cleaned:
        """Delete old rows."""
        pages, cleaned = self._table.pages(), self._cleaned
        for batch in self._batches(pages):
            if any(each.ids for each in batch):
                self._wait_for_readers()
            for each in batch:
                cleaned.kept_former += each.kept
                cleaned.deleted += self._delete(each) if each.ids else 0
                report(each.first_page + PAGES_AT_ONCE, pages, cleaned.deleted)
        _LOG.info("outbox cleaned", table=cleaned.table, deleted=cleaned.deleted)
        return cleaned

    def partitions(self) -> Cleaned:
        """Add the partitions of the next days, and drop the old ones."""
        cleaned, partitions = self._cleaned, self._table.partitions()
        today = self._clock.now().astimezone(UTC).date()
        for days in range(self._rules.days_ahead + 1):
            day = today + timedelta(days=days)
            if not any(each.covers(day) for each in partitions):
                self._table.add_partition(day)
                cleaned.added.append(day.isoformat())
        old = [each for each in partitions if self._is_old(each)]
        # Only one partition can be detached at a time, so a pending one goes first.
        old.sort(key=lambda each: not each.is_pending)
        detached = [each for each in old if self._detach(each)]
        if detached:
            self._wait_for_readers()
        for each in detached:
            is_gone = self._table.drop(each)
            found = cleaned.dropped if is_gone else cleaned.waiting
            found.append(each.name.text)
        _LOG.info("outbox cleaned", table=cleaned.table, dropped=cleaned.dropped)
        return cleaned

    def _batches(self, pages: int) -> Iterator[list[OldRows]]:
        """Yield the old rows of the whole table in batches of bounded size."""
        batch: list[OldRows] = []
        for first_page in range(0, pages, PAGES_AT_ONCE):
            batch.append(self._table.old_rows(first_page, self._before, self._since))
            if sum(len(each.ids) for each in batch) >= _IDS_AT_ONCE:
                yield batch
                batch = []
        yield batch

    def _delete(self, rows: OldRows) -> int:
        began_s = self._clock.monotonic_s()
        count = self._table.delete(rows)
        # Pause as long as the step took, so that other sessions get half of the time.
        self._clock.wait(self._clock.monotonic_s() - began_s)
        return count

    def _is_old(self, partition: Partition) -> bool:
        """Return whether to drop a partition; count an old one that must be kept."""
        if partition.is_attached:
            start, end = partition.start, partition.end
            if start is None or end is None or end > self._before:
                return False
        else:
            start = self._table.first_insert(partition) or self._since
        if start < self._since:
            self._cleaned.kept_former += 1
            return False
        return True

    def _detach(self, partition: Partition) -> bool:
        """Detach a partition; return False if it, or an earlier one, is in use."""
        if not partition.is_attached:
            return True
        is_possible = not self._cleaned.waiting
        if is_possible and self._table.detach(partition, self._rules.wait_s):
            return True
        self._cleaned.waiting.append(partition.name.text)
        return False

    def _wait_for_readers(self) -> None:
        """
        Wait until all readers have confirmed the log, and the relay has published it.

        Raises:
            NotPreparedError: A reader will never confirm anything.
            OutboxUnconfirmedError: A reader did not confirm the log in time.
        """
        end_lsn = self._table.log_end()
        deadline = Deadline(self._clock, self._rules.wait_s)
        while True:
            readers = self._table.readers()
            for reason in lost_readers(readers):
                message = f"{reason}, so nothing is known to be published"
                raise NotPreparedError(message)
            late = [reader.name for reader in readers if reader.lacks(end_lsn)]
            # A recreated slot reports log as confirmed even if the relay never read it.
            if not late and _published_lsn(self._settings) < end_lsn:
                late = [self._settings.database.slot]
            if not late:
                return
            if deadline.passed():
                message = (
                    f"{', '.join(late)}: the log is not confirmed up to "
                    f"{format_lsn(end_lsn)} after {self._rules.wait_s:.0f} s"
                )
                raise OutboxUnconfirmedError(message)
            self._clock.wait(_POLL_EVERY_S)


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def _since(settings: Settings) -> datetime:
    """
    Return the time since which the slot has served the current lineage.

    Raises:
        NotPreparedError: That time is unknown.
    """
    lineages = parse_lineages(parse_state(newest_values(settings)).lineage)
    if not lineages or lineages[-1].start_lsn is None:
        message = "the relay has not begun to publish: its slot serves no lineage yet"
        raise NotPreparedError(message)
    if not lineages[-1].started_at:
        message = (
            "an earlier release did not store when the lineage began, so unpublished "
            "events cannot be distinguished from published ones: add --former to "
            "remove both"
        )
        raise NotPreparedError(message)
    return datetime.fromisoformat(lineages[-1].started_at)


def _published_lsn(settings: Settings) -> int:
    """Return the checkpoint's LSN in the current lineage; 0 without a checkpoint."""
    state = parse_state(newest_values(settings))
    lineages = parse_lineages(state.lineage)
    if state.confirmed is None or not lineages:
        return 0
    # A checkpoint of an earlier lineage lies below the offset: its result is negative.
    return state.confirmed.log_lsn - lineages[-1].offset


def document(cleaned: Cleaned) -> dict[str, Any]:
    """Return the result as a JSON document."""
    return {name: getattr(cleaned, name) for name in Cleaned.__slots__}

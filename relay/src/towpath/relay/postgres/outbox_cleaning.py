"""
Removal of published events from an outbox that keeps its rows.

An event may be removed once every reader of the log is past its commit. That is proved
without the LSN of the commit, which no row records: first a batch of old rows is read,
*then* the end of the log. The rows were visible, so they had been committed, and their
commits lie below that end. When every reader has confirmed it, only these rows are
deleted. A row that an open transaction has inserted is not in the batch.

Rows are read and deleted in ranges of the table's pages: no index is needed, and no
step is longer than one range. A partition is detached first, which waits for all
transactions that may write to it; only then is the end of the log read.
"""

# ruff: noqa: S608 - names are quoted; values are parameters
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Final, NamedTuple

import psycopg
import structlog

from towpath.relay.errors import NotPreparedError
from towpath.relay.postgres.connect import Connection, quoted, translated_errors
from towpath.relay.postgres.queries import query
from towpath.schemas.failure import TowpathError
from towpath.schemas.source_tables import INSERTED_AT, SourceTable
from towpath.schemas.table_name import TableName

_LOG: Final = structlog.get_logger("towpath.relay")

# 512 KiB: a few thousand events.
PAGES_AT_ONCE: Final = 64
# The longest wait for a lock, except when detaching: a queued request blocks writers.
LOCK_TIMEOUT: Final = b"set lock_timeout = '1s'"


class OldRows(NamedTuple):
    """
    Old rows of a range of pages.

    Attributes:
        first_page: The first page of the range.
        ids: The ids of the rows that may be deleted.
        kept: The number of rows from before the current lineage.
    """

    first_page: int
    ids: tuple[str, ...]
    kept: int


class Partition(NamedTuple):
    """
    A partition, or a table that was one and is marked to be dropped.

    Attributes:
        name: Its name.
        start: Its lower bound; None if it has none, or no range.
        end: Its upper bound; None if it has none, or no range.
        is_attached: Whether it is still a partition.
        is_pending: Whether its detachment was interrupted.
        has_range: Whether it has a range: it is neither a default nor a former
            partition.
    """

    name: TableName
    start: datetime | None
    end: datetime | None
    is_attached: bool
    is_pending: bool
    has_range: bool

    def covers(self, day: date) -> bool:
        """Return whether its range contains the beginning of a day in UTC."""
        at = datetime.combine(day, time(), UTC)
        starts_before = self.start is None or self.start <= at
        return self.has_range and starts_before and (self.end is None or at < self.end)


class LogReader(NamedTuple):
    """
    A reader of the log: a slot, or a registered relay without one.

    Attributes:
        name: The slot's name.
        confirmed_lsn: The confirmed LSN; None without a slot, and during its creation.
        has_slot: Whether there is a slot.
        is_lost: Whether the slot has lost part of the log that it needs.
    """

    name: str
    confirmed_lsn: int | None
    has_slot: bool
    is_lost: bool

    def lacks(self, lsn: int) -> bool:
        """Return whether the reader has not confirmed this LSN yet."""
        return self.confirmed_lsn is None or self.confirmed_lsn < lsn


class OutboxTable:
    """The outbox table, as the cleaning job sees it."""

    def __init__(
        self, connection: Connection, table: SourceTable, id_name: str, time_name: str
    ) -> None:
        """
        Prepare a connection for cleaning a table.

        Args:
            connection: A connection in autocommit mode.
            table: The table.
            id_name: The column with the event's id.
            time_name: The column with the event's time.
        """
        self._connection = connection
        self._table = table
        self._id, self._time = quoted(id_name), quoted(time_name)
        with translated_errors("setting the lock timeout"):
            connection.execute(LOCK_TIMEOUT)

    def is_partitioned(self) -> bool:
        """
        Return whether the table has partitions.

        Raises:
            NotPreparedError: There is no such table, or its partition key
                differs from that of ``create_outbox``.
        """
        with translated_errors("reading the outbox"):
            row = self._connection.execute(
                query("read_outbox_kind"), {"table": self._table.name.sql}
            ).fetchone()
        if row is None:
            message = f"there is no table {self._table.name}"
            raise NotPreparedError(message)
        kind, key = row
        if kind == "p" and key != f"RANGE ({INSERTED_AT})":
            message = (
                f"table {self._table.name} is partitioned by {key}, not by "
                f"{INSERTED_AT}: drop its partitions yourself"
            )
            raise NotPreparedError(message)
        return bool(kind == "p")

    def pages(self) -> int:
        """Return the number of the table's pages."""
        return self._number("count_outbox_pages")

    def old_rows(self, first_page: int, before: datetime, since: datetime) -> OldRows:
        """
        Read the old rows of a range of pages.

        Args:
            first_page: The first page.
            before: Rows of this time or later are not old.
            since: Rows from before this time are kept.
        """
        statement = (
            f"select {self._id}::text, {self._time} >= %(since)s "
            f"from {self._table.name.sql} "
            f"where {_PAGES} and {self._time} < %(before)s"
        )
        values = self._range(first_page) | {"before": before, "since": since}
        with translated_errors("reading the outbox"):
            rows = self._connection.execute(statement.encode(), values).fetchall()
        ids = tuple(text for text, is_served in rows if is_served)
        return OldRows(first_page, ids, len(rows) - len(ids))

    def delete(self, rows: OldRows) -> int:
        """Delete rows that were read, except locked ones; return the number deleted."""
        table = self._table.name.sql
        statement = (
            f"delete from {table} where ctid = any (array("
            f"select ctid from {table} where {_PAGES} "
            f"and {self._id}::text = any (%(ids)s) for update skip locked))"
        )
        values = self._range(rows.first_page) | {"ids": list(rows.ids)}
        with translated_errors("deleting from the outbox"):
            return self._connection.execute(statement.encode(), values).rowcount

    def _range(self, first_page: int) -> dict[str, object]:
        end = first_page + PAGES_AT_ONCE
        return {"first": f"({first_page},0)", "end": f"({end},0)"}

    # Partitions ----------------------------------------------------------------

    def partitions(self) -> list[Partition]:
        """Return the partitions, and the former ones that are marked to be dropped."""
        name = self._table.name
        marks = [_INTENT, _MARK]
        values = {"table": name.sql, "schema": name.schema, "marks": marks}
        with translated_errors("reading the outbox's partitions"):
            rows = self._connection.execute(query("read_partitions"), values).fetchall()
        return [
            Partition(TableName(name.schema, table), *rest) for table, *rest in rows
        ]

    def add_partition(self, day: date) -> None:
        """Add the partition of a day."""
        with translated_errors(f"adding partition {self._table.partition(day)}"):
            for statement in self._table.partition_statements(day):
                self._connection.execute(statement.encode())

    def detach(self, partition: Partition, wait_s: float) -> bool:
        """
        Detach a partition without blocking writers.

        Args:
            partition: The partition.
            wait_s: The longest wait for transactions that may write to it.

        Returns:
            Whether it is detached; otherwise the next run completes it.
        """
        how = "finalize" if partition.is_pending else "concurrently"
        statement = (
            f"alter table {self._table.name.sql} "
            f"detach partition {partition.name.sql} {how}"
        )
        with translated_errors(f"detaching partition {partition.name}"):
            # The partition is marked first: only a former partition with a mark is ever
            # dropped.
            try:
                self._comment_unless_detached(partition, f"'{_INTENT}'")
            except _LEFT_TO_NEXT_RUN:
                return False
            try:
                is_detached = self._execute_within(statement, wait_s)
            except BaseException:
                self._unmark_after_failure(partition)
                raise
            # VACUUM may hold the lock again, or another run may have dropped the table:
            # the next run then corrects the mark, or nothing is left to do.
            with suppress(
                psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable
            ):
                if is_detached:
                    # Another run may have removed the first mark meanwhile.
                    self._comment(partition, f"'{_MARK}'")
                else:
                    self._unmark(partition)
        return is_detached

    def _execute_within(self, statement: str, wait_s: float) -> bool:
        """
        Execute a statement that waits for transactions; return whether it succeeded.

        False means that the partition is not detached, but its detachment may be
        pending.
        """
        execute = self._connection.execute
        # The lock timeout would end the wait for older transactions.
        execute(b"set lock_timeout = 0")
        # Zero would mean no limit.
        limit_ms = max(1, int(min(wait_s * 1_000, _LARGEST_TIMEOUT_MS)))
        execute(f"set statement_timeout = {limit_ms}".encode())
        try:
            execute(statement.encode())
        except (psycopg.errors.QueryCanceled, *_LEFT_TO_NEXT_RUN):
            return False
        finally:
            execute(b"set statement_timeout = 0")
            execute(LOCK_TIMEOUT)
        return True

    def _unmark_after_failure(self, partition: Partition) -> None:
        """
        Remove the mark, so that no later run takes an operator's detachment for ours.

        The server may complete a statement that Ctrl-C was meant to cancel. The
        partition then cannot be distinguished from one that an operator has detached:
        it is kept, and logged.
        """
        with suppress(psycopg.Error, TowpathError):
            if self._unmark(partition):
                _LOG.warning(
                    "outbox partition detached, but not marked to be dropped",
                    partition=partition.name.text,
                    reason="the interrupted run, or an operator, detached it",
                )

    def _unmark(self, partition: Partition) -> bool:
        """
        Remove the mark, unless the detachment is pending, or belongs to another run.

        Returns:
            Whether the partition is detached: without its mark, no run will drop it.
        """
        found = (each for each in self.partitions() if each.name == partition.name)
        now = next(found, None)
        if now is None or now.is_pending:
            return False
        if now.is_attached:
            self._comment(partition, "null")
            return False
        return self._comment_unless_detached(partition, "null")

    def _comment_unless_detached(self, partition: Partition, text: str) -> bool:
        """
        Set the comment, unless another run has marked the table as detached.

        Returns:
            Whether the comment was set.
        """
        table, execute = partition.name.sql, self._connection.execute
        with self._connection.transaction():
            # COMMENT takes this lock as well.
            lock = f"lock table {table} in share update exclusive mode"
            execute(lock.encode())
            if execute(query("read_mark"), {"table": table}).fetchone() == (_MARK,):
                return False
            self._comment(partition, text)
        return True

    def _comment(self, partition: Partition, text: str) -> None:
        statement = f"comment on table {partition.name.sql} is {text}"
        self._connection.execute(statement.encode())

    def first_insert(self, partition: Partition) -> datetime | None:
        """
        Return the time of the first insert into a partition.

        None means that it is empty, or that another run has dropped it.
        """
        statement = f"select min({quoted(INSERTED_AT)}) from {partition.name.sql}"
        with translated_errors(f"reading {partition.name}"):
            try:
                row = self._connection.execute(statement.encode()).fetchone()
            except psycopg.errors.UndefinedTable:
                return None
        return row[0] if row else None

    def drop(self, partition: Partition) -> bool:
        """
        Drop a detached partition, unless another run has already done so.

        Returns:
            Whether it is gone; otherwise another session uses it, and the next run
            drops it.
        """
        statement = f"drop table if exists {partition.name.sql}"
        with translated_errors(f"dropping {partition.name}"):
            try:
                self._connection.execute(statement.encode())
            except psycopg.errors.LockNotAvailable:
                return False
        return True

    # The log -------------------------------------------------------------------

    def log_end(self) -> int:
        """Return the end of the log, above every commit that was visible before."""
        return self._number("read_insert_end")

    def readers(self) -> list[LogReader]:
        """Return every reader of the database's log."""
        with translated_errors("reading the slots"):
            rows = self._connection.execute(query("read_log_readers")).fetchall()
        return [LogReader(*row) for row in rows]

    def _number(self, name: str) -> int:
        values = {"table": self._table.name.sql}
        with translated_errors("reading the outbox"):
            row = self._connection.execute(query(name), values).fetchone()
        return int(row[0]) if row else 0


_LARGEST_TIMEOUT_MS: Final = 2**31 - 1
# Another session, VACUUM for instance, holds a lock on the partition; or another run
# has detached or dropped it (Postgres has one code for both), or is detaching it.
_LEFT_TO_NEXT_RUN: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.ObjectNotInPrerequisiteState,
)
# The marks of a partition that is to be detached, and of a detached one.
_INTENT: Final = "towpath outbox clean: to be detached"
_MARK: Final = "towpath outbox clean: to be dropped once it is published"
_PAGES: Final = "ctid >= %(first)s::tid and ctid < %(end)s::tid"


def lost_readers(readers: Sequence[LogReader]) -> Iterator[str]:
    """Yield a reason for each reader that has no slot, or has lost part of the log."""
    for reader in readers:
        if not reader.has_slot:
            yield f"the registered relay {reader.name} has no slot"
        elif reader.is_lost:
            yield f"slot {reader.name} has lost part of the log that it needs"

"""How far the database's log is read, and whether those who write are done."""

from collections.abc import Sequence
from typing import Final, LiteralString

from psycopg import errors as sqlstate

from towpath.schemas.position import parse_lsn
from towpath.sinks.source_session import connected
from towpath.sinks.verify.passing import Unread
from towpath.sinks.verify.source import translated

_MARK: Final[LiteralString] = (
    "select pg_logical_emit_message(true, 'towpath.verify', '')::text"
)
_CURRENT: Final[LiteralString] = "select pg_current_wal_lsn()::text"
_CONFIRMED: Final[LiteralString] = (
    "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
)
_HAS_SNAPSHOTS: Final[LiteralString] = "select to_regclass('towpath.snapshot')::text"
_UNREAD: Final[LiteralString] = """
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
_NEXT: Final[LiteralString] = (
    "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
)


class SourceLog:
    """How far the database's log is read; sees what happens as it happens."""

    def __init__(self, dsn: str, relay: str) -> None:
        """
        Connect.

        Args:
            dsn: The database.
            relay: The relay that reads for the sinks, by its slot's name.

        Raises:
            SourceUnavailableError: The database cannot be reached.
        """
        self._relay = relay
        with translated():
            self._connection = connected(dsn)

    def mark(self) -> int:
        """
        Return an LSN that a slot confirms only after all that is committed now.

        Where it may, it writes one itself, a transaction without rows: a slot of a
        quiet database would otherwise have nothing to confirm.
        """
        with translated():
            try:
                row = self._connection.execute(_MARK).fetchone()
            except (sqlstate.InsufficientPrivilege, sqlstate.ReadOnlySqlTransaction):
                row = self._connection.execute(_CURRENT).fetchone()
        return parse_lsn("" if row is None else row[0])

    def confirmed(self, slot: str) -> int | None:
        """Return what a slot has confirmed; a slot that is not there has nothing."""
        with translated():
            row = self._connection.execute(_CONFIRMED, [slot]).fetchone()
        return None if row is None or row[0] is None else parse_lsn(row[0])

    def unread(self, sink: str) -> Unread:
        """Tell what snapshots have still to read for a sink."""
        with translated():
            if self._connection.execute(_HAS_SNAPSHOTS).fetchone() == (None,):
                return Unread(0)
            names = {"sink": sink, "relay": self._relay}
            row = self._connection.execute(_UNREAD, names).fetchone()
        return Unread(0) if row is None else Unread(*row)

    def answered(self, signals: Sequence[str]) -> int:
        """Count the signals that are carried out or refused."""
        with translated():
            row = self._connection.execute(_ANSWERED, [list(signals)]).fetchone()
        return 0 if row is None else int(row[0])

    def refusals(self, signals: Sequence[str]) -> tuple[str, ...]:
        """Return why signals were refused, those that were."""
        with translated():
            rows = self._connection.execute(_REFUSALS, [list(signals)]).fetchall()
        return tuple(str(reason) for (reason,) in rows)

    def next_transaction(self) -> int:
        """Return the id above those of all transactions that write now."""
        return self._number(_NEXT)

    def oldest_transaction(self) -> int:
        """Return the lowest id of a transaction whose end is not seen yet."""
        return self._number(_OLDEST)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _number(self, query: LiteralString) -> int:
        with translated():
            row = self._connection.execute(query).fetchone()
        return 0 if row is None else int(row[0])

"""The source, seen from the side: how far it is read, and who waits for a standby."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from psycopg import sql

from towpath.loadtests.chaos.actor import connect
from towpath.loadtests.chaos.errors import ChaosError
from towpath.loadtests.chaos.place import Place
from towpath.loadtests.chaos.tables import Session
from towpath.schemas.clock import Deadline

_NOBODY: Final = "nobody"
_WITHIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.05
_UNFINISHED: Final = """
select snapshot_id, collection, state, rows, error from towpath.snapshot
where state not in ('completed', 'incomplete', 'failed', 'stopped')
order by queued_at limit 20
"""
_CONFIRMED: Final = """
select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots
where slot_name = %s
"""


class Source:
    """A session of one's own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.session: Session = connect(place.dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    @contextmanager
    def waiting_for_nobody(self) -> Iterator[None]:
        """
        Have commits wait, for the block, if their session asks for it.

        What waits in the end is let go.
        """
        name = sql.Identifier(self.session.info.dbname)
        statement = "alter database {} set synchronous_commit = local"
        self.session.execute(sql.SQL(statement).format(name))
        self._name_standby(_NOBODY)
        try:
            yield
        finally:
            self._name_standby("")

    def slot(self) -> object:
        """Return the relay's slot, if it is there."""
        query = "select slot_name from pg_replication_slots where slot_name = %s"
        return self._one(query, self._place.prefix)

    def mark(self) -> str:
        """Write something last, and return the end of the log."""
        self.session.execute("select pg_logical_emit_message(true, 'chaos', 'mark')")
        return str(self._one("select pg_current_wal_lsn()::text"))

    def is_confirmed(self, lsn: str) -> bool:
        """Tell whether the relay has confirmed so much."""
        return bool(self._one(_CONFIRMED, lsn, self._place.prefix))

    def unfinished(self) -> list[str]:
        """Tell of the tables that are being read or wait for it."""
        return [
            f"{row[0]} {row[1]} is {row[2]} after {row[3]} rows: {row[4] or 'no error'}"
            for row in self.session.execute(_UNFINISHED)
        ]

    def _name_standby(self, name: str) -> None:
        statement = "alter system set synchronous_standby_names = {}"
        self.session.execute(sql.SQL(statement).format(sql.Literal(name)))
        self.session.execute("select pg_reload_conf()")
        deadline = Deadline(self._place.clock, _WITHIN_S)
        while self._one("show synchronous_standby_names") != name:
            if deadline.passed():
                message = "the server does not take its new settings"
                raise ChaosError(message)
            self._place.clock.wait(_LOOK_EVERY_S)

    def _one(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401 - a value of SQL
        row = self.session.execute(statement.encode(), arguments).fetchone()
        return None if row is None else row[0]

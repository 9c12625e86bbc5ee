"""One snapshot: its tables, in order, and what became of each."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from towpath.relay.snapshot.effects import AnswerSignal
from towpath.relay.snapshot.stored import INCOMPLETE, StoredTable

# A refused table is failed from the first and tells nothing.
_BEGUN: Final = frozenset({"running", "paused", "completed", "incomplete", "stopped"})


class Run:
    """The tables of one signal, or of one request of the relay's own."""

    def __init__(self, tables: Iterable[StoredTable]) -> None:
        ordered = sorted(tables, key=lambda table: table.ordinal)
        self._tables = {table.collection: table for table in ordered}
        # In order; of thousands of tables only these are looked at for each fact.
        self._open = {t.collection: t for t in ordered if not t.has_ended}
        self.snapshot_id = ordered[0].snapshot_id
        self.kind = ordered[0].kind
        self.is_announced = any(table.state in _BEGUN for table in ordered)
        self._has_signal = ordered[0].asked_until is None

    @property
    def collections(self) -> tuple[str, ...]:
        """The tables' names, in order."""
        return tuple(self._tables)

    @property
    def tables(self) -> tuple[StoredTable, ...]:
        """The tables, in order."""
        return tuple(self._tables.values())

    @property
    def waiting(self) -> Iterator[StoredTable]:
        """The tables that have not ended and are not paused, in order."""
        return (table for table in self._open.values() if table.state != "paused")

    @property
    def is_waiting(self) -> bool:
        """Whether there is a table that has not ended and is not paused."""
        return any(True for _ in self.waiting)

    @property
    def has_ended(self) -> bool:
        """Whether no table is left."""
        return not self._open

    def find(self, collection: str) -> StoredTable | None:
        """Return one of the tables, as far as it is known here."""
        return self._tables.get(collection)

    def update(self, table: StoredTable) -> None:
        """Take in how far one of the tables is."""
        self._tables[table.collection] = table
        if table.has_ended:
            self._open.pop(table.collection, None)
        elif table.collection in self._open:
            self._open[table.collection] = table
        else:
            # It goes on after its end: at its place in the order.
            self._open = {
                t.collection: t for t in self._tables.values() if not t.has_ended
            }

    def status(self) -> str:
        """Return the signal's final status: one table that failed fails it."""
        states = {table.state for table in self.tables}
        if states == {"completed"}:
            return "completed"
        return INCOMPLETE if states <= {"completed", INCOMPLETE} else "failed"

    def answer(self, status: str, detail: Mapping[str, Any]) -> list[AnswerSignal]:
        """Return what tells the signal; nothing if the relay itself asked."""
        if not self._has_signal:
            return []
        return [AnswerSignal(self.snapshot_id, status, detail)]

    def detail(self) -> Mapping[str, Any]:
        """Return the counts of the signal's answer, and why tables failed."""
        return {
            "rows": sum(table.rows for table in self.tables),
            "dropped": sum(table.dropped for table in self.tables),
            "chunks": sum(table.chunks for table in self.tables),
            "undelivered": sum(table.undelivered for table in self.tables),
            "tables": {table.collection: _account(table) for table in self.tables},
        }


def _account(table: StoredTable) -> Mapping[str, Any]:
    account: dict[str, Any] = {
        "state": table.state,
        "rows": table.rows,
        "dropped": table.dropped,
        "chunks": table.chunks,
    }
    if table.undelivered:
        account["undelivered"] = table.undelivered
    if table.last_key is not None:
        account["last_key"] = [part.decode(errors="replace") for part in table.last_key]
    if table.error is not None:
        account["reason"] = table.error
    return account


def as_resumed(table: StoredTable, known: StoredTable | None) -> StoredTable:
    """
    Return where a table goes on.

    One that is read by another key than its own, and had ended, begins anew: nobody
    asked meanwhile for rows that left the part which is still to be read.
    """
    has_ended = known is None or known.has_ended
    if not (table.order_by and has_ended):
        return table
    return table._replace(last_key=None, maximum_key=None, ranges=())

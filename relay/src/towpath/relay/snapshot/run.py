"""One snapshot with its tables, in order, and the limits of a queue."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from towpath.relay.snapshot.changed_keys import MAX_CHANGED_KEYS
from towpath.relay.snapshot.key_requests import MAX_BATCH_KEYS
from towpath.relay.snapshot.pace import ChunkSize, Throttle
from towpath.relay.snapshot.protocol import AnswerSignal
from towpath.relay.snapshot.stored import INCOMPLETE, StoredTable

# A table in one of these states shows that its snapshot's start was announced, even if
# the signal is no longer "running" or, as for a key request, there is no signal. A
# failed table does not show it: a refused table fails before the announcement.
_BEGUN: Final = frozenset({"running", "completed", INCOMPLETE})
# A table may be halted while it is still queued; if it has a plan, its scan has begun.
_HALTED: Final = frozenset({"paused", "stopped"})


def _shows_announcement(table: StoredTable) -> bool:
    is_planned = table.state in _HALTED and bool(table.key_columns)
    return table.is_announced or table.state in _BEGUN or is_planned


class SnapshotRun:
    """The tables of one signal, or of one batch of key requests."""

    def __init__(self, tables: Iterable[StoredTable]) -> None:
        ordered = sorted(tables, key=lambda table: table.ordinal)
        self._tables = {table.collection: table for table in ordered}
        # The tables that have not ended, in order: each fact visits only these.
        self._open = {t.collection: t for t in ordered if not t.has_ended}
        self.snapshot_id = ordered[0].snapshot_id
        self.kind = ordered[0].kind
        self.is_announced = any(map(_shows_announcement, ordered))
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
        """Whether all tables have ended."""
        return not self._open

    def find(self, collection: str) -> StoredTable | None:
        """Return one of the tables, with the progress that is known here."""
        return self._tables.get(collection)

    def update(self, table: StoredTable) -> None:
        """Replace one of the tables with its current progress."""
        self._tables[table.collection] = table
        if table.has_ended:
            self._open.pop(table.collection, None)
        elif table.collection in self._open:
            self._open[table.collection] = table
        else:
            # The table resumes after its end, at its old place in the order.
            every = self._tables.values()
            self._open = {t.collection: t for t in every if not t.has_ended}

    def status(self) -> str:
        """Return the signal's final status; a failed or stopped table fails it."""
        states = {table.state for table in self.tables}
        if states == {"completed"}:
            return "completed"
        return INCOMPLETE if states <= {"completed", INCOMPLETE} else "failed"

    def answer(self, status: str, detail: Mapping[str, Any]) -> list[AnswerSignal]:
        """Return the answer to the signal; a key request has none."""
        if not self._has_signal:
            return []
        return [AnswerSignal(self.snapshot_id, status, detail)]

    def detail(self) -> Mapping[str, Any]:
        """Return the counts for the signal's answer, and why tables failed."""
        return {
            "rows": sum(table.rows for table in self.tables),
            "dropped": sum(table.dropped for table in self.tables),
            "chunks": sum(table.chunks for table in self.tables),
            "undelivered": sum(table.undelivered for table in self.tables),
            "tables": {table.collection: _table_detail(table) for table in self.tables},
        }


def _table_detail(table: StoredTable) -> Mapping[str, Any]:
    detail: dict[str, Any] = {
        "state": table.state,
        "rows": table.rows,
        "dropped": table.dropped,
        "chunks": table.chunks,
    }
    if table.undelivered:
        detail["undelivered"] = table.undelivered
    if table.last_key is not None:
        detail["last_key"] = [part.decode(errors="replace") for part in table.last_key]
    if table.error is not None:
        detail["reason"] = table.error
    return detail


def resumed_table(table: StoredTable, known: StoredTable | None) -> StoredTable:
    """
    Return the progress from which a table resumes.

    A table that is read by a surrogate key starts from the beginning if it had ended:
    since its end, no key request has covered the rows that left the unread range.
    """
    has_ended = known is None or known.has_ended
    if not (table.order_by and has_ended):
        return table
    return table.from_the_first_row()


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """
    Bounds on memory and speed.

    Attributes:
        chunk: The target size of chunks.
        readers: The number of chunks of whole tables that are read at the same time.
        max_changed_keys: The maximum number of changes that are kept per table.
        batch_keys: The maximum number of key requests that are stored together.
    """

    chunk: ChunkSize
    readers: int = 1
    max_changed_keys: int = MAX_CHANGED_KEYS
    batch_keys: int = MAX_BATCH_KEYS


class QueuePolicy(NamedTuple):
    """
    How a queue reads.

    Attributes:
        name: Its name among the queues.
        readers: The number of tables, and ranges of a table, read at the same time.
        throttle: The conditions under which it yields; None if it never does.
        ahead: The number of further tables that are begun while tables turn out to be
            tiny, so that they do not wait for each other's round trips.
    """

    name: str
    readers: int
    throttle: Throttle | None = None
    ahead: int = 0

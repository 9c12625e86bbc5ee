"""
Trigger-based capture: row triggers write a change log, and a worker polls it.

The trigger runs in the writer's transaction, so that the log has exactly the committed
changes. Its numbers come from a sequence: two changes to a row are numbered in the
order of their commits, because the row stays locked from its numbering to its commit.
Two changes to different rows can be committed in an order other than that of their
numbers, and that is where readers of such a log go wrong. There are three readers; the
method ``trigger`` uses the last one, and its variants use the others:

``SequenceReader``
    Reads the rows above the highest number that it has seen. A lower number that is
    committed later is never read.

``TransactionReader``
    Reads the rows of transactions below ``pg_snapshot_xmin``, all of which have ended.
    Nothing is lost. But a transaction gets its id with its first change, so of two
    transactions that changed the same row one after the other, the later one may have
    the lower id, and be read first.

``FencedReader``
    Reads the last number of the sequence, and then takes a transaction id of its own.
    Once every transaction below that id has ended, every number up to the one read is
    committed, or will never be. So the log is read in the order of its numbers, without
    gaps. The upper end of a snapshot cannot replace the id: it is one past the highest
    transaction that has *ended*, and open transactions may have higher ids.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from towpath.loadtests.capture import CapturedRecord, RowImage
from towpath.loadtests.capture.writers import Session

_VERSION_DIGITS: Final = 20
_PREPARE: Final[tuple[LiteralString, ...]] = (
    """
    create table public.item_log (
      number bigint generated always as identity primary key,
      xid xid8 not null default pg_current_xact_id(),
      operation text not null,
      key bigint not null,
      image jsonb
    )
    """,
    """
    create function public.log_item() returns trigger language plpgsql as $$
    begin
      if tg_op = 'DELETE' then
        insert into public.item_log (operation, key) values ('d', old.id);
      else
        insert into public.item_log (operation, key, image)
        values (case tg_op when 'INSERT' then 'c' else 'u' end, new.id, to_jsonb(new));
      end if;
      return null;
    end $$
    """,
    """
    create trigger log_item after insert or update or delete on public.item
    for each row execute function public.log_item()
    """,
)
_COLUMNS: Final = "select number, operation, key, image from public.item_log"
_ABOVE: Final = f"{_COLUMNS} where number > %s order by number"
_BETWEEN: Final = f"{_COLUMNS} where number > %s and number <= %s order by number"
_BY_TRANSACTIONS: Final = (
    f"{_COLUMNS} where xid >= %s::text::xid8 and xid < %s::text::xid8 order by number"
)
# An unused sequence reports the value that it will return first.
_LAST_NUMBER: Final = (
    "select case when is_called then last_value else 0 end"
    " from public.item_log_number_seq"
)
_ENDED_BELOW: Final = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEW_ID: Final = "select pg_current_xact_id()::text::bigint"


class _LogReader:
    """The common part of the readers: the log, and a default for ``is_behind``."""

    def prepare(self, session: Session) -> None:
        """Create the log, the function and the trigger."""
        for statement in _PREPARE:
            session.execute(statement)

    def is_behind(self, session: Session) -> bool:
        """Return false: a read returns everything that this reader will ever return."""
        del session
        return False


class SequenceReader(_LogReader):
    """Loses rows: reads above the highest number, and misses late commits."""

    def __init__(self) -> None:
        self._read_to = 0

    def read(self, session: Session) -> Sequence[CapturedRecord]:
        """Return the rows above the highest number so far."""
        rows = session.execute(_ABOVE, (self._read_to,)).fetchall()
        self._read_to = max([self._read_to, *(number for number, *_ in rows)])
        return _records(rows)


class TransactionReader(_LogReader):
    """Loses the order: reads by transaction id, below the oldest open one."""

    def __init__(self) -> None:
        self._read_below = 0

    def read(self, session: Session) -> Sequence[CapturedRecord]:
        """Return the unread rows of transactions below the oldest open one."""
        below = _number(session, _ENDED_BELOW)
        ids = (str(self._read_below), str(below))
        rows = session.execute(_BY_TRANSACTIONS, ids).fetchall()
        self._read_below = below
        return _records(rows)

    def is_behind(self, session: Session) -> bool:
        """Return whether the oldest open id has risen since the last read."""
        return _number(session, _ENDED_BELOW) > self._read_below


class _Fence(NamedTuple):
    """
    A number of the sequence, and a transaction id that was taken after it.

    All numbers up to ``number`` are settled once all transactions with ids below
    ``id_above`` have ended.
    """

    number: int
    id_above: int


class FencedReader(_LogReader):
    """Loses nothing, and keeps the order of each row: the reader of ``trigger``."""

    def __init__(self) -> None:
        self._read_to = 0
        self._fences: deque[_Fence] = deque()

    def read(self, session: Session) -> Sequence[CapturedRecord]:
        """Return the rows up to the newest fence that is settled."""
        number = _number(session, _LAST_NUMBER)
        if number > max([self._read_to, *(fence.number for fence in self._fences)]):
            # After the number, in a separate statement: a transaction has its id before
            # its first number, so all numbers so far belong to ids below this one.
            self._fences.append(_Fence(number, _number(session, _NEW_ID)))
        ended_below = _number(session, _ENDED_BELOW)
        read_from = self._read_to
        while self._fences and self._fences[0].id_above <= ended_below:
            self._read_to = self._fences.popleft().number
        if self._read_to == read_from:
            return ()
        rows = session.execute(_BETWEEN, (read_from, self._read_to)).fetchall()
        return _records(rows)

    def is_behind(self, session: Session) -> bool:
        """Return whether the sequence has issued numbers that are still unread."""
        return _number(session, _LAST_NUMBER) > self._read_to


def _number(session: Session, statement: LiteralString) -> int:
    row = session.execute(statement).fetchone()
    return 0 if row is None else int(row[0])


def _records(rows: Sequence[tuple[Any, ...]]) -> list[CapturedRecord]:
    return [
        CapturedRecord(
            key,
            operation,
            None if image is None else RowImage(image["change"], image["note"]),
            f"{number:0{_VERSION_DIGITS}}",
        )
        for number, operation, key, image in rows
    ]

"""How far a table of a snapshot is, as the source's own table keeps it."""

import json
from typing import Final, NamedTuple

from towpath.relay.snapshot.shape import Key, KeyRange

INCREMENTAL: Final = "incremental"
BLOCKING: Final = "blocking"
INITIAL: Final = "initial"

# The state of a table of which rows are dead letters.
INCOMPLETE: Final = "incomplete"

# They are stored in one row, and written again with each chunk's progress.
MAX_UNDELIVERED_KEYS: Final = 1_000
_SHOWN_KEYS: Final = 10


class SettledRows(NamedTuple):
    """
    Acknowledged since the last report: chunks, and rows in them.

    ``undelivered`` are the keys of rows that are dead letters.
    """

    chunks: int
    rows: int
    dropped: int
    undelivered: tuple[Key, ...] = ()


class StoredTable(NamedTuple):
    """
    One row of ``towpath.snapshot``: a table in a snapshot, as far as it is stored.

    ``pending_keys`` are still to be read, or read again; None: as they are stored.
    ``last_key`` and everything below it has been acknowledged by Kafka. ``asked_keys``
    says how many keys were listed; None: the whole table is read. ``asked_until`` is
    the place of the last change that made the relay itself ask; None: a signal asked.
    ``kind`` is ``incremental``, ``blocking`` or ``initial``; the ``condition`` of the
    first is a filter, that of the others a SELECT. ``order_by`` names the columns of a
    chosen key. ``ranges`` are what several readers have each done. ``floor`` is the log
    LSN of the first mark: with ``sweeps``, whatever stands below it in the end is gone.
    ``key_columns`` are the columns of its keys when it was first planned: places in
    another key mean other rows. ``undelivered`` counts the rows that are dead letters,
    of which the first keys are kept. ``rows_per_second`` is its speed of late.
    """

    snapshot_id: str
    collection: str
    ordinal: int
    state: str
    table_oid: int
    condition: str | None = None
    target: str | None = None
    max_rows_per_second: int | None = None
    last_key: Key | None = None
    maximum_key: Key | None = None
    pending_keys: tuple[Key, ...] | None = ()
    rows: int = 0
    dropped: int = 0
    chunks: int = 0
    estimated_rows: int = 0
    error: str | None = None
    asked_keys: int | None = None
    asked_until: str | None = None
    kind: str = INCREMENTAL
    order_by: tuple[str, ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    floor: int | None = None
    sweeps: bool = False
    key_columns: tuple[str, ...] = ()
    undelivered: int = 0
    undelivered_keys: tuple[Key, ...] = ()
    rows_per_second: float | None = None

    @property
    def percent(self) -> float | None:
        """How much is done, by the server's statistics; None: they say nothing."""
        if self.state == "completed":
            return 100.0
        if not self.estimated_rows:
            return None
        done = 100.0 * (self.rows + self.dropped) / self.estimated_rows
        return round(min(99.9, done), 1)

    @property
    def eta_s(self) -> float | None:
        """How long it will take by its speed of late; None: nobody knows."""
        left = self.estimated_rows - self.rows - self.dropped
        if self.state != "running" or not self.rows_per_second or left < 0:
            return None
        return round(left / self.rows_per_second, 1)

    @property
    def is_of_one_view(self) -> bool:
        """Whether it is read in the one view of the database that its snapshot has."""
        return self.kind != INCREMENTAL

    def after(self, settled: SettledRows) -> "StoredTable":
        """Return it with so much more delivered."""
        keys = (*self.undelivered_keys, *settled.undelivered)
        return self._replace(
            rows=self.rows + settled.rows,
            dropped=self.dropped + settled.dropped,
            chunks=self.chunks + settled.chunks,
            undelivered=self.undelivered + len(settled.undelivered),
            undelivered_keys=keys[:MAX_UNDELIVERED_KEYS],
            error=None,
        )

    def queued_again(self) -> "StoredTable":
        """
        Return where it goes on.

        An incomplete table reads the rows again that were not delivered; if they are
        too many to be listed, all of its rows.
        """
        queued = self._replace(state="queued", error=None)
        if self.state != INCOMPLETE:
            return queued
        again = queued._replace(undelivered=0, undelivered_keys=())
        if self.undelivered > len(self.undelivered_keys):
            return again._replace(last_key=None, maximum_key=None, ranges=())
        return again._replace(pending_keys=self.undelivered_keys)

    @property
    def filter(self) -> str | None:
        """Which rows are read, an SQL expression."""
        return None if self.is_of_one_view else self.condition

    @property
    def select(self) -> str | None:
        """A SELECT read in place of the table."""
        return self.condition if self.is_of_one_view else None

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.state in {"completed", INCOMPLETE, "failed", "stopped"}


def scan_outcome(table: StoredTable) -> tuple[str, str | None]:
    """Return the state in which a table that is read ends, and why."""
    if table.undelivered:
        return INCOMPLETE, _incomplete_reason(table)
    return "completed", None


def _incomplete_reason(table: StoredTable) -> str:
    """Say which rows of a table are dead letters, and how to read these again."""
    keys = table.undelivered_keys
    first = json.dumps(
        [[part.decode(errors="replace") for part in key] for key in keys[:_SHOWN_KEYS]],
        ensure_ascii=False,
    )
    if table.asked_until is not None:
        listed = json.dumps([part.decode(errors="replace") for part in keys[0]])
        again = f"towpath snapshot start {table.collection} --key '{listed}'"
    else:
        again = f"towpath snapshot resume {table.snapshot_id}"
    what = "just these" if table.undelivered == len(keys) else "the table"
    return (
        f"{table.undelivered} rows are dead letters, the first keys {first}: "
        f"once they can be delivered, {again} reads {what} again"
    )

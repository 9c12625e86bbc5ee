"""The progress of a snapshot's tables, as ``towpath.snapshot`` stores it."""

import json
import shlex
from typing import Final, NamedTuple

from towpath.relay.snapshot.shape import Key, KeyRange
from towpath.schemas.table_name import TableName

INCREMENTAL: Final = "incremental"
BLOCKING: Final = "blocking"
INITIAL: Final = "initial"

# The state of a table some of whose rows are dead letters.
INCOMPLETE: Final = "incomplete"

# The undelivered keys of a whole table are stored in one row, which is rewritten with
# each chunk's progress. All listed keys are kept: their row already holds each key to
# be read.
MAX_UNDELIVERED_KEYS: Final = 1_000
_SHOWN_KEYS: Final = 10


class DeliveredRows(NamedTuple):
    """
    Chunks acknowledged since the last report, and the rows in them.

    ``undelivered`` are the keys of rows that are dead letters.
    """

    chunks: int
    rows: int
    dropped: int
    undelivered: tuple[Key, ...] = ()


class StoredTable(NamedTuple):
    """
    One row of ``towpath.snapshot``: a table of a snapshot with its progress.

    ``pending_keys`` are still to be read, or read again; None if they are stored but
    not loaded. Kafka has acknowledged all rows up to ``last_key``. ``asked_keys``
    counts the listed keys; None if the whole table is read. ``asked_until`` is the
    position of the last change that led to a key request; None if a signal requested
    the snapshot. ``kind`` is ``incremental``, ``blocking`` or ``initial``;
    ``condition`` is a filter for the first kind and a SELECT for the others.
    ``order_by`` names the columns of a surrogate key. ``ranges`` are the progress of
    several readers. ``floor`` is the log LSN of the first start mark: with ``sweeps``,
    rows below the floor are deleted at the end. ``key_columns`` are those of the key
    that the progress refers to: under another key, the progress would cover other rows.
    ``undelivered`` counts the rows that are dead letters; ``undelivered_keys`` are
    their keys, for a whole table only the first ``MAX_UNDELIVERED_KEYS``.
    ``is_announced`` means that the signal was running when the row was read, so the
    snapshot's start was announced. ``rows_per_second`` is a moving average.
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
    is_announced: bool = False
    rows_per_second: float | None = None

    @property
    def percent(self) -> float | None:
        """The percentage of the server's row estimate that is done; None if unknown."""
        if self.state == "completed":
            return 100.0
        if not self.estimated_rows:
            return None
        done = 100.0 * (self.rows + self.dropped) / self.estimated_rows
        return round(min(99.9, done), 1)

    @property
    def eta_s(self) -> float | None:
        """The remaining time at the current rate; None if it is unknown."""
        left = self.estimated_rows - self.rows - self.dropped
        if self.state != "running" or not self.rows_per_second or left < 0:
            return None
        return round(left / self.rows_per_second, 1)

    @property
    def uses_exported_snapshot(self) -> bool:
        """Whether its rows come from the exported snapshot that its run shares."""
        return self.kind != INCREMENTAL

    def with_delivered(self, delivered: DeliveredRows) -> "StoredTable":
        """Return the table with more rows delivered."""
        keys = (*self.undelivered_keys, *delivered.undelivered)
        limit = MAX_UNDELIVERED_KEYS if self.asked_keys is None else None
        return self._replace(
            rows=self.rows + delivered.rows,
            dropped=self.dropped + delivered.dropped,
            chunks=self.chunks + delivered.chunks,
            undelivered=self.undelivered + len(delivered.undelivered),
            undelivered_keys=keys[:limit],
            error=None,
        )

    def queued_again(self) -> "StoredTable":
        """
        Return the progress from which a resumed table continues.

        An incomplete table reads the undelivered rows again; if there are too many to
        list, it reads all of its rows. Listed keys that an earlier release did not keep
        remain undelivered.
        """
        queued = self._replace(state="queued", error=None)
        if self.state != INCOMPLETE:
            return queued
        lost = self.undelivered - len(self.undelivered_keys)
        if lost and self.asked_keys is None:
            return queued.from_the_first_row()
        return queued._replace(
            pending_keys=self.undelivered_keys, undelivered=lost, undelivered_keys=()
        )

    def from_the_first_row(self) -> "StoredTable":
        """
        Return the table reset to its first row: its next scan reads all rows.

        ``chunks`` stays, because stored progress never has fewer chunks than before.
        """
        return self._replace(
            last_key=None,
            maximum_key=None,
            pending_keys=(),
            rows=0,
            dropped=0,
            ranges=(),
            floor=None,
            key_columns=(),
            undelivered=0,
            undelivered_keys=(),
        )

    @property
    def filter(self) -> str | None:
        """The filter of the rows to read, an SQL expression."""
        return None if self.uses_exported_snapshot else self.condition

    @property
    def select(self) -> str | None:
        """The SELECT that is read in place of the table."""
        return self.condition if self.uses_exported_snapshot else None

    @property
    def has_ended(self) -> bool:
        """Whether the table is in a final state."""
        return self.state in {"completed", INCOMPLETE, "failed", "stopped"}


def scan_outcome(table: StoredTable) -> tuple[str, str | None]:
    """Return the final state of a table whose reading is done, and the reason."""
    if table.undelivered:
        return INCOMPLETE, _incomplete_reason(table)
    return "completed", None


def _incomplete_reason(table: StoredTable) -> str:
    """Describe the dead letters of a table, and the command that reads them again."""
    shown = [
        [part.decode(errors="replace") for part in key]
        for key in table.undelivered_keys[:_SHOWN_KEYS]
    ]
    command, scope = _reread_command(table, shown)
    keys_text = "their keys are unknown"
    if shown:
        keys_text = f"first keys: {json.dumps(shown, ensure_ascii=False)}"
    count = table.undelivered
    rows = "1 row is a dead letter" if count == 1 else f"{count} rows are dead letters"
    pronoun = "it" if count == 1 else "they"
    return (
        f"{rows} ({keys_text}); once {pronoun} can be delivered, {command} reads "
        f"{scope} again"
    )


def _reread_command(table: StoredTable, shown: list[list[str]]) -> tuple[str, str]:
    """Return the command that reads dead letters again, and the rows that it reads."""
    is_listed = table.asked_keys is not None or table.asked_until is not None
    if is_listed and not shown:
        # An earlier release did not keep the keys, so a resume has none to read.
        return _start(table), "the whole table"
    only = "only this row" if table.undelivered == 1 else "only these"
    if table.asked_until is not None:
        texts = [json.dumps(key, ensure_ascii=False) for key in shown]
        listed = " ".join(f"--key {shlex.quote(text)}" for text in texts)
        has_all = table.undelivered == len(shown)
        scope = only if has_all else f"only the first {len(shown)} of them"
        return f"{_start(table)} {listed}", scope
    command = f"towpath snapshot resume {shlex.quote(table.snapshot_id)}"
    has_all = table.undelivered == len(table.undelivered_keys)
    if not has_all and not is_listed:
        return command, "the table"
    return command, only if has_all else "those with known keys"


def _start(table: StoredTable) -> str:
    entry = shlex.quote(TableName.parse(table.collection).entry)
    return f"towpath snapshot start {entry}"

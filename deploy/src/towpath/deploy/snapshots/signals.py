"""
Snapshot signals and their answers, in tables of the source's ``towpath`` schema.

A signal is one row of the signal table; the row names the relay that must answer it.
The relay writes its answer into the same row, and the progress of each table into
``towpath.snapshot``. Only the relay runs a snapshot, so the snapshot continues when a
command stops watching it.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg

from towpath.deploy.errors import (
    RelaySilentError,
    SignalRefusedError,
    SourceUnreachableError,
)
from towpath.relay.postgres.connect import failure
from towpath.schemas.clock import Clock, Deadline
from towpath.schemas.failure import UsageError
from towpath.settings import Source
from towpath.sinks.postgres import connected

_INSERT: Final = "insert into towpath.signal (id, type, data) values (%s, %s, %s)"
# The maximum length of an id in the signal table.
LONGEST_ID: Final = 64
# The largest limit on the reading speed that the relay accepts.
LARGEST_SPEED: Final = 2**31 - 1
# Short enough to read in a table, and to retype.
_ID_CHARACTERS: Final = 12
# As JSON, because older tables have no relay column.
_STATE: Final = """\
select status, detail from towpath.signal s
where id = %s and coalesce(to_jsonb(s) ->> 'relay', %s) = %s
"""

# As JSON, because the table of an older or newer relay can have other columns.
_PROGRESS: Final = """\
select to_jsonb(s) - 'pending_keys',
    extract(epoch from coalesce(
        s.completed_at, case when s.state = 'running' then now() else s.updated_at end
    ) - s.started_at)::float,
    extract(epoch from now() - s.updated_at)::float
from towpath.snapshot s
where coalesce(to_jsonb(s) ->> 'relay', %(relay)s) = %(relay)s
    and case when %(id)s::text is not null then s.snapshot_id = %(id)s
    else %(own)s or s.asked_until is null end
order by s.queued_at, s.snapshot_id, s.ordinal
"""


class TableProgress(NamedTuple):
    """One table of one snapshot; ``quiet_s`` is the time since its last progress."""

    snapshot_id: str
    collection: str
    target: str | None
    state: str
    rows: int
    dropped: int
    estimated_rows: int | None
    percent: float | None
    elapsed_s: float | None
    error: str | None
    kind: str = "incremental"
    chunks: int = 0
    last_key: list[str] | None = None
    rows_per_second: float | None = None
    eta_s: float | None = None
    quiet_s: float | None = None
    undelivered: int = 0
    undelivered_keys: list[list[str]] | None = None
    asked_keys: int | None = None


def request_snapshot(
    source: Source,
    collections: Sequence[str],
    *,
    target: str | None = None,
    max_rows_per_second: int | None = None,
    signal_id: str | None = None,
    more_fields: Mapping[str, Any] | None = None,
) -> str:
    """
    Request a snapshot, and return the id of the signal and of the snapshot.

    Args:
        source: The database, and the slot of its relay.
        collections: Tables, views of aggregates, or regular expressions.
        target: The only sink that gets the rows.
        max_rows_per_second: Limit on the reading speed.
        signal_id: The id; generated if omitted.
        more_fields: Further fields of the signal, by name.

    Raises:
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The signal table does not exist, or refuses the id.
    """
    fields = {
        "data-collections": list(collections),
        "type": "incremental",
        "target": target,
        "max-rows-per-second": max_rows_per_second,
        **(more_fields or {}),
    }
    return send(source, "execute-snapshot", fields, signal_id)


def statement(
    source: Source,
    collections: Sequence[str],
    target: str,
    signal_id: str,
    max_rows_per_second: int | None = None,
) -> str:
    """Return the SQL that requests a snapshot for one sink, in a readable form."""
    fields = {
        "data-collections": list(collections),
        "target": target,
        "max-rows-per-second": max_rows_per_second,
        "relay": source.slot,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    values = (signal_id, "execute-snapshot", json.dumps(present))
    texts = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"insert into towpath.signal (id, type, data) values ({texts});"  # noqa: S608 - for people


def send(
    source: Source, kind: str, fields: Mapping[str, Any], signal_id: str | None = None
) -> str:
    """
    Insert a signal for the source's relay and return its id.

    Fields without a value are omitted.

    Raises:
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The signal table does not exist or already has the id, or
            the id is too long.
    """
    chosen = signal_id or uuid.uuid4().hex[:_ID_CHARACTERS]
    addressed = {**fields, "relay": source.slot}
    data = json.dumps(
        {name: value for name, value in addressed.items() if value is not None}
    )
    with _connect(source.dsn) as connection:
        try:
            connection.execute(_INSERT, [chosen, kind, data])
        except psycopg.errors.UniqueViolation as error:
            message = f"signal {chosen} already exists"
            raise SignalRefusedError(message) from error
        except psycopg.errors.StringDataRightTruncation as error:
            message = (
                f"the id {chosen} is too long: {LONGEST_ID} characters are allowed"
            )
            raise SignalRefusedError(message) from error
    return chosen


def progress(
    source: Source, snapshot_id: str | None = None, *, own: bool = False
) -> list[TableProgress]:
    """
    Read the progress of each table, in the order in which snapshots were queued.

    Args:
        source: The database, and the slot of its relay.
        snapshot_id: Only this snapshot.
        own: Whether to include the snapshots that the relay requested itself.

    Raises:
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The source has not been set up yet.
    """
    names = {"id": snapshot_id, "own": own, "relay": source.slot}
    with _connect(source.dsn) as connection:
        return [_progress(*row) for row in connection.execute(_PROGRESS, names)]


def state(source: Source, signal_id: str) -> tuple[str | None, Any] | None:
    """
    Return a signal's status and detail, or None if there is no such signal.

    Raises:
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The source has not been set up yet.
    """
    with _connect(source.dsn) as connection:
        row = connection.execute(
            _STATE, [signal_id, source.slot, source.slot]
        ).fetchone()
    return None if row is None else (row[0], row[1])


def _progress(
    row: Mapping[str, Any], elapsed_s: float | None, quiet_s: float
) -> TableProgress:
    fields = {name: row[name] for name in TableProgress._fields if name in row}
    table = TableProgress(**{**fields, "elapsed_s": elapsed_s, "quiet_s": quiet_s})
    if table.rows_per_second is None and elapsed_s and table.rows:
        table = table._replace(rows_per_second=table.rows / elapsed_s)
    return table


@contextmanager
def _connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with connected(dsn) as connection:
            yield connection
    except psycopg.OperationalError as error:
        message = f"the source does not answer: {str(error).strip()}"
        raise SourceUnreachableError(message) from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        message = "the source has no signal table or no snapshot table yet"
        raise SignalRefusedError(message) from error
    except psycopg.Error as error:
        # For instance a missing privilege, or a read-only server.
        raise failure(error, "the tables of signals and snapshots") from error


POLL_EVERY_S: Final = 0.5
INCOMPLETE: Final = "incomplete"
ENDS: Final = frozenset({"completed", INCOMPLETE, "failed", "rejected"})
_ENDED: Final = frozenset({"completed", INCOMPLETE, "failed", "stopped"})


class SignalAnswer(NamedTuple):
    """The relay's answer to a signal; the status is ``None`` until it arrives."""

    status: str | None
    detail: dict[str, Any]

    @property
    def is_good(self) -> bool:
        """Whether the signal was not rejected, did not fail, and omitted no row."""
        return self.status not in {"rejected", "failed", INCOMPLETE}

    @property
    def reason(self) -> str:
        """The reason for a failure or for missing rows; empty if there is none."""
        if "reason" in self.detail:
            return str(self.detail["reason"])
        tables = self.detail.get("tables")
        if not isinstance(tables, dict):
            return ""
        reasons = {name: each.get("reason") for name, each in tables.items()}
        return "; ".join(f"{name}: {text}" for name, text in reasons.items() if text)

    def __str__(self) -> str:
        """Return the status, with its reason if there is one."""
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


def read_answer(source: Source, signal_id: str) -> SignalAnswer | None:
    """
    Return the relay's answer to a signal, or None if there is no such signal.

    Raises:
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
        SignalRefusedError: The source has not been set up yet.
    """
    found = state(source, signal_id)
    return None if found is None else SignalAnswer(found[0], found[1] or {})


def wait_answer(
    source: Source, signal_id: str, clock: Clock, within_s: float
) -> SignalAnswer:
    """
    Wait until the relay has answered a signal.

    Raises:
        RelaySilentError: No relay has answered in time.
        UsageError: The signal was deleted.
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses the statement.
    """
    deadline = Deadline(clock, within_s)
    while True:
        answer = read_answer(source, signal_id)
        if answer is None:
            message = f"there is no signal {signal_id}"
            raise UsageError(message)
        if answer.status is not None:
            return answer
        if deadline.passed():
            message = (
                f"no relay has answered signal {signal_id} in {within_s:g} s; the "
                "signal waits in towpath.signal until a relay answers"
            )
            raise RelaySilentError(message)
        clock.wait(POLL_EVERY_S)


def watch(
    source: Source,
    snapshot_id: str,
    clock: Clock,
    show: Callable[[Sequence[TableProgress]], None],
) -> SignalAnswer:
    """
    Show a snapshot's progress until it has ended, and return its last answer.

    Raises:
        UsageError: There is no such snapshot.
        SourceUnreachableError: The source does not answer.
        SourceRefusedError: The source refuses a statement.
    """
    while True:
        tables = progress(source, snapshot_id)
        answer = read_answer(source, snapshot_id)
        if answer is None and not tables:
            message = f"there is no snapshot {snapshot_id}"
            raise UsageError(message)
        show(tables)
        if answer is not None and answer.status in ENDS and not _is_running(tables):
            return answer
        if answer is None and not _is_running(tables):
            # The signal's row was deleted: the states of the tables are the answer.
            states = {table.state for table in tables}
            is_read = states <= {"completed", INCOMPLETE}
            return SignalAnswer(max(states) if is_read else "failed", {})
        clock.wait(POLL_EVERY_S)


def _is_running(tables: Sequence[TableProgress]) -> bool:
    """Return whether any table was unfinished; tables are read before the answer."""
    return any(table.state not in _ENDED for table in tables)

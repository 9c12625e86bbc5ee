"""
Ask the relay for snapshots, and read how they fare, in the source's own tables.

Asking is one row in the signal table, which names the relay that is asked; what became
of it is in the same row, and the progress of each table in ``towpath.snapshot``.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg

from towpath.deploy.errors import SignalRefusedError, SourceUnreachableError
from towpath.settings import Source
from towpath.sinks.source_session import connected

_INSERT: Final = "insert into towpath.signal (id, type, data) values (%s, %s, %s)"
# Short enough to be read in a table, and to be typed again.
_ID_CHARACTERS: Final = 12
# As JSON, so that tables of before, which know no relay, can be read too.
_STATE: Final = """\
select status, detail from towpath.signal s
where id = %s and coalesce(to_jsonb(s) ->> 'relay', %s) = %s
"""

# As JSON, so that a relay of before or after may have other columns.
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


class Progress(NamedTuple):
    """One table of one snapshot; ``quiet_s`` is how long nothing was stored of it."""

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


def ask(
    source: Source,
    collections: Sequence[str],
    *,
    target: str | None = None,
    max_rows_per_second: int | None = None,
    signal_id: str | None = None,
    wishes: Mapping[str, Any] | None = None,
) -> str:
    """
    Ask for a snapshot and return the signal's id, which is the snapshot's too.

    Args:
        source: The database, and the slot whose relay is asked.
        collections: Tables, views of aggregates, or expressions.
        target: The one sink that gets the rows.
        max_rows_per_second: Bound of the reading speed.
        signal_id: The id; left out, one is made.
        wishes: Further fields of the signal, as it spells them.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The signal table is not there, or has the id already.
    """
    fields = {
        "data-collections": list(collections),
        "type": "incremental",
        "target": target,
        "max-rows-per-second": max_rows_per_second,
        **(wishes or {}),
    }
    return send(source, "execute-snapshot", fields, signal_id)


def statement(
    source: Source,
    collections: Sequence[str],
    target: str,
    signal_id: str,
    max_rows_per_second: int | None = None,
) -> str:
    """Return the SQL that asks for a snapshot for one sink, as a person writes it."""
    fields = {
        "data-collections": list(collections),
        "target": target,
        "max-rows-per-second": max_rows_per_second,
        "relay": source.slot,
    }
    wanted = {name: wish for name, wish in fields.items() if wish is not None}
    values = (signal_id, "execute-snapshot", json.dumps(wanted))
    texts = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"insert into towpath.signal (id, type, data) values ({texts});"  # noqa: S608 - to be read


def send(
    source: Source, kind: str, fields: Mapping[str, Any], signal_id: str | None = None
) -> str:
    """
    Leave a signal for the source's relay and return its id.

    Fields without a value are left out.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The signal table is not there, or has the id already.
    """
    chosen = signal_id or uuid.uuid4().hex[:_ID_CHARACTERS]
    addressed = {**fields, "relay": source.slot}
    data = json.dumps(
        {name: wish for name, wish in addressed.items() if wish is not None}
    )
    with _connect(source.dsn) as connection:
        try:
            connection.execute(_INSERT, [chosen, kind, data])
        except psycopg.errors.UniqueViolation as error:
            message = f"there is a signal {chosen} already"
            raise SignalRefusedError(message) from error
        except psycopg.errors.StringDataRightTruncation as error:
            message = f"the id {chosen} is too long: 64 characters are allowed"
            raise SignalRefusedError(message) from error
    return chosen


def progress(
    source: Source, snapshot_id: str | None = None, *, own: bool = False
) -> list[Progress]:
    """
    Read the progress of snapshots, in the order of their tables.

    Args:
        source: The database, and the slot whose relay is asked.
        snapshot_id: Only of this one.
        own: Also those that the relay asked for by itself.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The source was not set up yet.
    """
    names = {"id": snapshot_id, "own": own, "relay": source.slot}
    with _connect(source.dsn) as connection:
        return [_progress(*row) for row in connection.execute(_PROGRESS, names)]


def state(source: Source, signal_id: str) -> tuple[str | None, Any] | None:
    """
    Return a signal's status and detail, or None if there is no such signal.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The source was not set up yet.
    """
    with _connect(source.dsn) as connection:
        row = connection.execute(
            _STATE, [signal_id, source.slot, source.slot]
        ).fetchone()
    return None if row is None else (row[0], row[1])


def _progress(
    row: Mapping[str, Any], elapsed_s: float | None, quiet_s: float
) -> Progress:
    fields = {name: row[name] for name in Progress._fields if name in row}
    table = Progress(**{**fields, "elapsed_s": elapsed_s, "quiet_s": quiet_s})
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

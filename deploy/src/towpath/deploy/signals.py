"""
Ask the relay for a snapshot, and read how snapshots fare, in the source's own tables.

Asking is one row in the signal table; what became of it is in the same row, and the
progress of each table in ``towpath.snapshot``.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import class_row

from towpath.deploy.errors import SignalRefusedError, SourceUnreachableError

_INSERT: Final = "insert into towpath.signal (id, type, data) values (%s, %s, %s)"
_PROGRESS: Final = """\
select snapshot_id, collection, target, state, rows, dropped, estimated_rows, percent,
    extract(epoch from coalesce(completed_at, updated_at) - started_at)::float
        as elapsed_s,
    error
from towpath.snapshot
where %(id)s::text is null or snapshot_id = %(id)s
order by started_at nulls last, snapshot_id, ordinal
"""


class Progress(NamedTuple):
    """One table of one snapshot."""

    snapshot_id: str
    collection: str
    target: str | None
    state: str
    rows: int
    dropped: int
    estimated_rows: int | None
    percent: Any
    elapsed_s: float | None
    error: str | None


def ask(
    dsn: str,
    collections: Sequence[str],
    *,
    target: str | None = None,
    max_rows_per_second: int | None = None,
    signal_id: str | None = None,
) -> str:
    """
    Ask for a snapshot and return the signal's id, which is the snapshot's too.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The signal table is not there, or has the id already.
    """
    chosen = signal_id or str(uuid.uuid4())
    wishes = {
        "data-collections": list(collections),
        "type": "incremental",
        "target": target,
        "max-rows-per-second": max_rows_per_second,
    }
    data = json.dumps({name: wish for name, wish in wishes.items() if wish is not None})
    with _connect(dsn) as connection:
        try:
            connection.execute(_INSERT, [chosen, "execute-snapshot", data])
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            message = "the source has no signal table yet"
            raise SignalRefusedError(message) from error
        except psycopg.errors.UniqueViolation as error:
            message = f"there is a signal {chosen} already"
            raise SignalRefusedError(message) from error
    return chosen


def progress(dsn: str, snapshot_id: str | None = None) -> list[Progress]:
    """
    Read the progress of all snapshots, or of one, in the order of their tables.

    Raises:
        SourceUnreachableError: The source does not answer.
        SignalRefusedError: The source was not set up yet.
    """
    with (
        _connect(dsn) as connection,
        connection.cursor(row_factory=class_row(Progress)) as cursor,
    ):
        try:
            return cursor.execute(_PROGRESS, {"id": snapshot_id}).fetchall()
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            message = "the source has no snapshot table yet"
            raise SignalRefusedError(message) from error


def state(dsn: str, signal_id: str) -> tuple[str | None, Any] | None:
    """Return a signal's status and detail, or None if there is no such signal."""
    with _connect(dsn) as connection:
        row = connection.execute(
            "select status, detail from towpath.signal where id = %s", [signal_id]
        ).fetchone()
    return None if row is None else (row[0], row[1])


@contextmanager
def _connect(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            yield connection
    except psycopg.OperationalError as error:
        message = f"the source does not answer: {str(error).strip()}"
        raise SourceUnreachableError(message) from error

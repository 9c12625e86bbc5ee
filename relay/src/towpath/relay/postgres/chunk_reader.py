"""
Reads plans and chunks of tables, each in its own transaction.

A chunk is read in these steps, one call each: write LOW into the log; begin a
repeatable-read transaction; lock the table; read the snapshot's text; read the table's
shape; COPY; commit; write HIGH into the log. The lock comes before any query, because a
table rewrite that commits after a snapshot was taken makes the table look empty to that
snapshot.

In two cases the snapshot comes before the lock: for an exported snapshot, and for a
SELECT, whose tables only the server knows. The tables are then locked and compared with
the versions that the snapshot shows.

COPY lines are taken from libpq as they arrive, and the thread sleeps on the socket in
between: a Python call per line through the driver costs more than the line itself. Hot
path.

A watermark is a logical message, or a row of ``towpath.signal``. A row has the type
``snapshot-window-open`` (marks ``start`` and ``low``) or ``snapshot-window-close``
(``high``), the watermark's content as ``data``, and an id composed of its run, its
request's number and its mark.
"""

import itertools
import json
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import psycopg
from psycopg import pq

from towpath.relay.postgres import tables
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.exported_snapshots import (
    ExportedSnapshots,
    TableAlteredError,
    ViewLostError,
    check_unaltered,
)
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.store import read_keys
from towpath.relay.postgres.views import CollectionCatalog
from towpath.relay.snapshot import sql
from towpath.relay.snapshot.protocol import ChunkRead, PlanRead, ReadChunk, ReadPlan
from towpath.relay.snapshot.scan_context import WATERMARK_PREFIX
from towpath.relay.snapshot.shape import (
    Chunk,
    Key,
    RowValues,
    ScanPlan,
    TableShape,
    key_of,
)
from towpath.relay.snapshot.sql import decode_lines
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.clock import Clock
from towpath.settings.relay import Watermarks

_COPY_ENDED: Final = -1
_LARGEST_ESTIMATE: Final = 2**63 - 1


def copy_out(connection: Connection, statement: bytes) -> Iterator[list[bytes]]:
    """
    Run ``copy ... to stdout``; yield its lines in lists, as they arrive.

    If the caller stops early, the connection is closed.

    Raises:
        psycopg.Error: The server refuses or cancels, or the connection is lost.
    """
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    has_ended = False
    try:
        pgconn.send_query(statement)
        _send_all(pgconn)
        result = _result(pgconn, poll)
        if result is not None and result.status == pq.ExecStatus.COPY_OUT:
            yield from _batches(pgconn, poll)
            result = _result(pgconn, poll)
        _read_to_the_end(pgconn, poll)
        has_ended = True
    finally:
        if not has_ended:
            connection.close()
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise _error(result)


def _send_all(pgconn: pq.abc.PGconn) -> None:
    """Send the rest of a statement that is larger than the socket's buffer."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        poll.poll()
        # The server may be waiting for us to read its response.
        pgconn.consume_input()


def _batches(pgconn: pq.abc.PGconn, poll: select.poll) -> Iterator[list[bytes]]:
    get_copy_data = pgconn.get_copy_data
    while True:
        lines: list[bytes] = []
        add = lines.append
        length, data = get_copy_data(1)
        while length > 0:
            add(bytes(data))
            length, data = get_copy_data(1)
        if lines:
            yield lines
        if length == _COPY_ENDED:
            return
        poll.poll()
        pgconn.consume_input()


def _result(pgconn: pq.abc.PGconn, poll: select.poll) -> pq.abc.PGresult | None:
    """Wait for the next result and return it; None after the last."""
    while pgconn.is_busy():
        poll.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def _read_to_the_end(pgconn: pq.abc.PGconn, poll: select.poll) -> None:
    while _result(pgconn, poll) is not None:
        pass


def _error(result: pq.abc.PGresult | None) -> psycopg.Error:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return psycopg.ProgrammingError("the statement is not a COPY to stdout")
    return psycopg.errors.error_from_result(result)


# From this version on, pg_logical_emit_message can flush a non-transactional message.
_FLUSH_VERSION: Final = 170_000
_CLOSING: Final = "high"


def write_watermark(connection: Connection, token: str, form: Watermarks) -> None:
    """Write a watermark into the log."""
    if form is Watermarks.MESSAGES:
        is_flushed = connection.info.server_version >= _FLUSH_VERSION
        name = "write_watermark" if is_flushed else "write_watermark_in_transaction"
        connection.execute(query(name), {"prefix": WATERMARK_PREFIX, "token": token})
        return
    content = json.loads(token)
    row = {"id": "{run}-{request}-{mark}".format(**content), "token": token}
    name = "close_window" if content["mark"] == _CLOSING else "open_window"
    with connection.transaction():
        connection.execute(query(name), row)
        if form is Watermarks.ROWS_DELETED:
            connection.execute(query("delete_window"), row)


# A smaller table would be read completely before a second reader had started.
_MIN_ROWS_FOR_PARTS: Final = 50_000
# These rows come from a few hundred random pages, and divide a table into parts that
# differ by a few percent. Sampling ten times as many takes a second.
_SAMPLED_ROWS: Final = 20_000
# The errors for tables and schemas that no longer exist.
_GONE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


class ReadOptions(NamedTuple):
    """The options that all readers share."""

    catalog: CollectionCatalog
    watermarks: Watermarks
    max_chunk_bytes: int
    clock: Clock


@dataclass(slots=True)
class _CopiedRows:
    """
    The rows of one COPY.

    Attributes:
        left_bytes: The bytes that still fit; negative once the bound is reached.
        left_rows: The spare rows still to be read beyond the bound.
        rows: The rows, spare ones included.
        spare: The number of spare rows at the end.
        is_cut: Whether the bound cut the rows short.
        size_bytes: The size of the rows as COPY text.
        elapsed_s: The time from the request to the last row.
        widest_bytes: The size of the longest row.
    """

    left_bytes: int
    left_rows: int
    rows: list[RowValues] = field(default_factory=list)
    spare: int = 0
    is_cut: bool = False
    size_bytes: int = 0
    elapsed_s: float = 0.0
    widest_bytes: int = 0

    def add(self, lines: list[bytes]) -> bool:
        """Add the lines that fit; return whether the bound is reached."""
        size_bytes = sum(map(len, lines))
        if size_bytes <= self.left_bytes:
            self.left_bytes -= size_bytes
        else:
            lines = self._fitting(lines)
            size_bytes = sum(map(len, lines))
        self.size_bytes += size_bytes
        self.widest_bytes = max(self.widest_bytes, *map(len, lines))
        self.rows += decode_lines(lines)
        return self.is_cut

    def _fitting(self, lines: list[bytes]) -> list[bytes]:
        for place, line in enumerate(lines, 1):
            if self.left_bytes < 0:
                self.spare += 1
                self.left_rows -= 1
            self.left_bytes -= len(line)
            if self.left_bytes < 0 and not self.left_rows:
                self.is_cut = True
                return lines[:place]
        return lines


class ChunkReader:
    """Reads plans and chunks over its own connection."""

    def __init__(
        self, connection: Connection, options: ReadOptions, exported: ExportedSnapshots
    ) -> None:
        self._connection = connection
        self._options = options
        self._exported = exported

    def write_watermark(self, token: str) -> None:
        """Write a watermark into the log."""
        write_watermark(self._connection, token, self._options.watermarks)

    def read_plan(self, request: ReadPlan) -> PlanRead:
        """
        Read the scan plan of a table.

        Raises:
            TableRefusedError: The table cannot be read, or a different table has its
                name.
            TableAlteredError: A table of the SELECT was altered before it was locked.
            ViewLostError: The exported snapshot is lost, or no longer shows the table.
            TowpathError: The snapshot could not be exported.
            psycopg.Error: The server refuses a statement, or the connection is lost.
        """
        # A lock needs a name; the shape that counts is read under the lock.
        arguments = (self._connection, request.collection, request.order_by)
        located = self._options.catalog.locate(*arguments)
        _check_oid(located, request)
        with self._snapshot(located, request):
            shape = self._options.catalog.describe(*arguments)
            _check_oid(shape, request)
            if request.keys_of is not None:
                return self._listed_plan(request, request.keys_of, shape)
            copied = self._copy(sql.maximum_key_query(shape, request.select))
            maximum_key = _maximum(copied.rows)
            estimate = self._estimate(shape, request.condition, request.select)
            # The estimate for a SELECT without a join condition may overflow its
            # column.
            rows = min(estimate, _LARGEST_ESTIMATE)
            boundaries = self._boundaries(request, shape, maximum_key, rows)
        return PlanRead(
            request.request_id,
            ScanPlan(shape, maximum_key, rows, boundaries=boundaries),
        )

    def _listed_plan(
        self, request: ReadPlan, snapshot_id: str, shape: TableShape
    ) -> PlanRead:
        keys = read_keys(self._connection, snapshot_id, request.collection)
        tables.check_width(shape, keys)
        return PlanRead(request.request_id, ScanPlan(shape, None, len(keys), keys))

    def _estimate(
        self, shape: TableShape, condition: str | None, select: str | None = None
    ) -> int:
        statement = sql.estimate_query(shape, condition, select).encode()
        plan = self._connection.execute(statement).fetchone()
        return int(plan[0][0]["Plan"]["Plan Rows"]) if plan else 0

    def _boundaries(
        self, request: ReadPlan, shape: TableShape, maximum_key: Key | None, rows: int
    ) -> tuple[Key, ...]:
        """Return the keys that split a large table into parts; () for a small one."""
        may_part = shape.view is None and request.select is None and request.parts > 1
        if not may_part or maximum_key is None or rows < _MIN_ROWS_FOR_PARTS:
            return ()
        table_rows = self._estimate(shape, None)
        percent = min(100.0, 100.0 * _SAMPLED_ROWS / max(1, table_rows))
        statement = sql.boundaries_query(
            shape, request.condition, maximum_key, request.parts, percent
        )
        return tuple(key_of(row, range(len(row))) for row in self._copy(statement).rows)

    def read_chunk(self, request: ReadChunk) -> ChunkRead:
        """
        Read one chunk between its watermarks.

        Raises:
            TableRefusedError: The table differs from its plan, or a row has no key, or
                the same key as another row.
            TableAlteredError: A table of the SELECT was altered before it was locked.
            ViewLostError: The exported snapshot is lost, or no longer shows the table.
            TowpathError: The snapshot could not be exported.
            psycopg.Error: The server refuses a statement, or the connection is lost.
        """
        has_marks = request.view is None
        if request.low_token is not None and has_marks:
            self.write_watermark(request.low_token)
        with self._snapshot(request.shape, request):
            visible = self._connection.execute(query("read_visibility")).fetchone()
            catalog = self._options.catalog
            shape = catalog.describe_again(self._connection, request.shape)
            spare_rows = sql.spare_rows(request)
            copied = self._copy(sql.chunk_query(request, shape), spare_rows)
        if has_marks:
            self.write_watermark(request.high_token)
        rows: Sequence[RowValues] = copied.rows
        is_last = not copied.is_cut and (
            bool(request.keys) or len(rows) < request.max_rows + spare_rows
        )
        if spare_rows:
            _check_keys(rows, shape)
            count = len(rows) - copied.spare if copied.is_cut else request.max_rows
            rows = rows[:count]
        snapshot = XidSnapshot.parse(str(visible[0] if visible else ""))
        chunk = Chunk(
            shape,
            rows,
            snapshot,
            is_last,
            copied.size_bytes,
            copied.elapsed_s,
            copied.widest_bytes,
        )
        return ChunkRead(request.chunk_id, chunk)

    @contextmanager
    def _snapshot(
        self, shape: TableShape, request: ReadPlan | ReadChunk
    ) -> Iterator[None]:
        """Open a transaction whose tables are locked and unaltered."""
        with _transaction(self._connection):
            if request.view is None:
                self._lock(shape, request)
            else:
                self._exported.enter(self._connection, request.view)
                try:
                    self._lock(shape, request)
                except TableAlteredError as error:
                    raise ViewLostError(str(error)) from error
            yield

    def _lock(self, shape: TableShape, request: ReadPlan | ReadChunk) -> None:
        """Lock the tables to read; if a snapshot came first, compare them with it."""
        try:
            self._connection.execute(sql.lock_statement(shape).encode())
        except _GONE as error:
            if request.view is None:
                raise
            raise TableAlteredError(str(error)) from error
        if request.select is not None:
            # Planning locks every table that the SELECT reads.
            self._estimate(shape, None, request.select)
        if request.select is not None or request.view is not None:
            check_unaltered(self._connection)

    def _copy(self, statement: str, spare_rows: int = 0) -> _CopiedRows:
        """Return rows up to the bound in bytes, and the spare rows beyond it."""
        copied = _CopiedRows(self._options.max_chunk_bytes, spare_rows)
        clock = self._options.clock
        began_s = clock.monotonic_s()
        try:
            for lines in copy_out(self._connection, statement.encode()):
                if not copied.is_cut and copied.add(lines):
                    # Rows that the server has sent by then are discarded.
                    self._connection.cancel_safe()
        except psycopg.errors.QueryCanceled:
            if not copied.is_cut:
                raise
        copied.elapsed_s = clock.monotonic_s() - began_s
        return copied


def _check_oid(shape: TableShape, request: ReadPlan) -> None:
    """Refuse a different table that now has the name of the signal's table."""
    if shape.relation.oid != request.table_oid:
        reason = "it was dropped and recreated, or renamed, since the signal"
        raise tables.TableRefusedError(reason)


_NULL_KEY: Final = "a row has no key, because one of its key columns is null"


def _maximum(rows: list[RowValues]) -> Key | None:
    """Return the only row as a key; a null would sort highest."""
    if not rows:
        return None
    if None in rows[0]:
        raise tables.TableRefusedError(_NULL_KEY)
    return key_of(rows[0], range(len(rows[0])))


def _check_keys(rows: Sequence[RowValues], shape: TableShape) -> None:
    """
    Check that each row has a key, and that no two rows have the same key.

    Raises:
        TableRefusedError: Two rows have the same key, or a row has none.
    """
    places = {*shape.relation.key, *shape.order_key}
    if any(row[at] is None for row in rows for at in places):
        raise tables.TableRefusedError(_NULL_KEY)
    keys = [key_of(row, shape.order_key) for row in rows]
    for key, next_key in itertools.pairwise(keys):
        if key == next_key:
            texts = [part.decode(errors="replace") for part in key]
            reason = f"it has two rows with the key {texts}"
            raise tables.TableRefusedError(reason)


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Open a transaction, which takes no snapshot before its first query."""
    connection.execute("begin isolation level repeatable read read only")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("rollback")
        raise
    connection.execute("commit")

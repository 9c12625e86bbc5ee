"""
Reading a table: plans and chunks, each in a transaction of its own.

One chunk, in separate calls: LOW into the log; begin, repeatable read; lock the table,
before any query, because a rewrite that commits after a snapshot was taken makes the
table look empty to it; the snapshot's text; the shape; COPY; commit; HIGH into the log.

Where the snapshot has to come first (a view of the database that several share, and a
SELECT whose tables only the server knows) the tables are locked behind it, and then
looked at whether they are still what the snapshot shows.

COPY to us: the lines of one statement, as libpq has them. Hot path.

Whatever has arrived is taken at once, and while nothing has the thread sleeps on the
socket: a Python call per line through the driver costs more than the line does.

Watermarks into the log: as logical messages, or as rows of ``towpath.signal``.

A row has the type ``snapshot-window-open`` (marks ``start`` and ``low``) or
``snapshot-window-close`` (``high``), the watermark's content as ``data``, and an id
that is made of its run, its request's number and its mark.
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
from towpath.relay.snapshot.protocol import (
    ChunkRead,
    PlanRead,
    ReadChunk,
    ReadPlan,
)
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


def copy_out(connection: Connection, statement: bytes) -> Iterator[list[bytes]]:
    """
    Run ``copy ... to stdout``; give its lines, those that arrived together at a time.

    Whoever ends early leaves the connection of no use: it is closed.

    Raises:
        psycopg.Error: The server refuses, cancels, or is gone.
    """
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    has_ended = False
    try:
        pgconn.send_query(statement)
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
    """Return the next result, asleep until it is there; None after the last."""
    while pgconn.is_busy():
        poll.poll()
        pgconn.consume_input()
    return pgconn.get_result()


def _read_to_the_end(pgconn: pq.abc.PGconn, poll: select.poll) -> None:
    while _result(pgconn, poll) is not None:
        pass


def _error(result: pq.abc.PGresult | None) -> psycopg.Error:
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return psycopg.ProgrammingError("the statement is no copy to us")
    return psycopg.errors.error_from_result(result)


# From this version on a plain message can be flushed with the call.
_FLUSH_VERSION: Final = 170_000
_CLOSING: Final = "high"


def write_watermark(connection: Connection, token: str, form: Watermarks) -> None:
    """Write a watermark into the log; the stream will bring it."""
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
            connection.execute(query("forget_window"), row)


# Below it one reader is done before a second one has begun.
_ROWS_WORTH_PARTS: Final = 50_000
# So many rows come from a few hundred pages, each at a place of its own, and cut a
# table into parts that differ by a few percent. Ten times as many cost a second.
_SAMPLED_ROWS: Final = 20_000
# Tables and schemas that are no more.
_GONE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


class Terms(NamedTuple):
    """How to read, the same for every reader."""

    readable: CollectionCatalog
    watermarks: Watermarks
    max_chunk_bytes: int
    clock: Clock


@dataclass(slots=True)
class _Copied:
    """
    The rows of one COPY.

    Attributes:
        left_bytes: How many more bytes are to be taken; below zero: enough.
        left_rows: How many spare rows are to be taken after that.
        rows: What was taken.
        spare: How many of the last are spare ones.
        is_cut: The bound cut them short.
        size_bytes: What they take as COPY text.
        elapsed_s: From the question to the last row.
        widest_bytes: What the longest of them takes.
    """

    left_bytes: int
    left_rows: int
    rows: list[RowValues] = field(default_factory=list)
    spare: int = 0
    is_cut: bool = False
    size_bytes: int = 0
    elapsed_s: float = 0.0
    widest_bytes: int = 0

    def take(self, lines: list[bytes]) -> bool:
        """Take lines as long as there is room; tell whether it ends just now."""
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
    """Reads over one connection, which nobody else uses."""

    def __init__(
        self, connection: Connection, terms: Terms, views: ExportedSnapshots
    ) -> None:
        self._connection = connection
        self._terms = terms
        self._views = views

    def write_watermark(self, token: str) -> None:
        """Write a watermark into the log; the stream will bring it."""
        write_watermark(self._connection, token, self._terms.watermarks)

    def read_plan(self, ask: ReadPlan) -> PlanRead:
        """
        Read what there is to be read of a table.

        Raises:
            TableRefusedError: It cannot be read, or is not the table it was.
            ViewLostError: The snapshot's one view does not hold it.
        """
        # A lock wants a name, and the shape that counts stands below it.
        asked = (self._connection, ask.collection, ask.order_by)
        located = self._terms.readable.locate(*asked)
        _check_oid(located, ask)
        with self._snapshot(located, ask):
            shape = self._terms.readable.describe(*asked)
            _check_oid(shape, ask)
            if ask.keys_of is not None:
                return self._listed_plan(ask, ask.keys_of, shape)
            copied = self._copy(sql.maximum_key_query(shape, ask.select))
            maximum_key = _maximum(copied.rows)
            rows = self._estimate(shape, ask.condition, ask.select)
            boundaries = self._boundaries(ask, shape, maximum_key, rows)
        return PlanRead(
            ask.request_id, ScanPlan(shape, maximum_key, rows, boundaries=boundaries)
        )

    def _listed_plan(
        self, ask: ReadPlan, snapshot_id: str, shape: TableShape
    ) -> PlanRead:
        keys = read_keys(self._connection, snapshot_id, ask.collection)
        tables.check_width(shape, keys)
        return PlanRead(ask.request_id, ScanPlan(shape, None, len(keys), keys))

    def _estimate(
        self, shape: TableShape, condition: str | None, select: str | None = None
    ) -> int:
        statement = sql.estimate_query(shape, condition, select).encode()
        plan = self._connection.execute(statement).fetchone()
        return int(plan[0][0]["Plan"]["Plan Rows"]) if plan else 0

    def _boundaries(
        self, ask: ReadPlan, shape: TableShape, maximum_key: Key | None, rows: int
    ) -> tuple[Key, ...]:
        """Cut a large table into parts; none where there is little to be read."""
        may_part = shape.view is None and ask.select is None and ask.parts > 1
        if not may_part or maximum_key is None or rows < _ROWS_WORTH_PARTS:
            return ()
        table_rows = self._estimate(shape, None)
        percent = min(100.0, 100.0 * _SAMPLED_ROWS / max(1, table_rows))
        statement = sql.boundaries_query(
            shape, ask.condition, maximum_key, ask.parts, percent
        )
        return tuple(key_of(row, range(len(row))) for row in self._copy(statement).rows)

    def read_chunk(self, ask: ReadChunk) -> ChunkRead:
        """
        Read one chunk between its watermarks.

        Raises:
            TableRefusedError: The table is not what it was planned as.
            ViewLostError: The snapshot's one view does not hold it.
        """
        is_frozen = ask.view is not None
        if ask.low_token is not None and not is_frozen:
            self.write_watermark(ask.low_token)
        with self._snapshot(ask.shape, ask):
            visible = self._connection.execute(query("read_visibility")).fetchone()
            shape = self._terms.readable.describe_again(self._connection, ask.shape)
            spare_rows = sql.spare_rows(ask)
            copied = self._copy(sql.chunk_query(ask, shape), spare_rows)
        if not is_frozen:
            self.write_watermark(ask.high_token)
        rows: Sequence[RowValues] = copied.rows
        is_last = not copied.is_cut and (
            bool(ask.keys) or len(rows) < ask.max_rows + spare_rows
        )
        if spare_rows:
            _refuse_twins(rows, shape)
            rows = rows[: len(rows) - copied.spare if copied.is_cut else ask.max_rows]
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
        return ChunkRead(ask.chunk_id, chunk)

    @contextmanager
    def _snapshot(self, shape: TableShape, ask: ReadPlan | ReadChunk) -> Iterator[None]:
        """Run what is inside in one transaction that holds its tables as they are."""
        with _transaction(self._connection):
            if ask.view is None:
                self._hold(shape, ask)
            else:
                self._views.enter(self._connection, ask.view)
                try:
                    self._hold(shape, ask)
                except TableAlteredError as error:
                    raise ViewLostError(str(error)) from error
            yield

    def _hold(self, shape: TableShape, ask: ReadPlan | ReadChunk) -> None:
        """Lock what is to be read; where a snapshot came first, see whether it fits."""
        try:
            self._connection.execute(sql.lock_statement(shape).encode())
        except _GONE as error:
            if ask.view is None:
                raise
            raise TableAlteredError(str(error)) from error
        if ask.select is not None:
            # Planning it locks every table that it reads.
            self._estimate(shape, None, ask.select)
        if ask.select is not None or ask.view is not None:
            check_unaltered(self._connection)

    def _copy(self, statement: str, spare_rows: int = 0) -> _Copied:
        """Return rows up to the bound of bytes, and so many beyond it."""
        copied = _Copied(self._terms.max_chunk_bytes, spare_rows)
        clock = self._terms.clock
        began_s = clock.monotonic_s()
        try:
            for lines in copy_out(self._connection, statement.encode()):
                if not copied.is_cut and copied.take(lines):
                    # What the server has sent by then is read and left.
                    self._connection.cancel_safe()
        except psycopg.errors.QueryCanceled:
            if not copied.is_cut:
                raise
        copied.elapsed_s = clock.monotonic_s() - began_s
        return copied


def _check_oid(shape: TableShape, ask: ReadPlan) -> None:
    """Refuse a table that has only the name of the one that was signalled."""
    if shape.relation.oid != ask.table_oid:
        reason = "it was dropped and made again, or renamed, since the signal"
        raise tables.TableRefusedError(reason)


def _maximum(rows: list[RowValues]) -> Key | None:
    """Return the only row as a key; a null one comes first from above."""
    if not rows:
        return None
    if None in rows[0]:
        reason = "a row of it has no key, because a column of its key is null"
        raise tables.TableRefusedError(reason)
    return key_of(rows[0], range(len(rows[0])))


def _refuse_twins(rows: Sequence[RowValues], shape: TableShape) -> None:
    """
    Make sure that no two rows have the same key.

    Raises:
        TableRefusedError: Two have.
    """
    keys = [key_of(row, shape.order_key) for row in rows]
    for key, next_key in itertools.pairwise(keys):
        if key == next_key:
            texts = [part.decode(errors="replace") for part in key]
            reason = f"it has two rows with the key {texts}"
            raise tables.TableRefusedError(reason)


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Run what is inside in one transaction that takes no snapshot by itself."""
    connection.execute("begin isolation level repeatable read read only")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("rollback")
        raise
    connection.execute("commit")

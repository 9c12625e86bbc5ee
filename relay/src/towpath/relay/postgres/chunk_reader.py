"""
Reading a table: watermarks, plans and chunks, each in a transaction of its own.

One chunk, in separate calls: LOW into the log; begin, repeatable read; lock the table,
before any query, because a rewrite that commits after a snapshot was taken makes the
table look empty to it; the snapshot's text; the shape; COPY; commit; HIGH into the log.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from towpath.relay.postgres import tables
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.snapshot_store import SnapshotStore
from towpath.relay.snapshot import chunks
from towpath.relay.snapshot.copytext import decode_line
from towpath.relay.snapshot.effects import ReadChunk, ReadPlan
from towpath.relay.snapshot.facts import ChunkRead, PlanRead
from towpath.relay.snapshot.shape import Chunk, Key, Plan, Row, TableShape, key_of
from towpath.relay.snapshot.tokens import WATERMARK_PREFIX
from towpath.relay.snapshot.visibility import XidSnapshot

# From this version on a plain message can be flushed with the call.
_FLUSH_VERSION: Final = 170_000


class ChunkReader:
    """Reads over one connection, which nobody else uses."""

    def __init__(
        self, connection: Connection, publication: str, max_chunk_bytes: int
    ) -> None:
        self._connection = connection
        self._publication = publication
        self._max_chunk_bytes = max_chunk_bytes

    def write_watermark(self, token: str) -> None:
        """Write a watermark into the log; the stream will bring it."""
        is_flushed = self._connection.info.server_version >= _FLUSH_VERSION
        form = "write_watermark" if is_flushed else "write_watermark_in_transaction"
        told = {"prefix": WATERMARK_PREFIX, "token": token}
        self._connection.execute(query(form), told)

    def read_plan(self, ask: ReadPlan) -> PlanRead:
        """
        Read what there is to be read of a table.

        Raises:
            TableRefusedError: It cannot be read, or is not the table it was.
        """
        connection = self._connection
        with _snapshot(connection):
            shape = tables.describe(connection, ask.collection, self._publication)
            if shape.relation.oid != ask.table_oid:
                reason = "it was dropped and made anew, or renamed, since the signal"
                raise tables.TableRefusedError(reason)
            if ask.keys_of is not None:
                return self._listed_plan(ask, ask.keys_of, shape)
            rows, _ = self._copy(chunks.maximum_key_query(shape))
            estimate = connection.execute(
                chunks.estimate_query(shape, ask.condition).encode()
            ).fetchone()
        estimated_rows = estimate[0][0]["Plan"]["Plan Rows"] if estimate else 0
        return PlanRead(
            ask.request_id,
            Plan(shape, _maximum(rows), int(estimated_rows)),
        )

    def _listed_plan(
        self, ask: ReadPlan, snapshot_id: str, shape: TableShape
    ) -> PlanRead:
        store = SnapshotStore(self._connection)
        keys = store.read_keys(snapshot_id, ask.collection)
        tables.check_width(shape, keys)
        return PlanRead(ask.request_id, Plan(shape, None, len(keys), keys))

    def read_chunk(self, ask: ReadChunk) -> ChunkRead:
        """
        Read one chunk between its watermarks.

        Raises:
            TableRefusedError: The table is not what it was planned as.
        """
        connection = self._connection
        if ask.low_token is not None:
            self.write_watermark(ask.low_token)
        with _snapshot(connection):
            connection.execute(chunks.lock_statement(ask.shape).encode())
            visible = connection.execute(query("read_visibility")).fetchone()
            shape = self._shape_now(ask.shape)
            rows, is_cut = self._copy(chunks.chunk_query(ask, shape))
        self.write_watermark(ask.high_token)
        is_last = not is_cut and (bool(ask.keys) or len(rows) < ask.max_rows)
        snapshot = XidSnapshot.parse(str(visible[0] if visible else ""))
        return ChunkRead(ask.chunk_id, Chunk(shape, rows, snapshot, is_last))

    def _shape_now(self, planned: TableShape) -> TableShape:
        name = planned.relation.name
        shape = tables.describe(self._connection, name, self._publication)
        if not shape.has_same_key(planned):
            reason = "its primary key changed, or it is another table by now"
            raise tables.TableRefusedError(reason)
        return shape

    def _copy(self, statement: str) -> tuple[list[Row], bool]:
        """Return the rows, and whether the bound of bytes cut them short."""
        rows: list[Row] = []
        left_bytes = self._max_chunk_bytes
        try:
            with self._connection.cursor().copy(statement.encode()) as copy:
                for line in copy:
                    if left_bytes < 0:
                        continue
                    rows.append(decode_line(bytes(line)))
                    left_bytes -= len(line)
                    if left_bytes < 0:
                        # What the server has sent by then is read and left.
                        self._connection.cancel_safe()
        except psycopg.errors.QueryCanceled:
            if left_bytes >= 0:
                raise
        return rows, left_bytes < 0


def _maximum(rows: list[Row]) -> Key | None:
    """Return the only row as a key; key columns are never null."""
    return key_of(rows[0], range(len(rows[0]))) if rows else None


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    """Run what is inside in one transaction that takes no snapshot by itself."""
    connection.execute("begin isolation level repeatable read read only")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("rollback")
        raise
    connection.execute("commit")

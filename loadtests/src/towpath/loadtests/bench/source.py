"""
The source: one database for each case, its backlog, its slots, and its committed rows.

``towpath relay init`` creates the outbox table and its publication. Each drain and
kill reads the same log through a copy of one slot that is older than the first row;
each run of a steady load has its own slot.

A small decoder of pgoutput reads the committed rows, their order and times, because the
relay's decoder cannot verify itself. It handles inserts, and updates that keep the key;
it skips other messages.
"""

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

import psycopg
from psycopg import sql

from towpath.loadtests.bench.environment import BenchEnvironment
from towpath.loadtests.bench.figures import CommittedEvent, digest
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock, Deadline

_EPOCH_US: Final = 946_684_800_000_000  # 2000-01-01, Postgres's epoch
_BEGIN: Final = struct.Struct("!qqi")
_COLUMN_TAIL_BYTES: Final = 8

INSERTED: Final = frozenset({b"I"})
INSERTED_OR_UPDATED: Final = frozenset({b"I", b"U"})


class CommittedRow(NamedTuple):
    """One new row: the text of each column, and the commit time."""

    committed_us: int
    values: dict[str, bytes | None]


def decoded_rows(
    messages: Iterable[bytes], tags: frozenset[bytes] = INSERTED
) -> Iterator[CommittedRow]:
    """Yield the new rows in commit order."""
    committed_us = 0
    columns: dict[bytes, list[str]] = {}
    for message in messages:
        tag = message[:1]
        if tag == b"B":
            committed_us = _BEGIN.unpack_from(message, 1)[1] + _EPOCH_US
        elif tag == b"R":
            columns[message[1:5]] = _names(message)
        elif message[5:6] == b"N" and tag in tags:
            names = columns[message[1:5]]
            yield CommittedRow(
                committed_us, dict(zip(names, _values(message), strict=True))
            )


def _names(message: bytes) -> list[str]:
    at = message.index(b"\0", 5) + 1  # past the schema
    at = message.index(b"\0", at) + 1  # past the table
    count = int.from_bytes(message[at + 1 : at + 3], "big")
    at += 3
    names = []
    for _ in range(count):
        end = message.index(b"\0", at + 1)
        names.append(message[at + 1 : end].decode())
        at = end + 1 + _COLUMN_TAIL_BYTES
    return names


def _values(message: bytes) -> Iterator[bytes | None]:
    count = int.from_bytes(message[6:8], "big")
    at = 8
    for _ in range(count):
        kind = message[at : at + 1]
        if kind != b"t":
            yield None
            at += 1
            continue
        size = int.from_bytes(message[at + 1 : at + 5], "big")
        at += 5
        yield message[at : at + size]
        at += size


PUBLICATION: Final = "towpath_outbox"

# Rows written between two updates of the progress bar: about one second's work.
_ROWS_AT_ONCE: Final = 20_000
# The number of messages that the server's own decoding returns at a time.
CHUNK_MESSAGES: Final = 100_000
_RELEASED_WITHIN_S: Final = 30.0
_POLL_INTERVAL_S: Final = 0.05

# A payload is 250 bytes of JSON with hexadecimal digits of hashes: all payloads differ,
# and they compress as badly as identifiers do. The rows rotate through 1000 aggregates.
_PREPARE: Final = """
create schema bench;
create function bench.payload(n bigint) returns json language sql as $$
  select (rpad('{"n":' || n || ',"pad":"' || md5(n::text) || md5((n + 1)::text)
    || md5((n + 2)::text) || md5((n + 3)::text) || md5((n + 4)::text)
    || md5((n + 5)::text) || md5((n + 6)::text), 248, '0') || '"}')::json
$$;
create procedure bench.fill(from_row int, to_row int, per_transaction int)
language plpgsql as $$
begin
  for at_row in from_row .. to_row - 1 by per_transaction loop
    insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)
    select gen_random_uuid(), 'bench', (n % 1000)::text, 'Benched',
      bench.payload(n)
    from generate_series(at_row, least(at_row + per_transaction, to_row) - 1) n;
    commit;
  end loop;
end $$;
"""
_READ_CHUNK: Final = """
select data from pg_logical_slot_get_binary_changes(
  %s, null, %s, 'proto_version', '1', 'publication_names', %s)
"""


class BenchSource:
    """The database of one case. Call order: ``bench_source``, then ``prepare`` once."""

    def __init__(self, environment: BenchEnvironment, name: str, clock: Clock) -> None:
        self.name = name
        self.dsn = environment.dsn_of(name)
        self._clock = clock
        self._connection = psycopg.connect(self.dsn, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._connection.close()

    def prepare(self) -> None:
        """Create the functions that write rows; the outbox must exist."""
        self._connection.execute(_PREPARE)

    def fill(
        self, rows: int, per_transaction: int, report: Callable[[int], None]
    ) -> None:
        """Commit a backlog, and report the number of rows so far."""
        # The log is flushed later; the measurement begins after that.
        self._connection.execute("set synchronous_commit = off")
        for first in range(0, rows, _ROWS_AT_ONCE):
            last = min(rows, first + _ROWS_AT_ONCE)
            arguments = (first, last, per_transaction)
            self._connection.execute("call bench.fill(%s, %s, %s)", arguments)
            report(last)
        self._connection.execute("set synchronous_commit = on")
        self.settle()

    def settle(self) -> None:
        """Run a checkpoint now, so that its writes do not disturb the measurement."""
        self._connection.execute("checkpoint")

    def row_count(self) -> int:
        """Count the rows of the outbox."""
        return int(self._one("select count(*) from towpath.outbox"))

    def end_lsn(self) -> str:
        """Return the end of the log."""
        return str(self._one("select pg_current_wal_flush_lsn()::text"))

    def make_slot(self, slot: str) -> None:
        """Create a slot that begins at the current end of the log."""
        self._one(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')::text", slot
        )

    def copy_slot(self, original: str, slot: str) -> None:
        """Copy a slot, so that both begin at the same position."""
        self._one(
            "select pg_copy_logical_replication_slot(%s, %s)::text", original, slot
        )

    def drop_slot(self, slot: str) -> None:
        """
        Drop a slot once its reader has disconnected.

        Raises:
            BenchError: The slot is still in use.
        """
        deadline = Deadline(self._clock, _RELEASED_WITHIN_S)
        while not deadline.passed():
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self._connection.execute(
                    "select pg_drop_replication_slot(slot_name)"
                    " from pg_replication_slots where slot_name = %s",
                    (slot,),
                )
                return
            self._clock.wait(_POLL_INTERVAL_S)
        message = f"slot {slot} is still read by process {self.reader_pid(slot)}"
        raise BenchError(message)

    def reader_pid(self, slot: str) -> int | None:
        """Return the process id of the slot's walsender, if there is one."""
        found = self._one(
            "select active_pid from pg_replication_slots where slot_name = %s", slot
        )
        return None if found is None else int(found)

    def backend_pid(self) -> int:
        """Return the process id of the backend that serves this connection."""
        return self._connection.info.backend_pid

    def decode(self, slot: str, report: Callable[[int], None]) -> int:
        """
        Make the server decode everything after a slot's LSN, and count the messages.

        The messages are sent to the client, as to any reader of a slot, and discarded:
        counting them inside the server would save a third of the work.
        """
        total = 0
        with self._connection.cursor(binary=True) as cursor:
            while True:
                cursor.execute(_READ_CHUNK, (slot, CHUNK_MESSAGES, PUBLICATION))
                if not cursor.rowcount:
                    return total
                total += cursor.rowcount
                report(total)

    def facts(self, slot: str) -> dict[bytes, CommittedEvent]:
        """Return the committed events by id, and consume the slot."""
        rows = decoded_rows(self._messages(slot))
        return {
            row.values["id"] or b"": CommittedEvent(
                ordinal,
                row.values["aggregate_id"] or b"",
                digest(row.values["payload"]),
                row.committed_us,
            )
            for ordinal, row in enumerate(rows)
        }

    def _messages(self, slot: str, publication: str = PUBLICATION) -> Iterator[bytes]:
        with self._connection.cursor(binary=True) as cursor:
            while True:
                cursor.execute(_READ_CHUNK, (slot, CHUNK_MESSAGES, publication))
                chunk = cursor.fetchall()
                if not chunk:
                    return
                for (message,) in chunk:
                    yield message

    def _one(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401 - a value of SQL
        row = self._connection.execute(statement.encode(), arguments).fetchone()
        return None if row is None else row[0]


@contextlib.contextmanager
def bench_source(
    environment: BenchEnvironment, name: str, clock: Clock
) -> Iterator[BenchSource]:
    """Create a database, and drop it with its slots after the block."""
    with database(environment, name), BenchSource(environment, name, clock) as source:
        yield source


@contextlib.contextmanager
def database(
    environment: BenchEnvironment, name: str, template: str = "template1"
) -> Iterator[None]:
    """Copy a database, and drop the copy with its slots after the block."""
    statement = sql.SQL("create database {} template {} strategy file_copy")
    with psycopg.connect(environment.dsn, autocommit=True) as connection:
        names = (sql.Identifier(name), sql.Identifier(template))
        connection.execute(statement.format(*names))
    try:
        yield
    finally:
        _drop(environment, name)


def _drop(environment: BenchEnvironment, name: str) -> None:
    """Drop the database and its slots; ignore errors, as the server may be down."""
    with (
        contextlib.suppress(psycopg.Error),
        psycopg.connect(environment.dsn, autocommit=True) as connection,
    ):
        connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s",
            (name,),
        )
        connection.execute(
            "select pg_drop_replication_slot(slot_name)"
            " from pg_replication_slots where database = %s",
            (name,),
        )
        statement = sql.SQL("drop database if exists {} with (force)")
        connection.execute(statement.format(sql.Identifier(name)))

"""
The table of the snapshot benchmark: created once, copied for each run, read afterwards.

A row is 200 bytes of text in six columns; ids start at one. An update increments the
row's version and changes the columns that depend on it. No two versions of a row are
equal, so it is clear which of two records is newer.
"""

import contextlib
import enum
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from psycopg import sql

from towpath.loadtests.bench.context import (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    RELAY,
    BenchRun,
)
from towpath.loadtests.bench.environment import BenchEnvironment
from towpath.loadtests.bench.source import (
    INSERTED_OR_UPDATED,
    BenchSource,
    CommittedRow,
    database,
    decoded_rows,
)
from towpath.loadtests.errors import BenchError
from towpath.schemas.clock import Clock

CASE: Final = "million_rows"
ROWS: Final = 1_000_000
UPDATES_PER_S: Final = 200
TABLE: Final = "bench.item"

# The server's COPY of the table to a client that discards it.
COPY: Final = "copy"
# Like the tuned connector, but writes no watermarks to the source.
DEBEZIUM_READ_ONLY: Final = "debezium_read_only"
# Debezium's initial snapshot, with several threads.
DEBEZIUM_INITIAL: Final = "debezium_initial"

_OTHERS: Final = (
    DEBEZIUM_STOCK,
    DEBEZIUM_TUNED,
    DEBEZIUM_READ_ONLY,
    DEBEZIUM_INITIAL,
)


class Load(enum.StrEnum):
    """The load on the table while it is read."""

    UPDATES = "updates"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FillRun(BenchRun):
    """One system in one round under one load; database, slot and topics are its own."""

    load: Load

    @property
    def topic(self) -> str:
        """The topic of the table's rows and changes."""
        return f"{self.name}.{TABLE}"

    @property
    def is_initial(self) -> bool:
        """Whether the system reads the table before it streams changes."""
        return self.system == DEBEZIUM_INITIAL


def snapshot_systems(*, with_debezium: bool) -> tuple[str, ...]:
    """Return the systems of a benchmark."""
    return (COPY, RELAY, *(_OTHERS if with_debezium else ()))


PUBLICATION: Final = "bench"
SIGNALS: Final = "bench.signal"
_TRUTH: Final = "bench_truth"
_SIGNAL_ID: Final = "fill"

_ROWS_AT_ONCE: Final = 50_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS: Final = 1_000_000
_SHORT_OFFSET: Final = re.compile(r"([+-]\d\d)$")

_PREPARE: Final = """
create schema bench;
create table bench.item (
    id bigint primary key, version int not null, amount numeric(12, 2) not null,
    state text not null, changed_at timestamptz not null, note text not null
);
create table bench.signal (id varchar(64), type varchar(32), data varchar(2048));
create function bench.note(n bigint) returns text language sql as $$
  select md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text)
    || md5((n + 3)::text) || left(md5((n + 4)::text), 14)
$$;
create publication bench for table bench.item, bench.signal;
create publication bench_truth for table bench.item;
"""
_FILL: Final = """
insert into bench.item
select n, 0, (n %% 1000000) / 100.0, 'waiting',
    '2026-01-01 00:00:00.000001Z'::timestamptz + n * interval '1 second', bench.note(n)
from generate_series(%s::bigint, %s::bigint) n
"""
# One transaction of the load.
UPDATE: Final = """\
\\set id random(1, {rows})
update bench.item
set version = version + 1, amount = (version + 1) / 4.0, state = 'changed',
    changed_at = clock_timestamp()
where id = :id;
"""
_ROWS: Final = "copy (select * from bench.item) to stdout"


class RowContent(NamedTuple):
    """A row's version, and a digest of all its columns."""

    version: int
    digest: int


class SignalStatus(NamedTuple):
    """The relay's answer to a signal so far."""

    status: str
    detail: str


def content(row: Mapping[str, Any]) -> RowContent:
    """Return a row's content, whatever form its columns have."""
    version = int(row["version"])
    instant = _SHORT_OFFSET.sub(r"\1:00", row["changed_at"])
    elapsed = datetime.fromisoformat(instant) - _EPOCH
    seconds = elapsed.days * 86_400 + elapsed.seconds
    changed_us = seconds * _MICROSECONDS + elapsed.microseconds
    held = (version, row["amount"], row["state"], changed_us, row["note"])
    return RowContent(version, hash(held))


class ItemSource(BenchSource):
    """The database of one run, with the table and its committed updates."""

    def fill_items(self, rows: int, report: Callable[[int], None]) -> None:
        """Create the table with all its rows, frozen and analyzed like an old table."""
        self._connection.execute(_PREPARE)
        self._connection.execute("set synchronous_commit = off")
        for first in range(1, rows + 1, _ROWS_AT_ONCE):
            last = min(rows, first + _ROWS_AT_ONCE - 1)
            self._connection.execute(_FILL, (first, last))
            report(last)
        self._connection.execute("vacuum (freeze, analyze) bench.item")
        self.settle()

    def update_one(self) -> None:
        """Commit one update."""
        self._connection.execute(
            "update bench.item set version = version + 1, state = 'first' where id = 1"
        )

    def request_snapshot(self, signals: str) -> None:
        """Request a snapshot of the table by inserting a row into a signal table."""
        data = {"data-collections": [TABLE], "type": "incremental"}
        statement = sql.SQL("insert into {} (id, type, data) values (%s, %s, %s)")
        self._connection.execute(
            statement.format(sql.Identifier(*signals.split("."))),
            (_SIGNAL_ID, "execute-snapshot", json.dumps(data)),
        )

    def answer(self) -> SignalStatus:
        """Return the status of the signal."""
        row = self._connection.execute(
            "select coalesce(status, ''), coalesce(detail::text, '')"
            " from towpath.signal where id = %s",
            (_SIGNAL_ID,),
        ).fetchone()
        return SignalStatus(*(row or ("", "")))

    def record_changes(self) -> None:
        """Create a slot that keeps every change to the table from now on."""
        self.make_slot(f"{self.name}_truth")

    def updates(self) -> dict[tuple[int, int], int]:
        """Return the commit time of each update by id and version; drop the slot."""
        slot = f"{self.name}_truth"
        messages = self._messages(slot, _TRUTH)
        rows = decoded_rows(messages, INSERTED_OR_UPDATED)
        found = {
            (_number(row, "id"), _number(row, "version")): row.committed_us
            for row in rows
        }
        self.drop_slot(slot)
        return found

    def contents(self) -> "array[int]":
        """
        Return the digest of every row, by id; index 0 is unused.

        Raises:
            BenchError: The ids are not consecutive numbers that start at one.
        """
        digests = array("q", (0,))
        names = ("id", "version", "amount", "state", "changed_at", "note")
        self._connection.execute("set timezone = 'UTC'")
        statement = "copy (select * from bench.item order by id) to stdout"
        with self._connection.cursor().copy(statement) as copy:
            for line in copy.rows():
                row = dict(zip(names, line, strict=True))
                if int(row["id"] or 0) != len(digests):
                    message = f"row {len(digests)} of the table is missing"
                    raise BenchError(message)
                digests.append(content(row).digest)
        return digests

    def texts(self) -> Iterator[tuple[str, ...]]:
        """Yield every row in id order, each column in the server's text form."""
        self._connection.execute("set timezone = 'UTC'")
        statement = "copy (select * from bench.item order by id) to stdout"
        with self._connection.cursor().copy(statement) as copy:
            for line in copy.rows():
                yield tuple(value or "" for value in line)

    def discard_copy(self) -> int:
        """Read the whole table with COPY, discard it, and return its size in bytes."""
        size = 0
        with self._connection.cursor().copy(_ROWS) as copy:
            for block in copy:
                size += len(block)
        return size


@contextlib.contextmanager
def original(
    environment: BenchEnvironment, name: str, clock: Clock
) -> Iterator[ItemSource]:
    """
    Create the database that the runs copy.

    The caller must close the source before the first copy.
    """
    with database(environment, name), ItemSource(environment, name, clock) as source:
        yield source


@contextlib.contextmanager
def copied(
    environment: BenchEnvironment, name: str, template: str, clock: Clock
) -> Iterator[ItemSource]:
    """Copy the original, and drop the copy after the block."""
    with (
        database(environment, name, template),
        ItemSource(environment, name, clock) as source,
    ):
        yield source


def _number(row: CommittedRow, name: str) -> int:
    return int(row.values[name] or 0)

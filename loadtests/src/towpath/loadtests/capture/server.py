"""
The server's side of a run: the committed changes, and the cost of capturing them.

The committed changes are those that the server itself decodes from its log, with its
own output plugin, ``test_decoding``, through a slot that exists in every method's run:
their order is the order of the commit records, and their times are those of the
records.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import psutil
import psycopg

from towpath.loadtests.capture import CREATE, DELETE, UPDATE
from towpath.loadtests.capture.check import CommittedChange, rows_after
from towpath.loadtests.capture.writers import TABLE, read_table
from towpath.loadtests.errors import BenchError

_KINDS: Final = {"INSERT": CREATE, "UPDATE": UPDATE, "DELETE": DELETE}
_CHANGE: Final = re.compile(
    rf"table {re.escape(TABLE)}: (INSERT|UPDATE|DELETE): id\[bigint\]:(\d+)"
    r"(?: change\[bigint\]:(\d+))?"
)
_COMMIT: Final = re.compile(r"COMMIT \d+ \(at (.+)\)")
_READ: Final = """
select data from pg_logical_slot_get_changes(
  %s, null, null, 'include-timestamp', 'on', 'skip-empty-xacts', 'on')
"""
_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND: Final = timedelta(microseconds=1)


def committed_changes(lines: Iterator[str]) -> Iterator[CommittedChange]:
    """
    Yield the changes of the table from the lines of ``test_decoding``.

    A transaction's changes are yielded at its commit, with the time of that commit.
    """
    pending: list[re.Match[str]] = []
    for line in lines:
        if change := _CHANGE.match(line):
            pending.append(change)
        elif commit := _COMMIT.match(line):
            at_us = (datetime.fromisoformat(commit[1]) - _EPOCH) // _MICROSECOND
            for kind, key, number in (one.groups() for one in pending):
                yield CommittedChange(
                    int(key), _KINDS[kind], int(number) if number else None, at_us
                )
            pending.clear()


class CommitLog:
    """The slot that keeps the committed changes of one run."""

    def __init__(self, session: psycopg.Connection[Any], slot: str) -> None:
        """Create the slot, which begins at the current end of the log."""
        self._session = session
        self._slot = slot
        # The times of commits are printed in the session's time zone.
        session.execute("set timezone to 'UTC'")
        session.execute(
            "select pg_create_logical_replication_slot(%s, 'test_decoding')", (slot,)
        )

    def read(self) -> list[CommittedChange]:
        """
        Consume the committed changes from the slot; return them in commit order.

        Raises:
            BenchError: Replaying the changes does not reproduce the table's rows.
        """
        lines = (line for (line,) in self._session.execute(_READ, (self._slot,)))
        changes = list(committed_changes(lines))
        rows = {key: row.change for key, row in read_table(self._session).items()}
        if rows_after(changes) != rows:
            message = (
                "replaying the changes that the server decoded does not reproduce the "
                "table"
            )
            raise BenchError(message)
        return changes


class ServerUsage(NamedTuple):
    """The WAL bytes that a server has written, and the CPU time that it has used."""

    log_bytes: int
    cpu_s: float

    def since(self, before: "ServerUsage") -> "ServerUsage":
        """Return the usage since an earlier measurement."""
        return ServerUsage(self.log_bytes - before.log_bytes, self.cpu_s - before.cpu_s)


def server_usage(session: psycopg.Connection[Any]) -> ServerUsage:
    """
    Return the WAL bytes and the CPU time of the session's server.

    The CPU time is that of all its processes, including those that have exited. The
    server must run on this machine.
    """
    row = session.execute(
        "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_backend_pid()"
    ).fetchone()
    log_bytes, pid = row if row is not None else (0, 0)
    server = psutil.Process(pid).parent()
    return ServerUsage(int(log_bytes), 0.0 if server is None else _cpu_s(server))


def _cpu_s(server: psutil.Process) -> float:
    times = server.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            used = child.cpu_times()
            total += used.user + used.system
    return float(total)

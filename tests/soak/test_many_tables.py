"""
One expression captures 2,000 tables: each step is timed, and every row is read.

The times are printed, but not checked. ``tests/integration/test_many_tables.py`` counts
the requests of each step.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rig import Rig
from support.waiting import CLOCK
from towpath.schemas.clock import Deadline

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

TABLES = 2_000
CHANGED = 286
ROWS = 2
WITHIN_S = 1_800.0
CREATE_TABLES = """
do $$ begin
  for n in {first}..{last} loop
    execute format('create table many.t%s (id int primary key, note text)', n);
    execute format('insert into many.t%s values (1, ''a''), (2, ''b'')', n);
  end loop;
end $$
"""


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path: Path) -> Iterator[Rig]:
    """Provide a prepared database with many tables; its relay is not running yet."""
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.execute("create schema many")
    for first in range(1, TABLES + 1, 200):
        made.execute(CREATE_TABLES.format(first=first, last=first + 199))
    made.configure(made.outbox, tables=("many[.].*",), partitions=6)
    made.init()
    yield made
    made.close()


def wait(rig: Rig, holds, what: str) -> float:
    """Wait for a condition; print and return the time that it took."""
    began_s, deadline = CLOCK.monotonic_s(), Deadline(CLOCK, WITHIN_S)
    while not holds():
        assert not deadline.passed(), f"{what}: {rig.printed()[-3000:]}"
        assert rig.process is not None
        assert rig.process.poll() is None, rig.printed()[-3000:]
        CLOCK.wait(0.05)
    took_s = CLOCK.monotonic_s() - began_s
    sys.stdout.write(f"{what}: {took_s:.1f} s\n")
    return took_s


def test_many_tables_are_captured_and_read(rig: Rig):
    """
    The relay starts, some tables change, and a snapshot of all tables reads every row.
    """
    rig.start()
    wait(rig, lambda: bool(rig.logged("relay streaming")), "from start to stream")
    for number in range(1, CHANGED + 1):
        rig.execute(f"update many.t{number} set note = 'c' where id = 1")  # noqa: S608 - the test's own
    lsn = rig.one("select pg_current_wal_lsn()::text")
    confirmed = (
        "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots"
        " where slot_name = %s"
    )
    wait(
        rig,
        lambda: bool(rig.one(confirmed, lsn, rig.prefix)),
        f"until {CHANGED} one-row updates are confirmed",
    )
    data = json.dumps({"data-collections": ["many[.].*"], "type": "incremental"})
    rig.execute(
        "insert into towpath.signal (id, type, data) values ('all', %s, %s)",
        "execute-snapshot",
        data,
    )
    status = "select status from towpath.signal where id = 'all'"
    wait(rig, lambda: rig.one(status) is not None, "until the signal is accepted")
    ended = {"completed", "failed", "rejected"}
    wait(rig, lambda: rig.one(status) in ended, f"until {TABLES} tables are read")
    read = rig.one("select sum(rows) from towpath.snapshot where snapshot_id = 'all'")

    assert (rig.one(status), int(read)) == ("completed", TABLES * ROWS)

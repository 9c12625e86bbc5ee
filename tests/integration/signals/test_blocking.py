"""Blocking snapshots while the application writes: no change is lost."""

import threading

import psycopg
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 1_000


def write(dsn: str, until: threading.Event, written: list[int]) -> None:
    """Insert rows, each in its own transaction, until the event is set."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        key = ROWS
        while not until.is_set():
            key += 1
            connection.execute("insert into s.a values (%s, 0, 'new')", [key])
            written.append(key)


def test_blocking_snapshots_during_inserts_lose_nothing(rig):
    """
    Each of two snapshots reads all old rows; inserted rows are streamed once (A37).
    """
    rig.start()
    rig.signal("warm", data_collections=["s.b"])
    rig.wait_for_answer("warm")
    until, written = threading.Event(), []
    writer = threading.Thread(target=write, args=(rig.dsn, until, written))
    writer.start()
    try:
        for name in ("s1", "s2"):
            rig.signal(name, data_collections=["s.a"], type="blocking")
            rig.wait_for_answer(name)
        count = len(written)
        rig.wait_for(lambda: len(written) > count)
    finally:
        until.set()
        writer.join()
    rig.confirm()
    reads = rig.reads()
    streamed = rig.streamed()
    old = set(range(1, ROWS + 1))
    lost = [
        name
        for name in ("s1", "s2")
        if not old <= {key for snapshot, key in reads if snapshot == name}
    ]

    assert [] == lost
    assert {1} == set(reads.values())
    assert written == sorted(streamed)

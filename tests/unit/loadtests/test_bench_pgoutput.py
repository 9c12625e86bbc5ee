"""How the benchmark itself reads committed rows."""

import struct
from pathlib import Path

from towpath.loadtests.bench.figures import ArrivedEvent
from towpath.loadtests.bench.measurements import first_new_ms
from towpath.loadtests.bench.source import (
    INSERTED_OR_UPDATED,
    CommittedRow,
    decoded_rows,
)

EPOCH_US = 946_684_800_000_000


def begin(committed_us: int) -> bytes:
    """Encode a Begin."""
    return b"B" + struct.pack("!qqi", 77, committed_us - EPOCH_US, 5)


def relation(oid: int, *names: str) -> bytes:
    """Encode a Relation."""
    columns = b"".join(
        b"\0" + name.encode() + b"\0" + struct.pack("!ii", 25, -1) for name in names
    )
    head = b"R" + struct.pack("!i", oid) + b"towpath\0outbox\0d"
    return head + struct.pack("!h", len(names)) + columns


def insert(oid: int, *values: bytes | None) -> bytes:
    """Encode an Insert."""
    cells = b"".join(
        b"n" if value is None else b"t" + struct.pack("!i", len(value)) + value
        for value in values
    )
    return b"I" + struct.pack("!i", oid) + b"N" + struct.pack("!h", len(values)) + cells


def test_rows_are_returned_in_commit_order_with_their_commit_time():
    """
    Each row has the time of its own transaction, and NULL differs from empty.
    """
    messages = [
        begin(1_000_000_000_000_000),
        relation(16, "id", "payload"),
        insert(16, b"a", None),
        insert(16, b"b", b""),
        b"C" + bytes(25),
        begin(1_000_000_000_000_007),
        insert(16, b"c", b"{}"),
        b"C" + bytes(25),
    ]

    assert [
        CommittedRow(1_000_000_000_000_000, {"id": b"a", "payload": None}),
        CommittedRow(1_000_000_000_000_000, {"id": b"b", "payload": b""}),
        CommittedRow(1_000_000_000_000_007, {"id": b"c", "payload": b"{}"}),
    ] == list(decoded_rows(messages))


def test_two_tables_keep_their_own_columns():
    """
    A row is decoded with the columns of its own relation.
    """
    messages = [
        begin(EPOCH_US),
        relation(1, "x"),
        relation(2, "y", "z"),
        insert(2, b"1", b"2"),
        insert(1, b"3"),
    ]

    assert [{"y": b"1", "z": b"2"}, {"x": b"3"}] == [
        row.values for row in decoded_rows(messages)
    ]


def test_updates_that_keep_their_key_are_read_on_request():
    """
    A load of updates is observed through the new rows; an outbox has no updates.
    """
    new = insert(7, b"1", b"new")
    messages = [begin(5), relation(7, "id", "note"), new, b"U" + new[1:]]

    assert (1, 2) == (
        len(list(decoded_rows(messages))),
        len(list(decoded_rows(messages, INSERTED_OR_UPDATED))),
    )


def test_recorded_messages_of_a_server_are_read_completely():
    """
    Messages of a real server are read without an error.
    """
    folder = Path(__file__).parents[2] / "data"
    lines = (folder / "pgoutput.hex").read_text(encoding="ascii").splitlines()
    messages = [
        bytes.fromhex(line.split()[-1]) for line in lines if line and line[0] != "#"
    ]
    inserts = sum(message[:1] == b"I" for message in messages)

    assert inserts == len(list(decoded_rows(messages)))


def test_an_event_repeated_after_a_restart_is_not_the_first_new_one():
    """
    Repeats after a restart do not count as progress.
    """
    old = ArrivedEvent(0, 0, b"old", b"k", b"", 10)
    again = ArrivedEvent(0, 1, b"old", b"k", b"", 20)
    new = ArrivedEvent(0, 2, b"new", b"k", b"", 30)

    assert 30.0 == first_new_ms([old, again, new], before={0: 1})


def test_a_topic_with_only_repeats_after_the_kill_has_no_first_new_event():
    """
    Repeats are not new, so there is no time to report.
    """
    old = ArrivedEvent(0, 0, b"1", b"k", b"", 10)
    again = ArrivedEvent(0, 1, b"1", b"k", b"", 20)

    assert first_new_ms([old, again], before={0: 1}) is None

"""The tail of a partition shows which records Kafka already has."""

from typing import NamedTuple

import orjson
import pytest
from structlog.testing import capture_logs

from towpath.relay.kafka.recovery import (
    PartitionScan,
    TailScan,
    read_announced,
    streamed_position,
    topic_contents,
)
from towpath.relay.recovery.marks import Mark
from towpath.schemas import headers
from towpath.schemas.position import format_position
from towpath.schemas.table_name import TableName

PARTITION = ("orders", 0)


def position(log_lsn: int, ordinal: int = 0) -> bytes:
    """Return a position as the bytes in a header."""
    return format_position(log_lsn, ordinal).encode()


class Message:
    """A record as the client returns it."""

    def __init__(self, at: bytes | None, *, is_read: bool = False) -> None:
        self._headers = [] if at is None else [(headers.POSITION, at)]
        self._headers += [(headers.SNAPSHOT, b"1")] if is_read else []

    def headers(self):
        """Return its headers; like the client, return None if there are none."""
        return self._headers or None

    def value(self):
        """Return no value: these tests read only headers."""

    def topic(self):
        """Return its topic."""
        return PARTITION[0]

    def partition(self):
        """Return its partition."""
        return PARTITION[1]

    def offset(self):
        """Return its offset."""
        return 7


@pytest.mark.parametrize(
    ("stored", "tail", "expected", "log_lsn"),
    [
        (None, [Message(position(8))], position(8), 8),
        (position(8), [Message(position(16))], position(16), 16),
        (position(8), [Message(position(24, -1), is_read=True)], position(8), 24),
        (None, [Message(position(24, -1), is_read=True)], None, 24),
        (position(16), [Message(position(8))], position(16), 8),
        (
            None,
            [
                Message(position(16)),
                Message(position(24, -1), is_read=True),
                Message(position(8)),
            ],
            position(16),
            24,
        ),
        (position(8), [Message(None)], position(8), 0),
        (position(8), [Message(b"7,8"), Message(b"\xff")], position(8), 0),
    ],
)
def test_only_streamed_records_of_a_tail_move_the_last_position(
    stored, tail, expected, log_lsn
):
    """
    READ rows are out of order and say nothing about the changes before them.
    """
    scan = TailScan({PARTITION: Mark(5, stored)})
    for message in tail:
        scan.take(message)

    assert (Mark(5, expected), log_lsn) == (scan.found[PARTITION], scan.log_lsn)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(position(8)), position(8)),
        (Message(position(8, -1), is_read=True), None),
        (Message(None), None),
    ],
)
def test_a_read_row_has_no_streamed_position(message, expected):
    """
    A record without a position that the relay wrote was not streamed, either.
    """
    assert expected == streamed_position(message)


def test_the_highest_published_position_includes_read_rows():
    """
    A new lineage begins above READ rows, too; a mark has a streamed record's position.
    """
    scan, empty = PartitionScan(2), PartitionScan(0)
    for message in (Message(position(8)), Message(position(24, -1), is_read=True)):
        scan.take(message)
    contents = topic_contents({PARTITION: scan, ("orders", 1): empty})

    assert ({"orders": {0: Mark(2, position(8)), 1: Mark(0, None)}}, 24) == (
        contents.marks,
        contents.published_log_lsn,
    )


@pytest.mark.parametrize("foreign", [b"7,8", b"\xff"])
def test_a_foreign_topic_with_a_position_header_is_ignored(foreign: bytes):
    """
    A repair scans every topic that matches the template of event topics.
    """
    scan = PartitionScan(1)
    scan.take(Message(foreign))

    assert {} == topic_contents({PARTITION: scan}).marks


class Written(NamedTuple):
    """A record in the topic of relations."""

    content: bytes | None

    def topic(self) -> str:
        return "towpath.relations"

    def value(self) -> bytes | None:
        return self.content

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 3


class Relations(tuple[Written, ...]):
    """A reader of the topic of relations, in a cluster with a table's topic, too."""

    __slots__ = ()

    def partition_counts(self) -> dict[str, int]:
        return {"towpath.relations": 1, "towpath.shop.orders": 6}

    def read_to_ends(self, _starts: object, _what: str) -> "Relations":
        return self


ORDERS = orjson.dumps(
    {
        "schema": "shop",
        "table": "orders",
        "columns": [{"name": "id", "type": "bigint"}],
        "position": position(8).decode(),
    }
)


@pytest.mark.parametrize(
    "foreign",
    [
        b"not JSON",
        b"7",
        b'{"schema": "shop"}',
        ORDERS.replace(b'{"name"', b'7,{"name"'),
        ORDERS.replace(b'"orders"', b'["orders"]'),
        ORDERS.replace(b'"bigint"', b"[]"),
    ],
)
def test_a_record_of_a_foreign_program_announces_no_table(foreign: bytes):
    """
    Such records must not make every start fail; a single warning reports one of them.
    """
    written = Relations((Written(foreign), Written(ORDERS), Written(foreign)))

    with capture_logs() as logs:
        announced = read_announced(written, "towpath")

    assert {TableName("shop", "orders")} == announced
    assert [("warning", "towpath.relations", 0, 3)] == [
        tuple(each[key] for key in ("log_level", "topic", "partition", "offset"))
        for each in logs
    ]


def test_announcements_of_tables_are_read_without_a_warning():
    """
    A tombstone announces no table, but is not foreign, either.
    """
    with capture_logs() as logs:
        read_announced(Relations((Written(ORDERS), Written(None))), "towpath")

    assert [] == logs

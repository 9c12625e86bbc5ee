"""What becomes of the changes of a shape that the registry refuses."""

import json

import pytest

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.dead import DeadLetters
from towpath.relay.routing.parked import Parked
from towpath.relay.routing.reads import ReadPlace
from towpath.relay.routing.record import Record
from towpath.relay.routing.refused import REFUSED, RefusedRoute
from towpath.relay.wal.messages import UNCHANGED, Row
from towpath.relay.wal.relation import Column, Relation
from towpath.relay.wal.sequencer import Change, Transaction
from towpath.schemas import headers
from towpath.schemas.envelope import Operation

LINE = Relation(
    oid=7,
    schema="shop",
    table="line",
    columns=(Column("id", 23), Column("note", 25)),
    key=(0,),
)
TRANSACTION = Transaction(
    xid=9, commit_lsn=160, log_lsn=160, committed_us=1_700_000_000_000_000, place=b"P."
)
NOW_US = 1_700_000_001_000_000


@pytest.fixture
def buried() -> list[str]:
    """Lend the list of reasons that were counted."""
    return []


@pytest.fixture
def route(buried: list[str]) -> RefusedRoute:
    """Lend the route of a refused shape."""
    dead = DeadLetters("towpath", buried.append, Parked(10))
    return RefusedRoute(LINE, "towpath.shop.line", dead, "409 no")


def told(record: Record) -> tuple:
    """Tell what matters of a dead letter."""
    found = dict(record.headers)
    return (
        record.topic,
        record.key,
        json.loads(record.value or b""),
        record.position,
        found[headers.POSITION],
        found[headers.OPERATION],
        found[headers.SOURCE_TOPIC],
        found[headers.CONNECT_ERROR_MESSAGE],
    )


@pytest.mark.parametrize(
    ("operation", "new", "old", "value"),
    [
        (Operation.CREATE, (b"1", b"a"), None, {"id": "1", "note": "a"}),
        (
            Operation.UPDATE,
            (b"1", UNCHANGED),
            None,
            {"id": "1", "note": {"unchanged": True}},
        ),
        (
            Operation.DELETE,
            None,
            (b"1", None),
            {"id": "1", "note": None},
        ),
    ],
)
def test_every_change_is_one_whole_dead_letter(
    route: RefusedRoute, buried: list[str], operation, new: Row, old: Row, value
):
    """
    The row is told as texts, at its position, keyed by its row, counted once.
    """
    change = Change(operation, LINE, new, old, False, TRANSACTION, 3, 120)
    (record,) = route.records(change, NOW_US)

    assert (
        (
            "towpath.dead.relay",
            b'{"id":"1"}',
            value,
            b"P.0000000003",
            b"P.0000000003",
            operation.value.encode(),
            b"towpath.shop.line",
            b"409 no",
        ),
        [REFUSED],
    ) == (told(record), buried)


def test_a_truncate_is_one_dead_letter(route: RefusedRoute):
    """
    However many partitions its topic has: there is one thing that was set aside.
    """
    (record,) = route.truncation(TRANSACTION, 4, 3, NOW_US)

    assert (
        "towpath.dead.relay",
        None,
        {"id": None, "note": None},
        b"P.0000000004",
        b"P.0000000004",
        b"t",
        b"towpath.shop.line",
        b"409 no",
    ) == told(record)


def test_a_chunk_s_row_is_a_dead_letter_of_its_snapshot(route: RefusedRoute):
    """
    It stands at the low watermark and names the snapshot, as READ rows do.
    """
    place = ReadPlace(255, "s-1", "ignored", NOW_US)
    (record,) = route.reads([(b"1", b"a")], place)

    assert (
        (
            "towpath.dead.relay",
            b'{"id":"1"}',
            {"id": "1", "note": "a"},
            b"00000000000000ff.-",
            b"00000000000000ff.-",
            b"r",
            b"towpath.shop.line",
            b"409 no",
        ),
        b"s-1",
        NOW_US // 1000,
    ) == (told(record), dict(record.headers)[headers.SNAPSHOT], record.timestamp_ms)


def test_a_key_that_a_chunk_did_not_find_is_a_dead_letter(route: RefusedRoute):
    """
    It is told as a delete at the low watermark, and not lost.
    """
    place = ReadPlace(255, "s-1", "ignored", NOW_US)
    (record,) = route.absent([b"1"], place)

    assert (
        b'{"id":"1"}',
        {"id": "1", "note": None},
        b"00000000000000ff.-",
        b"00000000000000ff.-",
        b"d",
    ) == told(record)[1:6]


def test_a_row_tells_its_key_or_that_it_lacks_it(route: RefusedRoute):
    """
    Snapshots ask for the key's texts, whatever became of the schema.
    """
    with pytest.raises(MalformedMessageError):
        route.key_bytes((None, b"a"))

    assert (b"1",) == route.key_bytes((b"1", b"a"))

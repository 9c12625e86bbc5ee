"""Dead letters: their contents, and the aggregates that they park."""

import base64
import hashlib
import json
from collections.abc import Mapping

import pytest

from support.copying import replace
from towpath.relay.encode.dead_letters import (
    NO_SUCH_PARTITION,
    SKIPPED,
    TOO_LARGE,
    DeadLetters,
)
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.record import FIXED_BYTES, Header, Record
from towpath.relay.wal.messages import UNCHANGED, Column, Relation
from towpath.relay.wal.transactions import Change, LogicalMessageEvent, Transaction
from towpath.schemas.envelope import Operation

KEY = b'{"id":7}'


def record(key: bytes | None = KEY, size: int = 5000) -> Record:
    """Make a record that is too large for its topic."""
    return Record("t", key, b"v" * 100, [("position", b"P.1")], b"P.1", 9, size)


def dead_letter(large: Record, room_bytes: int) -> Record:
    """Make the dead letter of a record whose topic accepts 1,000 bytes."""
    return dead_letters(ParkedAggregates(10)).of_large(large, 1000, room_bytes)


def dead_letters(parked: ParkedAggregates) -> DeadLetters:
    """Make dead letters."""
    return DeadLetters("towpath", lambda _: None, parked)


def event(key: bytes | None, size: int, *more: Header) -> Record:
    """Make an event that is too large for its topic."""
    headers: list[Header] = [("aggregate_type", b"order"), ("position", b"P.1"), *more]
    return Record("e", key, b"v" * 100, headers, b"P.1", 9, size)


def recalled(made: Record) -> ParkedAggregates:
    """Return the parked aggregates after the dead letter was read back."""
    parked = ParkedAggregates(10)
    parked.restore(made.key, made.value, made.headers)
    return parked


def test_a_record_that_fits_is_kept_whole_in_its_dead_letter():
    """
    Key, value and headers are kept; the original topic and the reason are added.
    """
    made = dead_letter(record(), 10_000)
    headers = dict(made.headers)

    assert (
        ("towpath.dead.relay", KEY, b"v" * 100),
        (b"P.1", b"t", TOO_LARGE.encode()),
    ) == (
        (made.topic, made.key, made.value),
        (headers["position"], headers["topic"], headers["reason"]),
    )


def test_a_record_that_does_not_fit_yields_a_stub_dead_letter():
    """
    The stub names topic, position, size, limit, reason and key.
    """
    made = dead_letter(record(), 5000)

    assert {
        "topic": "t",
        "position": "P.1",
        "size_bytes": 5000,
        "limit_bytes": 1000,
        "reason": TOO_LARGE,
        "key": KEY.decode(),
    } == json.loads(made.value or b"")


def test_a_stub_has_the_hash_of_a_large_key():
    """
    A stub never contains a key that would itself be too large.
    """
    key = b"k" * 3000
    made = dead_letter(record(key), 1000)
    stub = json.loads(made.value or b"")

    assert (None, hashlib.sha256(key).hexdigest()) == (made.key, stub["key_sha256"])


def test_a_dead_letter_that_is_too_large_yields_a_stub():
    """
    A dead letter is not nested in a second one.
    """
    large = replace(record(), topic="towpath.dead.relay")
    made = dead_letter(large, 100_000)

    assert ("towpath.dead.relay", TOO_LARGE) == (
        made.topic,
        json.loads(made.value or b"")["reason"],
    )


def test_a_stub_fits_the_smallest_size_limit():
    """
    A stub is within the smallest reasonable limit.
    """
    made = dead_letter(record(b"k" * 2000), 1000)

    assert made.size < 2 * 2048 + 2 * FIXED_BYTES


def test_a_stub_has_the_hash_of_a_large_aggregate_type():
    """
    Later events of the aggregate are parked, before and after a restart.
    """
    kind = b"t" * 5000
    parked, recalled = ParkedAggregates(9), ParkedAggregates(9)
    dead = DeadLetters("towpath", lambda _: None, parked)
    headers: list[Header] = [("aggregate_type", kind), ("position", b"P.1")]
    large = Record("e", b"42", b"v" * 100, headers, b"P.1", 9, 6000)
    made = dead.of_large(large, 1000, 1000)
    recalled.restore(made.key, made.value, made.headers)

    assert (True, [True, True], [False, False]) == (
        made.size < 2048 + 2 * FIXED_BYTES,
        [each.holds(kind.decode(), b"42", b"P.2") for each in (parked, recalled)],
        [each.holds("u" * 5000, b"42", b"P.2") for each in (parked, recalled)],
    )


TABLE = Relation(
    7,
    "shop",
    "blob",
    (Column("id", 23), Column("data", 17), Column("note", 25), Column("gone", 25)),
    (0,),
)
TRANSACTION = Transaction(9, 160, 160, 1_700_000_000_123_456, b"P.")


def test_a_row_can_be_rebuilt_from_its_dead_letter():
    """
    Bytes are base64, null is null, unchanged TOAST values are named.

    Both rows are kept.
    """
    new = (b"1", b"\\x00ff", "Zoë".encode(), UNCHANGED)
    old = (b"2", None, None, None)
    change = Change(Operation.UPDATE, TABLE, new, old, False, TRANSACTION, 3, 0)
    made = dead_letters(ParkedAggregates(10)).of_row(TABLE, change, "because")
    headers = dict(made.headers)

    assert (
        {
            "id": "1",
            "data": {"base64": base64.b64encode(b"\0\xff").decode()},
            "note": "Zoë",
            "gone": {"unchanged": True},
        },
        {"id": "2", "data": None, "note": None, "gone": None},
        (b"row", b"shop.blob", b"u", b"because", b"because", b"P.0000000003"),
    ) == (
        json.loads(made.value or b""),
        json.loads(headers["old"] or b""),
        (
            headers["form"],
            headers["table"],
            headers["op"],
            headers["reason"],
            headers["__connect.errors.exception.message"],
            headers["position"],
        ),
    )


def test_a_row_change_parks_nothing():
    """
    A later full image supersedes it: only events of an aggregate depend on each other.
    """
    parked = ParkedAggregates(10)
    dead = dead_letters(parked)
    change = Change(
        Operation.CREATE,
        TABLE,
        (b"1", None, None, None),
        None,
        False,
        TRANSACTION,
        3,
        0,
    )
    dead.of_row(TABLE, change, "because")
    dead.of_large(record(), 1000, 100_000)

    assert 0 == len(parked)


@pytest.mark.parametrize("room_bytes", [100_000, 4000], ids=["complete", "stub"])
@pytest.mark.parametrize("key", [b"42", b"k" * 3000], ids=["short", "long"])
def test_a_large_event_parks_its_aggregate(room_bytes: int, key: bytes):
    """
    Its later events are parked, at once and after a restart, even with only a stub.
    """
    parked = ParkedAggregates(10)
    made = dead_letters(parked).of_large(event(key, 5000), 1000, room_bytes)
    after = recalled(made)

    assert (True, True, False, False) == (
        parked.holds("order", key, b"P.2"),
        after.holds("order", key, b"P.2"),
        after.holds("order", key, b"P.1"),
        after.holds("customer", key, b"P.2"),
    )


@pytest.mark.parametrize(
    ("room_bytes", "times"), [(100_000, 1), (4000, 0)], ids=["complete", "stub"]
)
def test_the_dead_letter_of_an_event_without_an_id_does_not_repeat_its_type(
    room_bytes: int, times: int
):
    """
    Without an id nothing is parked, and a repeated header would waste space.
    """
    parked = ParkedAggregates(10)
    made = dead_letters(parked).of_large(event(None, 5000), 1000, room_bytes)

    assert (times, 0) == (
        [name for name, _ in made.headers].count("aggregate_type"),
        len(parked),
    )


def test_a_parked_event_too_large_for_the_dead_letters_yields_a_stub():
    """
    The stub keeps the original topic, the first reason and the aggregate.
    """
    parked = ParkedAggregates(10)
    dead = dead_letters(parked)
    dead_letter = dead.of_record(event(b"42", 5000), "first")
    stub = dead.of_large(dead_letter, 1000, 4000)
    content = json.loads(stub.value or b"")

    assert ("e", "first", True) == (
        content["topic"],
        content["first_reason"],
        recalled(stub).holds("order", b"42", b"P.2"),
    )


def test_the_stub_of_a_row_without_a_topic_names_its_table():
    """
    The topic of dead letters is not the original topic of the row.
    """
    row = (b"1", None, b"x" * 5000, None)
    change = Change(Operation.CREATE, TABLE, row, None, False, TRANSACTION, 3, 0)
    dead = dead_letters(ParkedAggregates(10))
    stub = dead.of_large(dead.of_row(TABLE, change, "first"), 1000, 1000)
    headers = dict(stub.headers)

    assert ("", b"", b"shop.blob") == (
        json.loads(stub.value or b"")["topic"],
        headers["topic"],
        headers["table"],
    )


def test_a_stub_names_the_topic_of_an_event_with_a_header_named_topic():
    """
    An application may use that name for its own header.
    """
    made = dead_letter(event(b"42", 5000, ("topic", b"mine")), 1000)

    assert "e" == json.loads(made.value or b"")["topic"]


def test_a_large_event_without_an_aggregate_type_yields_a_stub():
    """
    The stub keeps the id as its key, and the original topic.
    """
    parked = ParkedAggregates(10)
    dead = dead_letters(parked)
    dead_letter = dead.of_record(event(b"42", 5000), "first")
    headers = [(n, v) for n, v in dead_letter.headers if n != "aggregate_type"]
    stub = dead.of_large(dead_letter._replace(headers=headers), 1000, 4000)

    assert ("e", b"42") == (json.loads(stub.value or b"")["topic"], stub.key)


def test_a_read_event_parks_nothing():
    """
    A snapshot's event is the aggregate's state, which the next READ supersedes.
    """
    parked = ParkedAggregates(10)
    dead_letters(parked).of_large(event(b"42", 5000, ("snapshot", b"s")), 1000, 100_000)

    assert 0 == len(parked)


def test_a_record_for_a_missing_partition_becomes_a_dead_letter():
    """
    The record is kept unchanged, but without the requested partition.
    """
    routed = replace(event(b"42", 500), partition=17)
    made = dead_letters(ParkedAggregates(10)).of_record(routed, NO_SUCH_PARTITION)

    assert (b"42", b"v" * 100, -1, NO_SUCH_PARTITION.encode()) == (
        made.key,
        made.value,
        made.partition,
        dict(made.headers)["reason"],
    )


def test_a_parked_event_keeps_the_partition_that_its_row_names():
    """
    A replay needs the partition; an event that has only a key lacks this header.
    """
    dead = dead_letters(ParkedAggregates(10))
    made = [
        dict(dead.of_record(replace(event(b"42", 500), partition=at), "no").headers)
        for at in (2, -1)
    ]

    assert [b"2", None] == [headers.get("partition") for headers in made]


def test_the_dead_letter_of_a_message_keeps_its_content():
    """
    Content that is not text is base64.
    """
    dead = dead_letters(ParkedAggregates(10))
    contents: list[Mapping[str, object]] = [
        json.loads(
            dead.of_message(
                LogicalMessageEvent("p", content, 1, 0, TRANSACTION, 1),
                (b"P.1", 9),
                "because",
            ).value
            or b""
        )
        for content in (b"{", b"\xff")
    ]

    assert [
        {"prefix": "p", "content": "{"},
        {"prefix": "p", "content": {"base64": "/w=="}},
    ] == contents


def test_an_operators_skip_keeps_the_raw_message():
    """
    The message's bytes are kept, as are the row's values, named if the table is known.
    """
    row = b"N" + b"\0\x04" + b"t\0\0\0\x011" + b"n" + b"t\0\0\0\x02hi" + b"u"
    raw = b"I" + (7).to_bytes(4, "big") + row
    dead = dead_letters(ParkedAggregates(10))
    named = json.loads(dead.of_skipped(raw, b"P.1", 9, TABLE).value or b"")
    bare = json.loads(dead.of_skipped(raw, b"P.1", 9).value or b"")
    broken = dead.of_skipped(b"I\0", b"P.1", 9)

    assert (
        {"id": "1", "data": None, "note": "hi", "gone": {"unchanged": True}},
        ["1", None, "hi", {"unchanged": True}],
        base64.b64encode(raw).decode(),
        ({"raw": base64.b64encode(b"I\0").decode()}, SKIPPED.encode()),
    ) == (
        named["new"],
        bare["new"],
        named["raw"],
        (json.loads(broken.value or b""), dict(broken.headers)["reason"]),
    )


def test_the_size_of_a_dead_letter_is_an_upper_bound():
    """
    Neither reasons nor names make it larger than stated.
    """
    whole = event(b"k" * 1000, FIXED_BYTES + 1100)
    made = dead_letters(ParkedAggregates(10)).of_record(whole, "r" * 400)
    parts = [made.key or b"", made.value or b""]
    parts += [name.encode() for name, _ in made.headers]
    parts += [value for _, value in made.headers if isinstance(value, bytes)]

    assert made.size >= sum(map(len, parts))

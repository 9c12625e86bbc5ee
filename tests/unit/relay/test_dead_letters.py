"""Dead letters of records that are too large."""

import hashlib
import json

from towpath.relay.routing.dead import TOO_LARGE, DeadLetters
from towpath.relay.routing.record import FIXED_BYTES, Record

KEY = b'{"id":7}'


def record(key: bytes | None = KEY, size: int = 5000) -> Record:
    """Make a record that is too large for its topic."""
    return Record("t", key, b"v" * 100, [("position", b"P.1")], b"P.1", 9, size)


def bury(large: Record, room_bytes: int) -> Record:
    """Set a record aside whose topic takes 1,000 bytes."""
    return DeadLetters("towpath", lambda _: None).of_large(large, 1000, room_bytes)


def test_what_fits_into_the_dead_letters_is_kept_whole():
    """
    Key, value and headers stay; topic of origin and reason are added.
    """
    made = bury(record(), 10_000)
    marks = dict(made.headers)

    assert (
        ("towpath.dead.relay", KEY, b"v" * 100),
        (b"P.1", b"t", TOO_LARGE.encode()),
    ) == (
        (made.topic, made.key, made.value),
        (marks["position"], marks["topic"], marks["reason"]),
    )


def test_what_does_not_fit_leaves_a_stub():
    """
    The stub names topic, position, size, limit, reason and key.
    """
    made = bury(record(), 5000)

    assert {
        "topic": "t",
        "position": "P.1",
        "size_bytes": 5000,
        "limit_bytes": 1000,
        "reason": TOO_LARGE,
        "key": KEY.decode(),
    } == json.loads(made.value or b"")


def test_a_large_key_is_told_by_its_hash():
    """
    A stub never carries a key that would itself be too large.
    """
    key = b"k" * 3000
    made = bury(record(key), 1000)
    stub = json.loads(made.value or b"")

    assert (None, hashlib.sha256(key).hexdigest()) == (made.key, stub["key_sha256"])


def test_a_dead_letter_that_is_too_large_leaves_a_stub_too():
    """
    A dead letter is not put into another one.
    """
    large = record()._replace(topic="towpath.dead.relay")
    made = bury(large, 100_000)

    assert ("towpath.dead.relay", TOO_LARGE) == (
        made.topic,
        json.loads(made.value or b"")["reason"],
    )


def test_a_stub_fits_where_little_fits():
    """
    A stub stays within the smallest limit that is reasonable.
    """
    made = bury(record(b"k" * 2000), 1000)

    assert made.size < 2 * 2048 + 2 * FIXED_BYTES

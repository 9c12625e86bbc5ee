"""The parked aggregates, and the positions from which they are parked."""

from itertools import permutations
from typing import NamedTuple

import pytest

from towpath.relay.encode.parked_aggregates import ParkedAggregates, parking_id
from towpath.relay.errors import ParkedOverflowError
from towpath.relay.kafka.recovery import read_parked


def at(number: int) -> bytes:
    """Write a position."""
    return b"%016x.%010d" % (160, number)


def held(parked: ParkedAggregates, *numbers: int, kind: str = "order") -> list[bool]:
    """Return whether each position of one aggregate is held back."""
    return [parked.holds(kind, b"42", at(number)) for number in numbers]


def test_no_aggregate_is_parked_at_first():
    """
    The hot path then makes a single check.
    """
    parked = ParkedAggregates(10)

    assert (False, 0, [False]) == (bool(parked.spans), len(parked), held(parked, 1))


def test_only_later_events_of_a_parked_aggregate_are_held_back():
    """
    On a replay, earlier events and the dead letter itself are not held back.
    """
    parked = ParkedAggregates(10)
    parked.park("order", b"42", at(5))

    assert [False, False, True] == held(parked, 4, 5, 6)


def test_other_aggregates_are_not_parked():
    """
    Type and id identify the aggregate.
    """
    parked = ParkedAggregates(10)
    parked.park("order", b"42", at(5))

    assert (False, False, False) == (
        parked.holds("customer", b"42", at(6)),
        parked.holds("order", b"43", at(6)),
        parked.holds("order", None, at(6)),
    )


def test_an_earlier_dead_letter_moves_the_parked_start_back():
    """
    Acknowledgements arrive in any order; a later dead letter changes nothing.
    """
    parked = ParkedAggregates(10)
    for number in (5, 7, 3):
        parked.park("order", b"42", at(number))

    assert ([False, True, True], 1) == (held(parked, 3, 4, 8), len(parked))


def test_a_dead_letter_without_a_type_parks_every_type():
    """
    The row's type is unknown, so every type with that id is parked.
    """
    parked = ParkedAggregates(10)
    parked.park(None, b"42", at(5))

    assert (True, True) == (
        parked.holds("order", b"42", at(6)),
        parked.holds("customer", b"42", at(6)),
    )


def test_a_release_frees_only_later_events():
    """
    Events parked before the release remain dead letters on a replay.
    """
    parked = ParkedAggregates(10)
    for number in (5, 7):
        parked.park("order", b"42", at(number))
    parked.release("order", b"42", at(7))

    assert ([False, True, True, False], 0) == (held(parked, 5, 6, 7, 8), len(parked))


def test_a_release_below_the_last_dead_letter_frees_nothing():
    """
    Events parked meanwhile remain parked, and so do all later ones.
    """
    parked = ParkedAggregates(10)
    for number in (5, 9):
        parked.park("order", b"42", at(number))
    parked.release("order", b"42", at(7))

    assert ([True, True], 1) == (held(parked, 8, 10), len(parked))


def test_a_released_aggregate_may_be_parked_again():
    """
    Events between the two spans were published, and a replay publishes them again.
    """
    parked = ParkedAggregates(10)
    parked.park("order", b"42", at(5))
    parked.release("order", b"42", at(5))
    parked.park("order", b"42", at(9))

    assert ([False, False, False, True], 1) == (
        held(parked, 5, 7, 9, 10),
        len(parked),
    )


def test_a_release_applies_to_one_type_or_to_all():
    """
    An event without a type has a separate release.
    """
    parked = ParkedAggregates(10)
    for kind in ("order", "customer", None):
        parked.park(kind, b"42", at(5))
    parked.release("order", b"42", at(5))
    remaining = [len(parked)]
    parked.release(None, b"42", at(5))
    remaining.append(len(parked))
    parked.release_all(b"42", at(5))

    assert ([2, 1], 0) == (remaining, len(parked))


@pytest.mark.parametrize("headers", [[("aggregate_type", b"order")], []])
def test_a_release_may_be_read_before_its_dead_letter(headers: list[tuple[str, bytes]]):
    """
    Partitions are read in any order, so positions decide, on a replay as well.
    """
    parked = ParkedAggregates(10)
    parked.restore(b"42", None, [*headers, ("released", at(7))])
    for number in (5, 7):
        parked.park("order", b"42", at(number))
    before = held(parked, 5, 6, 7, 8)
    parked.park("order", b"42", at(9))

    assert ([False, True, True, False], [False, True]) == (before, held(parked, 9, 10))


def test_a_released_dead_letter_may_be_read_after_a_later_one():
    """
    It does not reopen the span that its release has closed.
    """
    in_order, mixed = ParkedAggregates(10), ParkedAggregates(10)
    for number in (5, 7):
        in_order.park("order", b"42", at(number))
    in_order.release("order", b"42", at(10))
    in_order.park("order", b"42", at(12))
    mixed.release("order", b"42", at(10))
    for number in (12, 7, 5):
        mixed.park("order", b"42", at(number))
    numbers = range(4, 15)

    assert held(in_order, *numbers) == held(mixed, *numbers)
    assert [False, False, True, True, *[False] * 5, True, True] == held(mixed, *numbers)


class Read(NamedTuple):
    """A record of the dead-letter topic as the client returns it."""

    made: tuple[bytes, bytes | None, list[tuple[str, bytes]]]

    def key(self) -> bytes:
        return self.made[0]

    def value(self) -> bytes | None:
        return self.made[1]

    def headers(self) -> list[tuple[str, bytes]]:
        return self.made[2]


class Partitions(tuple[Read, ...]):
    """Records of several partitions, in the order in which they are read."""

    __slots__ = ()

    def partition_counts(self) -> dict[str, int]:
        return {"towpath.dead.relay": len(self)}

    def read_to_ends(self, _starts: object, _what: str) -> "Partitions":
        return self


def dead_letter(number: int) -> Read:
    """Make a dead letter."""
    return Read(
        (b"k%d" % number, b"{}", [*KIND, ("position", at(number)), ("parked", b"42")])
    )


def release(number: int) -> Read:
    """Make a release."""
    return Read((b"42", None, [*KIND, ("released", at(number))]))


KIND = [("aggregate_type", b"order")]


@pytest.mark.parametrize(
    "written",
    [
        (dead_letter(1), dead_letter(2), release(2), dead_letter(4)),
        (
            dead_letter(1),
            release(1),
            dead_letter(3),
            release(3),
            dead_letter(5),
            dead_letter(6),
        ),
        (
            dead_letter(1),
            dead_letter(2),
            release(2),
            dead_letter(4),
            dead_letter(5),
            release(5),
        ),
    ],
    ids=["parked again", "released twice", "not parked"],
)
def test_dead_letters_of_several_partitions_are_read_in_any_order(
    written: tuple[Read, ...],
):
    """
    An aggregate's events and its release may be in different partitions.
    """
    numbers = range(8)
    in_order = read_parked(Partitions(written), "towpath", 10)
    wanted = [held(in_order, *numbers), len(in_order)]
    for order in permutations(written):
        parked = read_parked(Partitions(order), "towpath", 10)

        assert wanted == [held(parked, *numbers), len(parked)]


def test_the_number_of_parked_aggregates_is_limited():
    """
    More parked aggregates than configured halt the relay; parking one again does not.
    """
    parked = ParkedAggregates(2)
    for _ in range(3):
        parked.park("order", b"1", at(5))
        parked.park("order", b"2", at(5))

    with pytest.raises(ParkedOverflowError, match="limit of 2"):
        parked.park("order", b"3", at(5))


def test_a_long_aggregate_id_is_kept_as_its_hash():
    """
    The memory per aggregate is limited.
    """
    parked = ParkedAggregates(10)
    parked.park("order", b"k" * 100_000, at(5))

    assert (True, True, True) == (
        all(len(known) < 100 for known in parked.spans),
        parked.holds("order", b"k" * 100_000, at(6)),
        parked.holds("order", parking_id(b"k" * 100_000), at(6)),
    )


def test_parked_aggregates_are_recovered_from_dead_letters():
    """
    A record with ``parked`` parks; one with ``released`` and no value releases.
    """
    parked = ParkedAggregates(10)
    letter = [("aggregate_type", b"order"), ("position", at(5)), ("parked", b"42")]
    parked.restore(b"42", b"{}", letter)
    before = held(parked, 6)
    parked.restore(b"42", None, [("aggregate_type", b"order"), ("released", at(5))])

    assert ([True], [False]) == (before, held(parked, 6))


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"42", b"{}", [("position", at(5))]),
        (b"42", b"{}", [("parked", b"42")]),
        (b"42", None, [("position", at(5))]),
        (None, None, [("released", at(5))]),
        (b"42", b"{}", [("aggregate_type", b"\xff")]),
    ],
)
def test_other_records_of_the_dead_letter_topic_park_nothing(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
):
    """
    These are row changes, messages, incomplete records and those of other programs.
    """
    parked = ParkedAggregates(10)
    parked.restore(key, value, headers)

    assert {} == parked.spans


def test_at_startup_the_limit_applies_to_aggregates_still_parked():
    """
    Aggregates released by the end of the dead letters do not count.
    """
    parked = ParkedAggregates(1)
    for key in (b"1", b"2"):
        parked.restore(key, b"{}", [("position", at(5)), ("parked", key)])
    with pytest.raises(ParkedOverflowError):
        parked.check()
    parked.restore(b"1", None, [("released", at(5))])
    parked.check()

    assert 1 == len(parked)

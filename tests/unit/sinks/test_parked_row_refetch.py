"""A parked key whose row changes on: the row is read as it is, which may free it."""

import pytest

from support.dead_letters import Asked, InMind
from support.parked_shop import FILL, Shop, change
from towpath.sinks.dead_letters.letter import Verb

ASKED = ("orders", (7,))


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self):
        """Tell its time."""
        return self.now_s


@pytest.fixture
def clock():
    """Lend a clock."""
    return Clock()


@pytest.fixture
def shop(clock):
    """Lend a shop with a parked order."""
    shop = Shop(can_ask=True, owed=InMind(clock=clock))
    shop.write(change(1, "c", note="a", bio="x"))
    shop.write(change(2, note="bad", unchanged=["bio"]))
    assert (1, []) == (len(shop.parked), shop.repairs.keys)
    return shop


def read(number, note="good", operation="r"):
    """Make the answer to a question."""
    record = change(number, operation, topic=FILL, note=note, bio="x")
    return record._replace(headers={"position": f"{number * 8:016x}.-".encode()})


@pytest.mark.parametrize("unchanged", [["bio"], None])
def test_a_change_behind_has_its_row_asked_for_which_lets_the_key_go(shop, unchanged):
    """Whole or partial: both wait, and the row as it is stands above both."""
    shop.write(change(3, note="good", unchanged=unchanged))
    owed = len(shop.owed)
    shop.write(read(4))

    assert ([ASKED], 1, 0, 0) == (
        shop.repairs.keys,
        owed,
        len(shop.owed),
        len(shop.parked),
    )
    assert {"7": "good"} == shop.sink.notes


def test_a_delete_behind_lets_the_key_go(shop):
    """The answer says that there is no row."""
    shop.write(change(3, "d"))
    shop.write(read(4, operation="d"))

    assert ([ASKED], 0, {"7": None}) == (
        shop.repairs.keys,
        len(shop.parked),
        shop.sink.notes,
    )


def test_a_row_is_asked_for_once_however_often_it_changes(shop, clock):
    """Until the answer comes, or does not for a while; it may come too early."""
    for number in (3, 5):
        shop.write(change(number, note="good"))
    one = list(shop.repairs.keys)
    shop.write(read(4))
    two = list(shop.repairs.keys)
    clock.now_s += 61
    shop.write(change(6, note="good"))
    three = list(shop.repairs.keys)
    shop.write(read(7))

    assert ([ASKED], [ASKED] * 2, [ASKED] * 3, 0, 0) == (
        *(one, two, three),
        len(shop.parked),
        len(shop.owed),
    )


def test_a_row_that_is_refused_as_it_is_waits_for_its_next_change(shop):
    """Nobody waits for it meanwhile, and it is not asked for again and again."""
    shop.write(change(3, note="bad"))
    shop.write(read(4, note="bad"))
    refused = len(shop.parked), len(shop.owed), list(shop.repairs.keys)
    shop.write(change(5, note="good"))
    shop.write(read(6))

    assert ((1, 0, [ASKED]), [ASKED] * 2, 0) == (
        refused,
        shop.repairs.keys,
        len(shop.parked),
    )


def test_what_comes_again_asks_for_nothing_new(shop):
    """The question was durable before the letter was."""
    shop.write(change(3, note="good"))
    shop.begin()
    shop.write(change(2, note="bad", unchanged=["bio"]), change(3, note="good"))

    assert [ASKED] == shop.repairs.keys


def test_where_nobody_can_be_asked_the_key_stays_parked():
    """As ever: it can be replayed or given up."""
    shop = Shop()
    shop.write(change(1, "c", note="bad"))
    shop.write(change(2, note="good"))
    held = len(shop.parked), len(shop.owed)
    shop.sink.is_mended = True

    assert ((1, 0), "replayed") == (held, shop.ask(Verb.REPLAY).how)


def test_a_question_that_cannot_be_sent_leaves_the_batch_to_come_again(shop):
    """Nothing of it is set aside before."""
    shop.repairs = Asked()
    letters = len(shop.letters.records)

    def fail(*_):
        message = "no broker"
        raise ConnectionError(message)

    shop.repairs.ask_keys = fail
    shop.begin()
    with pytest.raises(ConnectionError):
        shop.write(change(3, note="good"))

    assert letters == len(shop.letters.records)

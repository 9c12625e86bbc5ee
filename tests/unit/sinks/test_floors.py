"""Floors are carried out once, and reject the changes below them."""

from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.tally import Floors, Tally

ORIGIN = Origin("orders", 0, 0)


def at(number):
    """Return the position of a READ row."""
    return f"{number:016x}.-"


def floor(number, route="orders"):
    """Make a floor."""
    return Floor(route, at(number), needs_all=False, origin=ORIGIN)


def change(number, route="orders"):
    """Make a change at a position."""
    row = {"id": 1}
    return Change(route, (1,), ("id",), at(number), row, ALL_PRESENT, False, ORIGIN)


def test_a_remembered_floor_is_carried_out_again():
    """
    The process may have ended after storing the floor and before deleting the rows.
    """
    floors = Floors()
    floors.learn("orders", at(5))

    assert [("orders", at(5))] == floors.due([floor(5), floor(3)])


def test_a_floor_is_carried_out_once():
    """
    Every partition has a copy of the truncate, and the first copy deletes the rows.
    """
    floors = Floors()
    floors.learn("orders", at(5))
    floors.mark_applied("orders", at(5))

    assert [] == floors.due([floor(5)])
    assert [("orders", at(6)), ("customers", at(1))] == floors.due(
        [floor(6), floor(5), floor(1, "customers")]
    )


def test_a_lower_floor_is_not_carried_out():
    """
    All rows below it are also below the higher floor.
    """
    floors = Floors()
    floors.learn("orders", at(5))

    assert [] == floors.due([floor(4)])


def test_changes_below_the_floor_are_stale():
    """
    Each route has a floor of its own.
    """
    floors, tally = Floors(), Tally()
    floors.learn("orders", at(5))
    floors.learn("orders", at(4))
    changes = [change(4), change(5), change(1, "customers")]

    assert changes[1:] == list(floors.above(changes, tally))
    assert 1 == tally.stale

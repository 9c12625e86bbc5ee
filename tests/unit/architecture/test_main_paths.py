"""Hops of the main paths, and who holds whom in the relay's loop."""

from functools import partial

import pytest

from house import paths
from house.hops import Call, Hops, hops_of, traced, within
from house.references import circles, components, holdings
from support.relay_bench import Bench, frames
from towpath.schemas.position import Position, format_position, parse_position

# With compiled modules, another process walks the paths.
pytestmark = pytest.mark.timeout(60)


def test_a_turn_that_acknowledges_does_more_than_an_idle_one():
    """
    The walk of each is what its name says, so that the measures are.
    """
    assert hops_of(paths.acknowledgement()).calls > hops_of(paths.idle_turn()).calls
    assert within(paths.outbox_row(), paths.CONSUMER)
    assert not within(paths.acknowledgement(), paths.CONSUMER)


def test_an_idle_snapshot_is_asked_once_a_turn():
    """
    The loop's one question is whether any snapshot is active.
    """
    asked = paths.snapshot_questions(paths.idle_turn())

    assert ["SnapshotRunner.is_active"] == [call.function for call in asked]


def test_hops_count_modules_calls_and_switches():
    """
    Returning to a module is a switch; another call within it is none.
    """
    calls = [Call(0, "a", "f"), Call(1, "a", "g"), Call(1, "b", "h"), Call(0, "a", "f")]

    assert Hops(2, 4, 2) == hops_of(calls)


def test_hops_within_a_module_are_its_calls_and_what_they_call():
    """
    Other calls of its callers, before and after, do not count.
    """
    calls = [
        Call(0, "loop", "turn"),
        Call(1, "consumer", "follow"),
        Call(2, "encode", "event"),
        Call(3, "consumer", "inner"),
        Call(1, "loop", "poll"),
        Call(1, "consumer", "again"),
    ]

    assert [1, 2, 3, 5] == [calls.index(call) for call in within(calls, "consumer")]


def test_a_trace_has_the_calls_of_the_source_with_their_depth():
    """
    Neither this test's own functions, nor libraries, nor comprehensions are in it.
    """
    texts = [format_position(1, 2)]
    with traced() as calls:
        found = [parse_position(text) for text in texts]

    assert [Position(1, 2)] == found
    assert Call(0, "schemas/position.py", "parse_position") == calls[0]
    assert {"schemas/position.py"} == {call.module for call in calls}


def test_no_objects_of_the_relays_loop_hold_each_other_in_a_circle():
    """
    Wiring has one direction: what is decided is returned, nothing calls back.
    """
    assert [] == circles(holdings(warm_loop()))


def warm_loop():
    """Return a loop that has read and requested something, and its snapshots."""
    bench = Bench()
    bench.stream.reads.append(frames())
    bench.turn(20)
    return bench.pipeline


class Node:
    """An object that holds others by an attribute."""

    def __init__(self, *held):
        self.held = held

    def method(self):
        """Do nothing."""


class Slotted:
    """An object that holds another by a slot."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def names_held(root):
    """Return the classes whose objects a root of this module reaches."""
    found = holdings([root], package=__name__)
    return sorted(type(objects[0]).__name__ for objects in found.values())


def test_references_go_through_slots_methods_closures_and_containers():
    """
    Each of these ways leads to the object that is held.
    """
    held = Node()
    ways = [
        Slotted(held),
        Slotted(held.method),
        Slotted(lambda: held),
        Slotted(partial(print, held)),
        Slotted({"a": [(held,)]}),
        Slotted({held}),
    ]

    assert [["Node", "Slotted"]] * len(ways) == [names_held(way) for way in ways]


def test_a_planted_circle_of_objects_is_found():
    """
    A callback closes it; one object that holds its own method is no circle.
    """
    inner, alone = Slotted(None), Node()
    outer = Node(inner)
    inner.held = outer.method
    alone.held = alone.method
    found = holdings([Node(outer), alone], package=__name__)

    assert [["Node", "Slotted"]] == circles(found)


def test_components_of_a_graph_are_strongly_connected():
    """
    Nodes before and behind a circle are not part of it.
    """
    graph = {0: [1], 1: [2], 2: [1, 3], 3: []}

    assert [[0], [1, 2], [3]] == sorted(sorted(each) for each in components(graph))

"""Hops on the main paths, and references between the objects of the relay's loop."""

from functools import partial

import pytest

from house import paths
from house.hops import Call, Hops, hops_of, traced, within
from house.references import components, cycles, reference_graph
from support.relay_bench import Bench, frames
from towpath.schemas.position import Position, format_position, parse_position

# If this process runs compiled modules, another process must walk the paths.
pytestmark = pytest.mark.timeout(60)


def test_an_acknowledging_turn_makes_more_calls_than_an_idle_one():
    """
    Each walk takes the path that it is named after, so the measures are right.
    """
    assert hops_of(paths.acknowledgement()).calls > hops_of(paths.idle_turn()).calls
    assert within(paths.outbox_row(), paths.CONSUMER)
    assert not within(paths.acknowledgement(), paths.CONSUMER)


def test_an_idle_snapshot_is_queried_once_per_turn():
    """
    The loop only checks whether any snapshot is active.
    """
    queries = paths.snapshot_queries(paths.idle_turn())

    assert ["SnapshotRunner.is_active"] == [call.function for call in queries]


def test_hops_count_modules_calls_and_switches():
    """
    Returning to a module is a switch; a further call within it is not.
    """
    calls = [Call(0, "a", "f"), Call(1, "a", "g"), Call(1, "b", "h"), Call(0, "a", "f")]

    assert Hops(2, 4, 2) == hops_of(calls)


def test_hops_within_a_module_include_the_calls_below_them():
    """
    Calls that the callers make before and after do not count.
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
    Functions of this test and of libraries, and comprehensions, are left out.
    """
    texts = [format_position(1, 2)]
    with traced() as calls:
        found = [parse_position(text) for text in texts]

    assert [Position(1, 2)] == found
    assert Call(0, "schemas/position.py", "parse_position") == calls[0]
    assert {"schemas/position.py"} == {call.module for call in calls}


def test_no_objects_of_the_relays_loop_form_a_reference_cycle():
    """
    Wiring has one direction: decisions are returned, and nothing calls back.
    """
    assert [] == cycles(reference_graph(warm_loop()))


def warm_loop():
    """Return a loop that has read and published records, and its snapshots."""
    bench = Bench()
    bench.stream.reads.append(frames())
    bench.turn(20)
    return bench.pipeline


class Node:
    """An object that holds others in an attribute."""

    def __init__(self, *held):
        self.held = held

    def method(self):
        """Do nothing."""


class Slotted:
    """An object that holds another in a slot."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def names_held(root):
    """Return the class names of this module's objects that a root reaches."""
    found = reference_graph([root], package=__name__)
    return sorted(type(objects[0]).__name__ for objects in found.values())


def test_references_are_followed_through_slots_methods_and_containers():
    """
    Attributes, partial functions and closures lead to the held object too.
    """
    held = Node()
    holders = [
        Slotted(held),
        Slotted(held.method),
        Slotted(lambda: held),
        Slotted(partial(print, held)),
        Slotted({"a": [(held,)]}),
        Slotted({held}),
    ]

    assert [["Node", "Slotted"]] * len(holders) == [
        names_held(holder) for holder in holders
    ]


def test_a_planted_reference_cycle_is_found():
    """
    A callback closes the cycle; an object that holds its own method does not form one.
    """
    inner, alone = Slotted(None), Node()
    outer = Node(inner)
    inner.held = outer.method
    alone.held = alone.method
    found = reference_graph([Node(outer), alone], package=__name__)

    assert [["Node", "Slotted"]] == cycles(found)


def test_components_of_a_graph_are_strongly_connected():
    """
    Nodes before and after a cycle are not part of it.
    """
    graph = {0: [1], 1: [2], 2: [1, 3], 3: []}

    assert [[0], [1, 2], [3]] == sorted(sorted(each) for each in components(graph))

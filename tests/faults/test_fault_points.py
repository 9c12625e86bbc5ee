"""
Killed at a named point, the relay loses nothing and repeats nothing (I3, I4).

Each test writes a history of every kind of record, lets the relay kill itself, once or
twice in a row, and compares what stands in the end with what a relay that was never
killed makes of the same log.
"""

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

EVERYTHING = """
[relay.transactions]
metadata = true
[relay.messages]
publish = true
"""

STREAMING = (
    [("produced", 1)],
    [("produced+", 40)],
    [("produced+", 90)],
    [("acknowledged", 1)],
    [("acknowledged", 57)],
    [("before marks", 2)],
    [("marks produced", 2)],
    [("marks produced+", 3)],
    [("marks stored", 1)],
    [("marks stored", 2)],
    [("postgres told", 1)],
    [("postgres told", 2)],
    [("deleted+", 1)],
    [("tombstone+", 1)],
    [("tombstone", 2)],
    [("topic made", 4)],
    [("before first mark", 2)],
    [("first mark", 1)],
    [("first mark+", 3)],
    [("before settings", 1)],
    [("settings", 1)],
    [("before lineage", 1)],
    [("lineage", 1)],
)
RECOVERING = (
    [("produced+", 60), ("before tails", 1)],
    [("produced+", 60), ("in tails", 5)],
    [("produced+", 60), ("after tails", 1), ("stream begun", 1)],
    [("acknowledged", 40), ("produced+", 20), ("marks produced+", 1)],
)


def named(deaths: list[tuple[str, int]]) -> str:
    """Name a parameter."""
    return ", ".join(f"{point} {nth}" for point, nth in deaths)


@pytest.mark.parametrize("deaths", STREAMING + RECOVERING, ids=named)
def test_killed_at_a_point_nothing_is_lost_or_twice(faults, deaths):
    """
    Whatever stands in the topics afterwards is what was never interrupted (A96, B1).
    """
    faults.prepare(sections=EVERYTHING)
    faults.write(2)
    for point, nth in deaths:
        faults.relay.die(point, nth)
    faults.write()
    faults.relay.start()

    assert faults.reckon() > 100

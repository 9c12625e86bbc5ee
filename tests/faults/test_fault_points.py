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

CHAINS = {
    "handed over": [("produced", 1), ("produced+", 40), ("produced", 100)],
    "heard": [("acknowledged", 1), ("acknowledged", 57)],
    "marks": [("before marks", 2), ("marks produced", 2), ("marks produced+", 3)],
    "told": [("marks stored", 1), ("postgres told", 1), ("marks stored", 2)],
    "key change": [("deleted+", 1), ("tombstone+", 2), ("tombstone", 1)],
    "new topic": [("topic made", 4), ("before first mark", 2), ("first mark+", 1)],
    "beginning": [
        ("before lineage", 1),
        ("lineage", 1),
        ("before settings", 1),
        ("settings", 1),
    ],
    "recovering": [
        ("produced+", 60),
        ("before tails", 1),
        ("in tails", 5),
        ("after tails", 1),
        ("stream begun", 1),
        ("produced+", 20),
    ],
}


@pytest.mark.parametrize("deaths", CHAINS.values(), ids=CHAINS)
def test_killed_at_a_point_nothing_is_lost_or_twice(faults, deaths):
    """
    Whatever stands in the topics afterwards is what was never interrupted (A96, B1).
    """
    faults.prepare(sections=EVERYTHING)
    faults.writer.write()
    for point, nth in deaths:
        faults.writer.write()
        faults.relay.die(point, nth)
    faults.writer.write()
    faults.relay.start()

    assert faults.reckon() > 100

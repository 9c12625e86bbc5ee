"""The verdict on a topic: every difference is found and counted."""

import pytest

from support.copying import replace
from towpath.loadtests.bench.figures import (
    ArrivedEvent,
    CommittedEvent,
    EventCheck,
    check_events,
    digest,
)


def committed(number: int, key: bytes) -> tuple[bytes, CommittedEvent]:
    """Make a committed event."""
    body = digest(b"payload %d" % number)
    return b"id-%d" % number, CommittedEvent(number, key, body, number * 1000)


COMMITTED = dict(
    [committed(0, b"a"), committed(1, b"b"), committed(2, b"a"), committed(3, b"b")]
)


def arrival(number: int, offset: int, **changes) -> ArrivedEvent:
    """Make an event's expected record; key a is in partition 0, key b in 1."""
    event_id, event = b"id-%d" % number, COMMITTED[b"id-%d" % number]
    partition = 0 if event.key == b"a" else 1
    expected = ArrivedEvent(partition, offset, event_id, event.key, event.digest, 5)
    return replace(expected, **changes)


WHOLE = [arrival(0, 0), arrival(2, 1), arrival(1, 0), arrival(3, 1)]


def test_a_complete_topic_is_clean():
    """
    Every event is there once, unchanged and in order per key: nothing is found.
    """
    verdict = check_events(COMMITTED, WHOLE)

    assert (EventCheck(4, 0, 0, 0, 0, 0), True, ()) == (
        verdict,
        verdict.is_clean,
        verdict.findings(),
    )


@pytest.mark.parametrize(
    ("arrivals", "finding"),
    [
        (WHOLE[1:], "1 lost"),
        ([*WHOLE, arrival(3, 2)], "1 duplicate"),
        ([*WHOLE, arrival(3, 2, event_id=b"other")], "1 unknown"),
        ([*WHOLE[:3], arrival(3, 1, digest=digest(b"other"))], "1 changed"),
        ([*WHOLE[:3], arrival(3, 1, digest=digest(None))], "1 changed"),
        ([*WHOLE[:3], arrival(3, 1, key=b"a")], "1 changed"),
        ([arrival(2, 0), arrival(0, 1), *WHOLE[2:]], "1 disordered"),
        ([*WHOLE[:3], arrival(3, 0, partition=2)], "1 disordered"),
        ([], "4 lost"),
    ],
)
def test_a_planted_difference_is_found(arrivals: list[ArrivedEvent], finding: str):
    """
    Loss, repeats, unknown events, changed payloads or keys, and disorder are counted.
    """
    assert (finding,) == check_events(COMMITTED, arrivals).findings()


def test_a_repeat_after_a_restart_does_not_count_as_disorder():
    """
    A repeat follows later events of its key, but counts only as a repeat.
    """
    verdict = check_events(COMMITTED, [*WHOLE[:2], arrival(0, 2), *WHOLE[2:]])

    assert ("1 duplicate",) == verdict.findings()


def test_a_missing_payload_differs_from_an_empty_one():
    """
    A tombstone instead of an empty payload is a change.
    """
    assert digest(None) != digest(b"")

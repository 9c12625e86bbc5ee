"""The conclusions that a reader may draw from published progress."""

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from towpath.sinks.errors import UnreadableProgressError
from towpath.sinks.state.progress import Progress, State
from towpath.sinks.state.published import (
    RECEIVED_WITHIN_S,
    NewestRuns,
    PublishedProgress,
    PublishedVerification,
    ReceivedProgress,
    RefetchNumbers,
    decode_published,
    decode_verification,
    encode_published,
    encode_verification,
    not_alive,
    verified_sink,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORIGIN = "2026-01-02T03:04:05+00:00 (process 8 on here)"
APPLIED = {"shop.orders": {"0": 7}}


def record(run=1, number=0, at=NOW, **fields):
    """Make a record of a cache."""
    progress = Progress("cache", State.READY, APPLIED, rows=3)
    process = {"host": "here", "pid": 8}
    return PublishedProgress(
        run, number, at.isoformat(), progress=progress, **process, **fields
    )


def test_a_published_verification_is_decoded_as_it_was_encoded():
    """
    Its key is not a sink's; records that are invalid or too new are ignored.
    """
    found = PublishedVerification("cache", NOW.isoformat(), 3, 100)
    text = encode_verification(found)

    assert found == decode_verification(text)
    assert "cache" == verified_sink(found.key.decode())
    assert verified_sink("cache") is None
    for other in (text.replace(b'"version":1', b'"version":2'), b"{}", b"[]", b"{"):
        assert decode_verification(other) is None


def test_a_published_record_is_decoded_as_it_was_encoded():
    """
    Fields that a later version adds are ignored.
    """
    given = record(
        is_open=True,
        unfilled=("orders",),
        refetches=RefetchNumbers(9, 4),
        is_filling=True,
    )
    document = orjson.loads(encode_published(given))
    later = {name: {**document[name], "more": 1} for name in ("progress", "refetches")}

    assert given == decode_published(orjson.dumps({**document, **later, "more": 1}))
    assert 1 == document["version"]


def test_pending_refetches_are_read_under_their_earlier_name():
    """
    A driver of version 0.1.0 may run while readers of a later version do.
    """
    document = orjson.loads(encode_published(record()))
    progress = document["progress"]
    assert 0 == progress.pop("pending_refetches")
    earlier = {**document, "progress": {**progress, "owed": 7}}
    both = {**document, "progress": {**progress, "owed": 7, "pending_refetches": 8}}

    assert [7, 8] == [
        decode_published(orjson.dumps(each)).progress.pending_refetches
        for each in (earlier, both)
    ]


@pytest.mark.parametrize(
    "value",
    [
        *(b'{"version": 2, "run": 1}', b"[]", b"{", b'{"version": 1}'),
        encode_published(record()).replace(b'"progress":{', b'"progress":[],"x":{'),
    ],
)
def test_a_record_of_a_different_version_raises_an_error(value):
    """
    A reader that cannot understand a driver must not report that there is none.
    """
    with pytest.raises(UnreadableProgressError):
        decode_published(value)


def test_the_newest_run_counts_in_whatever_order_records_arrive():
    """
    A driver that was suspended, or runs in another folder, publishes late.
    """
    records = [record(1, 0), record(1, 5), record(2, 0), record(2, 1)]
    for order in itertools.permutations(records):
        runs = NewestRuns()
        for one in order:
            runs.take("cache", one, None)

        assert runs.newest("cache") == records[-1]


def test_late_records_of_a_dropped_sink_are_ignored():
    """
    The last record of its driver may arrive after the drop; a new sink's record counts.
    """
    runs = NewestRuns()
    runs.take("cache", record(3), None)
    runs.take("cache", None, None)
    dropped = runs.newest("cache")
    runs.take("cache", record(3, 1), None)
    late = runs.newest("cache")
    runs.take("cache", record(4), None)

    assert (None, None, record(4)) == (dropped, late, runs.newest("cache"))


@pytest.mark.parametrize(
    ("behind_s", "arrived_s", "expected_s"),
    [
        # The driver's clock agrees with the reader's.
        (5, None, 5),
        # A clock that is behind or ahead matters only while no arrival is known.
        (3600, None, 3600),
        (-3600, None, 3600),
        (3600, 98, 2),
        (-3600, 98, 2),
        # The smaller age counts: this record arrived 90 seconds ago.
        (50, 10, 50),
    ],
)
def test_the_age_of_a_record_does_not_depend_on_synchronized_clocks(
    behind_s, arrived_s, expected_s
):
    """
    A record whose arrival the reader has seen counts as no older than its arrival.
    """
    runs = NewestRuns()
    runs.take("cache", record(at=NOW - timedelta(seconds=behind_s)), arrived_s)
    received = runs.received("cache", NOW, 100.0)

    assert expected_s == received.silent_s


def test_a_silent_driver_is_not_alive():
    """
    Each reason has a sentence of its own, with the driver's time and process.
    """
    fresh, ended = record(), replace(record(), is_running=False)
    silent = ReceivedProgress(fresh, RECEIVED_WITHIN_S)

    assert (True, False, False) == (
        ReceivedProgress(fresh, RECEIVED_WITHIN_S - 1).is_alive,
        ReceivedProgress(ended).is_alive,
        silent.is_alive,
    )
    assert [
        None,
        "no driver has published any progress of the sink cache",
        f"the driver of the sink cache ended at {ORIGIN}",
        f"the driver of the sink cache has not been heard from since {ORIGIN}",
    ] == [
        not_alive(received, "cache")
        for received in (ReceivedProgress(fresh), None, ReceivedProgress(ended), silent)
    ]

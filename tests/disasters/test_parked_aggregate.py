"""Events that cannot be published, and their replay: docs/disasters."""

import json

import pytest

from support.topics import headers_of

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

INSERT = """
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload, headers)
values (gen_random_uuid(), 'parcel', %s, %s, %s, %s)
"""


EXIT_HELD = 3
EXIT_REFUSED = 2
PARCEL_ONE = ("--type", "parcel", "--id", "one")


def record_events(disaster, parcel, *kinds):
    """Record events of a parcel; the headers of a broken event are not an object."""
    for kind in kinds:
        headers = '["not an object"]' if kind == "Broken" else None
        payload = json.dumps({"kind": kind})
        disaster.execute(INSERT, parcel, kind, payload, headers)
    disaster.confirm()


def published(disaster, parcel):
    """Return the types of a parcel's published events, in order."""
    return [
        headers_of(record)["type"]
        for record in disaster.records("event.parcel")
        if record.key() == parcel.encode()
    ]


def replay(disaster, *options):
    """Replay the parked parcel; return the exit code."""
    return disaster.towpath(
        "relay", "dead-letters", "replay", *PARCEL_ONE, *options
    ).code


def test_a_parked_aggregate_is_replayed_in_order(disaster):
    """
    Events are published once and in order; the row that is not an event is dropped.
    """
    with disaster.running():
        disaster.step("a service writes a row that cannot be decoded as an event")
        record_events(disaster, "one", "Packed", "Broken", "Sent", "Received")
        record_events(disaster, "two", "Packed")
        found = published(disaster, "one"), published(disaster, "two")
        assert (["Packed"], ["Packed"]) == found
        disaster.towpath("relay", "dead-letters", "list")
        disaster.towpath("relay", "dead-letters", "show", *PARCEL_ONE)
        disaster.step("the relay still runs: the command fails")
        assert EXIT_HELD == replay(disaster)

        disaster.step("stop the relay, and replay")
        assert 0 == disaster.stop()
        assert EXIT_REFUSED == replay(disaster)
        assert 0 == replay(disaster, "--drop")
        disaster.start()
        record_events(disaster, "one", "Opened")
        assert ["Packed", "Sent", "Received", "Opened"] == published(disaster, "one")

        disaster.step("a restart after a crash does not park it again")
        disaster.kill()
        disaster.start()
        record_events(disaster, "one", "Returned")
        assert "Returned" == published(disaster, "one")[-1]
        assert 0 == disaster.towpath("relay", "dead-letters", "list").code
        disaster.verify_events()
        disaster.verify()

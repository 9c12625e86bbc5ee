"""Requests as a receiver gets them."""

import json
import re

import orjson
import pytest

from support.copying import replace
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.targets.webhook.schema import (
    id_of,
    lanes,
    request_of,
    sweep_of,
)

AT = "0000000000000010.0000000003"
ORIGIN = Origin("t", 0, 0)


def change(key: object = 7, position: str = AT, **more) -> Change:
    """Make a change to an order."""
    given = {"row": {"order_id": key}, "unchanged": ALL_PRESENT, **more}
    return Change(
        "orders", (key,), ("order_id",), position, is_read=False, origin=ORIGIN, **given
    )


def event(number: int, aggregate_id: str = "a", ordinal: int = 0) -> EventRow:
    """Make an event."""
    return EventRow(
        *("events", f"e{number}", "order", aggregate_id, "OrderPlaced"),
        *('{"n":1}', '{"traceparent":"x"}', f"{number:016x}.{ordinal:010d}", "2026"),
        ORIGIN,
    )


def only(given) -> dict:
    """Return the only change of a request, as its receiver reads it."""
    (one,) = json.loads(request_of([given]).body)["changes"]
    return one


@pytest.mark.parametrize("event_id", ["заказ-2", "a\nb", "1.2", "x" * 500])
def test_an_event_id_that_is_not_a_header_value_is_hashed(event_id):
    """
    The request's id is ASCII text without a dot; the change has the event's own id.
    """
    given = event(1)._replace(id=event_id)

    assert re.fullmatch(r"event_[0-9a-f]{32}_[0-9a-f]{32}", id_of(given))
    assert event_id == only(given)["event_id"]


def test_a_row_request_has_key_position_and_columns():
    """
    A partial change lists the columns that it left out.
    """
    partial = change(row={"order_id": 2**63 - 1}, unchanged=frozenset({"b", "a"}))

    assert only(partial) == {
        "id": id_of(partial),
        "op": "upsert",
        "route": "orders",
        "position": AT,
        "key": [7],
        "key_columns": ["order_id"],
        "is_snapshot": False,
        "row": {"order_id": 2**63 - 1},
        "unchanged": ["a", "b"],
    }


def test_a_delete_request_has_no_row():
    """
    A deleted row has only its key.
    """
    payload = only(change(row=None))

    assert ("delete", False) == (payload["op"], "row" in payload)


def test_a_document_request_keeps_every_digit():
    """
    A document is sent exactly as it is in its record.
    """
    text = b'{"total": 12345678901234567890.50}'

    assert text in request_of([change(row={"total": 1.0}, text=text)]).body


def test_a_request_id_identifies_one_change_and_has_no_dot():
    """
    The same change has the same id; a different key, position or route changes it.
    """
    read = "0000000000000010.-"
    changes = [
        change(),
        change(8),
        change("7:8"),
        change(position=read),
        change(8, read),
        replace(change(), route="labels"),
        event(1),
        event(2),
    ]
    ids = [id_of(one) for one in changes]

    assert (len(changes), True) == (len(set(ids)), "." not in "".join(ids))
    assert id_of(change(row=None)) == id_of(change())


def test_events_of_an_aggregate_are_sent_in_order():
    """
    Changes are sent in parallel, and so are the events of different aggregates.
    """
    events = [event(3), event(1), event(2, "b")]
    found = [
        [list(request.changes.values()) for request in lane]
        for lane in lanes([change(), change(8), change(9)], events, 2)
    ]

    assert found == [
        [[change(), change(8)]],
        [[change(9)]],
        [[event(1), event(3)]],
        [[event(2, "b")]],
    ]


def test_an_event_request_has_its_payload_unchanged():
    """
    The payload remains text; headers are an object.
    """
    payload = only(event(1))

    assert ('{"n":1}', {"traceparent": "x"}, "e1") == (
        payload["payload"],
        payload["headers"],
        payload["event_id"],
    )


def test_a_sweep_request_has_route_and_floor():
    """
    A separate request names the floor below which the receiver deletes rows.
    """
    (found,) = orjson.loads(sweep_of("orders", AT).body)["changes"]

    assert ("sweep", "orders", AT) == (found["op"], found["route"], found["position"])

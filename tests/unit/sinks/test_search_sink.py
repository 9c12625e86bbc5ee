"""What the search sink does about an index that asks for patience."""

import pytest

from towpath.settings import Route
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.errors import TargetBusyError, TargetUnavailableError
from towpath.sinks.ports import Batch
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.search.sink import ATTEMPTS, SearchSink

ROUTE = Route(topic="towpath.shop.orders", name="orders")
WRITTEN, CONFLICT, FULL, BROKEN = 201, 409, 429, 503


class Indices:
    """An index that is there, with the right fields."""

    def exists_alias(self, **_):
        return True

    def get_mapping(self, **_):
        return {"orders-1": {"mappings": {}}}

    def put_mapping(self, **_):
        return {}


class Answers:
    """A client whose bulk calls answer as recorded, one list of statuses a call."""

    def __init__(self, *calls):
        self.indices = Indices()
        self.bodies = []
        self._calls = list(calls)

    def bulk(self, body, **_):
        self.bodies.append(body)
        return {"items": [{"index": {"status": s}} for s in self._calls.pop(0)]}


class Relations:
    """The shape of the one table."""

    def shape(self, _topic):
        columns = (Column("order_id", "bigint"),)
        return RelationShape("shop", "orders", columns, ("order_id",), "")

    def refresh(self):
        pass


class Clock:
    """A clock that tells how long it was asked to wait."""

    def __init__(self):
        self.waited_s = []

    def wait(self, delay_s):
        self.waited_s.append(delay_s)


def sink(client):
    """Make a sink on recorded answers."""
    made = SearchSink("http://unused:9200", (ROUTE,), Relations(), Clock())
    made._client = made._indexes._client = client
    return made


def batch(*keys):
    """Make a batch of orders."""
    return Batch(
        0,
        tuple(
            Change(
                "orders",
                (key,),
                ("order_id",),
                "0000000000000008.0000000000",
                {"order_id": key},
                ALL_PRESENT,
                False,
                Origin("towpath.shop.orders", 0, key),
            )
            for key in keys
        ),
    )


def test_only_what_was_rejected_is_sent_again():
    """Items of one call end differently; the full queue's alone come again, later."""
    client = Answers([WRITTEN, FULL, CONFLICT, BROKEN], [WRITTEN, FULL], [CONFLICT])
    made = sink(client)
    made.apply(batch(1, 2, 3, 4))
    checkpoint = made.flush()

    assert ([4, 2, 1], 2, (2, 2)) == (
        [body.count(b'"index"') for body in client.bodies],
        len(made._clock.waited_s),
        (checkpoint.applied, checkpoint.stale),
    )


def test_an_index_that_stays_full_asks_for_a_pause():
    """After its attempts the sink gives the batch back, and counts nothing of it."""
    made = sink(Answers(*[[WRITTEN, FULL]], *[[FULL]] * ATTEMPTS))
    with pytest.raises(TargetBusyError):
        made.apply(batch(1, 2))

    assert 0 == made.flush().applied


def test_an_index_that_went_away_is_looked_for_again():
    """A missing alias fails the batch; the next attempt makes the index anew."""
    made = sink(Answers([404], [WRITTEN]))
    with pytest.raises(TargetUnavailableError):
        made.apply(batch(1))
    known = dict(made._indexes._fields)
    made.apply(batch(1))

    assert ({}, 1) == (known, made.flush().applied)


def test_a_key_that_the_index_cannot_name_is_refused():
    """A key of more than 512 bytes is set aside before it is sent."""
    made = sink(Answers([WRITTEN]))
    made.apply(batch("x" * 513, 2))
    checkpoint = made.flush()

    assert (1, ["the key is longer than 512 bytes"]) == (
        checkpoint.applied,
        [refusal.reason for refusal in checkpoint.refused],
    )

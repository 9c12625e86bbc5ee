"""The search index, beyond the contract: what only OpenSearch can do wrong."""

import uuid

import pytest
from opensearchpy import OpenSearch

from towpath.schemas.clock import SystemClock
from towpath.settings import Route
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.errors import (
    ForeignIndexError,
    KeylessTableError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.search.sink import SearchSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SHAPE = RelationShape(
    "shop",
    "orders",
    (Column("id", "bigint"), Column("paid", "boolean"), Column("at", "date")),
    ("id",),
    "",
)


class Relations:
    """One shape for every table."""

    def __init__(self, shape=SHAPE):
        self._shape = shape

    def shape(self, _topic):
        """Return the one shape."""
        return self._shape

    def refresh(self):
        """Learn nothing."""


@pytest.fixture
def client(stack):
    """Lend a plain client."""
    lent = OpenSearch(hosts=[stack.opensearch_url])
    yield lent
    lent.close()


@pytest.fixture
def route():
    """Name a route that no other test writes."""
    return Route(topic="towpath.shop.orders", name=f"orders-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def sink(stack, route):
    """Lend a sink, opened."""
    made = SearchSink(stack.opensearch_url, (route,), Relations(), SystemClock())
    made.open()
    yield made
    made.close()


def change(route, row, *, key=7, log_lsn=8):
    """Make a change of an order."""
    position = f"{log_lsn:016x}.0000000000"
    origin = Origin(route.topic, 0, 0)
    return Change(
        route.name, (key,), ("id",), position, row, ALL_PRESENT, False, origin
    )


def test_a_search_does_not_find_what_is_deleted(sink, client, route):
    """The alias hides tombstones, which the index behind it keeps."""
    sink.apply(Batch(0, (change(route, {"id": 7}), change(route, None, key=8))))
    client.indices.refresh(index=route.name)

    assert (1, 2) == (
        client.count(index=route.name)["count"],
        client.count(index=f"{route.name}-1")["count"],
    )


def test_a_row_that_does_not_fit_is_refused_alone(sink, route):
    """A rogue column and an impossible value are named; their neighbours arrive."""
    rows = {
        1: {"id": 1, "rogue": "x"},
        2: {"id": 2, "paid": "perhaps"},
        3: {"id": 3, "paid": True, "at": "infinity"},
    }
    changes = tuple(change(route, row, key=key) for key, row in rows.items())
    sink.apply(Batch(0, changes))
    checkpoint = sink.flush()
    reasons = {r.change.key[0]: r.reason for r in checkpoint.refused}

    assert (1, {1, 2}, True, True) == (
        checkpoint.applied,
        reasons.keys(),
        "[rogue]" in reasons[1],
        "[paid]" in reasons[2] and "perhaps" not in reasons[2],
    )


def test_a_dropped_index_is_made_anew_with_its_fields(sink, client, route):
    """A write never makes an index by guessing: the next attempt makes it rightly."""
    client.indices.delete(index=f"{route.name}-1")
    with pytest.raises(TargetUnavailableError):
        sink.apply(Batch(0, (change(route, {"id": 7}),)))
    sink.apply(Batch(0, (change(route, {"id": 7}),)))
    mapping = client.indices.get_mapping(index=f"{route.name}-1")

    assert "strict" == mapping[f"{route.name}-1"]["mappings"]["dynamic"]


def test_an_index_of_other_fields_is_refused(stack, sink, route):
    """An index whose fields contradict the table's types stops the sink."""
    assert sink.flush().applied == 0
    columns = (Column("id", "text"),)
    other = Relations(RelationShape("shop", "orders", columns, ("id",), ""))

    with pytest.raises(ForeignIndexError, match="do not fit"):
        SearchSink(stack.opensearch_url, (route,), other, SystemClock()).open()


def test_a_table_without_a_key_is_refused(stack, route):
    """A row that nothing identifies cannot be replaced, so the route is refused."""
    keyless = Relations(RelationShape("shop", "orders", SHAPE.columns, (), ""))

    with pytest.raises(KeylessTableError, match=r"shop\.orders"):
        SearchSink(stack.opensearch_url, (route,), keyless, SystemClock()).open()


def test_an_index_that_does_not_answer_is_unavailable(unused_port, route):
    """A refused connection is told as such, to be tried again."""
    url = f"http://127.0.0.1:{unused_port}"

    with pytest.raises(TargetUnavailableError, match="does not answer"):
        SearchSink(url, (route,), Relations(), SystemClock()).open()

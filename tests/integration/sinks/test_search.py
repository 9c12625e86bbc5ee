"""The search index, beyond the contract: what only OpenSearch can do wrong."""

import uuid
from decimal import Decimal

import orjson
import pytest
from opensearchpy import OpenSearch

from towpath.schemas.clock import SystemClock
from towpath.settings import Route, RouteKind
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.errors import (
    ForeignIndexError,
    KeylessTableError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.relations import Column, RelationShape
from towpath.sinks.search.reader import SearchReader
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


@pytest.fixture
def aggregate():
    """Name a route of aggregates that no other test writes."""
    return Route(
        topic="outbox.event.order",
        name=f"orders-{uuid.uuid4().hex[:8]}",
        kind=RouteKind.AGGREGATE,
        state_types=("OrderPlaced", "OrderPaid"),
        fields={"total": "numeric", "lines[].product_id": "uuid"},
    )


@pytest.fixture
def documents(stack, aggregate):
    """Lend a sink of aggregates, opened."""
    made = SearchSink(stack.opensearch_url, (aggregate,), Relations(), SystemClock())
    made.open()
    yield made
    made.close()


def state(route, order_id, text, *, log_lsn=8):
    """Make a change of an aggregate out of its event's payload; ``None`` deletes it."""
    return Change(
        route.name,
        (str(order_id),),
        (),
        f"{log_lsn:016x}.0000000000",
        None if text is None else orjson.loads(text),
        ALL_PRESENT,
        False,
        Origin(route.topic, 0, 0),
        text,
    )


def lines_text(*lines):
    """Write an order's payload; lines are product and quantity."""
    told = [{"product_id": product, "quantity": n} for product, n in lines]
    return orjson.dumps({"order_id": 7, "lines": told}, option=orjson.OPT_INDENT_2)


def test_an_order_is_found_by_one_of_its_lines(documents, client, aggregate):
    """Two of a, one of b: nobody finds it asking for one of a."""
    text = lines_text(("a", 2), ("b", 1))
    documents.apply(Batch(0, (state(aggregate, 7, text),)))
    checkpoint = documents.flush()
    client.indices.refresh(index=aggregate.name)

    def found(product, quantity):
        wanted = {"lines.product_id": product, "lines.quantity": quantity}
        must = [{"term": {name: value}} for name, value in wanted.items()]
        query = {"nested": {"path": "lines", "query": {"bool": {"must": must}}}}
        return client.count(index=aggregate.name, body={"query": query})["count"]

    assert (1, ()) == (checkpoint.applied, checkpoint.refused)
    assert (1, 1, 0) == (found("a", 2), found("b", 1), found("a", 1))


def test_a_document_is_kept_digit_by_digit(documents, stack, aggregate):
    """Numbers that no double holds come back as they were sent, blanks and all."""
    text = b' {"order_id": 9223372036854775807,\n"total":1.00000000000000000001 }\r\n'
    documents.apply(Batch(0, (state(aggregate, 7, text),)))
    reader = SearchReader(stack.opensearch_url)
    (row,) = reader.rows(aggregate.name)
    reader.close()

    assert (
        "7",
        {"order_id": 2**63 - 1, "total": Decimal("1.00000000000000000001")},
    ) == (
        row.key,
        row.fields,
    )


def test_a_document_follows_the_guard_like_a_row(documents, client, aggregate):
    """Older states lose, deletes are remembered, and nothing of them is found."""
    new, old = lines_text(("a", 2)), lines_text(("a", 1))
    documents.apply(Batch(0, (state(aggregate, 7, new, log_lsn=16),)))
    documents.apply(Batch(1, (state(aggregate, 7, old, log_lsn=8),)))
    documents.apply(Batch(2, (state(aggregate, 8, None, log_lsn=16),)))
    documents.apply(Batch(3, (state(aggregate, 8, old, log_lsn=8),)))
    client.indices.refresh(index=aggregate.name)
    hits = client.search(index=aggregate.name)["hits"]["hits"]

    assert (2, [("7", 2)]) == (
        documents.flush().stale,
        [(hit["_id"], hit["_source"]["lines"][0]["quantity"]) for hit in hits],
    )


def test_a_document_with_a_rogue_field_is_refused_alone(documents, aggregate):
    """The index is strict inside the lines, too."""
    rogue = b'{"order_id": 8, "lines": [{"rogue": 1}]}'
    changes = (state(aggregate, 7, lines_text(("a", 1))), state(aggregate, 8, rogue))
    documents.apply(Batch(0, changes))
    checkpoint = documents.flush()
    (refusal,) = checkpoint.refused

    assert (1, ("8",), True) == (
        checkpoint.applied,
        refusal.change.key,
        "[rogue]" in refusal.reason,
    )

"""
Behavior of the search sink that is specific to OpenSearch, beyond the contract.
"""

import uuid
from contextlib import contextmanager
from decimal import Decimal

import orjson
import pytest
import structlog
from opensearchpy import OpenSearch

from support.copying import replace
from support.waiting import until
from towpath.schemas.clock import SystemClock
from towpath.settings import Route, RouteKind, SearchOptions
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import (
    ForeignIndexError,
    IndexBlockedError,
    KeylessTableError,
    ShapeUnknownError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.targets.search.indexes import IndexWatch
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.search.sink import SearchSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SHAPE = RelationShape(
    "shop",
    "orders",
    (Column("id", "bigint"), Column("paid", "boolean"), Column("at", "date")),
    ("id",),
    "",
)


class Relations:
    """Has one shape for every table."""

    def __init__(self, shape=SHAPE):
        self._shape = self._announced = shape

    def shape(self, _topic):
        """Return the one shape."""
        return self._shape

    def refresh(self):
        """Adopt the announced shape."""
        self._shape = self._announced

    def announce(self, shape):
        """Announce a different shape."""
        self._announced = shape


@pytest.fixture
def client(stack):
    """Provide a plain client."""
    made = OpenSearch(hosts=[stack.opensearch_url])
    yield made
    made.close()


@pytest.fixture
def route():
    """Return a route that no other test writes to."""
    return Route(topic="towpath.shop.orders", name=f"orders-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def sink(stack, route):
    """Provide an open sink."""
    made = SearchSink(stack.opensearch_url, (route,), Relations(), SystemClock())
    made.open()
    yield made
    made.close()


def change(route, row, *, key=7, log_lsn=8):
    """Make a change to an order."""
    position = f"{log_lsn:016x}.0000000000"
    origin = Origin(route.topic, 0, 0)
    return Change(
        route.name, (key,), ("id",), position, row, ALL_PRESENT, False, origin
    )


def test_a_search_does_not_find_deleted_rows(sink, client, route):
    """The alias hides tombstones, which its index keeps."""
    sink.apply(Batch(0, (change(route, {"id": 7}), change(route, None, key=8))))
    client.indices.refresh(index=route.name)

    assert (1, 2) == (
        client.count(index=route.name)["count"],
        client.count(index=f"{route.name}-1")["count"],
    )


def test_only_rows_that_do_not_fit_are_refused(sink, route):
    """An unknown column and an invalid value are reported; the other row arrives."""
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


@pytest.mark.parametrize("at", [{"x": 1}, [{"x": 1}, None], '(1,"a b")', None])
def test_a_composite_value_is_kept(stack, client, route, at):
    """
    An object, a list of objects, or a string that is not an object is stored unchanged.
    """
    columns = (Column("id", "bigint"), Column("at", "shop.place", is_object=True))
    relations = Relations(RelationShape("shop", "orders", columns, ("id",), ""))
    made = SearchSink(stack.opensearch_url, (route,), relations, SystemClock())
    made.open()
    made.apply(Batch(0, (change(route, {"id": 7, "at": at}),)))
    checkpoint = made.flush()
    made.close()
    kept = client.get(index=f"{route.name}-1", id="7")["_source"]

    assert (1, (), at) == (checkpoint.applied, checkpoint.refused, kept["at"])


class RequestRecorder:
    """Records the routes whose rows are requested."""

    def __init__(self):
        self.routes = []

    def request_all(self, route, _why):
        """Record the route."""
        self.routes.append(route)
        return True


@pytest.fixture
def watched(stack, route, tmp_path):
    """
    Provide a function that opens sinks with an index watch, and their recorder.
    """
    requests = RequestRecorder()

    @contextmanager
    def opened():
        watch = IndexWatch(tmp_path / "search.json", requests)
        url = stack.opensearch_url
        made = SearchSink(url, (route,), Relations(), SystemClock(), watch=watch)
        made.open()
        yield made
        made.close()

    return opened, requests


def test_a_dropped_index_is_recreated_and_its_rows_are_requested(
    client, route, watched
):
    """A write never creates an index implicitly, and an empty index is filled."""
    opened, requests = watched
    with opened() as sink:
        sink.apply(Batch(0, (change(route, {"id": 7}),)))
        client.indices.delete(index=f"{route.name}-1")
        sink.apply(Batch(1, (change(route, {"id": 8}, key=8),)))
    mapping = client.indices.get_mapping(index=f"{route.name}-1")

    assert ("strict", [route.name]) == (
        mapping[f"{route.name}-1"]["mappings"]["dynamic"],
        requests.routes,
    )


def test_an_index_lost_while_the_sink_was_down_is_detected(client, route, watched):
    """
    The index was dropped, or its alias now points at another index: rows are requested.
    """
    opened, requests = watched
    counts = []
    for _ in range(2):
        with opened() as sink:
            sink.apply(Batch(0, (change(route, {"id": 7}),)))
    counts.append(len(requests.routes))
    client.indices.delete(index=f"{route.name}-1")
    with opened() as sink:
        sink.apply(Batch(0, (change(route, {"id": 7}),)))
    counts.append(len(requests.routes))
    mapping = client.indices.get_mapping(index=f"{route.name}-1")
    copy, both = f"{route.name}-x", {"index": "*", "alias": route.name}
    client.indices.create(index=copy, body=mapping[f"{route.name}-1"])
    client.indices.update_aliases(
        body={"actions": [{"remove": both}, {"add": {**both, "index": copy}}]}
    )
    for _ in range(2):
        with opened() as sink:
            sink.apply(Batch(0, (change(route, {"id": 7}),)))
    counts.append(len(requests.routes))

    assert [0, 1, 2] == counts


def test_a_closed_index_is_not_a_lost_index(client, route, watched):
    """The batch is retried, because the index still holds its documents."""
    opened, requests = watched
    with opened() as sink:
        client.indices.close(index=f"{route.name}-1")
        with pytest.raises(IndexBlockedError):
            sink.apply(Batch(0, (change(route, {"id": 7}),)))
        client.indices.open(index=f"{route.name}-1")
        sink.apply(Batch(0, (change(route, {"id": 7}),)))

        assert (1, []) == (sink.flush().applied, requests.routes)


def test_a_backlog_is_searchable_once_live_changes_follow(stack, client, route):
    """The index is refreshed rarely while the backlog is being written."""
    options = SearchOptions(call_documents=2, calls_in_flight=1, refresh_ms=200)
    arguments = (stack.opensearch_url, (route,), Relations(), SystemClock())
    sink = SearchSink(*arguments, options=options)
    sink.open()
    many = tuple(change(route, {"id": key}, key=key) for key in range(5))
    seen = []
    for changes in (many, (change(route, {"id": 9}, key=9),)):
        sink.apply(Batch(0, changes))
        response = client.indices.get_settings(index=route.name)[f"{route.name}-1"]
        seen.append(response["settings"]["index"]["refresh_interval"])
    until(
        lambda: client.count(index=route.name)["count"] == 6, "all documents are found"
    )
    sink.close()

    assert ["10000ms", "200ms"] == seen


def test_a_column_with_a_changed_type_is_reported_and_rows_are_applied(
    stack, sink, route
):
    """Valid values and new columns are accepted; a retyped field needs a rebuild."""
    assert sink.flush().applied == 0
    columns = (Column("id", "bigint"), Column("at", "text"), Column("note", "text"))
    other = Relations(RelationShape("shop", "orders", columns, ("id",), ""))
    wider = SearchSink(stack.opensearch_url, (route,), other, SystemClock())
    with structlog.testing.capture_logs() as logs:
        wider.open()
    wider.apply(Batch(0, (change(route, {"id": 7, "at": "noon", "note": "x"}),)))
    checkpoint = wider.flush()
    wider.close()

    assert (1, ()) == (checkpoint.applied, checkpoint.refused)
    assert [(f"{route.name}-1", ("at",))] == [
        (line["index"], line["fields"]) for line in logs if "rebuild" in line["event"]
    ]


def test_a_column_that_has_been_dropped_is_left_out(stack, client, route):
    """
    A lagging sink reads rows with a column that was added and dropped: none is refused.

    A sink waits once for a column that is not announced yet. If it is never announced,
    the index refuses it.
    """
    relations = Relations(SHAPE)
    sink = SearchSink(stack.opensearch_url, (route,), relations, SystemClock())
    sink.open()
    relations.announce(replace(SHAPE, position="0000000000000020.0000000000"))
    rows = [{"id": 7, "gone": "x", "paid": True}, {"id": 8, "gone": "y"}]
    changes = [change(route, row, key=row["id"], log_lsn=16) for row in rows]
    partial = change(route, {"id": 8, "gone": "z"}, key=8, log_lsn=24)
    sink.apply(Batch(0, tuple(changes)))
    sink.apply(Batch(1, (replace(partial, unchanged=frozenset({"paid", "note"})),)))
    early = Batch(2, (change(route, {"id": 9, "new": 1}, key=9, log_lsn=40),))
    with pytest.raises(ShapeUnknownError):
        sink.apply(early)
    relations.announce(
        RelationShape(
            *("shop", "orders", (*SHAPE.columns, Column("new", "int"))),
            *(("id",), "0000000000000028.0000000000"),
        )
    )
    sink.apply(early)
    checkpoint = sink.flush()
    sink.close()
    client.indices.refresh(index=route.name)
    found = client.search(index=route.name)["hits"]["hits"]

    assert (4, ()) == (checkpoint.applied, checkpoint.refused)
    assert {"7": {"id", "paid"}, "8": {"id"}, "9": {"id", "new"}} == {
        hit["_id"]: hit["_source"].keys() - {"_position", "_deleted"} for hit in found
    }


def test_an_array_is_found_by_its_elements(stack, client, route):
    """Numbers are compared, and text is matched by word, in arrays of any depth."""
    columns = (Column("id", "bigint"), Column("n", "integer[]"), Column("t", "text[]"))
    relations = Relations(RelationShape("shop", "orders", columns, ("id",), ""))
    sink = SearchSink(stack.opensearch_url, (route,), relations, SystemClock())
    sink.open()
    row = {"id": 7, "n": [[9, None], [100, 3]], "t": ["a quiet canal", "x"]}
    sink.apply(Batch(0, (change(route, row),)))
    sink.close()
    client.indices.refresh(index=route.name)
    queries = [
        {"range": {"n": {"gt": 50}}},
        {"range": {"n": {"gt": 100}}},
        {"match": {"t": "canal"}},
    ]

    assert [1, 0, 1] == [
        client.count(index=route.name, body={"query": query})["count"]
        for query in queries
    ]


def test_an_index_that_no_sink_has_created_is_refused(stack, client, route):
    """A sink does not write to an alias of a foreign index."""
    client.indices.create(index=f"{route.name}-x", body={"aliases": {route.name: {}}})

    with pytest.raises(ForeignIndexError, match="no sink has created"):
        SearchSink(stack.opensearch_url, (route,), Relations(), SystemClock()).open()


def test_a_blocked_index_causes_no_dead_letters(sink, client, route):
    """As on a full disk, the batch waits, and arrives once the block is removed."""
    batch = Batch(0, (change(route, {"id": 7}),))
    block = {"index.blocks.read_only_allow_delete": True}
    client.indices.put_settings(index=route.name, body=block)
    with pytest.raises(IndexBlockedError):
        sink.apply(batch)
    client.indices.put_settings(
        index=route.name, body={"index.blocks.read_only_allow_delete": None}
    )
    sink.apply(batch)
    checkpoint = sink.flush()

    assert (1, ()) == (checkpoint.applied, checkpoint.refused)


def test_tombstones_below_the_safe_position_are_removed_in_limited_numbers(
    stack, client, route
):
    """Newer tombstones and live rows are kept; no batch removes more than the limit."""
    options = SearchOptions(purged_at_once=2)
    sink = SearchSink(
        *(stack.opensearch_url, (route,), Relations(), SystemClock()), options=options
    )
    sink.open()
    gone = [change(route, None, key=key, log_lsn=8) for key in (1, 2, 3)]
    late = change(route, None, key=4, log_lsn=24)
    sink.apply(Batch(0, (*gone, late, change(route, {"id": 5}, key=5))))
    left = []
    for safe in (f"{16:016x}.-", None, None):
        client.indices.refresh(index=route.name)
        sink.apply(Batch(1, safe=safe))
        client.indices.refresh(index=route.name)
        left.append(client.count(index=f"{route.name}-1")["count"])
    sink.close()

    assert [3, 2, 2] == left


def test_a_table_without_a_key_is_refused(stack, route):
    """A row without a key cannot be replaced, so the route is refused."""
    keyless = Relations(RelationShape("shop", "orders", SHAPE.columns, (), ""))

    with pytest.raises(KeylessTableError, match=r"shop\.orders"):
        SearchSink(stack.opensearch_url, (route,), keyless, SystemClock()).open()


def test_a_server_that_refuses_connections_is_unavailable(unused_port, route):
    """A refused connection is reported as temporary, so the batch is retried."""
    url = f"http://127.0.0.1:{unused_port}"

    with pytest.raises(TargetUnavailableError, match="does not answer"):
        SearchSink(url, (route,), Relations(), SystemClock()).open()


@pytest.fixture
def aggregate():
    """Return a route of aggregates that no other test writes to."""
    return Route(
        topic="outbox.event.order",
        name=f"orders-{uuid.uuid4().hex[:8]}",
        kind=RouteKind.AGGREGATE,
        state_types=("OrderPlaced", "OrderPaid"),
        fields={"total": "numeric", "lines[].product_id": "uuid"},
    )


@pytest.fixture
def documents(stack, aggregate):
    """Provide an open sink of aggregates."""
    made = SearchSink(stack.opensearch_url, (aggregate,), Relations(), SystemClock())
    made.open()
    yield made
    made.close()


def state(route, order_id, text, *, log_lsn=8):
    """Make a change to an aggregate from its event's payload; ``None`` deletes it."""
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
    """Return an order's payload; each line is a product and a quantity."""
    listed = [{"product_id": product, "quantity": n} for product, n in lines]
    return orjson.dumps({"order_id": 7, "lines": listed}, option=orjson.OPT_INDENT_2)


def test_an_order_is_found_by_any_of_its_lines(documents, client, aggregate):
    """An order of two "a" and one "b" is not found by a search for one "a"."""
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


def test_a_document_keeps_every_digit(documents, stack, aggregate):
    """Numbers that no double can represent are read back exactly."""
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


def test_a_document_is_guarded_like_a_row(documents, client, aggregate):
    """
    Older states are stale, deletes are remembered, and deleted documents are not found.
    """
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


def test_only_a_document_with_an_unknown_field_is_refused(documents, aggregate):
    """The index is strict even within the lines."""
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

"""A rebuilt index replaces the old one without any effect on searches."""

import uuid
from types import SimpleNamespace

import pytest
from opensearchpy import OpenSearch

from towpath.schemas.clock import SystemClock
from towpath.settings import Route, SearchOptions
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import NothingToRebuildError
from towpath.sinks.ports import Batch
from towpath.sinks.targets.search.read import SearchReader
from towpath.sinks.targets.search.rebuild import Rebuild
from towpath.sinks.targets.search.schema import RouteFields
from towpath.sinks.targets.search.sink import SearchSink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

AS_NUMBER = (Column("id", "bigint"), Column("code", "bigint"), Column("note", "text"))
AS_TEXT = (Column("id", "bigint"), Column("code", "text"), Column("note", "text"))


class Relations:
    """Has one table, whose columns a test may change."""

    def __init__(self):
        self.columns = AS_NUMBER

    def shape(self, _topic):
        return RelationShape("shop", "orders", self.columns, ("id",), "")

    def refresh(self):
        """Do nothing, because a changed shape is already known."""


@pytest.fixture
def shop(stack):
    """Provide a sink with one route, its rebuild, and a plain client."""
    url, relations = stack.opensearch_url, Relations()
    route = Route(topic="towpath.shop.orders", name=f"orders-{uuid.uuid4().hex[:8]}")
    made = SimpleNamespace(
        route=route,
        relations=relations,
        client=OpenSearch(hosts=[url]),
        sink=SearchSink(url, (route,), relations, SystemClock()),
        rebuild=Rebuild(url, SearchOptions(), RouteFields(relations, {})),
        reader=SearchReader(url),
    )
    made.sink.open()
    yield made
    for part in (made.client, made.sink, made.rebuild, made.reader):
        part.close()


def change(shop, key, log_lsn, row, *, unchanged=()):
    """Make a change to an order; ``None`` deletes it."""
    full = None if row is None else {"id": key, **row}
    position = f"{log_lsn * 8:016x}.0000000000"
    origin = Origin(shop.route.topic, 0, 0)
    left_out = frozenset(unchanged) or ALL_PRESENT
    return Change(
        *(shop.route.name, (key,), ("id",), position, full, left_out, False, origin)
    )


def apply(shop, *changes):
    """Apply changes as one batch, and return the result."""
    shop.sink.apply(Batch(0, changes))
    return shop.sink.flush()


def found(shop):
    """Return the codes that searches find, by id."""
    name = shop.route.name
    shop.client.indices.refresh(index=name)
    hits = shop.client.search(index=name, body={"size": 100})["hits"]["hits"]
    return {int(hit["_id"]): hit["_source"].get("code") for hit in hits}


def tombstones(shop):
    """Return the keys whose deletes are remembered."""
    return {row.key for row in shop.reader.rows(shop.route.name) if row.is_deleted}


def test_searches_find_all_rows_before_during_and_after_a_rebuild(shop):
    """The new index is invisible until it is complete; then it replaces the old one."""
    apply(shop, *(change(shop, key, 1, {"code": key}) for key in (1, 2, 3)))
    begun = shop.rebuild.begin(shop.route, "s1")
    seen = [found(shop)]
    apply(shop, change(shop, 3, 5, {"code": 33}), change(shop, 4, 5, {"code": 4}))
    seen.append(found(shop))
    # The rows that the snapshot reads, as of its low watermark.
    apply(shop, *(change(shop, key, 4, {"code": key}) for key in (1, 2, 3)))
    done = shop.rebuild.swap(shop.route)
    seen.append(found(shop))

    before, after = {1: 1, 2: 2, 3: 3}, {1: 1, 2: 2, 3: 33, 4: 4}

    assert [before, after, after] == seen
    assert (begun.new, 4) == (done.new, done.after)
    assert [done.new] == list(shop.client.indices.get_alias(name=shop.route.name))


def test_a_rebuild_accepts_a_changed_type(shop):
    """
    A row that the old index refuses counts as written if the new one accepts it.
    """
    apply(shop, change(shop, 1, 1, {"code": 1}))
    shop.relations.columns = AS_TEXT
    refused = apply(shop, change(shop, 2, 2, {"code": "b2"})).refused
    shop.rebuild.begin(shop.route, "s1")
    rows = {1: "1", 2: "b2"}
    checkpoint = apply(
        shop, *(change(shop, key, 4, {"code": code}) for key, code in rows.items())
    )
    shop.rebuild.swap(shop.route)

    assert (1, 2, (), rows) == (
        len(refused),
        checkpoint.applied,
        checkpoint.refused,
        found(shop),
    )


def test_deletes_are_copied_to_the_new_index(shop):
    """
    A row that was deleted before the rebuild remains deleted if it is replayed later.
    """
    apply(shop, change(shop, 1, 1, {"code": 1}), change(shop, 2, 1, {"code": 2}))
    apply(shop, change(shop, 2, 3, None))
    shop.rebuild.begin(shop.route, "s1")
    apply(shop, change(shop, 1, 4, {"code": 1}))
    shop.rebuild.swap(shop.route)
    stale = apply(shop, change(shop, 2, 1, {"code": 2})).stale

    assert (1, {1: 1}, {"2"}) == (stale, found(shop), tombstones(shop))


def test_a_partial_change_is_complete_in_the_new_index(shop):
    """Columns that the stream left out are taken from the old index."""
    apply(shop, change(shop, 1, 1, {"code": 1, "note": "long"}))
    shop.rebuild.begin(shop.route, "s1")
    apply(shop, change(shop, 1, 5, {"code": 11}, unchanged=["note"]))
    shop.rebuild.swap(shop.route)
    (row,) = shop.reader.rows(shop.route.name)

    assert {"id": 1, "code": 11, "note": "long"} == row.fields


def test_an_interrupted_rebuild_continues_with_its_snapshot(shop, stack):
    """A later attempt creates neither a second index nor a second snapshot."""
    apply(shop, change(shop, 1, 1, {"code": 1}))
    first = shop.rebuild.begin(shop.route, "s1")
    fields = RouteFields(shop.relations, {})
    other = Rebuild(stack.opensearch_url, SearchOptions(), fields)
    second = other.begin(shop.route, "s2")
    other.close()

    assert ((first.new, "s1", False), (first.new, "s1", True)) == (first, second)


def test_an_aborted_rebuild_leaves_the_old_index_unchanged(shop):
    """The old index keeps receiving changes, and the new one is deleted."""
    apply(shop, change(shop, 1, 1, {"code": 1}))
    begun = shop.rebuild.begin(shop.route, "s1")
    apply(shop, change(shop, 2, 2, {"code": 2}))
    shop.rebuild.abort(shop.route)
    apply(shop, change(shop, 3, 3, {"code": 3}))

    assert {1: 1, 2: 2, 3: 3} == found(shop)
    assert not shop.client.indices.exists(index=begun.new)


def test_a_new_sink_process_writes_both_indexes_from_its_first_batch(shop, stack):
    """A driver that starts during a rebuild detects it."""
    apply(shop, change(shop, 1, 1, {"code": 1}))
    shop.rebuild.begin(shop.route, "s1")
    url = stack.opensearch_url
    other = SearchSink(url, (shop.route,), shop.relations, SystemClock())
    other.open()
    other.apply(Batch(0, (change(shop, 2, 2, {"code": 2}),)))
    other.close()
    done = shop.rebuild.swap(shop.route)

    assert (2, 1, {2: 2}) == (done.before, done.after, found(shop))


def test_the_old_index_is_kept_while_it_is_searched(shop):
    """A search that began before the swap completes; then the old index is deleted."""
    apply(shop, *(change(shop, key, 1, {"code": key}) for key in (1, 2, 3)))
    shop.client.indices.refresh(index=shop.route.name)
    page = shop.client.search(
        index=shop.route.name, params={"scroll": "1m", "size": 1}, body={}
    )
    begun = shop.rebuild.begin(shop.route, "s1")
    apply(shop, *(change(shop, key, 4, {"code": key}) for key in (1, 2, 3)))
    done = shop.rebuild.swap(shop.route)
    found = [len(page["hits"]["hits"])]
    ending = {"scroll_id": page["_scroll_id"]}

    class EndingClock(SystemClock):
        """Ends the search at the first wait; until then the index must exist."""

        def wait(self, delay_s):
            if ending:
                found.append(shop.client.indices.exists(index=done.old))
                # Without a scroll time, this is the search's last page.
                more = shop.client.scroll(body=dict(ending))["hits"]["hits"]
                found.append(len(more))
                ending.clear()
            super().wait(delay_s)

    shop.rebuild.retire(shop.route, EndingClock())
    shop.rebuild.retire(shop.route, EndingClock())

    assert [1, True, 1] == found
    assert [begun.new] == list(shop.client.indices.get(index=f"{shop.route.name}-*"))


def test_a_route_without_an_index_cannot_be_rebuilt(shop):
    """A route that was never opened, and a swap without a rebuild, are reported."""
    never = Route(topic="towpath.shop.orders", name="never")
    with pytest.raises(NothingToRebuildError, match="no index of never"):
        shop.rebuild.begin(never, "s1")

    with pytest.raises(NothingToRebuildError, match="no rebuild"):
        shop.rebuild.swap(shop.route)

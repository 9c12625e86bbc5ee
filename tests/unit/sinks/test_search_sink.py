"""The search sink's reaction to responses that an index returns only under stress."""

import re
import threading

import pytest
import structlog
from opensearchpy.exceptions import AuthorizationException, RequestError, TransportError

from support.copying import replace
from towpath.settings import Route, SearchOptions
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import (
    BatchRefusedError,
    BrokerUnavailableError,
    IndexBlockedError,
    IndexGoneError,
    SearchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.targets.search.client import connect, translated
from towpath.sinks.targets.search.indexes import Indexes, IndexWatch
from towpath.sinks.targets.search.schema import (
    REPLACED_IDS_META,
    RouteFields,
    with_sink_fields,
)
from towpath.sinks.targets.search.sink import SearchSink
from towpath.sinks.targets.search.upkeep import BACKLOG_REFRESH_MS
from towpath.sinks.targets.search.write import ATTEMPTS

ROUTE = Route(topic="towpath.shop.orders", name="orders")
WRITTEN, CONFLICT, INVALID, GONE, FULL, BROKEN = 201, 409, 400, 404, 429, 503
MAPPING = {
    "dynamic": "strict",
    "properties": with_sink_fields({"order_id": {"type": "long"}}),
}
TOO_LARGE = TransportError(413, "too large")
BLOCK = {"type": "cluster_block_exception", "reason": "blocked"}
NO_PERMISSION = {"type": "security_exception", "reason": "no permissions"}


class FakeIndexes:
    """Indexes with aliases and the correct fields; a recreated index has a new id."""

    def __init__(self, aliases):
        self.aliases = aliases
        self.made = []
        self.changed_settings = []
        self.refreshed = []
        self.intervals = {}
        self.replaced_ids = {}

    def get(self, index, **_):
        wanted = index.split(",")
        return {
            name: self._described(name, alias)
            for alias, name in self.aliases.items()
            if alias in wanted
        }

    def _described(self, name, alias):
        own = {
            "uuid": f"{name}#{self.made.count(name)}",
            "refresh_interval": self.intervals.get(name, "500ms"),
        }
        mappings = {"_meta": {REPLACED_IDS_META: self.replaced_ids.get(name, [])}}
        return {
            "aliases": {alias: {}},
            "settings": {"index": own},
            "mappings": mappings,
        }

    def get_mapping(self, index):
        return {index: {"mappings": MAPPING}}

    def put_settings(self, index, body):
        self.changed_settings.append((index, body["index"]))
        interval = body["index"].get("refresh_interval")
        if interval is not None:
            self.intervals[index] = interval

    def refresh(self, index):
        self.refreshed.append(index)

    def create(self, index, body):
        self.made.append(index)
        self.aliases = {**self.aliases, **dict.fromkeys(body["aliases"], index)}


class Responses:
    """A client that returns recorded bulk responses, one list of statuses per call."""

    def __init__(self, *calls, aliases=None):
        self.indices = FakeIndexes(aliases or {"orders": "orders-1"})
        self.bodies = []
        self._calls = list(calls)
        self._lock = threading.Lock()

    def info(self):
        return {}

    def bulk(self, body, **_):
        with self._lock:
            self.bodies.append(body)
            call = self._calls.pop(0)
        if isinstance(call, Exception):
            raise call
        return {"items": [{"index": _item(outcome)} for outcome in call]}


def _item(outcome):
    status, error = outcome if isinstance(outcome, tuple) else (outcome, None)
    return {"status": status} if error is None else {"status": status, "error": error}


class Relations:
    """The shape of the only table."""

    def shape(self, _topic):
        columns = (Column("order_id", "bigint"),)
        return RelationShape("shop", "orders", columns, ("order_id",), "")

    def refresh(self):
        pass


class Clock:
    """A clock that records requested waits."""

    def __init__(self):
        self.waited_s = []

    def wait(self, delay_s):
        self.waited_s.append(delay_s)


class RecordedRequests:
    """Records the requested rows, the reason, and the indexes created by then."""

    def __init__(self, client, *failures):
        self.routes = []
        self.reasons = []
        self._client = client
        self._failures = list(failures)

    def request_all(self, route, why):
        if self._failures:
            raise self._failures.pop()
        self.routes.append((route, list(self._client.indices.made)))
        self.reasons.append(why)
        return True


def sink(client, *, watch=None, clock=None, **options):
    """Make a sink with recorded responses; by default it makes one call at a time."""
    chosen = SearchOptions(**{"calls_in_flight": 1, **options})
    return SearchSink(
        *("http://unused:9200", (ROUTE,), Relations(), clock or Clock()),
        options=chosen,
        watch=watch,
        client=client,
    )


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


def test_only_rejected_documents_are_sent_again():
    """
    The items of one call have different outcomes.

    Only those with a status of 429 or 5xx are sent again, later.
    """
    client = Responses([WRITTEN, FULL, CONFLICT, BROKEN], [WRITTEN, FULL], [CONFLICT])
    clock = Clock()
    made = sink(client, clock=clock)
    made.apply(batch(1, 2, 3, 4))
    checkpoint = made.flush()

    assert ([4, 2, 1], 2, (2, 2)) == (
        [body.count(b'"index"') for body in client.bodies],
        len(clock.waited_s),
        (checkpoint.applied, checkpoint.stale),
    )


def test_a_delete_is_applied_for_any_key():
    """
    The key may be too long for a document, or have columns that the index refuses.
    """
    client = Responses([INVALID, WRITTEN, INVALID], [WRITTEN])
    made = sink(client)
    row, gone, other = batch(1, 2, 3).changes
    long = replace(gone, key=("k" * 600,), row=None)
    changes = (row, replace(gone, row=None), replace(other, row=None), long)
    made.apply(Batch(0, changes))
    checkpoint = made.flush()

    assert (3, [(1,)]) == (
        checkpoint.applied,
        [refusal.change.key for refusal in checkpoint.refused],
    )
    assert b"order_id" not in client.bodies[1]


def test_an_index_that_remains_full_requests_a_pause():
    """
    After the last attempt, the batch fails, and none of its documents is counted.
    """
    made = sink(Responses(*[[WRITTEN, FULL]], *[[FULL]] * ATTEMPTS))
    with pytest.raises(TargetBusyError):
        made.apply(batch(1, 2))

    assert 0 == made.flush().applied


def test_an_index_lost_during_a_batch_is_looked_up_immediately():
    """
    A missing alias is not a failure if the next lookup finds one.
    """
    made = sink(Responses([WRITTEN, GONE], [CONFLICT, WRITTEN]))
    made.apply(batch(1, 2))
    checkpoint = made.flush()

    assert (1, 1) == (checkpoint.applied, checkpoint.stale)


def test_an_index_that_remains_lost_fails_the_batch():
    """
    The lookup finds the index, but no write does: the batch is retried later.
    """
    made = sink(Responses([GONE], [GONE]))

    with pytest.raises(IndexGoneError):
        made.apply(batch(1))


@pytest.fixture
def known_file(tmp_path):
    """Return the file of the known indexes."""
    return tmp_path / "search.json"


def test_rows_of_a_dropped_index_are_requested_before_it_is_recreated(known_file):
    """
    A crash in between must not leave an empty index that is never filled.
    """
    client = Responses([WRITTEN], [WRITTEN])
    requests = RecordedRequests(client)
    made = sink(client, watch=IndexWatch(known_file, requests))
    made.apply(batch(1))
    client.indices.aliases = {}
    made.apply(batch(2))

    assert ([("orders", [])], ["orders-1"]) == (requests.routes, client.indices.made)


def _write_twice(known_file, client, meanwhile, *failures):
    """Write with two sinks in turn; return the requests of the second."""
    first = sink(client, watch=IndexWatch(known_file, RecordedRequests(client)))
    first.open()
    first.apply(batch(1))
    meanwhile(client.indices)
    requests = RecordedRequests(client, *failures)
    second = sink(client, watch=IndexWatch(known_file, requests))
    for failure in failures:
        with pytest.raises(type(failure)):
            second.open()
    second.open()
    second.apply(batch(2))
    return requests


def _drop(indices):
    indices.aliases = {}


def _point_at_another(indices):
    indices.aliases = {"orders": "orders-x"}


def _point_at_a_rebuilt_one(indices):
    indices.aliases = {"orders": "orders-3"}
    indices.replaced_ids["orders-3"] = ["orders-1#0", "orders-2#0"]


def _recreate_by_hand(indices):
    indices.made.append("orders-1")


@pytest.mark.parametrize(
    ("meanwhile", "reasons"),
    [
        (_drop, ["its index was dropped"]),
        (_point_at_another, ["orders-x is not the index that was written"]),
        (_recreate_by_hand, ["orders-1 is not the index that was written"]),
        (_point_at_a_rebuilt_one, []),
        (lambda _: None, []),
    ],
)
def test_a_replaced_index_is_noticed_after_a_pause(known_file, meanwhile, reasons):
    """
    It may be replaced while the sink is down; a rebuild is not a loss.
    """
    requests = _write_twice(known_file, Responses([WRITTEN], [WRITTEN]), meanwhile)

    assert reasons == requests.reasons


def test_rows_that_cannot_be_requested_now_are_requested_later(known_file):
    """
    Until then, no index is created, because it would pass for a complete one.
    """
    client = Responses([WRITTEN], [WRITTEN])
    failure = BrokerUnavailableError("Kafka does not answer")
    requests = _write_twice(known_file, client, _drop, failure, failure)

    assert ([("orders", [])], ["orders-1"]) == (requests.routes, client.indices.made)


def test_a_failed_lookup_does_not_forget_a_moved_index(monkeypatch):
    """
    A rebuild of one route ends while the index of another route cannot be recreated.
    """
    client = Responses(aliases={"orders": "orders-1", "lines": "lines-1"})
    lines = Route(topic="towpath.shop.lines", name="lines")
    source = RouteFields(Relations(), {})
    indexes = Indexes(client, (ROUTE, lines), source, SearchOptions())
    indexes.discover()
    for route in ("orders", "lines"):
        indexes.ensure(route)
    client.indices.aliases = {"lines": "lines-2"}
    client.indices.replaced_ids["lines-2"] = ["lines-1#0"]
    with monkeypatch.context() as broken:
        broken.setattr(client.indices, "create", _unavailable)
        with pytest.raises(TargetUnavailableError):
            indexes.discover()
    indexes.discover()
    indexes.prepare([replace(batch(1).changes[0], route="lines")])

    assert "lines-2" in [index for index, _ in client.indices.changed_settings]


def _unavailable(**_):
    raise TransportError(BROKEN, "unavailable")


def test_an_index_without_a_stored_id_is_accepted_as_it_is(known_file):
    """
    A truncated file causes no request; the index is known from then on.
    """
    known_file.write_text('{"orders": "ord')
    client = Responses([WRITTEN], [WRITTEN])
    with structlog.testing.capture_logs() as logs:
        requests = _write_twice(known_file, client, lambda _: None)

    assert ([], 1) == (
        requests.routes,
        sum("cannot be read" in line["event"] for line in logs),
    )


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ((429, BLOCK), IndexBlockedError),
        ((403, BLOCK), IndexBlockedError),
        ((403, NO_PERMISSION), SearchRefusedError),
    ],
)
def test_a_read_only_index_makes_no_dead_letters(item, error):
    """
    Neither a full disk nor a missing permission makes a document a dead letter.
    """
    clock = Clock()
    made = sink(Responses([WRITTEN, item]), clock=clock)
    with pytest.raises(error):
        made.apply(batch(1, 2))

    assert ((), []) == (made.flush().refused, clock.waited_s)


@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (3, 3), (1, 1)])
def test_a_backlog_is_refreshed_rarely_and_live_changes_often(batches):
    """
    More documents than can be in flight together are a backlog.
    """
    each = {3: [[WRITTEN] * 2, [WRITTEN]], 1: [[WRITTEN]]}
    client = Responses(*(call for count in batches for call in each[count]))
    made = sink(client, call_documents=2, refresh_ms=250)
    seen = []
    for count in batches:
        made.apply(batch(*range(count)))
        seen.append(client.indices.intervals["orders-1"])

    assert seen == [
        f"{BACKLOG_REFRESH_MS}ms" if count == 3 else "250ms" for count in batches
    ]


def test_a_configured_slow_refresh_is_kept():
    """
    The sink does not change an interval that is slower than that of a backlog.
    """
    client = Responses([WRITTEN] * 2, [WRITTEN], [WRITTEN])
    client.indices.intervals["orders-1"] = "60000ms"
    made = sink(client, call_documents=2, refresh_ms=60_000)
    made.apply(batch(1, 2, 3))
    made.apply(batch(1))

    assert not [
        put for _, put in client.indices.changed_settings if "refresh_interval" in put
    ]


def test_the_old_index_of_a_rebuild_shows_nothing_newer_than_the_new_one():
    """
    It is refreshed only after a batch, and after the new index.
    """
    client = Responses([WRITTEN, WRITTEN], aliases=DOUBLE)
    sink(client).apply(batch(1))

    assert ("-1", ["orders-2", "orders-1"]) == (
        client.indices.intervals["orders-1"],
        client.indices.refreshed,
    )


def test_a_rejected_call_is_sent_again_alone():
    """
    Calls that have already succeeded are not repeated.
    """
    full = TransportError(429, "circuit_breaking_exception", {})
    client = Responses([WRITTEN], full, [WRITTEN])
    made = sink(client, call_documents=1)
    made.apply(batch(1, 2))

    assert ([b'"_id":"1"', b'"_id":"2"', b'"_id":"2"'], 2) == (
        [re.search(rb'"_id":"."', body)[0] for body in client.bodies],
        made.flush().applied,
    )


@pytest.mark.parametrize("response", [[], [WRITTEN], [WRITTEN] * 3])
def test_a_response_with_a_wrong_number_of_items_is_discarded(response):
    """
    The batch is written again, because its outcome is unknown.
    """
    made = sink(Responses(response))
    with pytest.raises(TargetUnavailableError, match="for 2 documents"):
        made.apply(batch(1, 2))

    assert 0 == made.flush().applied


@pytest.mark.parametrize("text", ['{"items":[{"in', "<html>", ""])
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_truncated_response_is_discarded(text, is_exact):
    """
    The batch is written again, with either parser of responses.
    """
    client = connect("http://unused:9200", is_exact=is_exact)
    with (
        pytest.raises(TargetUnavailableError, match="cannot be read"),
        translated(),
    ):
        client.transport.serializer.loads(text)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (RequestError(400, "parse_exception", {}), BatchRefusedError),
        (AuthorizationException(403, "cluster_block_exception", {}), IndexBlockedError),
        (AuthorizationException(403, "security_exception", {}), SearchRefusedError),
        (TransportError(429, "circuit_breaking_exception", {}), TargetBusyError),
    ],
)
def test_the_status_of_a_call_refused_as_a_whole_decides_the_error(failure, error):
    """
    A failure without items is a failure of the whole batch.
    """
    with pytest.raises(error):
        sink(Responses(*[failure] * ATTEMPTS)).apply(batch(1))


def test_a_call_that_is_too_large_is_sent_in_halves():
    """
    A single document that is too large is refused; all others are written.
    """
    client = Responses(TOO_LARGE, TOO_LARGE, TOO_LARGE, [WRITTEN], [WRITTEN, WRITTEN])
    clock = Clock()
    made = sink(client, clock=clock)
    made.apply(batch(1, 2, 3, 4))
    checkpoint = made.flush()
    reasons = [(r.change.key, "larger" in r.reason) for r in checkpoint.refused]

    assert ([4, 2, 1, 1, 2], 3, [((1,), True)]) == (
        [body.count(b'"index"') for body in client.bodies],
        checkpoint.applied,
        reasons,
    )


def test_a_failed_call_is_reported_after_the_others_have_ended():
    """
    No call is still in flight when the batch fails.
    """
    begun, failed, ended = (threading.Event() for _ in range(3))

    class Slow(Responses):
        def bulk(self, body, **_):
            if b'"_id":"1"' in body:
                begun.wait(1)
                failed.set()
                raise TransportError(503, "unavailable", {})
            begun.set()
            failed.wait(1)
            threading.Event().wait(0.05)
            ended.set()
            return {"items": [{"index": {"status": WRITTEN}}]}

    made = sink(Slow(), call_documents=1, calls_in_flight=2)
    with pytest.raises(TargetUnavailableError, match="503"):
        made.apply(batch(1, 2))

    assert (True, 0) == (ended.is_set(), made.flush().applied)


DOUBLE = {"orders": "orders-1", "orders-next": "orders-2"}


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([WRITTEN, WRITTEN], (1, 0, 0)),
        ([CONFLICT, WRITTEN], (1, 0, 0)),
        ([CONFLICT, CONFLICT], (0, 1, 0)),
        ([INVALID, WRITTEN], (1, 0, 0)),
        ([WRITTEN, INVALID], (0, 0, 1)),
        ([INVALID, INVALID], (0, 0, 1)),
    ],
)
def test_in_a_rebuild_the_new_index_decides(statuses, expected):
    """
    A document counts once; one that only the old index refuses counts as written.
    """
    made = sink(Responses(statuses, aliases=DOUBLE))
    made.apply(batch(1))
    checkpoint = made.flush()
    counts = (checkpoint.applied, checkpoint.stale, len(checkpoint.refused))

    assert expected == counts


def test_a_key_longer_than_512_bytes_is_refused():
    """
    It becomes a dead letter without being sent.
    """
    made = sink(Responses([WRITTEN]))
    made.apply(batch("x" * 513, 2))
    checkpoint = made.flush()

    assert (1, ["the key is longer than 512 bytes"]) == (
        checkpoint.applied,
        [refusal.reason for refusal in checkpoint.refused],
    )


def test_a_foreign_document_without_a_position_is_older_than_every_change():
    """
    Another program wrote it under the id of a row.
    """
    client = Responses([WRITTEN])
    foreign = {"_source": {"order_id": 1, "note": "n"}}
    client.mget = lambda **_: {"docs": [foreign]}
    made = sink(client)
    (row,) = batch(1).changes
    made.apply(Batch(0, (replace(row, unchanged=frozenset({"note"})),)))

    assert 1 == made.flush().applied
    assert b'"note":"n"' in client.bodies[0]

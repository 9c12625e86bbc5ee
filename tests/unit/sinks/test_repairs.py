"""Refetch requests of a sink that has missing rows."""

import json

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException

from towpath.schemas.table_name import TableName
from towpath.settings import (
    AggregateView,
    Kafka,
    Outbox,
    Registry,
    Relay,
    Route,
    RouteKind,
    Rows,
    Settings,
    Sink,
    SinkKind,
    Snapshot,
    Source,
)
from towpath.sinks.changes.relations import RelationShape
from towpath.sinks.errors import BrokerUnavailableError, ShapeUnknownError
from towpath.sinks.kafka import repairs
from towpath.sinks.kafka.repairs import KafkaRepairs, view_behind
from towpath.sinks.state import incomplete

ROUTES = (
    Route(topic="p.shop.orders", name="orders"),
    Route(topic="p.shop.lines", name="lines", key="line:{order_id}:{no}"),
    Route(topic="p.shop.none", name="none"),
    Route(topic="p.shop.coded", name="coded"),
    Route(topic="outbox.event.order", name="docs", kind="aggregate", state_types=["a"]),
    Route(topic="outbox.event.*", name="log", kind=RouteKind.EVENT_LOG),
)
SINK = Sink.model_construct(name="it", kind=SinkKind.SEARCH, route=ROUTES)


STATE = AggregateView(aggregate_type="order", view="shop.documents")
FURTHER = AggregateView(aggregate_type="order", view="shop.totals", name="totals")


def settings(*views, **snapshot):
    """Describe the platform around the sink; its outbox has the given views, or one."""
    outbox = Outbox(
        view=views or (STATE,),
        topic="outbox.{aggregate_type}",
        route_regex="(.*)",
        route_replacement="event.$1",
    )
    rows = Rows(key_columns={"shop.coded": ("code",)})
    return Settings(
        version=1,
        source=(
            Source(
                dsn="postgresql://x/y",
                prefix="p",
                tables=("shop.orders", "shop.coded", "shop.l.*"),
            ),
        ),
        kafka=Kafka(bootstrap_servers="x"),
        registry=Registry(url="x"),
        relay=Relay(outbox=outbox, rows=rows, snapshot=Snapshot(**snapshot)),
    )


class FakeBroker:
    """A broker that acknowledges records, or is silent."""

    def __init__(self):
        self.topic_names = ["p-signal", "mine"]
        self.records = []
        self.is_silent = False
        self.announced = {}

    def names(self):
        return self.topic_names

    def produce(self, topic, key, value, **_):
        self.records.append((topic, key, json.loads(value)))

    def poll(self, _timeout_s):
        """Deliver nothing before the flush."""

    def flush(self, _timeout_s):
        return len(self.records) if self.is_silent else 0

    def shape(self, topic):
        if topic not in self.announced:
            raise ShapeUnknownError(topic)
        name = self.announced[topic]
        return RelationShape(name.schema, name.table, (), ("id",), "0")

    def close(self):
        """Do nothing."""


@pytest.fixture
def broker(monkeypatch, tmp_path):
    """Return a broker in place of Kafka, and a folder for stored requests."""
    fake = FakeBroker()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(repairs.client, "Producer", lambda _: fake)
    monkeypatch.setattr(repairs, "Topics", lambda _: fake)
    monkeypatch.setattr(repairs, "KafkaRelations", lambda *_: fake)
    return fake


def requested(broker):
    """Return the data of every signal."""
    return [document["data"] for _, _, document in broker.records]


def test_rows_are_requested_by_key_for_this_sink_only(broker):
    """
    One signal is sent, under the relay's key; a row's key is listed only once.
    """
    answer = KafkaRepairs(settings(), SINK).request_keys("orders", [(1,), ("a",), (1,)])
    ((topic, key, document),) = broker.records

    assert (True, "p-signal", "p", "execute-snapshot") == (
        *(answer, topic, key),
        document["type"],
    )
    assert {
        "data-collections": ["shop.orders"],
        "keys": [[1], ["a"]],
        "target": "it",
    } == document["data"]


def test_keys_of_an_id_template_are_split_again(broker):
    """
    The request contains the source's own values, not parts of an id.
    """
    KafkaRepairs(settings(), SINK).request_keys("lines", [("line", "7", "2")])

    assert [["7", "2"]] == requested(broker)[0]["keys"]


def test_rows_without_their_primary_key_are_not_requested_by_key(broker):
    """
    The relay would find different rows; the whole route can be requested.
    """
    made = KafkaRepairs(settings(), SINK)
    with structlog.testing.capture_logs() as logs:
        answer = made.request_keys("coded", [(1,)]), made.request_all("coded", "why")

    assert ((False, True), [["shop.coded"]]) == (
        answer,
        [data["data-collections"] for data in requested(broker)],
    )
    assert [
        "refetch not possible by key",
        "refetch of a whole route requested",
    ] == [log["event"] for log in logs]


def test_an_aggregate_is_requested_through_its_view(broker):
    """
    The collection is that of the aggregate's type.
    """
    KafkaRepairs(settings(), SINK).request_keys("docs", [("7",)])

    assert ["outbox.order"] == requested(broker)[0]["data-collections"]


def test_an_aggregate_is_requested_through_the_view_of_its_state():
    """
    An additional view has a suffix, and produces different events.
    """
    described = [settings(FURTHER, STATE), settings(STATE, FURTHER), settings(FURTHER)]

    assert [STATE, STATE, None] == [
        view_behind(one, "outbox.event.order") for one in described
    ]


def test_an_aggregate_without_a_state_view_is_not_requested(broker):
    """
    An additional view would not show which aggregates were deleted.
    """
    requester = KafkaRepairs(settings(FURTHER), SINK)

    assert (False, False, []) == (
        requester.request_keys("docs", [("7",)]),
        requester.request_all("docs", "why"),
        broker.records,
    )


def test_many_keys_need_several_signals(broker):
    """
    No signal is larger than a record may be, and each has an id of its own.
    """
    KafkaRepairs(settings(), SINK).request_keys("orders", ((n,) for n in range(1000)))
    ids = {document["id"] for _, _, document in broker.records}

    assert ([300, 300, 300, 100], 4) == (
        [len(data["keys"]) for data in requested(broker)],
        len(ids),
    )


def test_a_whole_route_is_requested_with_a_sweep(broker):
    """
    Rows deleted in the source are deleted in the sink.
    """
    KafkaRepairs(settings(), SINK).request_all("orders", "the cache was emptied")

    assert [
        {"data-collections": ["shop.orders"], "sweep": True, "target": "it"}
    ] == requested(broker)


def test_altered_columns_are_requested_in_addition_to_missing_rows(broker):
    """
    The snapshot reads only some rows, so it ends no other stored request.
    """
    described = settings()
    requester = KafkaRepairs(described, SINK)
    requester.request_all("orders", "the cache was emptied")
    snapshot_id = requester.request_columns("orders", ["a"], "why")
    noted = incomplete.noted(described.state_folder, "it", ["orders"])

    assert (None, 2, True) == (
        requester.request_columns("log", ["a"], "why"),
        len(noted),
        ("orders", snapshot_id) in noted,
    )
    assert {
        "data-collections": ["shop.orders"],
        "columns": ["a"],
        "target": "it",
    } == requested(broker)[1]


def test_a_requested_route_is_incomplete_from_then_on(broker):
    """
    The route is stored with the snapshot's id before the signal is sent.

    A request by key is not stored.
    """
    broker.is_silent = True
    described = settings()
    requester = KafkaRepairs(described, SINK)
    with pytest.raises(BrokerUnavailableError):
        requester.request_keys("docs", [("7",)])
    with pytest.raises(BrokerUnavailableError):
        requester.request_all("orders", "the cache was emptied")
    noted = incomplete.routes(described.state_folder, "it")
    incomplete.end(described.state_folder, "it", "orders", broker.records[-1][2]["id"])

    assert (("orders",), ()) == (noted, incomplete.routes(described.state_folder, "it"))


def test_a_failed_request_for_columns_leaves_the_route_unchanged(broker):
    """
    The retry has a new id, so nothing would remove the entry of the first request.
    """
    broker.is_silent = True
    described = settings()
    with pytest.raises(BrokerUnavailableError):
        KafkaRepairs(described, SINK).request_columns("orders", ["a"], "why")

    assert () == incomplete.routes(described.state_folder, "it")


def test_a_table_is_requested_by_its_announced_name(broker):
    """
    The table's name cannot be derived from the topic's name: the relay announces it.
    """
    broker.announced["p.shop.lines"] = TableName("shop", "lin|es")
    KafkaRepairs(settings(), SINK).request_all("lines", "why")

    assert ['"shop"."lin|es"'] == requested(broker)[0]["data-collections"]


def test_a_table_that_is_announced_later_is_requested_by_its_announced_name(broker):
    """
    A request before the announcement must not fix the name for all later requests.
    """
    requester = KafkaRepairs(settings(), SINK)
    requester.request_all("lines", "why")
    broker.announced["p.shop.lines"] = TableName("shop", "lin|es")
    requester.request_all("lines", "why")

    assert [["shop.lines"], ['"shop"."lin|es"']] == [
        data["data-collections"] for data in requested(broker)
    ]


@pytest.mark.parametrize("route", ["none", "log"])
def test_an_uncaptured_table_is_not_requested(broker, route):
    """
    An event log cannot be requested either.
    """
    requester = KafkaRepairs(settings(), SINK)

    assert (False, False, []) == (
        requester.request_keys(route, [(1,)]),
        requester.request_all(route, "why"),
        broker.records,
    )


def test_without_a_signal_topic_nothing_can_be_requested(broker):
    """
    The answer is negative, and no signal is sent.
    """
    requester = KafkaRepairs(settings(signal_topic=""), SINK)

    assert (False, []) == (requester.request_keys("orders", [(1,)]), broker.records)


def test_a_configured_signal_topic_is_used(broker):
    """
    The relay reads the same topic.
    """
    KafkaRepairs(settings(signal_topic="mine"), SINK).request_keys("orders", [(1,)])

    assert broker.records[0][0] == "mine"


def test_an_unacknowledged_signal_is_not_a_request(broker):
    """
    The caller retries.
    """
    broker.is_silent = True

    with pytest.raises(BrokerUnavailableError, match="p-signal: no answer in time"):
        KafkaRepairs(settings(), SINK).request_keys("orders", [(1,)])


def test_a_missing_signal_topic_is_not_created_by_the_sink(broker):
    """
    A topic created by a producer would have the default number of partitions.
    """
    broker.topic_names = []

    with pytest.raises(BrokerUnavailableError, match="has not created p-signal"):
        KafkaRepairs(settings(), SINK).request_keys("orders", [(1,)])


@pytest.mark.usefixtures("broker")
def test_a_client_with_a_fatal_error_is_replaced(monkeypatch):
    """
    Such a client refuses every later record, so a retry needs a new one.
    """
    made = []

    class Unusable:
        """A client whose user may not write."""

        def produce(self, *_, **__):
            raise KafkaException(KafkaError(KafkaError._FATAL, "not authorized"))

    monkeypatch.setattr(
        repairs.client, "Producer", lambda _: made.append(1) or Unusable()
    )
    requester = KafkaRepairs(settings(), SINK)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="not authorized"):
            requester.request_keys("orders", [(1,)])

    assert 2 == len(made)

"""One trace from a request to the writes of sinks, exported to a real OTLP receiver."""

import json
import uuid
from contextlib import ExitStack

import pytest
import requests

from support import databases, orders_service
from support.otlp_receiver import otlp_receiver
from support.saga import PRICE, PRODUCT, Saga
from support.sink_place import SinkPlace
from support.waiting import stretched, until
from towpath.deploy.local.configuration import order_documents
from towpath.schemas.tracing import ENDPOINTS

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

NOT_EXPORTED = "traces not exported"
CLIENT_SPAN = "b7ad6b7169203331"
SINKS = """
[[sink]]
name = "plain"
kind = "search"
driver = "serving"
url = "{opensearch}"
trigger_ms = 100
{documents}
[[sink]]
name = "events"
kind = "postgres"
driver = "serving"
url = "{dsn}"
trigger_ms = 100
[[sink.route]]
topic = "{prefix}.event.order"
name = "seen.order_events"
kind = "event_log"
"""


class TracedShop:
    """The shop with relay, consumers, two sinks, and the orders service over HTTP."""

    def __init__(self, saga, service, receiver):
        self.saga = saga
        self.service = service
        self.receiver = receiver

    def place_order(self, traceparent):
        """Place an order that waits for its payment, as part of a client's trace."""
        line = {"product_id": str(PRODUCT), "quantity": 1, "unit_price": PRICE}
        response = requests.post(
            f"{self.service.url}/orders",
            json={"customer_id": self.saga.customer, "lines": [line]},
            headers={"traceparent": traceparent},
            timeout=30,
        )
        assert response.status_code == 201, response.text
        self.saga.reached(response.json()["order_id"], lambda o: o["saga"]["steps"])

    def lost_by_the_relay(self):
        """Return the relay's log records of spans that the receiver refused."""
        return self.saga.rig.logged(NOT_EXPORTED)

    def service_lost_spans(self):
        """Return whether the service logged that its spans were refused."""
        return NOT_EXPORTED in json.dumps(self.service.records())


@pytest.fixture(scope="module")
def shop(stack, tmp_path_factory):
    """Provide the shop, all of whose processes export to one receiver."""
    stack.up("postgres", "kafka", "opensearch")
    name = f"t_{uuid.uuid4().hex[:12]}"
    folder = tmp_path_factory.mktemp("traced")
    with (
        otlp_receiver() as receiver,
        pytest.MonkeyPatch.context() as patch,
        databases.fresh_database(stack, name) as dsn,
        ExitStack() as ends,
    ):
        # A service starts slowly while the relay, the consumers and Spark start, too.
        patch.setattr(orders_service, "START_TIMEOUT_S", stretched(120.0))
        patch.setenv(ENDPOINTS[1], receiver.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        place = SinkPlace(stack, dsn, name, folder)
        ends.callback(place.close)
        place.configure(place.outbox + 'traceparent = "continue"\n')
        documents = order_documents(name).replace("outbox.event.", f"{name}.event.")
        text = SINKS.format(
            opensearch=stack.opensearch_url, dsn=dsn, prefix=name, documents=documents
        )
        place.config.write_text(place.config.read_text() + text)
        place.init()
        saga = Saga(place, {})
        ends.callback(saga.close)
        saga.start()
        address = saga.dsn_of("orders")
        orders = orders_service.serving("towpath.services.orders", address, folder)
        service = ends.enter_context(orders)
        ends.enter_context(place.driver())
        yield TracedShop(saga, service, receiver)


def test_one_request_is_one_trace_through_to_every_sink(shop):
    """
    Each process's span is the child of the previous one, and does not begin earlier.

    Consumers and sinks continue the relay's span, and so does a consumer's own event.
    """
    trace_id = uuid.uuid4().hex
    shop.place_order(f"00-{trace_id}-{CLIENT_SPAN}-01")
    spans = shop.receiver.until(
        trace_id,
        lambda found: (
            len([s for s in found if s.name == "sink write"]) == 2
            and "consume StockReserved" in [s.name for s in found]
        ),
    )
    request = next(s for s in spans if s.name == "POST /orders")
    insert = child(spans, request, "outbox insert")
    publish = child(spans, insert, "relay publish")
    consume = child(spans, publish, "consume OrderPlaced")
    reply = child(spans, consume, "relay publish")
    writes = [s for s in spans if s.name == "sink write"]

    assert CLIENT_SPAN == request.parent_id
    assert ("towpath-orders", 201) == (
        request.service,
        request.attributes["http.response.status_code"],
    )
    assert "towpath-inventory" == consume.service
    assert child(spans, reply, "consume StockReserved").service == "towpath-orders"
    assert {publish.span_id} == {s.parent_id for s in writes}
    assert {"plain", "events"} == {s.attributes["towpath.sink"] for s in writes}
    chain = [request, insert, publish, consume, reply]
    assert chain == sorted(chain, key=lambda s: s.begin_ns)
    assert all(s.end_ns >= insert.begin_ns for s in writes)


def test_a_sinks_batch_is_linked_to_the_records_it_wrote(shop):
    """
    The batch is a separate trace, with links between it and the write of a record.
    """
    trace_id = uuid.uuid4().hex
    shop.place_order(f"00-{trace_id}-{CLIENT_SPAN}-01")
    spans = shop.receiver.until(
        trace_id,
        lambda found: len([s for s in found if s.name == "sink write"]) == 2,
    )
    write = next(s for s in spans if s.attributes.get("towpath.sink") == "events")
    batches = [
        s
        for s in shop.receiver.spans()
        if s.name == "sink batch" and {s.span_id} == write.links
    ]

    assert [True] == [write.parent_id in batch.links for batch in batches]
    assert "" == batches[0].parent_id


def test_an_unsampled_request_has_no_span_but_its_events_have_its_trace_id(shop):
    """
    A sampled order that is placed next shows when both have reached the sinks.
    """
    unsampled, sampled = uuid.uuid4().hex, uuid.uuid4().hex
    shop.place_order(f"00-{unsampled}-{CLIENT_SPAN}-00")
    shop.place_order(f"00-{sampled}-{CLIENT_SPAN}-01")
    shop.receiver.until(
        sampled,
        lambda found: len([s for s in found if s.name == "sink write"]) == 2,
    )
    records = shop.saga.rig.records("event.order")
    trace_ids = {
        dict(r.headers())["traceparent"].split(b"-")[1].decode()
        for r in records
        if "traceparent" in dict(r.headers())
    }

    assert [] == shop.receiver.spans(unsampled)
    assert {unsampled, sampled} <= trace_ids


def test_health_checks_have_no_span(shop):
    """
    Otherwise, most traces of a quiet service would be health checks.
    """
    assert requests.get(f"{shop.service.url}/health/live", timeout=10).ok
    trace_id = uuid.uuid4().hex
    shop.place_order(f"00-{trace_id}-{CLIENT_SPAN}-01")
    shop.receiver.until(trace_id, lambda found: len(found) > 2)

    assert [] == [s for s in shop.receiver.spans() if "/health" in s.name]


def test_a_receiver_that_refuses_spans_delays_no_order(shop):
    """
    Each process logs the loss once, and orders are handled; later spans arrive again.
    """
    earlier = len(shop.lost_by_the_relay())
    shop.receiver.status = 400
    lost = uuid.uuid4().hex
    shop.place_order(f"00-{lost}-{CLIENT_SPAN}-01")
    until(lambda: len(shop.lost_by_the_relay()) > earlier, "the relay logs the loss")
    until(shop.service_lost_spans, "the service logs the loss")
    shop.receiver.status = 200
    again = uuid.uuid4().hex
    shop.place_order(f"00-{again}-{CLIENT_SPAN}-01")
    shop.receiver.until(again, lambda found: "relay publish" in [s.name for s in found])

    assert ["the receiver does not answer, or refuses the spans"] == [
        record["reason"] for record in shop.lost_by_the_relay()[earlier:]
    ]


def child(spans, parent, name):
    """Return the only child of a span with the given name."""
    [found] = [s for s in spans if (s.name, s.parent_id) == (name, parent.span_id)]
    return found

"""Spans by the real SDK at a real receiver: parents, ids, links, and losses."""

import threading
import time

import pytest
from flask import Flask

from support.otlp_receiver import otlp_receiver
from support.waiting import until
from towpath.inbox.event import Event
from towpath.schemas.spans import CLOSE_S, OtlpTracer
from towpath.schemas.tracing import ENDPOINTS, Kind, PastSpan
from towpath.services.plumbing.server import health_blueprint
from towpath.services.plumbing.tracing import (
    TRACER,
    event_span,
    install_request_context,
    request_headers,
    transaction_span,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT_SPAN = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{CLIENT_SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{CLIENT_SPAN}-00"


@pytest.fixture
def receiver(monkeypatch):
    """Provide a receiver, which this process's variables name."""
    with otlp_receiver() as made:
        monkeypatch.setenv(ENDPOINTS[1], made.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield made


@pytest.fixture
def problems():
    """Provide the list of a tracer's spans."""
    return []


@pytest.fixture
def tracer(receiver, problems):
    """Provide a tracer that exports to the receiver."""
    assert receiver.status == 200
    made = OtlpTracer("part", problems.append)
    yield made
    made.close()


def past(number=0, **more):
    """Describe a span that has ended."""
    given = {"name": "past", "kind": Kind.PRODUCER, "parent": SAMPLED}
    times = {"begin_us": 1_000 + number, "end_us": 5_000}
    return PastSpan(**{**given, **times, **more})


def test_a_past_span_has_its_times_its_parent_its_links_and_its_id(tracer, receiver):
    """
    An end before the beginning, by another machine's clock, is at the beginning.
    """
    link = f"00-{'1' * 32}-{'2' * 16}-01"
    made = tracer.record(past(links=[link], span_id="00f067aa0ba902b7", end_us=1))
    until(lambda: bool(receiver.spans(TRACE)), "the span arrives")
    [span] = receiver.spans(TRACE)

    assert f"00-{TRACE}-00f067aa0ba902b7-01" == made
    assert ("part", CLIENT_SPAN, "00f067aa0ba902b7") == (
        *(span.service, span.parent_id, span.span_id),
    )
    assert (1_000_000, 1_000_000) == (span.begin_ns, span.end_ns)
    assert {"2" * 16} == span.links


def test_a_context_that_is_not_sampled_is_passed_on_and_not_exported(tracer, receiver):
    """
    Its trace goes on within the span, as one that is not sampled.
    """
    span = tracer.start("request", Kind.SERVER, UNSAMPLED)
    span.end()
    past_one = tracer.record(past(parent=UNSAMPLED))
    tracer.record(past(parent=f"00-{'3' * 32}-{CLIENT_SPAN}-01"))
    until(lambda: bool(receiver.spans("3" * 32)), "the other span arrives")

    assert ([], None) == (receiver.spans(TRACE), past_one)
    assert (TRACE, "00") == (*span.traceparent.split("-")[1::2],)


def test_a_request_its_transaction_and_its_event_are_one_line_of_spans(
    tracer, receiver
):
    """
    Each is the child of the one before; a failed attempt at the event says so.
    """
    app = Flask("part")
    install_request_context(app)
    app.extensions[TRACER] = tracer

    @app.post("/orders")
    def place():
        with transaction_span() as traceparent:
            return {"inner": traceparent, **request_headers()}

    answer = app.test_client().post("/orders", headers={"traceparent": SAMPLED}).json
    event = an_event({"traceparent": answer["inner"]})
    with pytest.raises(ValueError, match="x"), event_span(tracer, "stock", event):
        int("x")
    until(lambda: len(receiver.spans(TRACE)) == 3, "the spans arrive")
    request, insert, consume = receiver.spans(TRACE)

    assert ("POST /orders", "outbox insert", "consume OrderPlaced") == (
        *(request.name, insert.name, consume.name),
    )
    assert (CLIENT_SPAN, request.span_id, insert.span_id) == (
        *(request.parent_id, insert.parent_id, consume.parent_id),
    )
    assert ("", "ValueError") == (request.failure, consume.failure)
    assert request.span_id == answer["traceparent"].split("-")[2]


def test_health_checks_have_no_span(tracer, receiver):
    """
    They would be most of the traces of a quiet service.
    """
    app = Flask("part")
    install_request_context(app)
    app.register_blueprint(health_blueprint(lambda: None, threading.Event()))
    app.extensions[TRACER] = tracer
    client = app.test_client()
    live = client.get("/health/live", headers={"traceparent": SAMPLED}).status_code
    client.get("/orders", headers={"traceparent": SAMPLED})
    until(lambda: bool(receiver.spans(TRACE)), "the other request arrives")

    assert (200, ["GET"]) == (live, [span.name for span in receiver.spans(TRACE)])


def test_an_event_without_a_context_begins_no_trace(tracer, receiver):
    """
    Only requests begin traces: an old event would be a trace of its own.
    """
    with event_span(tracer, "stock", an_event({})) as traceparent:
        tracer.record(past())
    until(lambda: bool(receiver.spans(TRACE)), "another span arrives")

    assert (None, 1) == (traceparent, len(receiver.spans()))


def test_losses_are_counted_and_reported_once_until_spans_arrive_again(
    tracer, receiver, problems
):
    """
    No call waits for a receiver that refuses.
    """
    receiver.status = 400
    for number in range(2):
        tracer.record(past(number))
        until(lambda n=number: tracer.counts.lost == n + 1, "the span is lost")
    receiver.status = 200
    tracer.record(past(2))
    until(lambda: tracer.counts.exported == 1, "a span arrives")
    receiver.status = 400
    tracer.record(past(3))
    until(lambda: tracer.counts.lost == 3, "the last span is lost")

    assert 2 == len(problems)


def test_what_the_queue_has_no_room_for_is_lost_and_nobody_waits(
    receiver, problems, monkeypatch
):
    """
    The queue is bounded while nobody takes spans from it; closing is bounded, too.
    """
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    tracer = OtlpTracer("part", problems.append)
    for number in range(2_000):
        tracer.record(past(number))
    # The exporter may have taken one batch of 512 meanwhile, which is not lost yet.
    lost = tracer.counts.lost
    began_s = time.monotonic()
    tracer.close()

    assert 2_000 - 600 - 512 <= lost <= 1_400 + 512
    assert time.monotonic() - began_s < CLOSE_S + 2
    assert [] == receiver.spans()


def an_event(headers):
    """Make an event with headers."""
    place = ("orders", 0, 7)
    return Event("id", "OrderPlaced", "order", "1", b"{}", headers, *place)

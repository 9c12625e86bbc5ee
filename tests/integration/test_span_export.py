"""Spans exported by the real SDK to a real receiver: parents, ids, links, losses."""

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
    """Provide a receiver whose URL is in the environment."""
    with otlp_receiver() as receiver:
        monkeypatch.setenv(ENDPOINTS[1], receiver.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield receiver


@pytest.fixture
def problems():
    """Provide the list in which a tracer's problems are collected."""
    return []


@pytest.fixture
def tracer(receiver, problems):
    """Provide a tracer that exports to the receiver."""
    assert receiver.status == 200
    tracer = OtlpTracer("part", problems.append)
    yield tracer
    tracer.close()


def past(number=0, **more):
    """Return a span that has ended."""
    fields = {"name": "past", "kind": Kind.PRODUCER, "parent": SAMPLED}
    times = {"begin_us": 1_000 + number, "end_us": 5_000}
    return PastSpan(**{**fields, **times, **more})


def test_a_past_span_has_its_times_its_parent_its_links_and_its_id(tracer, receiver):
    """
    An end that precedes the beginning, due to clock skew, is moved to the beginning.
    """
    link = f"00-{'1' * 32}-{'2' * 16}-01"
    context = tracer.record(past(links=[link], span_id="00f067aa0ba902b7", end_us=1))
    until(lambda: bool(receiver.spans(TRACE)), "the span arrives")
    [span] = receiver.spans(TRACE)

    assert f"00-{TRACE}-00f067aa0ba902b7-01" == context
    assert ("part", CLIENT_SPAN, "00f067aa0ba902b7") == (
        *(span.service, span.parent_id, span.span_id),
    )
    assert (1_000_000, 1_000_000) == (span.begin_ns, span.end_ns)
    assert {"2" * 16} == span.links


def test_an_unsampled_context_is_passed_on_and_not_exported(tracer, receiver):
    """
    Inside the span, its trace continues without being sampled.
    """
    span = tracer.start("request", Kind.SERVER, UNSAMPLED)
    span.end()
    context = tracer.record(past(parent=UNSAMPLED))
    tracer.record(past(parent=f"00-{'3' * 32}-{CLIENT_SPAN}-01"))
    until(lambda: bool(receiver.spans("3" * 32)), "the sampled span arrives")

    assert ([], None) == (receiver.spans(TRACE), context)
    assert (TRACE, "00") == (*span.traceparent.split("-")[1::2],)


def test_a_request_its_transaction_and_its_event_are_a_chain_of_spans(tracer, receiver):
    """
    Each span is the child of the previous one; a failed attempt has its error.
    """
    app = Flask("part")
    install_request_context(app)
    app.extensions[TRACER] = tracer

    @app.post("/orders")
    def place():
        with transaction_span() as traceparent:
            return {"inner": traceparent, **request_headers()}

    response = app.test_client().post("/orders", headers={"traceparent": SAMPLED}).json
    event = an_event({"traceparent": response["inner"]})
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
    assert request.span_id == response["traceparent"].split("-")[2]


def test_health_checks_have_no_span(tracer, receiver):
    """
    Otherwise, most traces of a quiet service would be health checks.
    """
    app = Flask("part")
    install_request_context(app)
    app.register_blueprint(health_blueprint(lambda: None, threading.Event()))
    app.extensions[TRACER] = tracer
    client = app.test_client()
    live = client.get("/health/live", headers={"traceparent": SAMPLED}).status_code
    client.get("/orders", headers={"traceparent": SAMPLED})
    until(lambda: bool(receiver.spans(TRACE)), "the span of the other request arrives")

    assert (200, ["GET"]) == (live, [span.name for span in receiver.spans(TRACE)])


def test_an_event_without_a_context_starts_no_trace(tracer, receiver):
    """
    Only requests start traces; otherwise, each old event would be a separate trace.
    """
    with event_span(tracer, "stock", an_event({})) as traceparent:
        tracer.record(past())
    until(lambda: bool(receiver.spans(TRACE)), "the recorded span arrives")

    assert (None, 1) == (traceparent, len(receiver.spans()))


def test_losses_are_counted_and_reported_once_until_spans_arrive_again(
    tracer, receiver, problems
):
    """
    No call waits for a receiver that refuses spans.
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


def test_spans_beyond_the_queues_capacity_are_lost_without_waiting(
    receiver, problems, monkeypatch
):
    """
    The queue is bounded while no span is exported, and so is the time to close.
    """
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:1")
    tracer = OtlpTracer("part", problems.append)
    for number in range(2_000):
        tracer.record(past(number))
    # The exporter may hold one batch of 512, which is not lost yet.
    lost = tracer.counts.lost
    began_s = time.monotonic()
    tracer.close()

    assert 2_000 - 600 - 512 <= lost <= 1_400 + 512
    assert time.monotonic() - began_s < CLOSE_S + 2
    assert [] == receiver.spans()


def an_event(headers):
    """Return an event with headers."""
    at = ("orders", 0, 7)
    return Event("id", "OrderPlaced", "order", "1", b"{}", headers, *at)

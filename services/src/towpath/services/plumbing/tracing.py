"""
Request ids and spans: requests, the transactions of commands, and consumed events.

Every request has an id: the client's ``X-Request-Id`` if it is 1 to 128 visible ASCII
characters, a new one otherwise. The response returns it, and every log record of the
request has it as ``request_id``, together with the ``trace_id`` of its trace context.

The W3C trace context of a request is kept only if it is valid:
``version-traceid-parentid-flags`` in lower-case hex, without an all-zero id, and not of
version ``ff``. Fields that later versions append are cut off.

::

    POST /orders            a request; its parent is the client's span, if there is one
    └── outbox insert       the transaction that writes state and events together
        └── consume Event   another service's transaction, by the event's trace context

The events of a transaction carry the context of its span. Log records of a request or
an event have its ``trace_id``, if it has one, even if the trace is not sampled. Health
checks have no span, nor does an event without a trace context. If tracing is off, there
are no spans, and the client's context is passed on unchanged.
"""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Final

import structlog
from flask import Flask, Response, current_app, g, has_request_context, request

from towpath.inbox import Event
from towpath.schemas.headers import TRACEPARENT, trace_id_of, valid_traceparent
from towpath.schemas.tracing import (
    NO_TRACER,
    Kind,
    Span,
    Tracer,
)

# The key of the tracer in ``app.extensions``.
TRACER: Final = "towpath.tracer"
_HEALTH: Final = "health"

log = structlog.get_logger(__name__)


def warn_of_lost_spans(reason: str) -> None:
    """Log why spans are not exported; the service continues without them."""
    log.warning("traces not exported", reason=reason)


REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")


def request_id_of(header: str | None) -> str:
    """Return the header's request id if it is valid, and a new one otherwise."""
    if header is not None and _REQUEST_ID.match(header):
        return header
    return uuid.uuid4().hex


def close_tracer(tracer: Tracer) -> None:
    """Export the last spans, and log the span counts of this process."""
    tracer.close()
    if tracer.is_on:
        log.info("traces closed", **asdict(tracer.counts))


def install_request_context(app: Flask) -> None:
    """Give every request a span, and an id for its response and its log records."""
    app.before_request(_begin)
    app.after_request(_with_request_id)
    app.teardown_request(_end)


def _tracer() -> Tracer:
    tracer: Tracer = current_app.extensions.get(TRACER, NO_TRACER)
    return NO_TRACER if request.blueprint == _HEALTH else tracer


def _begin() -> None:
    g.request_id = request_id_of(request.headers.get(REQUEST_ID))
    route = "" if request.url_rule is None else request.url_rule.rule
    g.span = _tracer().start(
        f"{request.method} {route}".strip(),
        Kind.SERVER,
        valid_traceparent(request.headers.get(TRACEPARENT)),
        {"http.request.method": request.method, "http.route": route},
    )
    fields = {"request_id": g.request_id}
    if g.span.traceparent is not None:
        fields["trace_id"] = trace_id_of(g.span.traceparent)
    # The thread serves other requests later, so the fields are unbound at the end.
    g.log_context = structlog.contextvars.bind_contextvars(**fields)


def _with_request_id(response: Response) -> Response:
    response.headers[REQUEST_ID] = g.request_id
    g.span.note("http.response.status_code", response.status_code)
    if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        g.failure = response.status
    return response


def _end(error: BaseException | None) -> None:
    structlog.contextvars.reset_contextvars(**g.pop("log_context", {}))
    span: Span | None = g.pop("span", None)
    failure: str | None = g.pop("failure", None)
    if span is not None:
        span.end(failure if error is None else type(error).__name__)


def request_headers() -> dict[str, str]:
    """Return headers that pass the current request's id and context on to a service."""
    if not has_request_context():
        return {}
    traceparent: str | None = g.span.traceparent
    passed_on = {} if traceparent is None else {TRACEPARENT: traceparent}
    return {REQUEST_ID: g.request_id, **passed_on}


@contextmanager
def transaction_span() -> Iterator[str | None]:
    """Record the transaction of a command; yield the trace context of its events."""
    span = _tracer().start("outbox insert", Kind.INTERNAL, g.span.traceparent)
    with _ended(span):
        yield span.traceparent


@contextmanager
def event_span(tracer: Tracer, group: str, event: Event) -> Iterator[str | None]:
    """
    Record the handling of an event; yield the trace context for events it causes.

    Args:
        tracer: Records the span.
        group: The consumer's Kafka group.
        event: The event; there is no span if it has no valid trace context.
    """
    parent = valid_traceparent(event.headers.get(TRACEPARENT))
    if parent is None:
        yield None
        return
    attributes = {
        "messaging.system": "kafka",
        "messaging.destination.name": event.topic,
        "messaging.consumer.group.name": group,
        "messaging.message.id": event.id,
    }
    span = tracer.start(f"consume {event.type}", Kind.CONSUMER, parent, attributes)
    trace_id = trace_id_of(parent)
    with _ended(span), structlog.contextvars.bound_contextvars(trace_id=trace_id):
        yield span.traceparent


@contextmanager
def _ended(span: Span) -> Iterator[None]:
    """End the span when the block ends."""
    try:
        yield
    except BaseException as error:
        span.end(type(error).__name__)
        raise
    span.end()

"""A receiver of OpenTelemetry spans over real HTTP, which decodes and keeps them."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from support.waiting import CLOCK, stretched
from towpath.deploy.local.ports import LOOPBACK
from towpath.schemas.clock import Deadline

# A driver is slow to start on busy cores.
PATIENCE_S = stretched(150.0)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it was received; ids are in hex, an absent parent is empty."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    links: frozenset[str]
    failure: str


class OtlpReceiver:
    """
    The spans that arrived.

    Attributes:
        status: The status of the next responses.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self._spans: list[ReceivedSpan] = []

    def take(self, body: bytes) -> None:
        """Decode a request, and keep its spans."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _values(group.resource.attributes)
            for scope in group.scope_spans:
                self._spans += [
                    _received(str(resource["service.name"]), s) for s in scope.spans
                ]

    def spans(self, trace_id: str | None = None) -> list[ReceivedSpan]:
        """Return the spans of a trace, or all spans, ordered by their start."""
        found = [s for s in self._spans if trace_id in {None, s.trace_id}]
        return sorted(found, key=lambda span: span.begin_ns)

    def until(
        self, trace_id: str, holds: Callable[[list[ReceivedSpan]], bool]
    ) -> list[ReceivedSpan]:
        """Wait until a condition holds for the spans of a trace, and return them."""
        deadline = Deadline(CLOCK, PATIENCE_S)
        while not holds(self.spans(trace_id)):
            found = [(span.service, span.name) for span in self.spans(trace_id)]
            assert not deadline.passed(), found
            CLOCK.wait(0.05)
        return self.spans(trace_id)


def _received(service, span) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        links=frozenset(link.span_id.hex() for link in span.links),
        failure=span.status.message,
    )


def _values(attributes) -> dict[str, str | int]:
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Provide a receiver; it responds with its ``status``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if receiver.status < 300 and self.path == "/v1/traces":
                receiver.take(body)
            content = ExportTraceServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    receiver = OtlpReceiver(f"http://{LOOPBACK}:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()

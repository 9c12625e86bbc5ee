"""
Spans of OpenTelemetry's SDK, exported with OTLP over HTTP.

The SDK reads its variables itself: receiver, headers, sampler, limits. Its thread
exports spans in batches. Spans wait in a queue of bounded length; spans that do not
fit, or that the receiver does not accept, are lost and counted. Nothing waits for them.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from towpath.schemas.tracing import (
    NO_ATTRIBUTES,
    Attribute,
    Kind,
    PastSpan,
    SpanCounts,
)

# The longest wait for the receiver when the process stops.
CLOSE_S: Final = 2.0
_UNKNOWN_SERVICE: Final = "unknown_service"
_QUEUE_VARIABLE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUE_SPANS: Final = 2048
_NS_PER_US: Final = 1_000


class _Ids(RandomIdGenerator):
    """Generates random ids, unless the thread has set the id of its next span."""

    def __init__(self) -> None:
        self._given = threading.local()

    def set_next(self, span_id: str | None) -> None:
        """Set the id of the next span of this thread."""
        self._given.span_id = span_id

    def generate_span_id(self) -> int:
        span_id = getattr(self._given, "span_id", None)
        self._given.span_id = None
        return super().generate_span_id() if span_id is None else int(span_id, 16)


class _CountingExporter(SpanExporter):
    """Counts exported and lost spans, and reports the first failure of a series."""

    def __init__(self, counts: SpanCounts, on_problem: Callable[[str], None]) -> None:
        self._exporter = OTLPSpanExporter()
        self._counts = counts
        self._on_problem = on_problem
        self._has_failed = False
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.taken += len(spans)
        if result is SpanExportResult.SUCCESS:
            self._counts.exported += len(spans)
            self._has_failed = False
            return result
        self._counts.lost += len(spans)
        if not self._has_failed:
            self._has_failed = True
            self._on_problem("the receiver does not answer, or refuses the spans")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's


class _BoundedProcessor(BatchSpanProcessor):
    """Counts the spans for which the queue has no room."""

    def __init__(self, exporter: _CountingExporter, counts: SpanCounts) -> None:
        super().__init__(exporter)
        self._taken_by = exporter
        self._counts = counts
        given = os.environ.get(_QUEUE_VARIABLE)  # noqa: TID251 - the SDK's own variable
        self._room = int(given or _QUEUE_SPANS)
        self._given = 0
        self._lock = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            has_room = self._given - self._taken_by.taken < self._room
            self._given += has_room
            self._counts.lost += not has_room
        if has_room:
            super().on_end(span)


class OtlpSpan:
    """A span that has begun."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _text_of(span.get_span_context())

    def note(self, name: str, value: Attribute) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def end(self, failure: str | None = None) -> None:
        """End the span; ``failure`` is the reason if its work has failed."""
        if failure is not None:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


class OtlpTracer:
    """Implements ``Tracer``."""

    is_on: Final = True

    def __init__(self, service: str, on_problem: Callable[[str], None]) -> None:
        """
        Start the thread that exports.

        Args:
            service: The name of the part, unless a variable sets a different one.
            on_problem: Called with the reason why spans are lost.
        """
        # ``on_problem`` reports each failure once; the library would log each one.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self.counts = SpanCounts()
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=_resource(service),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        exporter = _CountingExporter(self.counts, on_problem)
        self._provider.add_span_processor(_BoundedProcessor(exporter, self.counts))
        self._tracer = self._provider.get_tracer("towpath")

    def start(
        self,
        name: str,
        kind: Kind,
        parent: str | None,
        attributes: Mapping[str, Attribute] = NO_ATTRIBUTES,
    ) -> OtlpSpan:
        """Begin a span now; without a parent, it begins a trace."""
        context = set_span_in_context(_remote(parent)) if parent else None
        span = self._tracer.start_span(
            name, context, SpanKind[kind.name], dict(attributes)
        )
        return OtlpSpan(span)

    def record(self, span: PastSpan) -> str | None:
        """Record a span that has ended; return its trace context if it is sampled."""
        context = set_span_in_context(_remote(span.parent)) if span.parent else None
        self._ids.set_next(span.span_id)
        recorded = self._tracer.start_span(
            span.name,
            context,
            SpanKind[span.kind.name],
            dict(span.attributes),
            [Link(_remote(link).get_span_context()) for link in span.links],
            span.begin_us * _NS_PER_US,
        )
        # The clocks of two machines may differ.
        recorded.end(max(span.begin_us, span.end_us) * _NS_PER_US)
        own = recorded.get_span_context()
        return _text_of(own) if own.trace_flags.sampled else None

    def close(self) -> None:
        """Export the remaining spans, but stop after a short time."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _resource(service: str) -> Resource:
    """Return the resource that the variables describe, by default named ``service``."""
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith(_UNKNOWN_SERVICE):
        return found.merge(Resource({SERVICE_NAME: service}))
    return found


def _remote(traceparent: str) -> NonRecordingSpan:
    """Return the span of another part, from its valid trace context."""
    _, trace_id, span_id, flags = traceparent.split("-")
    context = SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
    )
    return NonRecordingSpan(context)


def _text_of(context: SpanContext) -> str:
    return (
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    )

"""A tracer that keeps the spans that it records, instead of sending them."""

from towpath.schemas.tracing import PastSpan, SpanCounts

BATCH = "00-" + "b" * 32 + "-" + "c" * 16 + "-01"


class RecordedSpans:
    """
    The spans of one test.

    Attributes:
        spans: The recorded spans.
        is_on: Whether tracing is on.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self.spans: list[PastSpan] = []
        self.counts = SpanCounts()
        self.is_on = is_on

    def record(self, span: PastSpan) -> str:
        """Keep a span; each has the same trace context."""
        self.spans.append(span)
        return BATCH

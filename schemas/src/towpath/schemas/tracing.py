"""
The port through which every part records spans.

Tracing is off unless OpenTelemetry's own variables name a receiver, and needs the extra
``tracing``. A part that is not traced passes contexts on unchanged.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)
PROTOCOL: Final = "http/protobuf"


class Kind(enum.Enum):
    """The kinds of spans, under OpenTelemetry's names."""

    SERVER = enum.auto()
    INTERNAL = enum.auto()
    PRODUCER = enum.auto()
    CONSUMER = enum.auto()


Attribute: TypeAlias = str | int
NO_ATTRIBUTES: Final[Mapping[str, Attribute]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSpan:
    """
    A span that has ended.

    Attributes:
        parent: The trace context of its parent; None if it begins a trace.
        begin_us: When it began, in microseconds since 1970.
        end_us: When it ended.
        links: The trace contexts of other spans to which it is linked.
        span_id: Its id, in hex; by default a random one.
    """

    name: str
    kind: Kind
    parent: str | None
    begin_us: int
    end_us: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    links: Sequence[str] = ()
    span_id: str | None = None


class Span(Protocol):
    """A span that has begun."""

    @property
    def traceparent(self) -> str | None:
        """The trace context of the work within the span."""

    def note(self, name: str, value: Attribute) -> None:
        """Set an attribute."""

    def end(self, failure: str | None = None) -> None:
        """End the span; ``failure`` is the reason if its work has failed."""


@dataclass(slots=True)
class SpanCounts:
    """
    The numbers of spans of this process.

    Attributes:
        exported: Spans that the receiver has accepted.
        lost: Spans that it did not accept in time, or for which there was no room.
        left_out: Spans that were not recorded because a part had too many at the same
            time.
    """

    exported: int = 0
    lost: int = 0
    left_out: int = 0


class Tracer(Protocol):
    """Records spans; no call waits for the receiver or raises."""

    @property
    def is_on(self) -> bool:
        """Whether spans are recorded at all."""

    @property
    def counts(self) -> SpanCounts:
        """The numbers of spans."""

    def start(
        self,
        name: str,
        kind: Kind,
        parent: str | None,
        attributes: Mapping[str, Attribute] = NO_ATTRIBUTES,
    ) -> Span:
        """Begin a span now; without a parent, it begins a trace."""

    def record(self, span: PastSpan) -> str | None:
        """Record a span that has ended; return its trace context if it is sampled."""

    def close(self) -> None:
        """Export the remaining spans, but stop after a short time."""


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """Implements ``Span`` without recording: its trace context is its parent's."""

    traceparent: str | None

    def note(self, _name: str, _value: Attribute) -> None:
        """Do nothing."""

    def end(self, _failure: str | None = None) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class NoTracer:
    """Implements ``Tracer`` while tracing is off."""

    is_on: bool = False
    counts: SpanCounts = field(default_factory=SpanCounts)

    def start(
        self,
        _name: str,
        _kind: Kind,
        parent: str | None,
        _attributes: Mapping[str, Attribute] = NO_ATTRIBUTES,
    ) -> Span:
        """Return a span that records nothing and passes the trace context on."""
        return _PassedOn(parent)

    def record(self, _span: PastSpan) -> str | None:
        """Record nothing."""
        return None

    def close(self) -> None:
        """Do nothing."""


NO_TRACER: Final = NoTracer()


def start_tracing(
    service: str, environ: Mapping[str, str], on_problem: Callable[[str], None]
) -> Tracer:
    """
    Return the tracer of this process: off, unless the variables name a receiver.

    Args:
        service: The name of the part, unless ``OTEL_SERVICE_NAME`` sets a different
            one.
        environ: The variables; OpenTelemetry reads all others from the process.
        on_problem: Called with the reason why spans are not exported; from any thread.
    """
    is_disabled = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_disabled or not any(environ.get(name) for name in ENDPOINTS):
        return NO_TRACER
    protocols = (environ.get(name) for name in _PROTOCOLS)
    protocol = next(filter(None, protocols), PROTOCOL)
    if protocol != PROTOCOL:
        on_problem(f"the protocol is {protocol} but must be {PROTOCOL}")
        return NO_TRACER
    try:
        # Not imported while tracing is off: the import takes a third of a second.
        from towpath.schemas.spans import OtlpTracer  # noqa: PLC0415
    except ImportError:
        on_problem("the extra tracing of this package is not installed")
        return NO_TRACER
    try:
        return OtlpTracer(service, on_problem)
    except (ValueError, RuntimeError) as error:
        on_problem(f"OpenTelemetry refuses one of its variables: {error}")
        return NO_TRACER

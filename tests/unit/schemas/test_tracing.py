"""The trace contexts that are kept and recorded, and the conditions for tracing."""

import sys

import pytest

from towpath.schemas.headers import (
    sampled_traceparent,
    trace_id_in,
    valid_traceparent,
)
from towpath.schemas.tracing import ENDPOINTS, Kind, start_tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (VALID, VALID),
        (f"  {VALID} ", VALID),
        (f"01-{TRACE}-{PARENT}-01-more", f"01-{TRACE}-{PARENT}-01"),
        (None, None),
        ("", None),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (VALID.upper(), None),
        (f"00-{TRACE}-{PARENT}", None),
        (f"{VALID}\n", VALID),
    ],
)
def test_a_valid_trace_context_is_kept_and_any_other_is_dropped(header, kept):
    """
    The rules are W3C's; anything that a later version appends is cut off.
    """
    assert kept == valid_traceparent(header)


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (VALID.encode(), VALID),
        (VALID[:-1].encode() + b"3", VALID[:-1] + "3"),
        (VALID[:-1].encode() + b"2", None),
        (VALID[:-2].encode() + b"10", None),
        (b"\xff" + VALID.encode(), None),
        (None, None),
    ],
)
def test_only_a_sampled_trace_context_has_spans(header, kept):
    """
    The lowest bit of the flags decides, whatever the other bits are.
    """
    assert kept == sampled_traceparent(header)


@pytest.mark.parametrize(
    ("header", "found"),
    [(VALID.encode(), TRACE), (VALID[:-1].encode() + b"0", TRACE), (b"x", None)],
)
def test_the_trace_id_of_a_record_is_found_even_if_it_is_not_sampled(header, found):
    """
    Log records have the id; an invalid context has none.
    """
    assert found == trace_id_in(header)


@pytest.mark.parametrize(
    ("environ", "problems"),
    [
        ({}, 0),
        ({"OTEL_SERVICE_NAME": "shop"}, 0),
        ({ENDPOINTS[0]: "http://x", "OTEL_SDK_DISABLED": "True"}, 0),
        ({ENDPOINTS[1]: "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, 1),
    ],
)
def test_tracing_is_off_unless_variables_name_a_receiver(environ, problems):
    """
    An unsupported protocol is reported; a context is passed on without a span.
    """
    found = []
    tracer = start_tracing("part", environ, found.append)
    span = tracer.start("request", Kind.SERVER, VALID)
    span.end()

    assert (False, VALID, problems) == (tracer.is_on, span.traceparent, len(found))


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter"])
def test_tracing_without_its_extra_is_off_and_reported(monkeypatch, missing):
    """
    The process starts, whether all or only part of OpenTelemetry is missing.
    """
    for name in [n for n in sys.modules if n.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "towpath.schemas.spans", raising=False)
    found = []
    tracer = start_tracing("part", {ENDPOINTS[0]: "http://x"}, found.append)

    assert not tracer.is_on
    assert ["the extra tracing of this package is not installed"] == found


def test_a_provider_of_credentials_that_is_not_installed_is_reported(monkeypatch):
    """
    The process starts without tracing, as for any other wrong variable.
    """
    name = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER"
    monkeypatch.setenv(name, "none")
    found = []
    tracer = start_tracing("part", {ENDPOINTS[0]: "http://127.0.0.1:1"}, found.append)

    assert (False, 1) == (tracer.is_on, len(found))


@pytest.mark.parametrize(("size", "is_on"), [("x", False), ("100", False), ("", True)])
def test_a_tracing_variable_that_is_refused_is_reported(monkeypatch, size, is_on):
    """
    A batch of 512 spans does not fit in a queue of 100; an empty variable is ignored.
    """
    environ = {ENDPOINTS[0]: "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": size}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = []
    tracer = start_tracing("part", environ, found.append)
    tracer.close()

    assert (is_on, not is_on) == (tracer.is_on, len(found) == 1)

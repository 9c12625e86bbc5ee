"""W3C trace context: which values are continued and which are passed on unchanged."""

import pytest

from towpath.relay.encode.outbox_columns import continue_trace, trace_from_properties

TRACE_ID = b"0af7651916cd43dd8448eb211c80319c"
PARENT = b"b7ad6b7169203331"
VALID = b"00-" + TRACE_ID + b"-" + PARENT + b"-01"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        VALID.upper(),
        VALID[:-1],
        VALID + b"0",
        VALID + b"-more",
        VALID + b"\n",
        b"ff" + VALID[2:],
        b"00-" + b"0" * 32 + b"-" + PARENT + b"-01",
        b"00-" + TRACE_ID + b"-" + b"0" * 16 + b"-01",
    ],
)
def test_an_invalid_trace_context_is_passed_on_unchanged(text: bytes):
    """
    The W3C's syntax decides: all-zero ids and the version ff are invalid, too.
    """
    assert text == continue_trace(text, b"P.1")


def test_the_span_of_a_record_depends_only_on_the_record():
    """
    The same position gives the same parent; a different position gives a different one.
    """
    first, again, other = (continue_trace(VALID, p) for p in (b"P.1", b"P.1", b"P.2"))

    assert (True, False, len(VALID)) == (first == again, first == other, len(first))


def test_a_later_version_of_the_trace_context_is_continued():
    """
    The known parts of a future version are kept.
    """
    made = continue_trace(b"01" + VALID[2:] + b"-more", b"P.1")

    assert (b"00-" + TRACE_ID + b"-", b"-01") == (made[:36], made[-3:])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"#c\ntraceparent=" + VALID + b"\ntracestate=a\n", VALID),
        (b"traceparent : " + VALID, VALID),
        # The line endings that a JVM on Windows writes.
        (b"#c\r\ntraceparent=" + VALID + b"\r\ntracestate=a\r\n", VALID),
        (b"uber-trace-id=1", None),
    ],
)
def test_java_properties_are_searched_for_the_trace_context(
    text: bytes, found: bytes | None
):
    """
    Debezium's tracing column contains Java properties.
    """
    assert found == trace_from_properties(text)

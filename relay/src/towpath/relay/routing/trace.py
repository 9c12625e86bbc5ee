"""
W3C trace context: the writer's ``traceparent`` is carried, or continued by a span.

::

    version-trace id-parent id-flags        00-<32 hex>-<16 hex>-<2 hex>

The span's id is made from the record's position, so that a replay makes the same. What
is no trace context by the W3C's syntax is carried as it is. ``tracestate`` is one of
the row's own headers, and always is.
"""

import hashlib
import re
from typing import Final

_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
    rb"(-.*)?\Z"
)
_OWN_VERSION: Final = b"00"
# Debezium's column: Java properties, one of which is ours.
TRACING_COLUMN: Final = "tracingspancontext"
_PROPERTY: Final = re.compile(rb"(?m)^[ \t]*traceparent[ \t]*[=:][ \t]*(\S+)[ \t]*$")


def continued(traceparent: bytes, position: bytes) -> bytes:
    """
    Return the context of the relay's own span: same trace, same flags.

    Args:
        traceparent: The writer's.
        position: Of the record that the span stands for.
    """
    found = _TRACEPARENT.match(traceparent)
    if found is None:
        return traceparent
    version, trace_id, flags, more = found.groups()
    if version == _OWN_VERSION and more is not None:
        return traceparent
    span = hashlib.sha256(trace_id + position).hexdigest()[:16]
    return b"00-%s-%s-%s" % (trace_id, span.encode(), flags)


def from_properties(text: bytes) -> bytes | None:
    """Return the trace context in a column of Debezium's tracing; None without."""
    found = _PROPERTY.search(text)
    return None if found is None else found[1]

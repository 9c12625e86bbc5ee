"""
Trace contexts: the text of W3C's header ``traceparent``.

A context passes from a request to the row of an outbox, to the header of a record, and
to the consumers of the record. Spans are recorded only for sampled contexts; the first
part of a trace decides whether its context is sampled.
"""

import re
from typing import Final

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
    r"-[0-9a-f]{2}(?P<rest>-.*)?\Z"
)
_SAMPLED: Final = 1


def valid_traceparent(header: str | None) -> str | None:
    """Return the header's trace context, or None if there is no valid one."""
    match = _TRACEPARENT.match(header.strip()) if header else None
    if match is None or match["version"] == "ff":
        return None
    if match["rest"] is not None and match["version"] == "00":
        return None
    if set(match["trace"]) == {"0"} or set(match["parent"]) == {"0"}:
        return None
    return match[0].removesuffix(match["rest"] or "")


def trace_id_of(traceparent: str) -> str:
    """Return the trace id of a valid trace context."""
    return traceparent.split("-")[1]


def is_sampled(traceparent: str) -> bool:
    """Return whether spans of a valid trace context are recorded."""
    return bool(int(traceparent.split("-")[3], 16) & _SAMPLED)


def trace_id_in(header: bytes | None) -> str | None:
    """Return the trace id in a record's header, if its context is valid."""
    found = valid_traceparent(header.decode("latin-1") if header else None)
    return None if found is None else trace_id_of(found)


def sampled_traceparent(header: bytes | None) -> str | None:
    """Return the trace context of a record's header, if it is valid and sampled."""
    found = valid_traceparent(header.decode("latin-1") if header else None)
    return found if found is not None and is_sampled(found) else None

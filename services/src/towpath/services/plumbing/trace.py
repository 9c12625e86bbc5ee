"""
The W3C trace context of a request, kept if it is valid and dropped if it is not.

``version-traceid-parentid-flags`` in lower-case hex; ids of zeros and version ``ff``
are invalid. A later version may append fields, which are cut off.
"""

import re
from typing import Final

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})"
    r"-[0-9a-f]{2}(?P<rest>-.*)?\Z"
)


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

"""Which trace contexts are kept."""

import pytest

from towpath.services.plumbing.http import valid_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (GOOD, GOOD),
        (f"  {GOOD} ", GOOD),
        (f"01-{TRACE}-{PARENT}-01-more", f"01-{TRACE}-{PARENT}-01"),
        (None, None),
        ("", None),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (GOOD.upper(), None),
        (f"00-{TRACE}-{PARENT}", None),
        (f"{GOOD}\n", GOOD),
    ],
)
def test_a_valid_trace_context_is_kept_and_any_other_dropped(header, kept):
    """
    By the rules of W3C; what a later version appends is cut off.
    """
    assert kept == valid_traceparent(header)

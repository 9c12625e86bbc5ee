"""
Values that Postgres has, and that no type of a warehouse has room for. Pure.

Infinite times, years before the first and above 9999, and what is no number in a
numeric of so many digits. They come as Postgres spells them.
"""

import re
from typing import Final

from towpath.sinks.change import Value

_NO_INSTANT: Final = re.compile(r"-?infinity|\d{5,}-.*|.* BC")


def is_no_instant(value: Value) -> bool:
    """Tell whether a date or a time is infinite, or out of the years 1 to 9999."""
    return isinstance(value, str) and _NO_INSTANT.fullmatch(value) is not None


def is_no_number(value: Value) -> bool:
    """Tell whether a numeric has no digits."""
    return value == "NaN"

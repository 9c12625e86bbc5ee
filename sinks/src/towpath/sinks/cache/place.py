"""
Where a row stands in Redis: ``<prefix>:<route>:<key>``.

Each part is written so that a colon in it does not look like a joint: no two rows share
a name, and no route's rows look like another's.
"""

import re
from collections.abc import Sequence
from typing import Final

from towpath.sinks.change import Value
from towpath.sinks.key_text import key_text

_GLOB: Final = re.compile(r"([*?\[\]\\])")

POSITION_FIELD: Final = "_position"
TOMBSTONE_FIELD: Final = "_x"


def floors_place(prefix: str) -> str:
    """Return the name of the hash that remembers floors; no row's looks like it."""
    return f"{key_text((prefix,))}:_floors"


def route_place(prefix: str, route: str) -> str:
    """Return what the names of all rows of a route begin with."""
    return f"{key_text((prefix,))}:{key_text((route,))}:"


def row_place(prefix: str, route: str, key: Sequence[Value]) -> str:
    """Return the name of a row's hash."""
    return route_place(prefix, route) + key_text(key)


def scan_pattern(prefix: str, route: str) -> str:
    """Return the glob that finds all rows of a route, and nothing else."""
    return _GLOB.sub(r"\\\1", route_place(prefix, route)) + "*"
